# SPDX-License-Identifier: Apache-2.0
"""Which sampled waits of the main thread are certain, by the times that the kernel counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.whatif.intervals import Intervals

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import ProgramRecord, SampledStacks

_COUNTED = """
    SELECT sum(waiting_ns)::BIGINT AS waited_ns, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns FROM threads
    WHERE process_id = {process} AND thread_id = {thread} AND waiting_ns IS NOT NULL
"""
_WAITING_CALLS = {
    *("acquire", "wait", "join", "get", "put", "sleep", "poll", "select", "accept", "recv", "recv_into"),
    *("read", "readinto", "write", "fsync", "waitpid", "result", "synchronize", "item", "tolist", "cpu"),
    *("barrier", "all_reduce", "all_gather", "broadcast"),
}
_LEAST_COUNTED = 0.5  # of the waits
_LEAST_SAMPLED = 0.5  # of the steps


def certain_wait(record: ProgramRecord, time: Intervals) -> float | None:
    """Return the part of sampled waits of the main thread that is certain, from 0 to 1; None if unknown.

    The kernel counts the time that a thread is ready only when it runs again. On a busy machine, samples
    before that look like waits. How long the thread waited in all is known, so at most the rest is none. It
    is known until the last reading, a second or less before the end of a program that was killed. What the
    host of a virtual machine takes from a thread that runs looks like a wait to the kernel, too.
    """
    columns = record.fetch(_COUNTED, process=record.process_id, thread=record.main_thread)
    waited, begin, end = (int(np.ma.filled(column, -1)[0]) for column in columns.values())
    if record.stacks is None or waited < 0 or not time.total_ns:
        return 1.0
    counted = Intervals(np.array([begin]), np.array([end]))
    of_time_ns = int(time.covered_ns(counted.begin_ns, counted.end_ns).sum())
    if of_time_ns < _LEAST_COUNTED * time.total_ns:
        return None
    excess_ns = max(_sampled_wait_ns(record.stacks, counted) - waited, 0.0) + _steal_in_steps_ns(record)
    return max(1 - excess_ns / of_time_ns, 0.0)


def are_steps_sampled(stacks: SampledStacks, steps: Intervals) -> bool:
    """Whether enough of the steps has samples; a program that forks, for example, has few."""
    sampled = Intervals.union(stacks.begin_ns, stacks.end_ns)
    inside_ns = int(sampled.covered_ns(steps.begin_ns, steps.end_ns).sum())
    return inside_ns >= _LEAST_SAMPLED * steps.total_ns


def is_waiting_call(frame: str) -> bool:
    """Whether a frame is a call that waits, by its name."""
    name = frame.removesuffix(" (built-in)")
    return name != frame and name.rpartition(".")[2] in _WAITING_CALLS


def _steal_in_steps_ns(record: ProgramRecord) -> float:
    """Return the steal time of the machine, as far as steps have a part in the run."""
    steal_ns = record.folder.meta.get("machine_steal_ns") or 0
    steps = record.steps
    if steps is None:
        return float(steal_ns)
    of_steps_ns = Intervals.union(steps.begin_ns, steps.end_ns).total_ns
    return float(steal_ns * of_steps_ns / record.wall_ns)


def _sampled_wait_ns(stacks: SampledStacks, counted: Intervals) -> float:
    """Return the time of all samples that are mostly waits, as far as the kernel's count reaches."""
    waits = stacks.is_waiting
    begin, end = stacks.begin_ns[waits], stacks.end_ns[waits]
    part = 1 - (stacks.cpu_ns + stacks.queued_ns)[waits] / (end - begin)
    return float((counted.covered_ns(begin, end) * part).sum())
