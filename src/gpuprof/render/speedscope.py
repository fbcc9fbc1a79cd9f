# SPDX-License-Identifier: Apache-2.0
"""speedscope's file format: an evented profile for each thread and stream, and for each of their lanes."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.render.slices import SliceSource, TrackNames, lane_name

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(source: SliceSource, file: IO[bytes]) -> None:
    """Write all slices; a frame is a name."""
    head = {
        "$schema": SCHEMA,
        "exporter": f"gpuprof@{_native.build_info()['version']}",
        "shared": {"frames": [{"name": name} for name in source.names]},
    }
    file.write(json.dumps(head)[:-1].encode() + b',"profiles":[')
    profiles = _Profiles(source, file)
    for rows in source.cpu("track, lane, place"):
        profiles.add(rows)
    for rows in source.gpu("track, lane, place"):
        profiles.add(rows)
    profiles.end()
    file.write(b"]}\n")


class _Profiles:
    """Opens and closes frames; the slices of a lane come together and in order."""

    def __init__(self, source: SliceSource, file: IO[bytes]) -> None:
        self._source = source
        self._file = file
        self._names = TrackNames(source.meta)
        self._current: tuple[int, int] | None = None
        self._open: list[tuple[int, int]] = []  # frame, end
        self._first = 0
        self._last = 0
        self._is_first_profile = True

    def add(self, rows: Columns) -> None:
        events: list[str] = []
        keys = ("track", "lane", "level", "name_id", "start_ns", "duration_ns")
        for track, lane, level, name, start, duration in zip(
            *(rows[key].tolist() for key in keys), strict=True
        ):
            if (track, lane) != self._current:
                self._flush(events)
                self.end()
                self._begin(track, lane, start)
            self._close(events, level)
            at = self._instant(start)
            events.append(f'{{"type":"O","frame":{name},"at":{at}}}')
            self._open.append((name, start + duration))
        self._flush(events)

    def end(self) -> None:
        """End the profile that was begun last."""
        if self._current is None:
            return
        events: list[str] = []
        self._close(events, 0)
        self._flush(events)
        self._file.write(f'],"startValue":{self._first},"endValue":{self._last}}}'.encode())
        self._current = None

    def _begin(self, number: int, lane: int, start: int) -> None:
        name = lane_name(self._names.track(self._source.tracks[number]), lane)
        head = {"type": "evented", "name": name, "unit": "nanoseconds"}
        separator = "" if self._is_first_profile else ","
        self._file.write(f'{separator}{json.dumps(head)[:-1]},"events":['.encode())
        self._is_first_profile = False
        self._current = (number, lane)
        self._first = self._last = start
        self._any = False

    def _close(self, events: list[str], level: int) -> None:
        while len(self._open) > level:
            name, end = self._open.pop()
            events.append(f'{{"type":"C","frame":{name},"at":{self._instant(end)}}}')

    def _instant(self, time: int) -> int:
        # Rounded clocks may put an end a nanosecond after the next begin.
        self._last = max(self._last, time)
        return self._last

    def _flush(self, events: list[str]) -> None:
        if not events:
            return
        self._file.write((("," if self._any else "") + ",\n".join(events)).encode())
        self._any = True
        events.clear()
