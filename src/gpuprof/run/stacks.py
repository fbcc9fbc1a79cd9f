# SPDX-License-Identifier: Apache-2.0
"""Reads the stack samples that a recording left; the layout is in `record/stack_file.py`."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gpuprof.record import stack_file as layout
from gpuprof.run.call_sites import CallSite, called_at
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.sample_waits import SamplePart, Waits, divided
from gpuprof.run.threads import UNKNOWN, ThreadReadings, ThreadTimes, UsageCounts

BATCH_SAMPLES = 8192
# Far longer than any recording, and short enough for sums of what all threads of a run did.
LONGEST_NS = 1 << 54
_LARGEST_FIRST_BLOCK_BYTES = 1 << 20
_LONGEST_INTERVAL_NS = 1 << 40
_MOST_IDS = 1 << 31
# Of a batch of samples, `places` of the frames in its stacks, and the table `frames` of their texts.
STACKS_QUERY = """
    WITH stack_frames AS (
        SELECT stack, list(text::VARCHAR ORDER BY place) AS frames FROM places JOIN frames USING (frame)
        GROUP BY stack)
    SELECT t_ns, process_id, thread_id, duration_ns, coalesce(stack_frames.frames, []) AS frames,
        CASE WHEN cpu_ns >= 0 THEN cpu_ns END AS cpu_ns,
        CASE WHEN queued_ns >= 0 THEN queued_ns END AS queued_ns,
        CASE WHEN line > 0 THEN line END AS line
    FROM batch LEFT JOIN stack_frames USING (stack) ORDER BY sample
