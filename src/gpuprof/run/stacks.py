# SPDX-License-Identifier: Apache-2.0
"""Reads the stack samples that a recording left; the layout is in `record/stack_file.py`."""

from __future__ import annotations

import itertools
import struct
import zlib
from array import array
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gpuprof.record import stack_file as layout
from gpuprof.record.facts import Damage, DamageCode

BATCH_SAMPLES = 8192
# Far longer than any recording, and short enough for sums of what all threads of a run did.
LONGEST_NS = 1 << 54
_LARGEST_FIRST_BLOCK_BYTES = 1 << 20
_LONGEST_INTERVAL_NS = 1 << 40
_MOST_IDS = 1 << 31
# Of a batch of samples, `places` of the frames in its stacks, and the table `frames` of their texts.
STACKS_QUERY = """
    WITH told AS (
        SELECT stack, list(text ORDER BY place) AS frames FROM places JOIN frames USING (frame)
        GROUP BY stack)
    SELECT t_ns, process_id, thread_id, duration_ns, coalesce(told.frames, []) AS frames
    FROM batch LEFT JOIN told USING (stack) ORDER BY sample
"""

Frames = tuple[int, ...]


def _numbers() -> MutableSequence[int]:
    return array("q")


@dataclass(slots=True)
class ThreadStacks:
    """The samples of one thread in the order of time; `frames` are numbers of texts, the outermost first.

    Equal stacks are one object, so a sample takes 24 bytes.
    """

    process_id: int
    thread_id: int
    interval_ns: int
    t_ns: MutableSequence[int] = field(default_factory=_numbers)
    duration_ns: MutableSequence[int] = field(default_factory=_numbers)
    frames: list[Frames] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t_ns)


@dataclass(slots=True)
class Stacks:
    """All samples of a run, and the texts of the frames."""

    texts: list[str] = field(default_factory=list)
    threads: list[ThreadStacks] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.threads))

    def summary(self) -> dict[str, int] | None:
        """Return how many samples there are, how far apart and of how many threads; None for none."""
        if not len(self):
            return None
        interval_ns = max(thread.interval_ns for thread in self.threads)
        threads = sum(len(thread) > 0 for thread in self.threads)
        return {"samples": len(self), "interval_ns": interval_ns, "threads": threads}


def has_stacks(segments: Path) -> bool:
    """Whether a recording left any stack samples."""
    return next(segments.glob("*.stacks"), None) is not None


# ---- as columns ----------------------------------------------------------------------------------


