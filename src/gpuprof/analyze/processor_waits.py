# SPDX-License-Identifier: Apache-2.0
"""Whether threads of a run waited for a processor, which makes its times longer and less steady.

A thread that is ready to run waits for a processor if other threads have all of them: recorded ones of its
own program, or those of other processes. The kernel counts this time for each thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.program_settings import readable_settings_of, usable_processors_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuprof.run.folder import RunFolder
    from gpuprof.run.program_settings import ProgramSettings

# Of 50 recorded programs whose main thread computes, three waited for a processor in less than 2% of the time
# in steps, and the longest tenth of their steps took at most 1.3 times as long as the shortest tenth. The
# others waited in 11% or more, and that ratio was 1.1 to 35, in half of them above 3.3.
LEAST_FRACTION = 0.05
_BUSY = 0.1  # of the steps, or of the wall time, that a thread runs or is ready to run
_NO_ROOM = 0.9  # of the processors that the run uses itself
_NO_OTHERS = 0.1  # processors that other processes use
# The main thread's samples in its steps, without those that figures leave out. A stack is that at its end.
_IN_STEPS = """
    SELECT sum(queued_ns) AS queued_ns, sum(duration_ns) AS ready_ns FROM stacks ASOF JOIN (
        SELECT begin_ns, end_ns FROM steps WHERE process_id = {process} AND "index" >= {left_out}) AS own
        ON stacks.t_ns > own.begin_ns
    WHERE process_id = {process} AND thread_id = {process} AND queued_ns IS NOT NULL
        AND t_ns <= end_ns
"""
_USED = "SELECT sum(cpu_ns) AS cpu_ns FROM threads WHERE cpu_ns IS NOT NULL"
# All threads of a process, from begin to end.
_OF_THREADS = """
    SELECT sum(queued_ns) AS queued_ns, sum(queued_ns + cpu_ns) AS ready_ns FROM threads
    WHERE process_id = {process} AND queued_ns IS NOT NULL AND cpu_ns IS NOT NULL
"""
_ALL_STEPS = """
    SELECT min(begin_ns) AS begin_ns, max(end_ns) AS end_ns FROM steps
    WHERE process_id IN (SELECT unnest({processes}::BIGINT[]))
"""
_OF_RUN = """
    SELECT count(*) FILTER (cpu_ns + queued_ns >= {least} AND begin_ns < {end} AND end_ns > {begin}) AS busy,
        sum(cpu_ns) AS cpu_ns FROM threads
    WHERE queued_ns IS NOT NULL AND cpu_ns IS NOT NULL
