# SPDX-License-Identifier: Apache-2.0
"""A data loader in the main process, replayed with worker processes: producers with a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.whatif.waits import WaitsFor
from gpuprof.errors import RunError
from gpuprof.run.program_settings import settings_of, usable_processors_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.whatif.host import HostLanes
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.analyze.whatif.waits import ItemWaits
    from gpuprof.run.folder import RunFolder

# The name that PyTorch gives to a fetch in the main process.
_FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_PREFETCH = 2  # batches for each worker: PyTorch's default
# The call that ends an epoch fetches nothing. It takes less than this part of the median fetch.
_END_OF_EPOCH = 0.05

_FETCHES = """
    SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name = {name} ORDER BY start_ns
"""
_SAMPLES_OF_FETCHES = """
    SELECT coalesce(sum(cpu_ns), 0)::DOUBLE AS cpu_ns, coalesce(sum(duration_ns), 0)::DOUBLE AS total_ns
    FROM stacks ASOF JOIN (
        SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
        WHERE process_id = {process} AND thread_id = {thread} AND name = {name}) AS fetches
        ON stacks.t_ns > fetches.start_ns
    WHERE process_id = {process} AND thread_id = {thread} AND cpu_ns IS NOT NULL AND t_ns <= end_ns
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
    """The fetches of a loader, in order. `begin_ns` and `end_ns` include the calls that end an epoch."""

    workers: int
    begin_ns: Ints
    end_ns: Ints
    cpu_share: float | None  # part of the fetches on a processor; None if unknown
    cores: float
    first_segment: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last_segment: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    segments: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def read(cls, folder: RunFolder, process_id: int, thread_id: int) -> Fetches:
        """Read the fetches of the main thread, of one worker. Raises RunError without such a loader."""
        of_main: dict[str, int | str] = {"process": process_id, "thread": thread_id, "name": _FETCH}
        spans = folder.columns(_FETCHES, **of_main)
        begin, end = spans["start_ns"].astype(np.int64), spans["end_ns"].astype(np.int64)
        if not len(begin):
            raise RunError(
                "no_data_loader",
                f"{folder.path}: no data loader fetched in the main process",
                hint="--workers replays a torch DataLoader that was recorded with num_workers=0",
            )
        samples = folder.columns(_SAMPLES_OF_FETCHES, **of_main)
        cpu, total = float(samples["cpu_ns"][0]), float(samples["total_ns"][0])
        processors = max(usable_processors_of(folder, settings_of(folder)), 1.0)
        return cls(1, begin, end, cpu / total if total else None, processors)

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

    def _slowdown(self, pessimistic: bool) -> float:
        if not pessimistic:
            return 1.0
        computing = 1.0 if self.cpu_share is None else self.cpu_share
        wanted = self.workers * computing + 1  # the main process computes, too
        return 1.0 + computing * (max(1.0, wanted / self.cores) - 1.0)