"""

NUMBERS = ("t_ns", "duration_ns", "cpu_ns", "queued_ns", "line")  # columns of samples

Frames = tuple[int, ...]


def _numbers() -> MutableSequence[int]:
    return array("q")


@dataclass(slots=True)
class ThreadStacks:
    """The samples of one thread in the order of time; `frames` are numbers of texts, the outermost first.

    Of a sample's duration the thread was on a processor for `cpu_ns`, and ready without one for `queued_ns`.
    `line` is that of the innermost frame. Each is -1 where it is not known. Equal stacks are one object.
    Samples that are `is_of_end` have the stack of the end of their duration, not of the moment when they were
    due.
    """

    process_id: int
    thread_id: int
    interval_ns: int
    is_of_end: bool = False
    t_ns: MutableSequence[int] = field(default_factory=_numbers)
    duration_ns: MutableSequence[int] = field(default_factory=_numbers)
    cpu_ns: MutableSequence[int] = field(default_factory=_numbers)
    queued_ns: MutableSequence[int] = field(default_factory=_numbers)
    line: MutableSequence[int] = field(default_factory=_numbers)
    frames: list[Frames] = field(default_factory=list)
    sites: list[CallSite | None] = field(default_factory=list)  # of their innermost instructions; often empty
    added: int = 0  # how many samples more there are because waits are apart

    def add(self, numbers: Sequence[int], frames: Frames) -> None:
        """Add a sample: `numbers` are its values in the order of NUMBERS."""
        for name, value in zip(NUMBERS, numbers, strict=True):
            getattr(self, name).append(value)
        self.frames.append(frames)

    def __len__(self) -> int:
        return len(self.t_ns)


@dataclass(slots=True)
class Stacks:
    """All samples of a run, and the texts of the frames."""

    texts: list[str] = field(default_factory=list)
    threads: list[ThreadStacks] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    thread_times: list[ThreadTimes] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.threads))

    def summary(self) -> dict[str, int] | None:
        """Return how many samples there are, how far apart and of how many threads; None for none."""
        if not len(self):
            return None
        interval_ns = max(thread.interval_ns for thread in self.threads)
        threads = sum(len(thread) > 0 for thread in self.threads)
        taken = len(self) - sum(thread.added for thread in self.threads)
        return {"samples": taken, "interval_ns": interval_ns, "threads": threads}


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
                for at, name in enumerate(("thread_id", *NUMBERS))
            }
            columns["stack"] = np.array([numbers[row[-1]] for row in batch], dtype=np.int64)
            columns["sample"] = np.arange(len(batch))
            columns["process_id"] = np.full(len(batch), process_id, dtype=np.int64)
            yield process_id, columns, _places(list(numbers))


def _rows(threads: Iterator[ThreadStacks]) -> Iterator[tuple[Any, ...]]:
    for thread in threads:
        columns = (getattr(thread, name) for name in NUMBERS)
        yield from zip(itertools.repeat(thread.thread_id), *columns, thread.frames, strict=False)


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


class StackHead(NamedTuple):
    """What a file of stack samples begins with."""

    version: int
    first_block_bytes: int
    process_id: int
    interval_ns: int


def read_stacks(segments: Path, origin_ns: int) -> Stacks:
    """Read all samples; their times become those of the run. Raises OSError of the disk.

    Files that are cut off or are no samples are damage, not errors.
    """
    found = _StackReader(origin_ns)
    damage = []
    for path in sorted(segments.glob("*.stacks")):
        with path.open("rb") as file:
            content = file.read(layout.HEAD_BYTES)
            if not content.strip(b"\0"):
                continue  # there was no room for its first block; the recording has a note of it
            head = stack_head(content)
            if head is None:
                damage.append(Damage(DamageCode.STACKS_NO_FILE, path.name))
                continue
            file.seek(0)
            damaged = found.read(file, head)
        if damaged:
            damage.append(Damage(DamageCode.RECORDS, path.name, damaged))
    threads = [found.with_waits(_in_order(thread)) for thread in found.threads.values()]
    return Stacks(list(found.texts), threads, damage, found.thread_times)


def stack_head(content: bytes) -> StackHead | None:
    """Return the head of a file of stack samples; None if it is none."""
    if len(content) < layout.HEAD_BYTES:
        return None
    magic, *facts = layout.HEAD.unpack_from(content)
    check = layout.CHECK.unpack_from(content, layout.HEAD.size)[0]
    if (magic, check) != (layout.MAGIC, zlib.crc32(content[: layout.HEAD.size])):
        return None
    told = StackHead(*facts)
    is_possible = (
        told.version in (layout.VERSION, layout.NATIVE_VERSION)
        and layout.RECORD.size < told.first_block_bytes <= _LARGEST_FIRST_BLOCK_BYTES
        and 0 < told.process_id < _MOST_IDS
        and 0 < told.interval_ns < _LONGEST_INTERVAL_NS
    )
    return told if is_possible else None


class _StackReader:
    """Takes in one file after the other."""

    def __init__(self, origin_ns: int) -> None:
        self.texts: dict[str, int] = {}
        self.threads: dict[tuple[int, int], ThreadStacks] = {}
        self.thread_times: list[ThreadTimes] = []
        self._origin_ns = origin_ns
        self._stacks: dict[Frames, Frames] = {}

    def read(self, file: BinaryIO, head: StackHead) -> int:
        """Take in the records of a file; returns how many are damaged."""
        damaged = 0
        taken = _File(self, head)
        for kind, body in _records(file, head.first_block_bytes):
            damaged += not taken.take(kind, body)
        self.thread_times += taken.readings.rows()
        return damaged

    def time_of(self, monotonic_ns: int) -> int:
        """Return a time of the run. Raises ValueError for an impossible one."""
        t_ns = monotonic_ns - self._origin_ns
        if not -LONGEST_NS < t_ns < LONGEST_NS:
            raise ValueError(t_ns)
        return t_ns

    def number_of(self, text: str) -> int:
        """Return the number of a frame in the run."""
        return self.texts.setdefault(text, len(self.texts))

    def thread(self, thread_id: int, head: StackHead) -> ThreadStacks:
        """Return the samples of a thread."""
        key = (head.process_id, thread_id)
        is_of_end = head.version == layout.NATIVE_VERSION
        return self.threads.setdefault(key, ThreadStacks(*key, head.interval_ns, is_of_end))

    def add(self, thread: ThreadStacks, numbers: Sequence[int], frames: Frames) -> bool:
        """Add a sample, its time on the recorder's clock first; False for an impossible one."""
        t_ns = numbers[0] - self._origin_ns
        if not 0 <= numbers[1] < LONGEST_NS or not -LONGEST_NS < t_ns < LONGEST_NS:
            return False
        thread.add((t_ns, *numbers[1:]), self._stacks.setdefault(frames, frames))
        return True

    def with_waits(self, thread: ThreadStacks) -> ThreadStacks:
        """Return the samples of a thread in which waits are apart, and in the calls that wait."""
        if len(thread.sites) != len(thread):  # samples of pyinstrument, or next to some
            return thread
        found = ThreadStacks(thread.process_id, thread.thread_id, thread.interval_ns, thread.is_of_end)
        columns = [getattr(thread, name) for name in NUMBERS]
        waits = Waits(thread.interval_ns, *columns[:4])
        samples = map(SamplePart, *columns, thread.frames)
        for *numbers, frames in divided(samples, thread.sites, waits, self._frame_of):
            found.add(numbers, self._stacks.setdefault(frames, frames))
        found.added = len(found) - len(thread)
        return found

    def _frame_of(self, site: CallSite) -> int | None:
        called = called_at(site)
        return None if called is None else self.number_of(f"{called} (built-in)")


