# SPDX-License-Identifier: Apache-2.0
"""What each thread did with its time: on a processor, in the run queue, or waiting.

The native sampler reads the kernel's counts of all threads at its start, once a second and at its end
(`csrc/python/thread_usage.cpp`). Counts of a thread that was there at the start are since then; those of a
later one are all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN = -1
THREADS_QUERY = """
    SELECT process_id, thread_id, name, begin_ns, end_ns, nullif(cpu_ns, -1) AS cpu_ns,
        nullif(queued_ns, -1) AS queued_ns, nullif(waiting_ns, -1) AS waiting_ns,
        nullif(voluntary_switches, -1) AS voluntary_switches,
        nullif(involuntary_switches, -1) AS involuntary_switches
    FROM batch ORDER BY process_id, begin_ns, thread_id
"""


class UsageCounts(NamedTuple):
    """The kernel's counts of a thread since its start; UNKNOWN for one that is unavailable."""

    cpu_ns: int
    queued_ns: int
    voluntary_switches: int
    involuntary_switches: int


class ThreadTimes(NamedTuple):
    """A row of the table `threads`; UNKNOWN for a count that is unavailable."""

    process_id: int
    thread_id: int
    name: str
    begin_ns: int
    end_ns: int
    cpu_ns: int
    queued_ns: int
    waiting_ns: int
    voluntary_switches: int
    involuntary_switches: int


@dataclass(slots=True)
class _Thread:
    name: str
    begin_ns: int
    end_ns: int
    first: UsageCounts
    last: UsageCounts


class ThreadReadings:
    """The readings of one recording of a process, in the order of time."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._begin_ns: int | None = None
        self._threads: dict[tuple[int, int], _Thread] = {}  # an id is given again after its thread's end

    def add(self, t_ns: int, thread_id: int, start_ns: int, counts: UsageCounts, name: str) -> None:
        """Add one reading. `start_ns` is the begin of the thread, UNKNOWN if unavailable."""
        if self._begin_ns is None:
            self._begin_ns = t_ns
        known = self._threads.get((thread_id, start_ns))
        if known is not None:
            known.name, known.end_ns, known.last = name, max(t_ns, known.end_ns), counts
            return
        is_first = t_ns == self._begin_ns
        began = t_ns if is_first or start_ns == UNKNOWN else min(max(start_ns, self._begin_ns), t_ns)
        first = counts if is_first else UsageCounts(*(min(count, 0) for count in counts))
        self._threads[thread_id, start_ns] = _Thread(name, began, t_ns, first, counts)

    def rows(self) -> list[ThreadTimes]:
        """Return one row a thread."""
        return [self._row(thread_id, each) for (thread_id, _), each in self._threads.items()]

    def _row(self, thread_id: int, thread: _Thread) -> ThreadTimes:
        counts = UsageCounts(*map(_since, thread.first, thread.last))
        is_known = UNKNOWN not in (counts.cpu_ns, counts.queued_ns)
        elapsed_ns = thread.end_ns - thread.begin_ns
        # The begin is known to 10 ms only.
        waiting_ns = max(elapsed_ns - counts.cpu_ns - counts.queued_ns, 0) if is_known else UNKNOWN
        return ThreadTimes(
            process_id=self._process_id,
            thread_id=thread_id,
            name=thread.name,
            begin_ns=thread.begin_ns,
            end_ns=thread.end_ns,
            cpu_ns=counts.cpu_ns,
            queued_ns=counts.queued_ns,
            waiting_ns=waiting_ns,
            voluntary_switches=counts.voluntary_switches,
            involuntary_switches=counts.involuntary_switches,
        )


def _since(first: int, last: int) -> int:
    return UNKNOWN if UNKNOWN in (first, last) else max(last - first, 0)
