# SPDX-License-Identifier: Apache-2.0
"""Process runs of one or more subjects, in a random and counterbalanced order.

A subject is what is measured: a model, a callable, two variants that divide requests, a pass over a data set.
One that fails does not affect the others, and an interrupt keeps what was measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuprof.bench.failures import Failure, FailureCode, failure_of
from gpuprof.bench.workers.events import Ended, Event, State
from gpuprof.bench.workers.job import Job
from gpuprof.bench.workers.process import refuse_in_worker, run_process
from gpuprof.errors import BenchmarkError, GpuprofError

TIME_LIMIT_S = 600.0
INTERRUPTED = Failure(FailureCode.INTERRUPTED, "interrupted")


class Subject(Protocol):
    """What process runs are made of. They are numbered from 1 within each subject."""

    @property
    def name(self) -> str:
        """What watchers and results call it."""
        ...

    def job(self, number: int) -> Job | None:
        """Return what a process run does; None where nothing is left to do."""
        ...

    def take(self, number: int, event: Event) -> None:
        """Take one event of a process run."""
        ...

    def end(self, number: int, failure: Failure | None) -> None:
        """Take the end of a process run, whatever it was; an interrupt is a failure of that code."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """One process run that has ended; `skipped` where nothing was left to do."""

    name: str
    number: int
    failure: Failure | None
    elapsed_s: float = 0.0
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a process run, with how many of all planned ones are done."""

    name: str
    number: int
    done: int
    planned: int
    event: Event


Watcher = Callable[[RunEvent], None]


def ignore(_event: RunEvent) -> None:
    """Watch nothing."""


def without_ends(watch: Watcher) -> Watcher:
    """Return a watcher of everything but ends: those of process runs that no plan counts."""

    def watch_steps(seen: RunEvent) -> None:
        if seen.event.state is not State.ENDED:
            watch(seen)

    return watch_steps


def run_order(names: Sequence[str], runs: int, seed: int) -> list[str]:
    """Return who runs when: a random order, then its reverse (ABBA), then a new one.

    A drift of the machine then affects all subjects alike, and none can gain by being first.
    """
    generator = random.Random(seed)  # noqa: S311 - an order, no secret
    order: list[str] = []
    for number in range(runs):
        order += (
            generator.sample(list(names), len(names)) if number % 2 == 0 else order[: -len(names) - 1 : -1]
        )
    return order


@dataclass(slots=True)
class Schedule:
    """So many process runs of each subject; `seed` draws their order, `first` is the number of the first.

    `time_limit_s` is for each step of a process run. `is_done` returns which ones are done already, `ended`
    is called after each one that was made.
    """

    runs: int = 1
    seed: int = 0
    time_limit_s: float = TIME_LIMIT_S
    first: int = 1
    is_done: Callable[[str, int], bool] = lambda _name, _number: False
    ended: Callable[[ProcessRun], None] = lambda _run: None
    watch: Watcher = ignore

    def __post_init__(self) -> None:
        if self.runs < 1 or not self.time_limit_s > 0:
            raise BenchmarkError(
                "invalid_process_runs",
                f"{self.runs} process runs of {self.time_limit_s} s",
                hint="use at least 1, and more than 0 s",
            )

    def run(self, subjects: Sequence[Subject]) -> list[ProcessRun]:
        """Make the process runs that are not done. An interrupt goes through, after the running one ended.

        Raises BenchmarkError in a worker process.
        """
        refuse_in_worker()
        by_name = {each.name: each for each in subjects}
        counts = dict.fromkeys(by_name, self.first - 1)
        order = run_order(list(by_name), self.runs, self.seed)
        runs: list[ProcessRun] = []
        pending = []
        for name in order:
            counts[name] += 1
            if not self.is_done(name, counts[name]):
                pending.append((by_name[name], counts[name]))
        done = len(order) - len(pending)
        for subject, number in pending:
            made = self._run_one(subject, number, done, len(order))
            self.ended(made)
            runs.append(made)
            done += 1
            ended = Ended(failure=made.failure, skipped=made.skipped)
            self.watch(RunEvent(subject.name, number, done, len(order), ended))
        return runs

    def _run_one(self, subject: Subject, number: int, done: int, planned: int) -> ProcessRun:
        job = subject.job(number)
        if job is None:
            return ProcessRun(subject.name, number, None, skipped=True)

        def take(event: Event) -> None:
            subject.take(number, event)
            self.watch(RunEvent(subject.name, number, done, planned, event))

        begin_s = time.monotonic()
        failure = None
        try:
            run_process(job, time_limit_s=self.time_limit_s, on_event=take)
        except GpuprofError as error:
            failure = failure_of(error)
        except BaseException:
            subject.end(number, INTERRUPTED)
            self.ended(ProcessRun(subject.name, number, INTERRUPTED, time.monotonic() - begin_s))
            raise
        subject.end(number, failure)
        return ProcessRun(subject.name, number, failure, time.monotonic() - begin_s)
