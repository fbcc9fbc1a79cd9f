# SPDX-License-Identifier: Apache-2.0
"""The threads of a process as items, cut where a change, a wait or another thread begins or ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.run.call_sites import waited_in_each_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuprof.analyze.whatif.gpu import HostWait
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.analyze.whatif.selection import Selection
    from gpuprof.run.folder import RunFolder


_THREADS = """
    SELECT thread_id, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns FROM (
        SELECT thread_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns
        FROM spans WHERE process_id = {process}
        UNION ALL
        SELECT thread_id, t_ns - duration_ns, t_ns FROM stacks WHERE process_id = {process})
    GROUP BY thread_id
"""
_SAMPLES = """
    SELECT thread_id, t_ns, duration_ns, coalesce(cpu_ns, -1) AS cpu_ns, coalesce(queued_ns, 0) AS queued_ns
    FROM stacks WHERE process_id = {process} ORDER BY thread_id, t_ns
"""
_BACKWARD_ELSEWHERE = """
    SELECT thread_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND kind = 'backward' AND thread_id <> {thread}
    ORDER BY thread_id, start_ns
"""
_CALLS = """
    SELECT start_ns AS time_ns FROM spans WHERE process_id = {process} AND thread_id = {thread}
    UNION ALL
    SELECT start_ns + duration_ns FROM spans WHERE process_id = {process} AND thread_id = {thread}
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Handover:
    """A thread waits while the autograd engine executes the backward pass on another thread."""

    waiting_thread: int
    working_thread: int
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class ThreadTime:
    """One thread: when it was recorded, and when it waited for something that the run does not name."""

    thread_id: int
    begin_ns: int
    end_ns: int
    waiting: Intervals


@dataclass(slots=True)
class HostLanes:
    """The segments of all threads, a thread after the other; columns have one element a segment.

    `remaining` is the part of the time that the changes leave. `is_waiting` marks waits with an unknown
    cause.
    """

    threads: list[ThreadTime]
    lane_begin: Ints
    begin_ns: Ints
    end_ns: Ints
    remaining: Any
    is_waiting: Any
    places: dict[int, int] = field(default_factory=dict)  # the lane of each thread

    def __len__(self) -> int:
        return len(self.begin_ns)

    def segment_at(self, thread_id: int, time_ns: int) -> int:
        """Return the segment of a thread that contains a time, or the one nearest to it."""
        lane = self.places.get(thread_id, 0)
        first, last = int(self.lane_begin[lane]), int(self.lane_begin[lane + 1])
        found = first + int(np.searchsorted(self.begin_ns[first:last], time_ns, side="right")) - 1
        return min(max(found, first), last - 1)

    def lanes_of(self, threads: Ints) -> Ints:
        """Return the lane of each of many threads; that of the main thread where one is not known."""
        known, place = np.unique(threads, return_inverse=True)
        return np.array([self.places.get(each, 0) for each in known.tolist()], dtype=np.int64)[place]

    def segments_at(self, lanes: Ints, times_ns: Ints) -> Ints:
        """Return the segments for many lanes and times."""
        found = np.zeros(len(times_ns), dtype=np.int64)
        for lane in np.unique(lanes).tolist():
            own = lanes == lane
            first, last = int(self.lane_begin[lane]), int(self.lane_begin[lane + 1])
            place = np.searchsorted(self.begin_ns[first:last], times_ns[own], side="right") - 1
            found[own] = first + np.clip(place, 0, last - first - 1)
        return found


