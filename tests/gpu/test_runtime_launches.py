# SPDX-License-Identifier: Apache-2.0
"""GPU: kernels that PyTorch and its libraries launch by themselves have their launch and their layer."""

from __future__ import annotations

from typing import Any

import expectations
import pytest
from start_program import start_program

import gpuprof


@pytest.fixture(scope="module")
def launches(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_program("runtime_launches", tmp_path_factory.mktemp("launches")).folder


@pytest.mark.parametrize("recording", [0, 1])
def test_operators(launches: Any, recording: int) -> None:
    expectations.operators(gpuprof.open(launches / f"run-{recording}"), passes=3)


def test_graph_of_operators(launches: Any) -> None:
    expectations.operators(gpuprof.open(launches / "graph"), passes=3, of_graphs=True)


def test_libraries(program: Any) -> None:
    ran = program("network")
    expectations.network(ran.run, ran.facts["layers"])
