# SPDX-License-Identifier: Apache-2.0
"""A data loader in the main process, replayed with worker processes: producers with a queue.

Workers that compute need processors, which the main process uses, too. How the kernel divides them is
unknown; a replay is optimistic or pessimistic about it. W workers have fetches that take F, the main thread
computes for M between two fetches, A other threads run on average, and there are P processors:

- Optimistic: no processor is idle, and the work needs as much time on processors as recorded. A step takes
  at least (1 + A) (F + M) / P, less what the main thread waited for.
- Pessimistic: other programs keep the X processors that they used. B other threads run or are ready to, O of
  them for operators. PyTorch's workers have one thread, so that a fetch whose operators had O more takes
  F (1 + O). All threads are always busy and divide the other processors equally, so that it takes
  (W + 1 + B) / (P - X) times as long. An operator on several threads ends with the last of them: where a
  worker finds no processor without a thread of it, the main thread is late by the time of the fetch. A batch
  and a step take no longer than in turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.processor_waits import processors_of_others
from gpuprof.analyze.whatif.waits import WaitsFor
from gpuprof.errors import RunError
from gpuprof.run.program_settings import settings_of, usable_processors_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.whatif.host import HostLanes
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.analyze.whatif.waits import ItemWaits
    from gpuprof.run.folder import RunFolder, Value

# The name that PyTorch gives to a fetch in the main process.
_FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_PREFETCH = 2  # batches for each worker: PyTorch's default
# The call that ends an epoch fetches nothing. It takes less than this part of the median fetch.
_END_OF_EPOCH = 0.05
_LEAST_FREE = 0.5  # processors: the main thread of a program that was recorded had one for a part of the time

_FETCHES = """
    SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name = {name} ORDER BY start_ns
"""
# From the first fetch to the last, in the fetches and between them.
_SAMPLES = """
    SELECT t_ns <= end_ns AS is_fetch, sum(cpu_ns) / sum(duration_ns) AS cpu_share
    FROM stacks ASOF JOIN (
        SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
        WHERE process_id = {process} AND thread_id = {thread} AND name = {name}) AS fetches
        ON stacks.t_ns > fetches.start_ns
    WHERE process_id = {process} AND thread_id = {thread} AND cpu_ns IS NOT NULL AND duration_ns > 0
        AND t_ns <= {end}
    GROUP BY is_fetch
"""
# A thread's use of a processor is known for its whole life only. Threads of operators make no recorded calls.
_OTHER_THREADS = """
    WITH others AS (
        SELECT thread_id, (least(end_ns, {end}) - greatest(begin_ns, {begin})) / (end_ns - begin_ns)
            / ({end} - {begin}) AS part, cpu_ns * part AS running,
            (cpu_ns + coalesce(queued_ns, 0)) * part AS busy
        FROM threads WHERE process_id = {process} AND thread_id <> {thread} AND cpu_ns IS NOT NULL
            AND end_ns > greatest(begin_ns, {begin}) AND begin_ns < {end})
    SELECT coalesce(sum(running), 0)::DOUBLE AS running, coalesce(sum(busy), 0)::DOUBLE AS busy,
        coalesce(sum(busy) FILTER (thread_id NOT IN (
            SELECT thread_id FROM spans WHERE process_id = {process}
            UNION ALL SELECT thread_id FROM stacks WHERE process_id = {process})), 0)::DOUBLE AS of_operators
    FROM others
