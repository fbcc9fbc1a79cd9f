# SPDX-License-Identifier: Apache-2.0
"""The file that one thread's stack samples are written into while the program runs.

A head (magic, version, length of what follows) and a JSON object stand in the first block. From the second
block on, records follow one another; none crosses the end of a block, and the rest of a block is zero:

    kind, size, crc32 of the body, body

The body of a frame is its number and its text. That of a sample is the time on the monotonic clock at which
it was taken, how long it stands for, and the numbers of its frames, the outermost first. Blocks are mapped
shared, so a record is in the kernel's hands as soon as it is written: a program that is killed loses none.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import zlib
from typing import Any

MAGIC = b"GPUPSTCK"
VERSION = 1
HEAD = struct.Struct("<8sII")
RECORD = struct.Struct("<HHI")
FRAME_NUMBER = struct.Struct("<I")
SAMPLE = struct.Struct("<qq")
FRAME_RECORD, SAMPLE_RECORD = 1, 2
BLOCK_BYTES = 1 << 16
LONGEST_STACK = 1000
LONGEST_TEXT_BYTES = 1000

_DISK_ERRORS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ENOENT, errno.EACCES),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    )
)


class StackFile:
    """Appends records. Raises nothing of its own once it is made: on a full disk it becomes `failed`."""

    def __init__(self, path: str, description: dict[str, Any]) -> None:
        self.failed: str | None = None
        self._path = path
        self._end = 0
        self._at = 0
        self._block: mmap.mmap | None = None
        text = json.dumps(description).encode()
        self._next_block()
        self._write(HEAD.pack(MAGIC, VERSION, len(text)) + text)
        self._at = BLOCK_BYTES

    def add_frame(self, number: int, text: str) -> None:
        """Say what a frame's number stands for."""
        body = FRAME_NUMBER.pack(number) + text.encode("utf-8", "backslashreplace")[:LONGEST_TEXT_BYTES]
        self._append(FRAME_RECORD, body)

    def add_sample(self, t_ns: int, duration_ns: int, frames: list[int]) -> None:
        """Write one sample of at most LONGEST_STACK frames."""
        body = SAMPLE.pack(t_ns, duration_ns) + struct.pack(f"<{len(frames)}I", *frames)
        self._append(SAMPLE_RECORD, body)

    def _append(self, kind: int, body: bytes) -> None:
        record = RECORD.pack(kind, len(body), zlib.crc32(body)) + body
        if self._at + len(record) > BLOCK_BYTES:
            self._next_block()
        self._write(record)

    def _write(self, content: bytes) -> None:
        if self._block is not None:
            self._block[self._at : self._at + len(content)] = content
            self._at += len(content)

    def _next_block(self) -> None:
        if self.failed is not None:
            return
        try:
            self._block = _mapped(self._path, self._end)
        except OSError as error:
            # A signal handler of the program may run here, and what it raises is the program's.
            if error.errno not in _DISK_ERRORS:
                raise
            self.failed, self._block = error.strerror, None
            return
        self._end += BLOCK_BYTES
        self._at = 0


def _mapped(path: str, offset: int) -> mmap.mmap:
    # Opened for each block: the number of an open file is the program's to close.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # A mapped page that finds no room later would kill the program.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, offset, BLOCK_BYTES)
        else:
            os.ftruncate(file, offset + BLOCK_BYTES)
        return mmap.mmap(file, BLOCK_BYTES, offset=offset)
    finally:
        os.close(file)
