# SPDX-License-Identifier: Apache-2.0
"""A recorded process as the items, lanes and waits that the native replay executes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.analyze.whatif.gpu import GpuItems, HostWait, gpu_items
from gpuprof.analyze.whatif.host import (
    Handover,
    HostLanes,
    ThreadTime,
    handovers,
    host_lanes,
    thread_times,
)
from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.analyze.whatif.loader import Fetches
from gpuprof.analyze.whatif.waits import ItemWaits, WaitsFor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuprof.analyze.whatif.selection import Selection
    from gpuprof.run.folder import RunFolder

# The gap of an item that does not wait for the one before it on its lane.
_UNORDERED = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """How the program is executed: with the changes or as recorded, and what the rules do not explain.

    `waits_shrink`: waits with an unknown cause become shorter by what the changes save in other threads, and
    with the code that they are in. `keeps_delays`: GPU work starts as late as recorded, even if nothing
    explains it.
    """

    is_changed: bool
    waits_shrink: bool = False
    keeps_delays: bool = True


@dataclass(slots=True)
class ReplayProgram:
    """One process of a run: its threads, its GPU work, and the fetches of an assumed data loader."""

    host: HostLanes
    gpu: GpuItems
    gpu_remaining: Any  # the part of the time of each GPU item that the changes leave
    fetches: Fetches | None
    known_waits: list[tuple[int, int, HostWait]]  # first and last segment
    handed_over: list[tuple[int, int, int, int]]  # segments: wait's first and last, work's first and last
    steps: Intervals = NO_INTERVALS  # of the main thread, which has segments that end with each of them
    _ends: dict[ReplayRules, Any] = field(default_factory=dict)  # of all items, by the rules of an execution

    @property
    def main_end(self) -> int:
        """The last segment of the main thread."""
        return int(self.host.lane_begin[1]) - 1

    def execute(self, variant: ReplayRules, *, of_all: bool) -> int:
        """Return the predicted end of the main thread, or of all work, in ns since the run's origin."""
        ends = self._replayed(variant)
        return int(ends.max() if of_all else ends[self.main_end])

    def execute_gpu(self, variant: ReplayRules) -> int:
        """Return the predicted end of the last work on a GPU, in ns since the run's origin."""
        first = len(self.host)
        return int(self._replayed(variant)[first : first + len(self.gpu)].max())

    def execute_steps(self, variant: ReplayRules) -> npt.NDArray[np.float64]:
        """Return the predicted time of each step, in ns."""
        ends, main = self._replayed(variant), np.zeros(len(self.steps), dtype=np.int64)
        last = self.host.segments_at(main, self.steps.end_ns - 1)
        before = self.host.segments_at(main, self.steps.begin_ns - 1)
        begin = np.where(self.steps.begin_ns > self.host.begin_ns[0], ends[before], 0)
        return np.asarray(ends[last] - begin, dtype=np.float64)

    def _replayed(self, variant: ReplayRules) -> Any:
        if variant not in self._ends:
            self._ends[variant] = _native.replay(self._columns(variant))["end_ns"]
        return self._ends[variant]

    def _columns(self, variant: ReplayRules) -> dict[str, npt.NDArray[Any]]:
        host, gpu = self.host, self.gpu
        segments, items = len(host), len(gpu)
        waits = ItemWaits()
        remaining = host.remaining if variant.is_changed else np.ones(segments)
        host_least = self._host_least(variant, remaining)
        part = self.gpu_remaining if variant.is_changed else np.ones(items)
        is_gone = part == 0
        gap = np.where(is_gone, 0, gpu.gap_ns)
        lane_begin = [host.lane_begin, segments + gpu.lane_begin[1:]]
        host_gap = np.zeros(segments, dtype=np.int64)
        self._begin_threads(host_gap, remaining, waits)
        self._launch(is_gone, remaining, gap, waits)
        for first, last, wait in self.known_waits:
            self._wait_for_gpu(first, last, wait, waits, host_least)
        for wait_first, wait_last, work_first, work_last in self.handed_over:
            host_least[wait_first : wait_last + 1] = 0
            waits.add(work_first, wait_first, WaitsFor.START_AFTER_START)
            waits.add(wait_last, work_last, WaitsFor.END_AFTER_END)
        delay = np.where(is_gone | (not variant.keeps_delays), 0, gpu.delay_ns)
        columns = {
            "gap_ns": [host_gap, gap],
            "least_ns": [host_least, (gpu.duration_ns * part).round()],
            "delay_ns": [np.zeros(segments), delay],
        }
        count = segments + items
        if self.fetches is not None and variant.is_changed:
            added = self.fetches.lanes(count, waits, pessimistic=not variant.waits_shrink)
            lane_begin.append(count + added.lane_begin[1:])
            for name, values in added.columns.items():
                columns[name].append(values)
            self.fetches.slow_down(host_least, host.is_waiting, pessimistic=not variant.waits_shrink)
            host_least[self.fetches.segments] = 0
            count += added.count
        return {
            "lane_begin": np.concatenate(lane_begin),
            **{name: np.concatenate(parts).astype(np.int64) for name, parts in columns.items()},
            **waits.columns(count),
        }

    def _host_least(self, variant: ReplayRules, remaining: Any) -> Any:
        host = self.host
        duration = host.end_ns - host.begin_ns
        least = (duration * remaining).round()
        if not variant.is_changed:
            return least
        if not variant.waits_shrink:
            # A wait is not shorter because its code is faster, but gone if its code is.
            return np.where(host.is_waiting & (remaining > 0), duration, least)
        saved = self._saved_elsewhere()
        return np.where(host.is_waiting, np.maximum(least - saved, 0), least)

    def _saved_elsewhere(self) -> Any:
        """Return for each segment the largest time that the changes save in another thread during it."""
        host = self.host
        saved = np.zeros(len(host))
        for lane in range(len(host.threads)):
            own = slice(int(host.lane_begin[lane]), int(host.lane_begin[lane + 1]))
            for part in np.unique(host.remaining[own]).tolist():
                if part == 1.0:
                    continue
                chosen = host.remaining[own] == part
                covered = Intervals.union(host.begin_ns[own][chosen], host.end_ns[own][chosen])
                elsewhere = covered.covered_ns(host.begin_ns, host.end_ns) * (1.0 - part)
                elsewhere[own] = 0
                saved = np.maximum(saved, elsewhere)
        return saved.round()

    def _begin_threads(self, gap: Any, remaining: Any, waits: ItemWaits) -> None:
        """Let each thread begin at the point of the main thread at which it was recorded to begin."""
        host = self.host
        main = host.threads[0]
        for lane, thread in enumerate(host.threads):
            first = int(host.lane_begin[lane])
            if lane and main.begin_ns <= thread.begin_ns < main.end_ns:
                starter = host.segment_at(main.thread_id, thread.begin_ns)
                lag = (thread.begin_ns - host.begin_ns[starter]) * remaining[starter]
                gap[first] = _UNORDERED
                waits.add(first, starter, WaitsFor.START_AFTER_START, round(lag))
            else:
                gap[first] = thread.begin_ns

    def _launch(self, is_gone: Any, remaining: Any, gap: Any, waits: ItemWaits) -> None:
        host, gpu = self.host, self.gpu
        first = np.zeros(len(gpu), dtype=bool)
        first[gpu.lane_begin[:-1]] = True
        is_launched = gpu.launch_ns >= 0
        gap[first & is_launched] = _UNORDERED
        # A stream whose first launch was not recorded begins as recorded.
        gap[first & ~is_launched] = gpu.start_ns[first & ~is_launched]
        chosen = np.flatnonzero(is_launched & ~is_gone)
        by = host.segments_at(host.lanes_of(gpu.thread_id[chosen]), gpu.launch_ns[chosen])
        lag = ((gpu.launch_ns[chosen] - host.begin_ns[by]) * remaining[by]).round() + gpu.latency_ns[chosen]
        waits.add(len(host) + chosen, by, WaitsFor.START_AFTER_START, lag)
        for item, awaited in gpu.after:
            if not is_gone[item]:
                waits.add(len(host) + item, len(host) + awaited, WaitsFor.START_AFTER_END)

    def _wait_for_gpu(self, first: int, last: int, wait: HostWait, waits: ItemWaits, least: Any) -> None:
        """Let the segments of a wait end when its GPU work has, as long after as recorded.

        Removed work ends with what is before it on its stream.
        """
        if self.host.remaining[last] == 0:
            return
        least[first:last] = 0
        least[last] = wait.least_ns
        for item, lag_ns in wait.items:
            waits.add(last, len(self.host) + item, WaitsFor.END_AFTER_END, lag_ns)


