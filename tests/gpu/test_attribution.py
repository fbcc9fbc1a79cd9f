# SPDX-License-Identifier: Apache-2.0
"""GPU: every kernel is under the layer that launched it, in programs whose kernels are known."""

from __future__ import annotations

from typing import Any

import expectations
from attribution import placed_kernels


def test_forward(program: Any) -> None:
    run = program("forward").run
    expectations.forward(run)
    expectations.grids(run)


def test_backward(program: Any) -> None:
    expectations.backward(program("backward").run)


def test_replayed_graph(program: Any) -> None:
    expectations.graph(program("graph").run)


def test_graph_from_before_the_recording_is_one_unit(program: Any) -> None:
    expectations.graph_from_before(program("graph_from_before").run)


def test_recording_begun_in_the_middle_of_a_capture(program: Any) -> None:
    expectations.begun_in_a_capture(program("begun_in_a_capture").run)


def test_streams(program: Any) -> None:
    expectations.streams(program("streams").run)


def test_threads(program: Any) -> None:
    expectations.threads(program("threads").run)


def test_compiled_module(program: Any) -> None:
    run = program("compiled", timeout=300).run
    expectations.is_whole(run)
    places = placed_kernels(run)
    fused = {name: place for name, place in places.items() if name.startswith("triton_")}
    assert fused, sorted(places)
    assert {place.layer for each in fused.values() for place in each} == {"fused"}
    others = {place.layer for name, each in places.items() if name not in fused for place in each}
    assert others == {"plain"}
