# SPDX-License-Identifier: Apache-2.0
"""Chrome's trace format, with the categories and arguments of Kineto where there are any."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.slices import CATEGORIES, SliceSource, Track, TrackNames, lane_name

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

# Numbers of what is no process or thread of the system: devices, and lanes after the first.
FIRST_DEVICE_ID = 2_000_000_000
FIRST_LANE_ID = 3_000_000_000
_GPU_ARGUMENTS = {
    "External id": "launcher",
    "correlation": "correlation_id",
    "device": "device",
    "context": "context",
    "stream": "stream",
    "bytes": "bytes",
    "registers per thread": "registers",
}


def write_chrome(source: SliceSource, file: IO[bytes]) -> None:
    """Write complete events, arrows from launches to GPU work, the readings of devices, and names."""
    tracks = ChromeTracks(source)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": int(source.meta.get("origin_unix_ns", 0)),
    }
    file.write(json.dumps(head)[:-1].encode() + b',"traceEvents":[\n')
    names = [json.dumps(name) for name in source.names]
    file.write(",\n".join(tracks.names()).encode())
    for rows in source.cpu():
        write_events(file, _cpu_events(rows, names, tracks, source))
    for rows in source.gpu():
        write_events(file, _gpu_events(rows, names, tracks))
    for device, metric, readings in source.readings():
        write_events(file, _counters(tracks.device_id(device), metric, readings))
    file.write(b"\n]}\n")


def write_events(file: IO[bytes], events: Iterable[str]) -> None:
    """Write events after others."""
    file.write("".join(f",\n{event}" for event in events).encode("utf-8"))


def microseconds(ns: int) -> str:
    """Return nanoseconds as exact microseconds."""
    return f"-{microseconds(-ns)}" if ns < 0 else f"{ns // 1000}.{ns % 1000:03d}"


def _cpu_events(rows: Columns, names: list[str], tracks: ChromeTracks, source: SliceSource) -> Iterator[str]:
    first = int(rows["place"][0])
    places, flows = source.flows(first, first + len(rows["place"]))
    launched = np.isin(rows["place"], places).tolist()
    shown = [
        f'"args":{{"External id":{number}}},' if is_one else ""
        for number, is_one in zip(rows["id"].tolist(), launched, strict=True)
    ]
    heads = tracks.heads(rows)
    columns = (heads, rows["name_id"].tolist(), rows["category"].tolist(), time_texts(rows), shown)
    for head, name, category, times, arguments in zip(*columns, strict=True):
        yield f'{{"ph":"X",{head},"cat":"{CATEGORIES[category]}","name":{names[name]},{arguments}{times}}}'
    offsets = places - first
    starts = rows["start_ns"].tolist()
    for offset, flow in zip(offsets.tolist(), flows.tolist(), strict=True):
        event = f'{heads[offset]},"cat":"ac2g","name":"ac2g","id":{flow},"ts":{microseconds(starts[offset])}'
        yield f'{{"ph":"s",{event}}}'


def _gpu_events(rows: Columns, names: list[str], tracks: ChromeTracks) -> Iterator[str]:
    known = {
        shown: np.ma.getmaskarray(rows[column]) | (rows[column] == -1)
        if column == "launcher"
        else np.ma.getmaskarray(rows[column])
        for shown, column in _GPU_ARGUMENTS.items()
    }
    heads, times = tracks.heads(rows), time_texts(rows)
    sizes = {what: triples(rows, what) for what in ("grid", "block")}
    for i, (head, name, category) in enumerate(
        zip(heads, rows["name_id"].tolist(), rows["category"].tolist(), strict=True)
    ):
        arguments: dict[str, Any] = {
            shown: int(rows[column][i]) for shown, column in _GPU_ARGUMENTS.items() if not known[shown][i]
        }
        arguments |= {what: found[i] for what, found in sizes.items() if found[i] is not None}
        event = f'{head},"cat":"{CATEGORIES[category]}","name":{names[name]}'
        yield f'{{"ph":"X",{event},"args":{json.dumps(arguments)},{times[i]}}}'
        if rows["launcher"][i] >= 0:
            flow = f'"cat":"ac2g","name":"ac2g","id":{int(rows["place"][i]) + 1},"bp":"e"'
            yield f'{{"ph":"f",{head},{flow},"ts":{microseconds(int(rows["start_ns"][i]))}}}'


def triples(rows: Columns, what: str) -> list[list[int] | None]:
    """Return for each row its `grid` or `block`, None where it has none."""
    columns = [rows[f"{what}_{axis}"] for axis in "xyz"]
    unknown = np.ma.getmaskarray(columns[0]).tolist()
    values = zip(*(np.ma.filled(column, 0).tolist() for column in columns), strict=True)
    return [None if is_unknown else list(value) for is_unknown, value in zip(unknown, values, strict=True)]


def time_texts(rows: Columns) -> list[str]:
    """Return for each row its begin and duration as an event has them."""
    pairs = zip(rows["start_ns"].tolist(), rows["duration_ns"].tolist(), strict=True)
    return [f'"ts":{microseconds(start)},"dur":{microseconds(duration)}' for start, duration in pairs]


def _counters(device_id: int, metric: str, readings: Columns) -> Iterator[str]:
    name = json.dumps(metric)
    for time, value in zip(readings["t_ns"].tolist(), readings["value"].tolist(), strict=True):
        told = f'"args":{{"value":{json.dumps(value)}}}'
        event = f'"pid":{device_id},"name":{name},"ts":{microseconds(time)},{told}'
        yield f'{{"ph":"C",{event}}}'


class ChromeTracks:
    """Process and thread numbers of tracks and lanes, and the events that name them."""

    def __init__(self, source: SliceSource, first_device_id: int = FIRST_DEVICE_ID) -> None:
        self._source = source
        self._first_device_id = first_device_id
        self._names = TrackNames(source.meta)
        self._heads: dict[tuple[int, int], str] = {}
        self._devices: dict[int | None, int] = {}
        self._made = 0

    def device_id(self, device: int | None) -> int:
        """Return the number that takes the place of a process id."""
        return self._first_device_id + (0 if device is None else device + 1)

    def heads(self, rows: Columns) -> list[str]:
        """Return for each row the text with the place where it is drawn."""
        keys = zip(rows["track"].tolist(), rows["lane"].tolist(), strict=True)
        return [self._heads[key] for key in keys]

    def names(self) -> Iterator[str]:
        """Yield the events that name what is drawn; fills the texts that `heads` returns."""
        yield json.dumps({"ph": "M", "pid": 0, "name": "gpuprof", "args": {"name": "a run of gpuprof"}})
        named: set[int] = set()
        for track in self._source.tracks:
            process = self.device_id(track.device) if track.is_stream else track.process_id
            if process not in named:
                named.add(process)
                yield from self._name_process(track, process)
            name = self._names.stream(track) if track.is_stream else self._names.thread(track)
            for lane in range(self._source.lanes.get(track.number, 1)):
                number = self._number(track, lane)
                self._heads[(track.number, lane)] = f'"pid":{process},"tid":{number}'
                yield _metadata("thread_name", process, number, name=lane_name(name, lane))
                yield _metadata("thread_sort_index", process, number, sort_index=track.number)
        for device in sorted({device for device, _, _ in self._source.readings()}):
            if self.device_id(device) not in named:
                yield _metadata("process_name", self.device_id(device), 0, name=self._names.device(device))

    def _name_process(self, track: Track, process: int) -> Iterator[str]:
        name = self._names.device(track.device) if track.is_stream else self._names.process(track.process_id)
        yield _metadata("process_name", process, 0, name=name)
        yield _metadata("process_sort_index", process, 0, sort_index=process)

    def _number(self, track: Track, lane: int) -> int:
        if lane == 0 and not track.is_stream and not track.is_stacks:
            return track.thread_id or 0
        self._made += 1
        return FIRST_LANE_ID + self._made


def _metadata(what: str, process: int, thread: int, **arguments: Any) -> str:
    return json.dumps({"ph": "M", "pid": process, "tid": thread, "name": what, "args": arguments})
