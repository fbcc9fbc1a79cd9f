# SPDX-License-Identifier: Apache-2.0
"""Follows the records of GPU work while a program runs: CUPTI hands them over about once a second."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpuprof.live.snapshot import LiveKernelFigures, MissingReason, Unavailable
from gpuprof.live.tails import GrowingFolder, Tail
from gpuprof.run import gpu_records
from gpuprof.run.gpu_records import HEAD, RECORD

_KINDS = {
    gpu_records.KERNEL: "kernel",
    gpu_records.COPY: "copy",
    gpu_records.FILL: "fill",
    gpu_records.LAYER: "layer",
    gpu_records.GRAPH: "graph",
}
_MOST_RECORDS = 1 << 18  # of one reading
_NAMES_MAGIC = b"GPUPROFN"
_NAME_HEAD = struct.Struct("<II")  # bytes of the text, its scope
_LONGEST_NAME = 1 << 20
_LOST_NAME = "(lost name)"


class KernelFollower:
    """Reads the GPU records in a folder as they are written."""

    def __init__(self, segments: Path) -> None:
        self._files = GrowingFolder(segments, ".gpu", _KernelTail)

    def take(self) -> tuple[LiveKernelFigures, ...] | Unavailable:
        """Return the work whose records came since the last time, the most time first."""
        files = self._files.readers()
        if not files:
            return Unavailable(MissingReason.NOT_RECORDED)
        sums: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
        for file in files:
            file.take(sums)
        found = [LiveKernelFigures(*key, *values) for key, values in sums.items()]
        return tuple(sorted(found, key=lambda each: (-each.total_ns, each.name, each.device)))


class _KernelTail:
    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._names = _Names(tail.path.with_suffix(".names"))
        self._offset = 0

    def take(self, sums: dict[tuple[str, str, int], list[int]]) -> None:
        if self._offset == 0:
            head = self._tail.read(0, HEAD.size)
            if len(head) < HEAD.size:
                return
            magic, version, record_bytes, *_ = HEAD.unpack(head)
            known = (gpu_records.MAGIC, gpu_records.VERSION, RECORD.itemsize)
            self._offset = HEAD.size if (magic, version, record_bytes) == known else -1
        if self._offset < 0:
            return
        while len(records := self._next()):
            self._add(records[np.isin(records["kind"], list(_KINDS))], sums)

    def _next(self) -> npt.NDArray[np.void]:
        content = self._tail.read(self._offset, _MOST_RECORDS * RECORD.itemsize)
        content = content[: len(content) // RECORD.itemsize * RECORD.itemsize]
        self._offset += len(content)
        return np.frombuffer(content, RECORD)

    def _add(self, records: npt.NDArray[np.void], sums: dict[tuple[str, str, int], list[int]]) -> None:
        keys = records[["kind", "name", "device"]].copy()
        found, place = np.unique(keys, return_inverse=True)
        calls = np.bincount(place, minlength=len(found))
        durations = np.maximum(records["end_ns"] - records["start_ns"], 0)
        total = np.bincount(place, weights=durations, minlength=len(found)).astype(np.int64)
        for (kind, name, device), count, total_ns in zip(
            found.tolist(), calls.tolist(), total.tolist(), strict=True
        ):
            text = self._names.text(name) if kind != gpu_records.COPY or name else "copy"
            former = sums[_KINDS[kind], text, device]
            former[0] += count
            former[1] += total_ns


class _Names:
    """The names of a process, as csrc/core/layout.hpp has them; ids count from 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail: Tail | None = None
        self._offset = len(_NAMES_MAGIC)
        self._texts: list[str] = []

    def text(self, number: int) -> str:
        if number > len(self._texts):
            self._read()
        return self._texts[number - 1] if 0 < number <= len(self._texts) else _LOST_NAME

    def _read(self) -> None:
        if self._tail is None:
            try:
                self._tail = Tail(self._path)
            except OSError:
                return  # made with the first name, or removed
        content = self._tail.read(self._offset, max(self._tail.size - self._offset, 0))
        at = 0
        while at + _NAME_HEAD.size <= len(content):
            length, _ = _NAME_HEAD.unpack_from(content, at)
            end = at + _NAME_HEAD.size + length
            if length > _LONGEST_NAME or end > len(content):
                break
            self._texts.append(content[at + _NAME_HEAD.size : end].decode("utf-8", "backslashreplace"))
            at = end
        self._offset += at
