# SPDX-License-Identifier: Apache-2.0
"""Reads the stack samples that a recording left; the layout is in `record/stack_file.py`."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.record import stack_file as layout

LATEST_NS = 1 << 61
BATCH_SAMPLES = 8192
NO_FRAME = -1
# Of a batch of `exploded` and the table `frames` of their texts.
STACKS_QUERY = """
    SELECT any_value(t_ns) AS t_ns, any_value(process_id) AS process_id, any_value(thread_id) AS thread_id,
           any_value(duration_ns) AS duration_ns,
           coalesce(list(text ORDER BY place) FILTER (text IS NOT NULL), []) AS frames
    FROM batch LEFT JOIN frames USING (frame) GROUP BY sample ORDER BY sample
"""


@dataclass(slots=True)
class ThreadStacks:
    """The samples of one thread in the order of time; `frames` are numbers of texts, the outermost first."""

    process_id: int
    thread_id: int
    interval_ns: int
    t_ns: list[int] = field(default_factory=list)
    duration_ns: list[int] = field(default_factory=list)
    frames: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t_ns)


@dataclass(slots=True)
class Stacks:
    """All samples of a run, and the texts of the frames."""

    texts: list[str] = field(default_factory=list)
    threads: list[ThreadStacks] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.threads))

    def summary(self) -> dict[str, int] | None:
        """Return how many samples there are, how far apart and of how many threads; None for none."""
        if not len(self):
            return None
        interval_ns = max(thread.interval_ns for thread in self.threads)
        return {"samples": len(self), "interval_ns": interval_ns, "threads": len(self.threads)}


def has_stacks(segments: Path) -> bool:
    """Whether a recording left any stack samples."""
    return next(segments.glob("*.stacks"), None) is not None


def exploded(stacks: Stacks) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield a process id and columns with one row a frame, for batches of samples."""
    import numpy as np

    for thread in stacks.threads:
        for first in range(0, len(thread), BATCH_SAMPLES):
            chosen = range(first, min(first + BATCH_SAMPLES, len(thread)))
            rows = [
                (sample, thread.t_ns[sample], thread.duration_ns[sample], place, frame)
                for sample in chosen
                for place, frame in enumerate(thread.frames[sample] or (NO_FRAME,))
            ]
            told = np.array(rows, dtype=np.int64).T
            names = ("sample", "t_ns", "duration_ns", "place", "frame")
            columns = {name: np.ascontiguousarray(column) for name, column in zip(names, told, strict=True)}
            columns["process_id"] = np.full(len(rows), thread.process_id, dtype=np.int64)
            columns["thread_id"] = np.full(len(rows), thread.thread_id, dtype=np.int64)
            yield thread.process_id, columns


def read_stacks(segments: Path, origin_ns: int) -> Stacks:
    """Read all samples; their times become those of the run. Raises OSError of the disk.

    Files that are cut off or are no samples are damage, not errors.
    """
    found = Stacks()
    numbers: dict[str, int] = {}
    by_thread: dict[tuple[int, int], ThreadStacks] = {}
    for path in sorted(segments.glob("*.stacks")):
        content = path.read_bytes()
        told = _head(content)
        if told is None:
            found.damage.append(f"{path.name}: not a file of stack samples")
            continue
        key = (told["process_id"], told["thread_id"])
        thread = by_thread.setdefault(key, ThreadStacks(*key, told["interval_ns"]))
        damaged = _read_records(content, thread, numbers, origin_ns)
        if damaged:
            found.damage.append(f"{path.name}: {damaged} damaged records")
    found.texts = list(numbers)
    found.threads = [_in_order(thread) for thread in by_thread.values()]
    return found


def _head(content: bytes) -> dict[str, int] | None:
    if len(content) < layout.BLOCK_BYTES:
        return None
    magic, version, size = layout.HEAD.unpack_from(content)
    if (magic, version) != (layout.MAGIC, layout.VERSION) or size > layout.BLOCK_BYTES - layout.HEAD.size:
        return None
    try:
        told = json.loads(content[layout.HEAD.size : layout.HEAD.size + size])
    except (ValueError, RecursionError):
        return None
    facts = ("process_id", "thread_id", "interval_ns")
    if not isinstance(told, dict) or not all(type(told.get(fact)) is int for fact in facts):
        return None
    return told


def _read_records(content: bytes, thread: ThreadStacks, numbers: dict[str, int], origin_ns: int) -> int:
    """Take in the records of one file; returns how many are damaged."""
    damaged = 0
    places: dict[int, int] = {}  # of the file's frame numbers among those of the run
    for kind, body in _records(content):
        if kind == layout.FRAME_RECORD and len(body) >= layout.FRAME_NUMBER.size:
            text = body[layout.FRAME_NUMBER.size :].decode("utf-8", "backslashreplace")
            number = layout.FRAME_NUMBER.unpack_from(body)[0]
            places[number] = numbers.setdefault(text, len(numbers))
        elif kind != layout.SAMPLE_RECORD or not _take_sample(body, thread, places, origin_ns):
            damaged += 1
    return damaged


def _take_sample(body: bytes, thread: ThreadStacks, places: dict[int, int], origin_ns: int) -> bool:
    count, rest = divmod(len(body) - layout.SAMPLE.size, layout.FRAME_NUMBER.size)
    if count < 0 or rest:
        return False
    t_ns, duration_ns = layout.SAMPLE.unpack_from(body)
    told = struct.unpack_from(f"<{count}I", body, layout.SAMPLE.size)
    frames = tuple(places.get(number, -1) for number in told)
    if -1 in frames or not 0 <= duration_ns < LATEST_NS or not 0 <= t_ns < LATEST_NS:
        return False
    thread.t_ns.append(t_ns - origin_ns)
    thread.duration_ns.append(duration_ns)
    thread.frames.append(frames)
    return True


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each record; kind 0 stands for one that is damaged, and ends its block."""
    for block in range(layout.BLOCK_BYTES, len(content), layout.BLOCK_BYTES):
        at, end = block, min(block + layout.BLOCK_BYTES, len(content))
        while at + layout.RECORD.size <= end:
            kind, size, check = layout.RECORD.unpack_from(content, at)
            if kind == 0:
                break
            body = content[at + layout.RECORD.size : min(at + layout.RECORD.size + size, end)]
            if len(body) < size or zlib.crc32(body) != check:
                yield 0, b""
                break
            yield kind, body
            at += layout.RECORD.size + size


def _in_order(thread: ThreadStacks) -> ThreadStacks:
    """Return the samples sorted; a thread's number may have been given to another thread after its end."""
    order = sorted(range(len(thread)), key=thread.t_ns.__getitem__)
    picked: dict[str, Any] = {
        name: [getattr(thread, name)[i] for i in order] for name in ("t_ns", "duration_ns", "frames")
    }
    return ThreadStacks(thread.process_id, thread.thread_id, thread.interval_ns, **picked)
