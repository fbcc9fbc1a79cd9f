# SPDX-License-Identifier: Apache-2.0
"""Work on GPUs as items on streams, with what each waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.run.folder import RunFolder

# Where a run has too few to take the median.
_USUAL_LATENCY_NS = 5_000
_USUAL_GAP_NS = 1_000
# What a wait takes if what it waits for has ended already, where that is unknown.
_LEAST_WAIT_NS = 5_000
# A copy of pageable memory returns when it is done, within this time of its end on the GPU's clock.
_BLOCKING_NS = 1_000
_USUAL_RETURN_NS = 1_000
_KERNELS = """
    SELECT 0 AS source, device, context, stream, work.start_ns, work.duration_ns,
           coalesce(launch_ns, -1) AS launch_ns, coalesce(launch_end_ns, -1) AS launch_end_ns,
           coalesce(spans.thread_id, -1) AS thread_id, false AS is_pageable
    FROM kernels AS work LEFT JOIN spans USING (span_id)
    WHERE work.process_id = {process} ORDER BY work.start_ns, work.correlation_id
"""
_TRANSFERS = """
    SELECT 1 AS source, device, context, stream, work.start_ns, work.duration_ns,
           coalesce(launch_ns, -1) AS launch_ns, coalesce(launch_end_ns, -1) AS launch_end_ns,
           coalesce(spans.thread_id, -1) AS thread_id,
           coalesce(src = 'pageable' OR dst = 'pageable', false) AS is_pageable
    FROM transfers AS work LEFT JOIN spans USING (span_id)
    WHERE work.process_id = {process} ORDER BY work.start_ns, work.correlation_id
"""
_WAITS = """
    SELECT type, coalesce(context, -1)::BIGINT AS context, coalesce(stream, -1)::BIGINT AS stream,
           waits.start_ns, waits.duration_ns, coalesce(spans.thread_id, -1) AS thread_id,
           coalesce(event_sync_id, -1)::BIGINT AS event
    FROM synchronizations AS waits LEFT JOIN spans USING (span_id)
    WHERE waits.process_id = {process} AND waits.start_ns IS NOT NULL ORDER BY waits.start_ns