def thread_times(folder: RunFolder, process_id: int, end_ns: int | None) -> list[ThreadTime]:
    """Return the threads of a process, the main thread first.

    `end_ns` is the end of the recording, which the main thread spans; None for an imported run, whose
    threads last from their first to their last call.
    """
    columns = folder.columns(_THREADS, process=process_id)
    found = {
        int(thread): (int(begin), int(end))
        for thread, begin, end in zip(
            *(columns[name] for name in ("thread_id", "begin_ns", "end_ns")), strict=True
        )
    }
    main = process_id
    if end_ns is None:
        main = max(found, key=lambda thread: found[thread][1] - found[thread][0], default=process_id)
    else:
        if main not in found and (folder.meta.get("machine") or {}).get("system", "").startswith("Darwin"):
            # Only Linux gives the main thread the number of the process.
            main = min(found, key=lambda thread: found[thread][0], default=process_id)
        found[main] = (0, max(end_ns, found.get(main, (0, 0))[1]))
    waiting = _waiting(folder, process_id)
    threads = [
        ThreadTime(thread, max(begin, 0), end, waiting.get(thread, NO_INTERVALS))
        for thread, (begin, end) in found.items()
        if end > max(begin, 0)
    ]
    return sorted(threads, key=lambda each: (each.thread_id != main, each.begin_ns, each.thread_id))


def _waiting(folder: RunFolder, process_id: int) -> dict[int, Intervals]:
    """Return when threads waited for something that is not known."""
    columns = folder.columns(_SAMPLES, process=process_id)
    waits = waited_in_each_ns(*(columns[name] for name in ("duration_ns", "cpu_ns", "queued_ns"))) > 0
    thread, end = columns["thread_id"][waits], columns["t_ns"][waits]
    begin = end - columns["duration_ns"][waits]
    return {
        each: Intervals.union(begin[thread == each], end[thread == each])
        for each in np.unique(thread).tolist()
    }


def handovers(folder: RunFolder, process_id: int, main_thread: int) -> list[Handover]:
    """Return the backward passes on other threads during which the main thread made no recorded call."""
    columns = folder.columns(_BACKWARD_ELSEWHERE, process=process_id, thread=main_thread)
    if not len(columns["thread_id"]):
        return []
    calls = folder.columns(_CALLS, process=process_id, thread=main_thread)["time_ns"]
    found = []
    for thread in np.unique(columns["thread_id"]).tolist():
        own = columns["thread_id"] == thread
        begin, end = columns["begin_ns"][own], columns["end_ns"][own]
        # One backward pass is what lies between two events of the main thread.
        slot = np.searchsorted(calls, begin, side="right")
        fits = slot == np.searchsorted(calls, end, side="left")
        for each in np.unique(slot[fits]).tolist():
            chosen = fits & (slot == each)
            found.append(Handover(main_thread, int(thread), int(begin[chosen][0]), int(end[chosen].max())))
    return found


def host_lanes(
    threads: Sequence[ThreadTime],
    selections: Sequence[Selection],
    waits: Iterable[HostWait],
    cuts: dict[int, list[int]],
) -> HostLanes:
    """Cut the time of each thread into segments; `cuts` are further times to cut at, by thread."""
    known: dict[int, list[int]] = {}
    for wait in waits:
        known.setdefault(wait.thread_id, []).extend((wait.begin_ns, wait.end_ns))
    begins, ends, remaining, waiting, lengths = [], [], [], [], [0]
    for thread in threads:
        chosen = [selection.on_thread(thread.thread_id) for selection in selections]
        edges = [thread.waiting.begin_ns, thread.waiting.end_ns]
        for each in chosen:
            edges += [each.begin_ns, each.end_ns]
        others = [*known.get(thread.thread_id, []), *cuts.get(thread.thread_id, [])]
        times = np.unique(np.concatenate([*edges, np.array(others, dtype=np.int64)]))
        times = times[(times > thread.begin_ns) & (times < thread.end_ns)]
        begin = np.concatenate(([thread.begin_ns], times)).astype(np.int64)
        part = np.ones(len(begin))
        for selection, each in zip(selections, chosen, strict=True):
            part *= np.where(each.place(begin) >= 0, selection.change.remaining, 1.0)
        begins.append(begin)
        ends.append(np.append(times, thread.end_ns).astype(np.int64))
        remaining.append(part)
        waiting.append(thread.waiting.place(begin) >= 0)
        lengths.append(len(begin))
    return HostLanes(
        threads=list(threads),
        lane_begin=np.cumsum(lengths),
        begin_ns=np.concatenate(begins),
        end_ns=np.concatenate(ends),
        remaining=np.concatenate(remaining),
        is_waiting=np.concatenate(waiting),
        places={thread.thread_id: lane for lane, thread in enumerate(threads)},
    )
