# SPDX-License-Identifier: Apache-2.0
"""Cost of stack sampling for a program of many small Python functions, compared with Python profilers."""

from __future__ import annotations

import contextlib
import cProfile
from collections.abc import Iterator

from benchmarks._measure import Contestant, Row, Settings, entries, ratios, time_rounds
from benchmarks._recorders import gpuprof_on

_BASE = "bare"
_GPUPROF = "gpuprof, stacks only"
CALLS = 1000


def python_rows(settings: Settings) -> list[Row]:
    """Sample the stacks of a loop that calls functions and does next to nothing else."""
    count = settings.iterations(200, 5)
    recording = gpuprof_on(settings.folder, layers=False, operators=False, python=True)
    contestants = [
        Contestant(_BASE, _work, count, role="base"),
        Contestant("bare again: what is not resolved", _work, count, role="scale"),
        Contestant(_GPUPROF, _work, count, recording, "gpuprof"),
        Contestant("pyinstrument", _work, count, _pyinstrument),
        Contestant("cProfile", _work, count, cProfile.Profile),
    ]
    times = time_rounds(contestants, settings.rounds, settings.seed)
    figures = ratios(times, _BASE)
    return [
        Row(
            "python",
            "small functions, over bare",
            "x",
            figures[_GPUPROF],
            others=entries(contestants, figures),
            notes=(f"{2 * CALLS} calls of Python functions an iteration, one sample a millisecond",),
        )
    ]


def _work(count: int) -> None:
    for _ in range(count):
        for number in range(CALLS):
            _outer(number)


def _outer(number: int) -> int:
    return _inner(number) + 1


def _inner(number: int) -> int:
    return number * number


@contextlib.contextmanager
def _pyinstrument() -> Iterator[None]:
    import pyinstrument

    profiler = pyinstrument.Profiler()
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()