"""


@dataclass(frozen=True, slots=True)
class HostWait:
    """A call in which a thread waits for GPU items.

    `items` are what it waits for, each with the time from its end to the call's return. They may have ended
    before the call; with changes it may have to wait for them. `least_ns` is what the call takes without
    waiting: all of its time if the items had ended.
    """

    thread_id: int
    begin_ns: int
    end_ns: int
    items: tuple[tuple[int, int], ...]
    least_ns: int


@dataclass(slots=True)
class GpuItems:
    """Kernels, copies and fills in order of stream and start; all columns have one element an item.

    `latency_ns` is what passes between a launch and the start on an idle stream, `gap_ns` between two items
    of a stream; both are medians, or what was recorded if that was less. `delay_ns` is what these do not
    explain.
    `after` are pairs of items on different streams: the first waits for the end of the second.
    """

    is_kernel: Any
    row: Ints
    start_ns: Ints
    duration_ns: Ints
    launch_ns: Ints
    thread_id: Ints
    lane_begin: Ints
    latency_ns: Ints
    gap_ns: Ints
    delay_ns: Ints
    after: list[tuple[int, int]] = field(default_factory=list)
    host_waits: list[HostWait] = field(default_factory=list)
    contradicted: int = 0  # waits that the recorded times contradict
    unexplained_wait_ns: int = 0  # of threads, for work that the run does not name

    def __len__(self) -> int:
        return len(self.row)


def gpu_items(folder: RunFolder, process_id: int) -> GpuItems:
    """Read the GPU work of one process."""
    kernels, transfers = (
        _integers(folder.columns(query, process=process_id)) for query in (_KERNELS, _TRANSFERS)
    )
    columns = {name: np.concatenate([kernels[name], transfers[name]]) for name in kernels}
    row = np.concatenate([np.arange(len(each["source"])) for each in (kernels, transfers)])
    streams = np.stack([columns[name] for name in ("device", "context", "stream")])
    order = np.lexsort((row, columns["start_ns"], *streams[::-1]))
    columns = {name: column[order] for name, column in columns.items()}
    changes = (np.diff(streams[:, order], axis=1) != 0).any(axis=0)
    count = len(row)
    lane_begin = np.concatenate(([0], np.flatnonzero(changes) + 1, [count])) if count else np.zeros(1)
    items = GpuItems(
        is_kernel=columns["source"] == 0,
        row=row[order],
        start_ns=columns["start_ns"],
        duration_ns=columns["duration_ns"],
        launch_ns=columns["launch_ns"],
        thread_id=columns["thread_id"],
        lane_begin=lane_begin.astype(np.int64),
        latency_ns=np.zeros(count, dtype=np.int64),
        gap_ns=np.zeros(count, dtype=np.int64),
        delay_ns=np.zeros(count, dtype=np.int64),
    )
    if count:
        waits = _RecordedWaits.read(folder, process_id)
        _connect_streams(items, columns, waits)
        _explain(items)
        items.host_waits = [*_synchronizations(items, columns, waits), *_blocking_copies(items, columns)]
    return items


def _integers(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.ma.filled(column, 0).astype(np.int64) for name, column in columns.items()}


def _explain(items: GpuItems) -> None:
    """Split each start into what it waits for, the usual latency or gap, and what remains."""
    end = items.start_ns + items.duration_ns
    is_first = np.zeros(len(items), dtype=bool)
    is_first[items.lane_begin[:-1]] = True
    before = np.where(is_first, np.iinfo(np.int64).min // 4, np.concatenate(([0], end[:-1])))
    is_launched = items.launch_ns >= 0
    was_queued = ~is_first & (~is_launched | (items.launch_ns < before))
    since_launch, since_before = items.start_ns - items.launch_ns, items.start_ns - before
    latency = _median(since_launch[is_launched & ~was_queued], _USUAL_LATENCY_NS)
    gap = max(0, _median(since_before[was_queued], _USUAL_GAP_NS))
    items.latency_ns = np.where(is_launched, np.minimum(latency, since_launch), 0)
    items.gap_ns = np.where(is_first, 0, np.minimum(gap, since_before))
    ready = np.maximum(
        np.where(is_launched, items.launch_ns + items.latency_ns, np.iinfo(np.int64).min // 4),
        np.where(is_first, np.iinfo(np.int64).min // 4, before + items.gap_ns),
    )
    for item, awaited in items.after:
        ready[item] = max(ready[item], end[awaited])
    # The first item of a stream whose launch was not recorded keeps its start.
    items.delay_ns = np.where(is_first & ~is_launched, 0, items.start_ns - ready)


def _median(values: Ints, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise


@dataclass(frozen=True, slots=True)
class _Place:
    """A context and one of its streams; None for what was not recorded, which is any of them."""

    context: int | None
    stream: int | None


class _InTime:
    """The items of a stream, of a context or of all, in the order of a time that they have."""

    def __init__(self, columns: dict[str, Any], times_ns: Ints) -> None:
        self._columns = columns
        self._times_ns = times_ns
        self._sorted: dict[_Place, tuple[Ints, Ints]] = {}
        self._streams: dict[int | None, list[int]] = {}

    def last_before(self, place: _Place, time_ns: int) -> int | None:
        """Return the last item whose time is not later; None without one."""
        times, items = self._of(place)
        at = int(np.searchsorted(times, time_ns, side="right")) - 1
        return int(items[at]) if at >= 0 else None

    def first_after(self, place: _Place, time_ns: int) -> int | None:
        """Return the first item whose time is not earlier; None without one."""
        times, items = self._of(place)
        at = int(np.searchsorted(times, time_ns, side="left"))
        return int(items[at]) if at < len(items) else None

    def streams_of(self, context: int | None) -> list[int]:
        """Return the streams of a context; all of them if it is not known."""
        if context not in self._streams:
            is_own = self._columns["context"] == context if context is not None else slice(None)
            own = self._columns["stream"][is_own]
            self._streams[context] = np.unique(own).tolist()
        return self._streams[context]

    def _of(self, place: _Place) -> tuple[Ints, Ints]:
        if place not in self._sorted:
            own = self._times_ns >= 0  # a launch that was not recorded has no time
            for name, value in (("context", place.context), ("stream", place.stream)):
                if value is not None:
                    own = own & (self._columns[name] == value)
            items = np.flatnonzero(own)
            items = items[np.argsort(self._times_ns[items], kind="stable")]
            self._sorted[place] = self._times_ns[items], items
        return self._sorted[place]


@dataclass(frozen=True, slots=True)
class _RecordedWaits:
    """The records of events and the waits of threads and streams, in order of time, one element each."""

    type: Any
    context: Ints
    stream: Ints
    start_ns: Ints
    duration_ns: Ints
    thread_id: Ints
    event: Ints
    records: dict[int, int]  # the element at which each event was recorded

    @classmethod
    def read(cls, folder: RunFolder, process_id: int) -> _RecordedWaits:
        columns = folder.columns(_WAITS, process=process_id)
        kind = columns.pop("type").astype(str)
        numbers = {name: column.astype(np.int64) for name, column in columns.items()}
        records = np.flatnonzero((kind == "event record") & (numbers["event"] >= 0))
        return cls(
            type=kind,
            **numbers,
            records=dict(zip(numbers["event"][records].tolist(), records.tolist(), strict=True)),
        )

    def place(self, wait: int) -> _Place:
        """Return the context and the stream of a wait."""
        context, stream = int(self.context[wait]), int(self.stream[wait])
        return _Place(None if context < 0 else context, None if stream < 0 else stream)


def _connect_streams(items: GpuItems, columns: dict[str, Any], waits: _RecordedWaits) -> None:
    """Find the items before and after each wait of a stream for an event."""
    launched = _InTime(columns, items.launch_ns)
    end = items.start_ns + items.duration_ns
    for wait in np.flatnonzero(waits.type == "stream waits for event").tolist():
        record = waits.records.get(int(waits.event[wait]))
        if record is None:
            continue
        awaited = launched.last_before(waits.place(record), int(waits.start_ns[record]))
        item = launched.first_after(waits.place(wait), int(waits.start_ns[wait]))
        if awaited is None or item is None:
            continue
        if end[awaited] > items.start_ns[item]:
            items.contradicted += 1
        else:
            items.after.append((item, awaited))


def _synchronizations(items: GpuItems, columns: dict[str, Any], waits: _RecordedWaits) -> list[HostWait]:
    """Return the waits of threads, each for the last item of every stream that it waits for."""
    end = items.start_ns + items.duration_ns
    launched = _InTime(columns, items.launch_ns)
    unlaunched = _InTime(columns, np.where(items.launch_ns < 0, end, -1))
    found = []
    for wait in np.flatnonzero(np.isin(waits.type, ["event", "stream", "context"])).tolist():
        begin = int(waits.start_ns[wait])
        until = begin + int(waits.duration_ns[wait])
        awaited = _awaited(waits, wait, launched)
        if waits.type[wait] != "event":
            # Work that was launched before the recording is waited for, too.
            last = unlaunched.last_before(waits.place(wait), until)
            awaited += [last] if last is not None and end[last] > begin else []
        if waits.type[wait] == "stream" and waits.stream[wait] < 0:
            # A trace does not name the stream: it is the one whose work ended last.
            awaited = [item for item in awaited if end[item] <= until]
            awaited = [max(awaited, key=lambda item: int(end[item]))] if awaited else []
        contradicted = sum(int(end[item]) > until for item in awaited)
        items.contradicted += contradicted
        if contradicted or not awaited:
            items.unexplained_wait_ns += until - begin
        else:
            found.append((int(waits.thread_id[wait]), begin, until, awaited))
    returns = [
        until - int(end[awaited].max()) for _, begin, until, awaited in found if end[awaited].max() > begin
    ]
    usual = int(np.median(returns)) if returns else _USUAL_RETURN_NS
    return [
        HostWait(
            thread,
            begin,
            until,
            tuple((item, _return(begin, until, int(end[item]), usual)) for item in awaited),
            _least(begin, until, int(end[awaited].max())),
        )
        for thread, begin, until, awaited in found
    ]


def _least(begin_ns: int, until_ns: int, last_end_ns: int) -> int:
    """Return what a wait takes at least: as recorded, if its work had ended before."""
    recorded_ns = until_ns - begin_ns
    return recorded_ns if last_end_ns <= begin_ns else min(recorded_ns, _LEAST_WAIT_NS)


def _return(begin_ns: int, until_ns: int, end_ns: int, usual_ns: int) -> int:
    """Return how long after the end of an item a wait for it returns: as recorded if it was waited for."""
    return until_ns - end_ns if end_ns > begin_ns else min(usual_ns, until_ns - end_ns)


def _awaited(waits: _RecordedWaits, wait: int, launched: _InTime) -> list[int]:
    if waits.type[wait] == "event":
        record = waits.records.get(int(waits.event[wait]))
        if record is None:
            return []  # what the event was recorded after is unknown
        places, before = [waits.place(record)], int(waits.start_ns[record])
    else:
        own, before = waits.place(wait), int(waits.start_ns[wait])
        streams = launched.streams_of(own.context) if own.stream is None else [own.stream]
        places = [_Place(own.context, stream) for stream in streams]
    return [item for place in places if (item := launched.last_before(place, before)) is not None]


def _blocking_copies(items: GpuItems, columns: dict[str, Any]) -> list[HostWait]:
    end = items.start_ns + items.duration_ns
    blocking = (columns["is_pageable"] == 1) & (items.launch_ns >= 0)
    blocking &= columns["launch_end_ns"] >= end - _BLOCKING_NS
    found = []
    for item in np.flatnonzero(blocking).tolist():
        begin_ns, returned_ns = int(items.launch_ns[item]), int(columns["launch_end_ns"][item])
        until_ns = max(returned_ns, int(end[item]))
        lag_ns = max(returned_ns - int(end[item]), 0)
        least_ns = _least(begin_ns, until_ns, int(end[item]))
        found.append(HostWait(int(items.thread_id[item]), begin_ns, until_ns, ((item, lag_ns),), least_ns))
    return found
