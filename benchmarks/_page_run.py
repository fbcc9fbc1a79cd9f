# SPDX-License-Identifier: Apache-2.0
"""A run of as many slices as asked for, as a training loop leaves them, made without running one.

A step is the same calls each time, as deep as asked for, between whose begins and ends random times pass.
So names repeat as they do in a program, and times do not: they are what a page cannot compress. With several
shapes of a step, each has other calls, so that the run has more different paths.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code

SLICES_PER_STEP = 1_000
NAMES = 400
DEPTH = 8
MEDIAN_NS, SPREAD = 800, 1.0  # of the times between two events: a lognormal distribution
SEED = 20_260_731

Ints = npt.NDArray[np.int64]


def write_run(path: Path, slices: int, shapes: int = 1) -> None:
    """Write the run folder `path` with this many slices on one thread, in steps of this many shapes."""
    order = random.Random(SEED)
    size = min(SLICES_PER_STEP, slices)
    known = [_step(order, size) for _ in range(shapes)]
    steps = -(-slices // size)
    names, begins, ends = (
        np.concatenate([known[step % shapes][column] for step in range(steps)]).reshape(steps, -1)
        for column in range(3)
    )
    generator = np.random.default_rng(SEED)
    events = generator.lognormal(np.log(MEDIAN_NS), SPREAD, size=steps * 2 * size).astype(np.int64)
    instants = np.cumsum(events + 1).reshape(steps, -1)
    start = np.take_along_axis(instants, begins, axis=1).ravel()[:slices]
    stop = np.take_along_axis(instants, ends, axis=1).ravel()[:slices]
    with imported_run(path) as run:
        ids = np.array([run.name_id(f"module::operation_{name:03}") for name in range(NAMES)])
        run.add_spans(
            {
                "process_id": np.full(slices, 1),
                "thread_id": np.full(slices, 1),
                "name_id": ids[names].ravel()[:slices],
                "kind": np.full(slices, kind_code("operator")),
                "start_ns": start,
                "duration_ns": stop - start,
            }
        )
        run.finish(ImportFacts(source="benchmark", thread_names={(1, 1): "main"}))


def _step(order: random.Random, count: int) -> tuple[Ints, Ints, Ints]:
    """Return the name of each slice of a step, and which of the step's events begin and end it."""
    names: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    all_names = order.sample(range(NAMES), NAMES)
    open_slices: list[int] = []
    events = 0
    while len(names) < count or open_slices:
        may_open = len(names) < count and len(open_slices) < DEPTH
        # Rather down than up while shallow, so that most slices are deep, as operators are.
        if may_open and (not open_slices or order.random() < 0.62):
            open_slices.append(len(names))
            names.append(all_names[len(names)] if len(names) < NAMES else order.randrange(NAMES))
            begins.append(events)
            ends.append(0)
        else:
            ends[open_slices.pop()] = events
        events += 1
    return np.array(names), np.array(begins), np.array(ends)