@dataclass
class RecordedProcess:
    """One process of a run as it was recorded: its threads, its GPU work, and the waits of threads."""

    folder: RunFolder
    process_id: int
    is_imported: bool
    threads: list[ThreadTime]
    gpu: GpuItems
    host_waits: list[HostWait]
    handed_over: list[Handover]

    @property
    def main_thread(self) -> int:
        """The thread whose end is that of the program."""
        return self.threads[0].thread_id if self.threads else self.process_id

    @cached_property
    def fetches(self) -> Fetches:
        """The fetches of a data loader in the main process. Raises RunError without one."""
        return Fetches.read(self.folder, self.process_id, self.main_thread)

    @classmethod
    def read(cls, folder: RunFolder, process_id: int) -> RecordedProcess:
        """Read one process of a run."""
        is_imported = bool(folder.meta.get("imported"))
        threads = thread_times(folder, process_id, None if is_imported else int(folder.meta["duration_ns"]))
        main = threads[0].thread_id if threads else process_id
        gpu = gpu_items(folder, process_id)
        known = {thread.thread_id for thread in threads}
        host_waits = [
            each if each.thread_id in known else replace(each, thread_id=main) for each in gpu.host_waits
        ]
        given = handovers(folder, process_id, main)
        return cls(folder, process_id, is_imported, threads, gpu, host_waits, given)

    def changed(
        self,
        selections: Sequence[Selection],
        workers: int | None = None,
        steps: Intervals = NO_INTERVALS,
    ) -> ReplayProgram:
        """Return the program with changes. Raises RunError for a data loader that cannot be replayed."""
        main = self.main_thread
        fetches = None if workers is None else replace(self.fetches, workers=workers)
        cuts = _cuts(self.handed_over, main, fetches)
        cuts.setdefault(main, []).extend((*steps.begin_ns.tolist(), *steps.end_ns.tolist()))
        host = host_lanes(self.threads, selections, self.host_waits, cuts)
        if fetches is not None:
            fetches.connect(host)
        return ReplayProgram(
            host=host,
            gpu=self.gpu,
            gpu_remaining=_gpu_remaining(self.gpu, selections),
            fetches=fetches,
            known_waits=[
                (*_segments(host, each.thread_id, each.begin_ns, each.end_ns), each)
                for each in self.host_waits
            ],
            handed_over=[
                (
                    *_segments(host, each.waiting_thread, each.begin_ns, each.end_ns),
                    *_segments(host, each.working_thread, each.begin_ns, each.end_ns),
                )
                for each in self.handed_over
            ],
            steps=steps,
        )


def _cuts(given: Sequence[Handover], main: int, fetches: Fetches | None) -> dict[int, list[int]]:
    cuts: dict[int, list[int]] = {}
    for each in given:
        for thread in (each.waiting_thread, each.working_thread):
            cuts.setdefault(thread, []).extend((each.begin_ns, each.end_ns))
    if fetches is not None:
        cuts.setdefault(main, []).extend((*fetches.begin_ns.tolist(), *fetches.end_ns.tolist()))
    return cuts


def _segments(host: HostLanes, thread_id: int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    first = host.segment_at(thread_id, begin_ns)
    return first, max(first, host.segment_at(thread_id, end_ns - 1))


def _gpu_remaining(gpu: GpuItems, selections: Sequence[Selection]) -> Any:
    remaining = np.ones(len(gpu))
    for selection in selections:
        for of_kernels, rows in ((True, selection.kernels), (False, selection.transfers)):
            if rows is not None:
                own = gpu.is_kernel == of_kernels
                remaining[own] *= np.where(rows[gpu.row[own]], selection.change.remaining, 1.0)
    return remaining
