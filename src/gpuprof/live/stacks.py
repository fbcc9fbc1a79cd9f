# SPDX-License-Identifier: Apache-2.0
"""Follows the samples of Python stacks while a program runs; the layout is in `record/stack_file.py`."""

from __future__ import annotations

import zlib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from gpuprof.live.snapshot import LiveFunctionFigures, MissingReason, Unavailable
from gpuprof.live.tails import GrowingFolder, Tail
from gpuprof.record import stack_file as layout
from gpuprof.run.call_sites import CallSite, called_at
from gpuprof.run.stacks import StackHead, stack_head

# Of one file in one reading, about 0.2 s of work; the rest is read by the next.
MOST_BYTES = 4 << 20
# The source of a call is read where it waited for this long in an interval: parsing a file takes 10 ms.
LEAST_WAIT_NS = 50_000_000
_NO_FRAME = "(no Python frame)"
_SAMPLE, _RECORD = layout.NATIVE_SAMPLE, layout.RECORD


class _Place(NamedTuple):
    """Where samples were: the innermost function, its line (-1: unknown)."""

    name: str
    line: int


class StackFollower:
    """Reads the samples in a folder as they are written."""

    def __init__(self, segments: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._files = GrowingFolder(segments, ".stacks", lambda tail: _StackTail(tail, most_bytes))
        self.is_late = False  # whether samples are waiting to be read

    def take(self) -> tuple[LiveFunctionFigures, ...] | Unavailable:
        """Return functions with samples since the last time: main threads first, then by time."""
        files = self._files.readers()
        if not files:
            return Unavailable(MissingReason.NOT_RECORDED)
        found: list[LiveFunctionFigures] = []
        by_process: dict[int, _Sums] = defaultdict(_Sums)
        for file in files:
            file.take(by_process)
        self.is_late = any(file.is_late for file in files)
        for process_id, sums in by_process.items():
            found += sums.figures(process_id)
        return tuple(
            sorted(
                found,
                key=lambda each: (not each.is_main_thread, -each.running_ns, -each.waiting_ns, each.name),
            )
        )


class _Sums:
    """Samples, running and waiting time by function, and time by line."""

    def __init__(self) -> None:
        self._functions: dict[tuple[bool, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._lines: dict[tuple[bool, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, place: _Place, values: list[int], *, is_main: bool) -> None:
        key = (is_main, place.name)
        sums = self._functions[key]
        sums[:] = (one + other for one, other in zip(sums, values, strict=True))
        if place.line > 0:
            self._lines[key][place.line] += values[1] + values[2]

    def figures(self, process_id: int) -> list[LiveFunctionFigures]:
        return [
            LiveFunctionFigures(
                process_id,
                name,
                is_main,
                samples=samples,
                running_ns=running_ns,
                waiting_ns=waiting_ns,
                lines=tuple(sorted(self._lines[is_main, name].items(), key=lambda each: (-each[1], each[0]))),
            )
            for (is_main, name), (samples, running_ns, waiting_ns) in self._functions.items()
        ]


class _StackTail:
    """One file. Memory grows with the distinct frames, stacks and sites of its program."""

    def __init__(self, tail: Tail, most_bytes: int) -> None:
        self._tail = tail
        self._most_bytes = most_bytes
        self.is_late = False
        self._head: StackHead | None = None
        self._block, self._at = 0, 0
        self._thread = -1
        self._frames: dict[int, str] = {}
        self._innermost: dict[int, int] = {}  # the frame of a stack; -1 for an empty one
        self._sites: dict[int, CallSite] = {}
        # Samples since the last time, by main thread or other, stack or frame, site, and whether it waited.
        self._counts: dict[tuple[bool, int, int, bool], list[int]] = {}

    def take(self, sums: dict[int, _Sums]) -> None:
        if self._head is None:
            self._head = stack_head(self._tail.read(0, layout.HEAD_BYTES))
            self._at = layout.HEAD_BYTES
            if self._head is None:
                return  # not written yet, or no file of samples
        self._read(self._head)
        for (is_main, stack, site, waits), values in self._counts.items():
            place = self._place(stack, site, waits=waits and values[2] >= LEAST_WAIT_NS)
            sums[self._head.process_id].add(place, values, is_main=is_main)
        self._counts = {}

    def _place(self, stack: int, site: int, *, waits: bool) -> _Place:
        has_stacks = self._head is not None and self._head.version == layout.NATIVE_VERSION
        frame = self._innermost.get(stack, -1) if has_stacks else stack
        name = self._frames.get(frame, _NO_FRAME)
        at = self._sites.get(site)
        if at is None:
            return _Place(name, -1)
        called = called_at(at) if waits else None
        return _Place(name if called is None else f"{called} (built-in)", at.line)

    def _read(self, head: StackHead) -> None:
        end = self._block + self._at + self._most_bytes
        while True:
            size = layout.block_bytes(self._block, head.first_block_bytes)
            is_complete = self._tail.size > self._block + size
            content = self._tail.read(self._block + self._at, size - self._at)
            self._at += self._take_records(content, is_native=head.version == layout.NATIVE_VERSION)
            if not is_complete:
                self.is_late = False
                return
            self._block, self._at = self._block + size, 0
            self.is_late = self._block >= end
            if self.is_late:
                return

    def _take_records(self, content: bytes, *, is_native: bool) -> int:
        """Take in whole records; returns their bytes. A record that is being written is left for later."""
        at, size, head_bytes = 0, len(content), _RECORD.size
        head_of, crc = _RECORD.unpack_from, zlib.crc32
        while at + head_bytes <= size:
            kind, length, check = head_of(content, at)
            end = at + head_bytes + length
            if kind == 0 or end > size:
                break
            body = content[at + head_bytes : end]
            if crc(body) != check:
                break
            if kind == layout.SAMPLE_RECORD:
                if is_native:
                    self._take_native_sample(body)
                else:
                    self._take_sample(body)
            else:
                self._take_other(kind, body)
            at = end
        return at

    def _take_native_sample(self, body: bytes) -> None:
        _, duration, cpu, queued, stack, site = _SAMPLE.unpack(body)
        waited = duration - cpu - (queued if queued > 0 else 0) if cpu >= 0 else 0
        waits = 2 * waited > duration  # as call_sites.waited_ns
        self._count(stack, site, duration, waited if waits else 0, waits=waits)

    def _take_sample(self, body: bytes) -> None:
        _, duration = layout.SAMPLE.unpack_from(body)
        frame = layout.FRAME_NUMBER.unpack(body[-4:])[0] if len(body) > layout.SAMPLE.size else -1
        self._count(frame, layout.NO_SITE, duration, 0, waits=False)

    def _count(self, stack: int, site: int, duration: int, waited: int, *, waits: bool) -> None:
        assert self._head is not None
        key = (self._thread == self._head.process_id, stack, site, waits)
        values = self._counts.get(key)
        if values is None:
            values = self._counts[key] = [0, 0, 0]
        values[0] += 1
        values[1] += duration - waited
        values[2] += waited

    def _take_other(self, kind: int, body: bytes) -> None:
        if kind == layout.THREAD_RECORD:
            self._thread = layout.THREAD.unpack(body)[0]
        elif kind == layout.FRAME_RECORD:
            number = layout.FRAME_NUMBER.unpack_from(body)[0]
            self._frames[number] = body[layout.FRAME_NUMBER.size :].decode("utf-8", "backslashreplace")
        elif kind == layout.STACK_RECORD:
            number = layout.FRAME_NUMBER.unpack_from(body)[0]
            has_frames = len(body) > layout.FRAME_NUMBER.size
            self._innermost[number] = layout.FRAME_NUMBER.unpack(body[-4:])[0] if has_frames else -1
        elif kind == layout.SITE_RECORD:
            number, _, *position = layout.SITE.unpack_from(body)
            path = body[layout.SITE.size :].decode("utf-8", "backslashreplace")
            self._sites[number] = CallSite(path, *position)
