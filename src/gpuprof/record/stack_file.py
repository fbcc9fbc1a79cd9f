# SPDX-License-Identifier: Apache-2.0
"""The file that stack samples are written into while the program runs.

It begins with magic, version, bytes of the first block, process, interval, and their crc32. Records follow;
none crosses the end of a block, and the rest of a block is zero:

    kind, size, crc32 of the body, body

The body of a frame is its number and its text; that of a thread is its id, and the samples after it are that
thread's. Samples of version 2, which pyinstrument's sampler takes (`python_stacks.py`), hold the time on the
monotonic clock, the duration that they represent, and the numbers of the frames, the outermost first.

Version 3 is of the native sampler (`csrc/python/stack_file.cpp`). Its samples also hold how much of the
duration the thread was on a processor and how much it was ready to run without one (-1: unknown), and the
numbers of a stack and of a site. The body of a stack is its number and those of its frames. That of a site,
which is a place in the source of an innermost frame, is its number, the frame's, line, end line, column, end
column, and the path. The body of a usage is a time, and what the kernel has counted for a thread until then:
its id, begin, time on a processor and in the run queue, voluntary and involuntary context switches, and its
name (-1: unavailable).

A block after the first is as large as all before it together, up to LARGEST_BLOCK_BYTES, and begins with its
thread. Blocks are mapped shared: a program that is killed loses no record.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib

from gpuprof.record.frame_text import is_hidden

MAGIC = b"GPUPSTCK"
VERSION = 2
HEAD = struct.Struct("<8sIIqq")
CHECK = struct.Struct("<I")
HEAD_BYTES = HEAD.size + CHECK.size
RECORD = struct.Struct("<HHI")
FRAME_NUMBER = struct.Struct("<I")
THREAD = struct.Struct("<q")
SAMPLE = struct.Struct("<qq")
FRAME_RECORD, SAMPLE_RECORD, THREAD_RECORD, STACK_RECORD, SITE_RECORD, USAGE_RECORD = 1, 2, 3, 4, 5, 6
NATIVE_VERSION = 3
NATIVE_SAMPLE = struct.Struct("<qqqqII")
SITE = struct.Struct("<IIiiii")
USAGE = struct.Struct("<qqqqqqq16s")
NO_SITE = (1 << 32) - 1
FIRST_BLOCK_BYTES = max(1 << 12, mmap.ALLOCATIONGRANULARITY)  # the longest record fits
LARGEST_BLOCK_BYTES = 1 << 16
LONGEST_STACK = 1000
LONGEST_TEXT_BYTES = 1000


def block_bytes(offset: int, first_bytes: int) -> int:
    """Return how long the block is that begins there."""
    return max(first_bytes, min(offset, LARGEST_BLOCK_BYTES))


class StackFile:
    """Appends records. Raises nothing of its own: where it cannot be written to it becomes `failed`."""

    def __init__(self, path: str, process_id: int, interval_ns: int) -> None:
        self.failed: str | None = None
        self._path = path
        self._numbers: dict[str, int] = {}
        self._thread = b""
        self._block: mmap.mmap | None = None
        self._begin = self._at = self._size = 0
        head = HEAD.pack(MAGIC, VERSION, FIRST_BLOCK_BYTES, process_id, interval_ns)
        self._next_block()
        self._write(head + CHECK.pack(zlib.crc32(head)))

    def begin_thread(self, thread_id: int) -> None:
        """Set the thread of the samples that follow."""
        self._thread = _record(THREAD_RECORD, THREAD.pack(thread_id))
        self._append(self._thread)

    def number_of(self, text: str) -> int:
        """Return the number of a frame, which is written at its first use."""
        number = self._numbers.get(text)
        if number is None:
            number = len(self._numbers)
            encoded = text.encode("utf-8", "backslashreplace")[:LONGEST_TEXT_BYTES]
            self._append(_record(FRAME_RECORD, FRAME_NUMBER.pack(number) + encoded))
            self._numbers[text] = number
        return number

    def add_sample(self, t_ns: int, duration_ns: int, frames: list[int]) -> None:
        """Write one sample of at most LONGEST_STACK frames."""
        body = SAMPLE.pack(t_ns, duration_ns) + struct.pack(f"<{len(frames)}I", *frames)
        self._append(_record(SAMPLE_RECORD, body))

    def _append(self, record: bytes) -> None:
        if self._at + len(record) > self._size:
            self._next_block()
            self._write(self._thread)
        self._write(record)

    def _write(self, content: bytes) -> None:
        if self._block is not None:
            self._block[self._at : self._at + len(content)] = content
            self._at += len(content)

    def _next_block(self) -> None:
        if self.failed is not None:
            return
        begin = self._begin + self._size
        size = block_bytes(begin, FIRST_BLOCK_BYTES)
        try:
            self._block = _mapped(self._path, begin, size)
        except (OSError, ValueError, OverflowError) as error:
            if not _is_ours(error):
                raise
            self.failed = getattr(error, "strerror", None) or str(error)
            self._block = None
        self._begin, self._size, self._at = begin, size, 0


def _record(kind: int, body: bytes) -> bytes:
    return RECORD.pack(kind, len(body), zlib.crc32(body)) + body


def _mapped(path: str, offset: int, size: int) -> mmap.mmap:
    # Opened for each block: the number of an open file is the program's to close.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # A mapped page that finds no room later would kill the program.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, offset, size)
        else:
            os.ftruncate(file, offset + size)
        return mmap.mmap(file, size, offset=offset)
    finally:
        os.close(file)


def _is_ours(error: Exception) -> bool:
    """Whether no function of the program's had a part in it: a signal handler may run here at any time."""
    traceback = error.__traceback__
    while traceback is not None:
        if not is_hidden(traceback.tb_frame.f_code):
            return False
        traceback = traceback.tb_next
    return True