def batches(stacks: Stacks) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield for batches of samples the process id, their columns, and those of the frames of their stacks."""
    import numpy as np

    by_process = sorted(stacks.threads, key=lambda thread: thread.process_id)
    for process_id, threads in itertools.groupby(by_process, key=lambda thread: thread.process_id):
        rows = _rows(threads)
        while batch := list(itertools.islice(rows, BATCH_SAMPLES)):
            numbers: dict[Frames, int] = {}
            for *_, frames in batch:
                numbers.setdefault(frames, len(numbers))
            columns = {
                name: np.array([row[at] for row in batch], dtype=np.int64)
                for at, name in enumerate(("t_ns", "thread_id", "duration_ns"))
            }
            columns["stack"] = np.array([numbers[row[3]] for row in batch], dtype=np.int64)
            columns["sample"] = np.arange(len(batch))
            columns["process_id"] = np.full(len(batch), process_id, dtype=np.int64)
            yield process_id, columns, _places(list(numbers))


def _rows(threads: Iterator[ThreadStacks]) -> Iterator[tuple[int, int, int, Frames]]:
    for thread in threads:
        ids = itertools.repeat(thread.thread_id)
        yield from zip(thread.t_ns, ids, thread.duration_ns, thread.frames, strict=False)


def _places(stacks: list[Frames]) -> dict[str, Any]:
    import numpy as np

    lengths = np.array([len(frames) for frames in stacks], dtype=np.int64)
    frame = np.fromiter(itertools.chain.from_iterable(stacks), dtype=np.int64, count=int(lengths.sum()))
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return {
        "stack": np.repeat(np.arange(len(stacks)), lengths),
        "place": np.arange(len(frame)) - first,
        "frame": frame,
    }


# ---- reading -------------------------------------------------------------------------------------


class _Head(NamedTuple):
    first_block_bytes: int
    process_id: int
    interval_ns: int


def read_stacks(segments: Path, origin_ns: int) -> Stacks:
    """Read all samples; their times become those of the run. Raises OSError of the disk.

    Files that are cut off or are no samples are damage, not errors.
    """
    found = _Reader(origin_ns)
    damage = []
    for path in sorted(segments.glob("*.stacks")):
        with path.open("rb") as file:
            content = file.read(layout.HEAD_BYTES)
            if not content.strip(b"\0"):
                continue  # there was no room for its first block, as the recording says
            head = _head(content)
            if head is None:
                damage.append(Damage(DamageCode.STACKS_NO_FILE, path.name))
                continue
            file.seek(0)
            damaged = found.read(file, head)
        if damaged:
            damage.append(Damage(DamageCode.RECORDS, path.name, damaged))
    return Stacks(list(found.texts), [_in_order(thread) for thread in found.threads.values()], damage)


def _head(content: bytes) -> _Head | None:
    if len(content) < layout.HEAD_BYTES:
        return None
    magic, version, *facts = layout.HEAD.unpack_from(content)
    check = layout.CHECK.unpack_from(content, layout.HEAD.size)[0]
    if (magic, version, check) != (layout.MAGIC, layout.VERSION, zlib.crc32(content[: layout.HEAD.size])):
        return None
    told = _Head(*facts)
    is_possible = (
        layout.RECORD.size < told.first_block_bytes <= _LARGEST_FIRST_BLOCK_BYTES
        and 0 < told.process_id < _MOST_IDS
        and 0 < told.interval_ns < _LONGEST_INTERVAL_NS
    )
    return told if is_possible else None


class _Reader:
    """Takes in one file after the other."""

    def __init__(self, origin_ns: int) -> None:
        self.texts: dict[str, int] = {}
        self.threads: dict[tuple[int, int], ThreadStacks] = {}
        self._origin_ns = origin_ns
        self._stacks: dict[Frames, Frames] = {}

    def read(self, file: BinaryIO, head: _Head) -> int:
        """Take in the records of a file; returns how many are damaged."""
        damaged = 0
        numbers: dict[int, int] = {}  # of the file's frames among those of the run
        thread: ThreadStacks | None = None
        for kind, body in _records(file, head.first_block_bytes):
            if kind == layout.FRAME_RECORD and len(body) >= layout.FRAME_NUMBER.size:
                text = body[layout.FRAME_NUMBER.size :].decode("utf-8", "backslashreplace")
                number = layout.FRAME_NUMBER.unpack_from(body)[0]
                numbers[number] = self.texts.setdefault(text, len(self.texts))
            elif kind == layout.THREAD_RECORD:
                thread = self._thread(body, head)
                damaged += thread is None
            elif kind != layout.SAMPLE_RECORD:
                damaged += 1
                thread = None  # who wrote what follows is not known before the next block says so
            elif thread is None or not self._take_sample(body, thread, numbers):
                damaged += 1
        return damaged

    def _thread(self, body: bytes, head: _Head) -> ThreadStacks | None:
        if len(body) != layout.THREAD.size:
            return None
        thread_id = layout.THREAD.unpack(body)[0]
        if thread_id < 0:
            return None
        key = (head.process_id, thread_id)
        return self.threads.setdefault(key, ThreadStacks(*key, head.interval_ns))

    def _take_sample(self, body: bytes, thread: ThreadStacks, numbers: dict[int, int]) -> bool:
        count, rest = divmod(len(body) - layout.SAMPLE.size, layout.FRAME_NUMBER.size)
        if count < 0 or rest:
            return False
        t_ns, duration_ns = layout.SAMPLE.unpack_from(body)
        told = struct.unpack_from(f"<{count}I", body, layout.SAMPLE.size)
        if not 0 <= duration_ns < LONGEST_NS or not -LONGEST_NS < t_ns - self._origin_ns < LONGEST_NS:
            return False
        try:
            frames = tuple([numbers[number] for number in told])
        except KeyError:
            return False
        thread.t_ns.append(t_ns - self._origin_ns)
        thread.duration_ns.append(duration_ns)
        thread.frames.append(self._stacks.setdefault(frames, frames))
        return True


def _records(file: BinaryIO, first_block_bytes: int) -> Iterator[tuple[int, bytes]]:
    offset, at = 0, layout.HEAD_BYTES
    while block := file.read(layout.block_bytes(offset, first_block_bytes)):
        yield from _records_of_block(block, at)
        offset += len(block)
        at = 0


def _records_of_block(block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each record; kind 0 stands for one that is damaged, and ends the block."""
    while at + layout.RECORD.size <= len(block):
        kind, size, check = layout.RECORD.unpack_from(block, at)
        if kind == 0:
            break
        body = block[at + layout.RECORD.size : at + layout.RECORD.size + size]
        if len(body) < size or zlib.crc32(body) != check:
            yield 0, b""
            break
        yield kind, body
        at += layout.RECORD.size + size


def _in_order(thread: ThreadStacks) -> ThreadStacks:
    """Return the samples sorted; a thread's number may have been given to another thread after its end.

    No instant is of two samples, whatever a file says.
    """
    import numpy as np

    if not len(thread):
        return thread
    t_ns = np.array(thread.t_ns, dtype=np.int64)
    order = np.argsort(t_ns, kind="stable")
    t_ns, duration = t_ns[order], np.array(thread.duration_ns, dtype=np.int64)[order]
    duration[1:] = np.minimum(duration[1:], np.diff(t_ns))
    frames = thread.frames
    if (np.diff(order) != 1).any():
        frames = [frames[place] for place in order.tolist()]
    times, durations = (array("q", column.tobytes()) for column in (t_ns, duration))
    return ThreadStacks(thread.process_id, thread.thread_id, thread.interval_ns, times, durations, frames)
