# SPDX-License-Identifier: Apache-2.0
"""Figures of a running load test, in a small mapped file that live views read.

The file is a head (magic, length, crc32) and a JSON object, which are replaced in place about twice a second.
A reader that meets a half of them finds that the check is wrong, and reads again. The file is removed when
the test ends.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gpuprof.load.requests import RequestStatus, Rows

LIVE_FILE = "requests.live"
_MAGIC = b"GPUPLOAD"
_HEAD = struct.Struct("<8sII")
_FILE_BYTES = 1 << 15
# Bounds of latency are powers of 2^(1/16), so a bound is at most 4.5% above what it bounds.
_BUCKETS_AN_OCTAVE = 16
_MOST_BUCKETS = 1 << 10
_READINGS = 3


class PublishedLoad(msgspec.Struct):
    """What a load test has done until `t_ns` (monotonic). Latencies are those of successful requests.

    A bucket is its upper bound in nanoseconds and its number of requests. `planned` is None where the end is
    one of time.
    """

    process_id: int
    target: str
    scenario: str
    t_ns: int
    planned: int | None = None
    due: int = 0
    sent: int = 0
    in_service: int = 0
    ended: int = 0
    failed: int = 0
    latency_sum_ns: int = 0
    buckets: list[tuple[int, int]] = []
    is_over: bool = False


class LoadPublisher:
    """Sums up the rows of a load test as they are filled, and publishes the sums.

    Each call of `update` looks at the requests that are new or had not ended at the call before. Where the
    folder cannot be written nothing is published: the test is worth more than its view.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        scenario: str,
        *,
        has_plan: bool,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._path = folder / LIVE_FILE
        self._made_folder = False
        self._has_plan = has_plan
        self._clock = clock
        self._mapping: mmap.mmap | None = None
        self._failed = False
        self._seen = 0
        self._pending: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._counts = np.zeros(_MOST_BUCKETS, np.int64)
        self._sent_and_ended = 0
        self._load = PublishedLoad(os.getpid(), target[:200], scenario[:200], clock())

    def update(self, rows: Rows) -> None:
        """Publish the sums of a test whose requests are `rows`, some of which are not due."""
        self._take(rows, self._clock())
        self._publish()

    def close(self) -> None:
        """Publish that the test is over, and remove the file. Readers that have it open still read it."""
        if self._mapping is None:
            return
        self._load.is_over = True
        self._publish()
        with contextlib.suppress(OSError):
            self._path.unlink()
            if self._made_folder:
                self._path.parent.rmdir()
        self._mapping.close()
        self._mapping = None

    def _take(self, rows: Rows, now_ns: int) -> None:
        planned = rows["planned_ns"]
        # What is not due has a later time or, in a closed loop, none.
        due = bisect_right(range(len(rows)), False, self._seen, key=lambda at: not 0 < planned[at] <= now_ns)
        open_rows = np.concatenate([self._pending, np.arange(self._seen, due)])
        self._seen = due
        status = rows["status"][open_rows]
        has_ended = status > int(RequestStatus.PENDING)
        ended = rows[open_rows[has_ended]]
        self._pending = open_rows[~has_ended]
        is_ok = ended["status"] == int(RequestStatus.OK)
        latencies = np.maximum((ended["end_ns"] - ended["planned_ns"])[is_ok], 1)
        self._counts += np.bincount(_bucket_of(latencies), minlength=_MOST_BUCKETS)
        load = self._load
        load.t_ns = now_ns
        load.planned = len(rows) if self._has_plan else None
        load.due = due
        load.ended += len(ended)
        load.failed += int(len(ended) - is_ok.sum())
        load.latency_sum_ns += int(latencies.sum())
        self._sent_and_ended += int((ended["sent_ns"] > 0).sum())
        load.in_service = int((rows["sent_ns"][self._pending] > 0).sum())
        load.sent = self._sent_and_ended + load.in_service
        filled = np.flatnonzero(self._counts)
        load.buckets = [(bucket_bound_ns(at), count) for at, count in
                        zip(filled.tolist(), self._counts[filled].tolist(), strict=True)]  # fmt: skip

    def _publish(self) -> None:
        if self._failed:
            return
        try:
            if self._mapping is None:
                self._mapping = self._made_file()
        except (OSError, ValueError):
            self._failed = True
            return
        body = msgspec.json.encode(self._load)
        self._mapping[: _HEAD.size + len(body)] = _HEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body

    def _made_file(self) -> mmap.mmap:
        if not self._path.parent.is_dir():
            self._path.parent.mkdir(parents=True)
            self._made_folder = True
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            # Reserved now: a mapped page that finds no room later would end the test.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, _FILE_BYTES)
            else:
                os.ftruncate(file, _FILE_BYTES)
            return mmap.mmap(file, _FILE_BYTES)
        finally:
            os.close(file)


def _bucket_of(latencies_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    buckets = np.ceil(np.log2(latencies_ns) * _BUCKETS_AN_OCTAVE).astype(np.int64)
    found: npt.NDArray[np.int64] = np.clip(buckets, 0, _MOST_BUCKETS - 1)
    return found


def bucket_bound_ns(bucket: int) -> int:
    """Return the upper bound of a bucket of latencies."""
    return math.ceil(math.pow(2.0, bucket / _BUCKETS_AN_OCTAVE))


def parse_published(content: bytes) -> PublishedLoad | None:
    """Return what a file holds; None where it is none, or is being written."""
    if len(content) < _HEAD.size:
        return None
    magic, length, check = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) < length or zlib.crc32(body) != check:
        return None
    try:
        return msgspec.json.decode(body, type=PublishedLoad)
    except msgspec.DecodeError:
        return None


@contextlib.contextmanager
def publishing(folder: Path, target: str, scenario: str, *, has_plan: bool) -> Iterator[LoadPublisher]:
    """Publish a load test in a folder for the time of the block."""
    publisher = LoadPublisher(folder, target, scenario, has_plan=has_plan)
    try:
        yield publisher
    finally:
        publisher.close()


class PublishedFile:
    """The file of a running load test. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def read(self) -> PublishedLoad | None:
        """Return what is published now; None where no reading was whole."""
        for _ in range(_READINGS):
            found = parse_published(os.pread(self._file, _FILE_BYTES, 0))
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()