"""


@dataclass(frozen=True, slots=True)
class AddedLanes:
    """Lanes of the worker processes, in the form of the replay."""

    lane_begin: Ints
    columns: dict[str, Ints]

    @property
    def count(self) -> int:
        """The number of items."""
        return len(self.columns["least_ns"])


@dataclass(slots=True)
class Fetches:
    """The fetches of a loader, in order. `begin_ns` and `end_ns` include the calls that end an epoch.

    `cpu_share` is the part of the fetches in which the main thread is on a processor, and `main_cpu_share`
    that of the time between them; None if unknown. `running_threads` other ones of the process run at the
    same time on average. `busy_threads` run or are ready to, and `operator_threads` of these. Other programs
    used `others` of the `processors`.
    """

    workers: int
    begin_ns: Ints
    end_ns: Ints
    cpu_share: float | None
    main_cpu_share: float | None
    running_threads: float
    busy_threads: float
    operator_threads: float
    processors: float
    others: float
    first_segment: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last_segment: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    segments: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def read(cls, folder: RunFolder, process_id: int, thread_id: int) -> Fetches:
        """Read the fetches of the main thread, of one worker. Raises RunError without such a loader."""
        of_main: dict[str, Value] = {"process": process_id, "thread": thread_id}
        spans = folder.columns(_FETCHES, **of_main, name=_FETCH)
        begin, end = spans["start_ns"].astype(np.int64), spans["end_ns"].astype(np.int64)
        if not len(begin):
            raise RunError(
                "no_data_loader",
                f"{folder.path}: no data loader fetched in the main process",
                hint="--workers replays a torch DataLoader that was recorded with num_workers=0",
            )
        first, last = int(begin[0]), max(int(end[-1]), int(begin[0]) + 1)
        samples = folder.columns(_SAMPLES, **of_main, name=_FETCH, end=last)
        shares = dict(zip(samples["is_fetch"].tolist(), samples["cpu_share"].tolist(), strict=True))
        others = folder.columns(_OTHER_THREADS, **of_main, begin=first, end=last)
        processors = max(usable_processors_of(folder, settings_of(folder)), 1.0)
        return cls(
            workers=1,
            begin_ns=begin,
            end_ns=end,
            cpu_share=shares.get(True),
            main_cpu_share=shares.get(False),
            running_threads=float(others["running"][0]),
            busy_threads=float(others["busy"][0]),
            operator_threads=float(others["of_operators"][0]),
            processors=processors,
            others=processors_of_others(folder, processors),
        )

    @property
    def is_batch(self) -> npt.NDArray[np.bool_]:
        """Which fetches returned a batch, and did not end an epoch."""
        duration = self.end_ns - self.begin_ns
        return np.asarray(duration > _END_OF_EPOCH * float(np.median(duration)))

    def connect(self, host: HostLanes) -> None:
        """Find the segments of the main thread that the fetches consist of."""
        main = host.threads[0].thread_id
        self.first_segment = np.array([host.segment_at(main, time) for time in self.begin_ns.tolist()])
        self.last_segment = np.array([host.segment_at(main, time - 1) for time in self.end_ns.tolist()])
        self.last_segment = np.maximum(self.first_segment, self.last_segment)
        batches = np.flatnonzero(self.is_batch)
        found = [np.arange(self.first_segment[i], self.last_segment[i] + 1) for i in batches.tolist()]
        self.segments = np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def lanes(self, offset: int, waits: ItemWaits, *, pessimistic: bool) -> AddedLanes:
        """Return the workers' lanes, whose items are numbered from `offset`, and add their waits.

        Batch i is fetched by worker i modulo their number, at most two batches ahead for each worker.
        `pessimistic`: workers that compute share the processors with the main process.
        """
        duration, is_batch = self.end_ns - self.begin_ns, self.is_batch
        epoch = np.cumsum(~is_batch)[is_batch]
        least = (duration[is_batch] * self._slowdown(pessimistic)).round().astype(np.int64)
        first, last = self.first_segment[is_batch], self.last_segment[is_batch]
        number = np.arange(len(epoch)) - np.searchsorted(epoch, epoch)  # of the batch in its epoch
        worker = number % self.workers
        order = np.lexsort((np.arange(len(epoch)), worker))
        item = np.empty(len(epoch), dtype=np.int64)
        item[order] = offset + np.arange(len(epoch))
        ahead = _PREFETCH * self.workers
        opening = np.searchsorted(epoch, epoch)  # the first batch of the epoch
        early = number < ahead
        waits.add(item[early], first[opening[early]], WaitsFor.START_AFTER_START)
        waits.add(item[~early], last[np.flatnonzero(~early) - ahead], WaitsFor.START_AFTER_END)
        waits.add(last, item, WaitsFor.END_AFTER_END)
        lane_begin = np.concatenate(([0], np.cumsum(np.bincount(worker, minlength=self.workers))))
        zeros = np.zeros(len(epoch), dtype=np.int64)
        return AddedLanes(lane_begin, {"gap_ns": zeros, "least_ns": least[order], "delay_ns": zeros})

    def slow_down(self, least_ns: Any, is_waiting: Any, *, pessimistic: bool) -> None:
        """Lengthen what the main thread computes between fetches, in the times of segments."""
        fetch_ns, between_ns = self._mean_ns()
        worker_ns = self._worker_ns()
        busy = min(float(self.workers), max(1.0, worker_ns / between_ns if between_ns else 1.0))
        missing = busy + 1 + self.busy_threads - self._free_processors
        crowded = min(max(missing, 0.0), 1.0) if pessimistic else 0.0
        used_fetching_ns = fetch_ns * ((self.cpu_share or 0.0) + self.running_threads)
        used_between = (self.main_cpu_share or 0.0) + self.running_threads
        for call in np.flatnonzero(self.is_batch[:-1]).tolist():
            between = float(self.begin_ns[call + 1] - self.end_ns[call])
            if between > 0:
                late = between + crowded * min(worker_ns, between)
                least = (used_fetching_ns + between * used_between) / self.processors
                own = slice(self.last_segment[call] + 1, self.first_segment[call + 1])
                least_ns[own] *= np.where(is_waiting[own], 1.0, max(late, least) / between)

    def _slowdown(self, pessimistic: bool) -> float:
        """Return how many times as long a fetch takes in a worker."""
        fetch_ns, between_ns = self._mean_ns()
        if not (pessimistic and fetch_ns):
            return 1.0
        waiting_ns = fetch_ns * (1.0 - self._computing)
        running = self.workers * self._computing + 1 + self.busy_threads
        equal_ns = waiting_ns + self._worker_ns() * max(1.0, running / self._free_processors)
        in_turns_ns = self.workers * (waiting_ns + self._worker_ns() + between_ns)
        return min(equal_ns, in_turns_ns) / fetch_ns

    @property
    def _computing(self) -> float:
        return 1.0 if self.cpu_share is None else self.cpu_share

    @property
    def _free_processors(self) -> float:
        """Return how many processors other programs leave, pessimistically."""
        return max(self.processors - self.others, _LEAST_FREE)

    def _worker_ns(self) -> float:
        """Return the mean time on a processor that a fetch needs in a worker, pessimistically."""
        return self._mean_ns()[0] * self._computing * (1.0 + self.operator_threads)

    def _mean_ns(self) -> tuple[float, float]:
        """Return the mean time of the fetch of a batch, and that from its end to the next fetch."""
        batches = self.is_batch
        fetch = (self.end_ns - self.begin_ns)[batches]
        between = (self.begin_ns[1:] - self.end_ns[:-1])[batches[:-1]]
        return _mean(fetch), _mean(between)


def _mean(times_ns: Ints) -> float:
    return float(times_ns.mean()) if len(times_ns) else 0.0
