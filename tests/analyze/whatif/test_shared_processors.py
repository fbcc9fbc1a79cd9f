# SPDX-License-Identifier: Apache-2.0
"""Loader workers on few processors: predictions against a scheduler that is simulated step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from simulated_program import PROCESS, Host

import gpuprof

FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
BATCHES = 24
QUANTUM_NS = 50_000
OPERATOR_NS = 500_000
AHEAD = 2  # batches for each worker


@dataclass
class Task:
    """A thread: the processor time that it still needs, and how long it ran. `spins`: it waits running."""

    needs_ns: int = 0
    spins: bool = False
    ran_ns: int = 0


@dataclass
class Processors:
    """A kernel that always gives the next quantum to the tasks that ran for the shortest time."""

    count: int
    tasks: list[Task]
    now_ns: int = 0
    _ready: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Let time pass: one quantum."""
        ready = {place for place, task in enumerate(self.tasks) if task.needs_ns > 0 or task.spins}
        for place in ready - self._ready:  # one that slept does not catch up
            others = [self.tasks[other].ran_ns for other in ready & self._ready]
            self.tasks[place].ran_ns = max(self.tasks[place].ran_ns, min(others, default=0))
        self._ready = ready
        for place in sorted(ready, key=lambda each: (self.tasks[each].ran_ns, each))[: self.count]:
            self.tasks[place].ran_ns += QUANTUM_NS
            self.tasks[place].needs_ns = max(self.tasks[place].needs_ns - QUANTUM_NS, 0)
        self.now_ns += QUANTUM_NS


def with_workers(processors: int, threads: int, workers: int, fetch_ns: int, compute_ns: int) -> int:
    """Return the time of an epoch whose operators are divided among threads, which spin between them."""
    main = [Task() for _ in range(threads)]
    fetching = [Task() for _ in range(workers)]
    machine = Processors(processors, [*main, *fetching])
    current: list[int | None] = [None] * workers
    following = list(range(workers))
    ready: set[int] = set()
    for batch in range(BATCHES):
        operators = compute_ns // OPERATOR_NS
        is_waiting = True
        while is_waiting or operators or any(task.needs_ns for task in main):
            for place, task in enumerate(fetching):
                if current[place] is not None and not task.needs_ns:
                    ready.add(current[place])
                    current[place] = None
                taken = batch if is_waiting else batch + 1
                if current[place] is None and following[place] < min(taken + AHEAD * workers, BATCHES):
                    current[place] = following[place]
                    following[place] += workers
                    task.needs_ns = fetch_ns
            is_waiting = is_waiting and batch not in ready
            if not is_waiting and operators and not any(task.needs_ns for task in main):
                operators -= 1
                for task in main:
                    task.needs_ns = OPERATOR_NS
            for task in main:
                task.spins = not is_waiting
            machine.run()
    return machine.now_ns


def recorded(
    path: Path, processors: int, threads: int, fetch_ns: int, compute_ns: int, in_queue: float = 0.0
) -> gpuprof.Run:
    """Record the epoch without workers. The threads of operators sleep while the main thread fetches.

    `in_queue` of the time in which they are ready, other programs have the processors.
    """
    host = Host(cores=processors)
    for _ in range(BATCHES):
        with host.span(FETCH):
            host.sample(fetch_ns)
        host.sample(compute_ns)
    for other in range(1, threads):
        queued_ns = round(in_queue * BATCHES * compute_ns)
        host.other_thread(PROCESS + other, BATCHES * compute_ns - queued_ns, queued_ns)
    return gpuprof.open(host.write(path))


# Operators use at most as many threads as there are processors.
@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("fetch_ns", "compute_ns"), [(2_000_000, 6_000_000), (5_000_000, 2_000_000)])
def test_the_gain_of_workers_is_within_the_prediction(
    processors: int, threads: int, workers: int, fetch_ns: int, compute_ns: int, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "r.gpuprof", processors, threads, fetch_ns, compute_ns)
    found = run.whatif(workers=workers)
    assert found.low_ns is not None
    assert found.high_ns is not None
    gain = found.recorded_ns - with_workers(processors, threads, workers, fetch_ns, compute_ns)
    # No processor is idle during the first fetch of several workers. That of a replay is alone.
    assert found.low_ns - 0.02 * found.recorded_ns <= gain <= found.high_ns + fetch_ns
    if threads == 1 and processors > workers:
        assert found.high_ns == found.low_ns


@pytest.mark.parametrize("threads", [1, 2])
def test_no_worker_gains_more_than_the_processors_can_do(threads: int, tmp_path: Path) -> None:
    fetch_ns, compute_ns = 5_000_000, 2_000_000
    found = recorded(tmp_path / "r.gpuprof", 2, threads, fetch_ns, compute_ns).whatif(workers=2)
    assert found.high_ns is not None
    most_ns = BATCHES * (fetch_ns + compute_ns - (fetch_ns + threads * compute_ns) / 2)
    assert found.high_ns == pytest.approx(most_ns, rel=0.05)
    assert found.high_ns <= most_ns


@pytest.mark.parametrize("in_queue", [0.0, 0.5, 0.9])
def test_operators_on_all_processors_leave_nothing_to_a_worker(in_queue: float, tmp_path: Path) -> None:
    found = recorded(tmp_path / "r.gpuprof", 2, 2, 2_000_000, 6_000_000, in_queue).whatif(workers=2)
    assert found.low_ns is not None
    assert found.low_ns <= 0.02 * found.recorded_ns


def test_a_worker_on_the_only_processor_gains_nothing(tmp_path: Path) -> None:
    found = recorded(tmp_path / "r.gpuprof", 1, 1, 2_000_000, 6_000_000).whatif(workers=2)
    assert found.high_ns == pytest.approx(0, abs=0.02 * found.recorded_ns)


def next_to_others(folder: Path, others: float, fetch_ns: int) -> gpuprof.Run:
    """Record a loader in the main process, which computes, on two processors that other programs use, too."""
    host = Host(cores=2)
    for _ in range(BATCHES):
        with host.span(FETCH):
            host.sample(fetch_ns)
        host.sample(4_000_000)
    host.other_thread(PROCESS, host.now_ns)
    host.machine_busy_ns = round((1 + others) * host.now_ns)
    return gpuprof.open(host.write(folder / "r.gpuprof"))


@pytest.mark.parametrize(("others", "gains"), [(0.0, True), (0.05, True), (1.1, False), (2.0, False)])
def test_processors_that_other_programs_use_are_not_left_to_a_worker(
    others: float, gains: bool, tmp_path: Path
) -> None:
    found = next_to_others(tmp_path, others, 3_000_000).whatif(workers=1)
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.high_ns > 0.3 * found.recorded_ns
    assert (found.low_ns > 0.3 * found.recorded_ns) == gains
    assert (found.low_ns <= 0.02 * found.recorded_ns) != gains


def test_a_second_worker_does_not_take_the_processor_of_another_program(tmp_path: Path) -> None:
    """The equal part of four threads on two processors would be a gain: a batch in two fetches, by two."""
    found = next_to_others(tmp_path, 1.0, 12_000_000).whatif(workers=2)
    assert found.low_ns is not None
    assert found.low_ns <= 0.02 * found.recorded_ns
