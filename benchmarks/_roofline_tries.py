# SPDX-License-Identifier: Apache-2.0
"""Repeat a case on a disturbed machine, to separate disturbance from a wrong label."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gpuprof

# isort: split
import torch
from torch import nn

from gpuprof.analyze.ceilings import of_run as ceilings_of_run
from gpuprof.analyze.ceilings.ceiling import MOST_DRIFT, Drift
from gpuprof.analyze.roofline.build import Roofline
from gpuprof.bench.measure.host import MachineUse, read_state, use_between
from gpuprof.errors import UnavailableError
from gpuprof.record.options import WhichCeilings

TRIES = 6
# Of one processor's time, or of all processors'.
MOST_OF_OTHERS = 0.1
MOST_STOLEN = 0.02
_WARM_UP = 2


def record(
    model: nn.Module, inputs: tuple[Any, ...], calls: int, *, backward: bool, device: str = "cpu"
) -> tuple[Roofline, list[str]]:
    """Record calls of a model; returns its roofline and what disturbed it.

    On a GPU the CPU ceilings are left out: measuring them takes a minute of GPU time, and their drift does
    not affect the GPU.
    """

    def call() -> None:
        result = model(*inputs)
        if backward:
            result.sum().backward()

    with torch.set_grad_enabled(backward), tempfile.TemporaryDirectory() as folder:
        for _ in range(_WARM_UP):
            call()
        path = Path(folder) / "case.gpuprof"
        which: WhichCeilings = "around" if device == "cpu" else "cached"
        without = contextlib.nullcontext() if device == "cpu" else _no_ceilings_of_processors()
        with without, gpuprof.profile(model, out=path, work=True, ceilings=which) as recording:
            before = read_state()
            for _ in range(calls):
                call()
            use = use_between(before, read_state())
        return recording.run.roofline(), [*_drifts(recording.run.meta), *_disturbances(use)]


def _no_ceilings_of_processors() -> contextlib.AbstractContextManager[object]:
    error = UnavailableError("the processors' ceilings are left out in a benchmark of a GPU")
    return mock.patch.object(ceilings_of_run, "load_ceilings", side_effect=error)


def _drifts(meta: dict[str, Any]) -> Iterator[str]:
    """Yield the ceilings that changed during the recording; narrower measurements count too."""
    drifts = [Drift(**each) for each in meta["ceilings"]["drift"]]
    for kind in ("compute", "memory.dram", "memory.l"):
        found = [each for each in drifts if each.resource.startswith(kind)]
        worst = max(found, key=lambda each: abs(each.change), default=None)
        if worst is not None and abs(worst.change) > MOST_DRIFT:
            yield f"{worst.resource} changed by {worst.change:+.0%} meanwhile"


def _disturbances(use: MachineUse) -> Iterator[str]:
    if use.others_cpus is not None and use.others_cpus > MOST_OF_OTHERS:
        yield f"other programs took {use.others_cpus:.1f} processors"
    if use.stolen_share is not None and use.stolen_share > MOST_STOLEN:
        yield f"{use.stolen_share:.0%} of the processors' time was steal time"


def until_undisturbed(
    attempt: Callable[[], tuple[bool, list[str]]], tries: int = TRIES
) -> tuple[bool | None, list[str]]:
    """Try until it passes, or fails on a calm machine; None and the last disturbance where neither came."""
    disturbed: list[str] = []
    for _ in range(tries):
        passed, disturbed = attempt()
        if passed or not disturbed:
            return passed, []
    return None, disturbed
