# SPDX-License-Identifier: Apache-2.0
"""Switching gpuprof and its peers on, for the time of a `with` block."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpuprof

_numbers = itertools.count()


def gpuprof_on(
    folder: str,
    *modules: Any,
    layers: bool,
    operators: bool,
    python: bool = False,
    work: bool = False,
) -> Callable[[], Any]:
    """Return a maker of blocks that record into a new run below `folder`, which is removed after."""

    @contextlib.contextmanager
    def recorded() -> Iterator[None]:
        path = Path(folder) / f"{os.getpid()}-{next(_numbers)}.gpuprof"
        with gpuprof.profile(
            *modules, out=path, layers=layers, operators=operators, python=python, work=work
        ) as recording:
            yield
        _check(recording.run.meta, {"layers": layers, "operators": operators, "python": python})
        shutil.rmtree(path)

    return recorded


def _check(meta: dict[str, Any], wanted: dict[str, bool]) -> None:
    """Refuse to report the cost of something that was not done."""
    sources = meta["sources"]
    missing = [name for name, on in wanted.items() if on and sources[name]["state"] == "off"]
    if missing:
        raise RuntimeError(f"gpuprof did not record {', '.join(missing)}: {sources}")
    if not meta["complete"]:
        raise RuntimeError(f"gpuprof lost events: {meta['totals']}, {meta['damage']}")


def torch_profiler_on(**options: Any) -> Callable[[], Any]:
    """Return a maker of blocks under `torch.profiler.profile`, CPU activities."""
    from torch.profiler import ProfilerActivity, profile

    @contextlib.contextmanager
    def profiled() -> Iterator[Any]:
        profiler = profile(activities=[ProfilerActivity.CPU], **options)
        with quiet():
            profiler.start()
        try:
            yield profiler
        finally:
            with quiet():
                profiler.stop()

    return profiled


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the lines that Kineto writes to standard error at each start and stop out of the report."""
    sys.stderr.flush()
    kept = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(sink)
        os.close(kept)