class _File:
    """The records of one file, whose numbers of frames, stacks and sites are its own."""

    def __init__(self, run: _StackReader, head: StackHead) -> None:
        self._run = run
        self._head = head
        self._thread: ThreadStacks | None = None
        self._frames: dict[int, int] = {}
        self._stacks: dict[int, Frames] = {}
        self._sites: dict[int, CallSite] = {}
        self.readings = ThreadReadings(head.process_id)

    def take(self, kind: int, body: bytes) -> bool:
        """Take a record in; False for a damaged one."""
        try:
            if kind == layout.FRAME_RECORD:
                text = body[layout.FRAME_NUMBER.size :].decode("utf-8", "backslashreplace")
                self._frames[layout.FRAME_NUMBER.unpack_from(body)[0]] = self._run.number_of(text)
                return True
            if kind == layout.THREAD_RECORD:
                return self._take_thread(body)
            if kind == layout.SAMPLE_RECORD and self._thread is not None:
                if self._head.version == layout.NATIVE_VERSION:
                    return self._take_native_sample(body, self._thread)
                return self._take_sample(body, self._thread)
            if kind == layout.STACK_RECORD:
                number, *frames = _numbers_of(body)
                self._stacks[number] = tuple([self._frames[frame] for frame in frames])
                return True
            if kind == layout.SITE_RECORD:
                number, _, *position = layout.SITE.unpack_from(body)
                path = body[layout.SITE.size :].decode("utf-8", "backslashreplace")
                self._sites[number] = CallSite(path, *position)
                return True
            if kind == layout.USAGE_RECORD:
                self._take_usage(body)
                return True
        except (KeyError, ValueError, struct.error):
            return False
        if kind != layout.SAMPLE_RECORD:
            self._thread = None  # the writer of what follows is unknown until the next block
        return False

    def _take_usage(self, body: bytes) -> None:
        t_ns, thread_id, start_ns, *counts, name = layout.USAGE.unpack(body)
        if not all(UNKNOWN <= count < LONGEST_NS for count in (thread_id, *counts)):
            raise ValueError
        self.readings.add(
            self._run.time_of(t_ns),
            thread_id,
            UNKNOWN if start_ns == UNKNOWN else self._run.time_of(start_ns),
            UsageCounts(*counts),
            name.partition(b"\0")[0].decode("utf-8", "backslashreplace"),
        )

    def _take_thread(self, body: bytes) -> bool:
        thread_id = int(layout.THREAD.unpack(body)[0])
        self._thread = self._run.thread(thread_id, self._head) if thread_id >= 0 else None
        return thread_id >= 0

    def _take_sample(self, body: bytes, thread: ThreadStacks) -> bool:
        t_ns, duration_ns = layout.SAMPLE.unpack_from(body)
        frames = tuple([self._frames[number] for number in _numbers_of(body[layout.SAMPLE.size :])])
        return self._run.add(thread, (t_ns, duration_ns, -1, -1, -1), frames)

    def _take_native_sample(self, body: bytes, thread: ThreadStacks) -> bool:
        *times, stack, site = layout.NATIVE_SAMPLE.unpack(body)
        frames = self._stacks[stack]
        at = None if site == layout.NO_SITE else self._sites[site]
        is_taken = self._run.add(thread, (*times, -1 if at is None else at.line), frames)
        if is_taken:
            thread.sites.append(at)
        return is_taken


def _numbers_of(body: bytes) -> tuple[int, ...]:
    count, rest = divmod(len(body), layout.FRAME_NUMBER.size)
    if rest:
        raise ValueError
    return struct.unpack(f"<{count}I", body)


def _records(file: BinaryIO, first_block_bytes: int) -> Iterator[tuple[int, bytes]]:
    offset, at = 0, layout.HEAD_BYTES
    while block := file.read(layout.block_bytes(offset, first_block_bytes)):
        yield from _records_of_block(block, at)
        offset += len(block)
        at = 0


def _records_of_block(block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each record; kind 0 is a damaged one, and ends the block."""
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

    No instant is of two samples, whatever a file contains.
    """
    if any(later < former for former, later in itertools.pairwise(thread.t_ns)):
        thread = _sorted(thread)
    times = itertools.chain([-LONGEST_NS], thread.t_ns)
    distances = (t_ns - former for former, t_ns in itertools.pairwise(times))
    clipped = array("q", map(min, thread.duration_ns, distances))
    return dataclasses.replace(thread, duration_ns=clipped)


def _sorted(thread: ThreadStacks) -> ThreadStacks:
    order = sorted(range(len(thread)), key=thread.t_ns.__getitem__)
    columns = {name: getattr(thread, name) for name in NUMBERS}
    numbers: dict[str, Any] = {
        name: array("q", map(column.__getitem__, order)) for name, column in columns.items()
    }
    sites = [thread.sites[place] for place in order] if thread.sites else []
    return dataclasses.replace(
        thread, frames=[thread.frames[place] for place in order], sites=sites, **numbers
    )
