# SPDX-License-Identifier: Apache-2.0
"""What a comparison has measured, written behind each launch, so that one that was cut off goes on.

A file of lines of JSON: the first one says where it was measured, each other one holds a launch. A line that
is cut off is that of a launch that was being written, and is measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gpuprof.bench.environment import describe_environment
from gpuprof.errors import BenchmarkError

FORMAT_VERSION = 1
FILE_NAME = "journal.jsonl"
_END = {"kind": "end"}
_MACHINE = ("processor", "architecture", "cores", "usable_cores", "python", "versions", "variables")


@dataclass(frozen=True, slots=True)
class Entry:
    """A launch of a variant that came to its end: `noted` is what Session.restore takes."""

    fingerprint: str
    variant: str
    noted: Mapping[str, Any]
    took_s: float

    @property
    def key(self) -> tuple[str, int]:
        """What is measured once."""
        return self.fingerprint, int(self.noted["launch"])

    def without_samples(self) -> Entry:
        """Return what tells that there is one: the samples of all launches fill memory."""
        return dataclasses.replace(self, noted={"launch": self.noted["launch"]})


class Journal:
    """The launches of one folder. Only one process writes at a time.

    One whose comparison had come to its end begins anew, unless `resume` is set; one that was cut off goes
    on, unless `fresh` is.
    """

    def __init__(self, folder: Path, *, fresh: bool = False, resume: bool = False) -> None:
        self.path = folder / FILE_NAME
        self.entries: dict[tuple[str, int], Entry] = {}
        self._fresh, self._resume = fresh, resume
        self._file: IO[bytes] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Journal]:
        """Read what there is and stay open for more. Raises BenchmarkError."""
        with contextlib.ExitStack() as stack:
            with self._told():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Not truncated on opening: the lock comes first.
                file = stack.enter_context(self.path.open("ab+"))
                _lock(file, self.path)
                self._file = file
                self._begin()
            try:
                yield self
            finally:
                self._file = None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say what cannot be written. What else is done while it is open has words of its own."""
        try:
            yield
        except OSError as error:
            raise BenchmarkError(
                f"{self.path} cannot be written ({error.strerror}): name a folder that can, by --output-dir"
            ) from error

    def add(self, entry: Entry) -> None:
        """Keep a launch, on the disk too."""
        self.entries[entry.key] = entry.without_samples()
        self._write(
            {
                "fingerprint": entry.fingerprint,
                "variant": entry.variant,
                "took_s": entry.took_s,
                "noted": entry.noted,
            }
        )

    def restored(self, key: tuple[str, int]) -> Entry | None:
        """Return a launch of an earlier time, once: its samples are then held by who asked."""
        entry = self.entries.get(key)
        if entry is not None:
            self.entries[key] = entry.without_samples()
        return entry

    def _begin(self) -> None:
        assert self._file is not None
        has_ended = _has_ended(self._file)
        self._file.seek(0)
        head = self._file.readline()
        if self._fresh or not head.endswith(b"\n") or (has_ended and not self._resume):
            self._file.truncate(0)
            self._write({"format": FORMAT_VERSION, "kind": "journal", "machine": _machine()})
            return
        self._check(head)
        whole = len(head)
        for number, line in enumerate(self._file, 2):
            if not line.endswith(b"\n"):
                self._file.truncate(whole)
                break
            whole += len(line)
            plain = self._plain(line, number)
            if plain != _END:
                entry = self._entry(plain, number)
                self.entries[entry.key] = entry

    def _check(self, head: bytes) -> None:
        found = self._plain(head, 1)
        if found.get("kind") != "journal" or found.get("format") != FORMAT_VERSION:
            raise BenchmarkError(f"{self.path} is no journal of this version: {_mend()}")
        here, there = _machine(), found.get("machine")
        other = sorted(name for name in here if not isinstance(there, dict) or there.get(name) != here[name])
        if other:
            raise BenchmarkError(
                f"{self.path} was begun on another machine or with other versions ({', '.join(other)}): "
                f"{_mend()}"
            )

    def _entry(self, found: Mapping[str, Any], number: int) -> Entry:
        try:
            entry = Entry(found["fingerprint"], found["variant"], found["noted"], found["took_s"])
            entry.key  # noqa: B018 - raises where it has none
            _compact(entry.noted)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._damaged(number) from error
        return entry

    def _plain(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise self._damaged(number) from error
        if not isinstance(found, dict):
            raise self._damaged(number)
        return found

    def _damaged(self, number: int) -> BenchmarkError:
        return BenchmarkError(f"{self.path}, line {number}: damaged: remove the line, or {_mend()}")

    def _write(self, plain: Mapping[str, Any]) -> None:
        assert self._file is not None
        line = json.dumps(plain, allow_nan=False, default=str).encode() + b"\n"
        with self._told():
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())


def mark_finished(folder: Path) -> None:
    """Note that a comparison and its report are written: the next one in the folder begins anew."""
    with Journal(folder, resume=True).opened() as journal:
        journal._write(_END)


def _has_ended(file: IO[bytes]) -> bool:
    end = b"\n" + json.dumps(_END).encode() + b"\n"
    file.seek(max(0, file.seek(0, os.SEEK_END) - len(end)))
    return file.read() == end


def _compact(noted: Mapping[str, Any]) -> None:
    """Hold samples as numbers of 8 bytes: as objects of Python, those of many launches fill memory."""
    for each in noted["batches"]:
        measured = each.get("launch", {}).get("measurement") or {}
        for name in ("samples_ns", "enqueue_ns"):
            if measured.get(name) is not None:
                measured[name] = np.asarray(measured[name], dtype=np.int64)


def _mend() -> str:
    return "add --fresh to measure all of it again, or name another --output-dir"


def _machine() -> dict[str, Any]:
    environment = describe_environment()
    # Through JSON, since it is compared with what was read from there.
    found: dict[str, Any] = json.loads(json.dumps({name: environment.get(name) for name in _MACHINE}))
    return found


def _lock(file: IO[bytes], path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BenchmarkError(
            f"{path} is being written by another comparison: wait for its end, or name another --output-dir"
        ) from error
