# SPDX-License-Identifier: Apache-2.0
"""Perfetto's protobuf format; the bytes themselves are written natively."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.render.slices import CATEGORIES, UNITS, SliceSource, Track, TrackNames, lane_name

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]


def write_perfetto(source: SliceSource, file: IO[bytes]) -> None:
    """Write tracks, slices, arrows from launches to GPU work, and the readings of devices."""
    encoder = _native.PerfettoEncoder(int(source.meta.get("origin_unix_ns", 0)), list(CATEGORIES))
    encoder.add_names([_plain(name) for name in source.names])
    tracks = _Tracks(encoder, source)
    for rows in source.cpu():
        places, flows = source.flows(int(rows["place"][0]), int(rows["place"][-1]) + 1)
        ends = np.searchsorted(places, rows["place"], side="right").astype(np.uint64)
        none = np.zeros(len(ends), dtype=np.uint64)
        encoder.add_slices(
            {**rows, "track": tracks.of(rows), "ending_flow": none, "flow_end": ends, "flows": flows}
        )
        file.write(encoder.take())
    for rows in source.gpu():
        none = np.zeros(len(rows["place"]), dtype=np.uint64)
        ending = np.where(rows["launcher"] >= 0, rows["place"] + 1, 0)
        encoder.add_slices(
            {**rows, "track": tracks.of(rows), "ending_flow": ending, "flow_end": none, "flows": none[:0]}
        )
        file.write(encoder.take())
    for device, metric, readings in source.readings():
        encoder.add_readings(tracks.counter(device, metric), readings["t_ns"], readings["value"])
        file.write(encoder.take())
    encoder.finish()
    file.write(encoder.take())


class _Tracks:
    """The encoder's numbers of tracks and their lanes."""

    def __init__(self, encoder: _native.PerfettoEncoder, source: SliceSource) -> None:
        self._encoder = encoder
        self._names = TrackNames(source.meta)
        self._processes: dict[int, int] = {}
        self._devices: dict[int | None, int] = {}
        self._widest = max(source.lanes.values(), default=1)
        self._numbers = np.zeros((len(source.tracks), self._widest), dtype=np.uint32)
        for track in source.tracks:
            first = self._stream(track, 0) if track.is_stream else self._thread(track)
            self._numbers[track.number, 0] = first
            for lane in range(1, source.lanes.get(track.number, 1)):
                self._numbers[track.number, lane] = self._lane(track, lane, first)

    def of(self, rows: Columns) -> npt.NDArray[np.uint32]:
        return np.asarray(self._numbers[rows["track"], rows["lane"]])

    def counter(self, device: int, metric: str) -> int:
        unit = f" [{UNITS[metric]}]" if metric in UNITS else ""
        return self._encoder.add_track("counter", f"{metric}{unit}", self._device(device))

    def _thread(self, track: Track) -> int:
        process_id = track.process_id
        if process_id not in self._processes:
            name = _plain(self._names.process(process_id))
            self._processes[process_id] = self._encoder.add_track("process", name, 0, process_id)
        name = _plain(self._names.thread(track))
        parent = self._processes[process_id]
        if track.is_stacks:
            return self._encoder.add_track("lane", name, parent)
        return self._encoder.add_track("thread", name, parent, process_id, track.thread_id or 0)

    def _stream(self, track: Track, lane: int) -> int:
        name = lane_name(self._names.stream(track), lane)
        return self._encoder.add_track("lane", name, self._device(track.device))

    def _lane(self, track: Track, lane: int, first: int) -> int:
        if track.is_stream:
            return self._stream(track, lane)
        return self._encoder.add_track("lane", lane_name("crossing spans", lane), first)

    def _device(self, device: int | None) -> int:
        if device not in self._devices:
            self._devices[device] = self._encoder.add_track("group", _plain(self._names.device(device)))
        return self._devices[device]


def _plain(text: str) -> str:
    # Half of a surrogate pair is no text that protobuf takes.
    return text.encode("utf-8", "replace").decode("utf-8")