"""


class Contention(str, Enum):
    """Why threads waited for a processor; `unknown` is one of the two, or both.

    Other programs are all processes that were not recorded, also those of the program itself.
    """

    OTHER_PROGRAMS = "other_programs"
    OWN_THREADS = "own_threads"
    UNKNOWN = "unknown"


class WaitsOf(str, Enum):
    """Whose time is meant: of the main thread in the steps, or that of all threads when they are ready."""

    STEPS = "steps"
    THREADS = "threads"


@dataclass(frozen=True, slots=True)
class ProcessorWaits:
    """The part of the time in which threads waited for a processor.

    With steps, `fraction` is the part of the steps in which the main thread waited. Without, it is the part
    of the time in which threads of the process were ready to run. `busy_threads` of all processes reach into
    the steps, and ran, or were ready to, for at least a tenth of the time of all steps, or of the wall time;
    they are at least those that an operator uses. `processors` are those that the program may use, by its
    affinity and its quota, which may be a part of one. `others` are the processors that processes used on
    average which were not recorded, also those that the program may not use; None if unknown. `contention` is
    None for a fraction that is too small to change times.
    """

    fraction: float
    of: WaitsOf
    busy_threads: int
    processors: float
    others: float | None
    contention: Contention | None


def read_processor_waits(
    run: RunFolder, steps: Mapping[int, tuple[int, int] | None], wall_ns: int
) -> ProcessorWaits | None:
    """Return the waits of the process of several that waited most; None if they were not counted.

    `steps` has the processes, each with the number of first steps that figures leave out and the time of all
    steps; None without steps.
    """
    fractions = [
        found
        for process_id, own in steps.items()
        if (found := _fraction(run, process_id, None if own is None else own[0])) is not None
    ]
    if not fractions or wall_ns <= 0:
        return None
    fraction, of = max(fractions)
    settings = readable_settings_of(run)
    busy, used_ns = _use(run, steps, wall_ns)
    waits = ProcessorWaits(
        fraction=fraction,
        of=of,
        busy_threads=max(busy, _operator_threads(settings)),
        processors=usable_processors_of(run, settings),
        others=_others(run, used_ns, wall_ns),
        contention=None,
    )
    if fraction < LEAST_FRACTION:
        return waits
    return replace(waits, contention=contention_of(waits, used_ns / wall_ns))


def processors_of_others(run: RunFolder, processors: float) -> float:
    """Return how many of a program's processors other processes used on average; 0 if few or unknown.

    `processors` are those that the program may use. Others are taken to use the rest of the machine first.
    """
    wall_ns = int(run.meta.get("duration_ns") or 0)
    used_ns = _value(run.columns(_USED)["cpu_ns"])
    others = None if used_ns is None or wall_ns <= 0 else _others(run, used_ns, wall_ns)
    cores = float((run.meta.get("machine") or {}).get("cores") or processors)
    inside = min((others or 0.0) - max(cores - processors, 0.0), processors)
    return inside if inside >= _NO_OTHERS else 0.0


def contention_of(waits: ProcessorWaits, used_processors: float) -> Contention:
    """Return why threads waited, of a run that used so many processors on average.

    As many busy threads as processors do not wait for each other, and without other processes it is unknown
    for what. With more threads and without other processes, it is the run itself. A run that uses nearly all
    of the processors' time leaves none to others.
    """
    without_others = waits.others is not None and waits.others < _NO_OTHERS
    if waits.busy_threads <= waits.processors:
        # The counts of a short run do not show who had the processors.
        return Contention.UNKNOWN if without_others else Contention.OTHER_PROGRAMS
    if without_others:
        return Contention.OWN_THREADS
    no_room = used_processors >= _NO_ROOM * waits.processors
    return Contention.OWN_THREADS if no_room else Contention.UNKNOWN


def _fraction(run: RunFolder, process_id: int, left_out: int | None) -> tuple[float, WaitsOf] | None:
    if left_out is None:
        fraction, of = _ratio(run.columns(_OF_THREADS, process=process_id)), WaitsOf.THREADS
    else:
        fraction, of = _ratio(run.columns(_IN_STEPS, process=process_id, left_out=left_out)), WaitsOf.STEPS
    return None if fraction is None else (fraction, of)


def _ratio(columns: dict[str, Any]) -> float | None:
    queued, ready = _value(columns["queued_ns"]), _value(columns["ready_ns"])
    return None if queued is None or not ready else min(max(queued / ready, 0.0), 1.0)


def _use(run: RunFolder, steps: Mapping[int, tuple[int, int] | None], wall_ns: int) -> tuple[int, float]:
    """Return the number of threads that are busy in the steps, or in the run, and the time that all used."""
    with_steps = {process_id: own[1] for process_id, own in steps.items() if own is not None}
    begin, end, of_ns = 0, wall_ns, max(with_steps.values(), default=wall_ns)
    if with_steps:
        times = run.columns(_ALL_STEPS, processes=sorted(with_steps))
        begin, end = int(times["begin_ns"][0]), int(times["end_ns"][0])
    columns = run.columns(_OF_RUN, least=round(_BUSY * of_ns), begin=begin, end=end)
    return int(columns["busy"][0]), _value(columns["cpu_ns"]) or 0.0


def _operator_threads(settings: ProgramSettings | None) -> int:
    """Return the threads that an operator uses; 0 if unknown."""
    return 0 if settings is None or settings.threads is None else settings.threads.intra_op


def _others(run: RunFolder, used_ns: float, wall_ns: int) -> float | None:
    """Return how many processors unrecorded processes used; None in older runs, and if not counted."""
    busy_ns = run.meta.get("machine_busy_ns")
    return None if busy_ns is None else max(busy_ns - used_ns, 0.0) / wall_ns


def _value(column: Any) -> float | None:
    """Return the value of a column with one row; None for NULL."""
    return None if np.ma.is_masked(column[0]) else float(column[0])
