# SPDX-License-Identifier: Apache-2.0
"""What a comparison has measured, written behind each launch, so that one that was cut off goes on.

A file of lines of JSON: the first one says where it was measured, each other one holds a launch. A line that
is cut off is that of a launch that was being written, and is measured again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Not truncated on opening: the lock comes first.
            with self.path.open("ab+") as file:
                self._file = file
                _lock(file, self.path)
                self._begin()
                yield self
        except OSError as error:
            raise BenchmarkError(
                f"{self.path} cannot be written ({error.strerror}): name a folder that can, by --output-dir"
            ) from error
        finally:
            self._file = None

    def add(self, entry: Entry) -> None:
        """Keep a launch, on the disk too."""
        self.entries[entry.key] = entry
        self._write(
            {
                "fingerprint": entry.fingerprint,
                "variant": entry.variant,
                "took_s": entry.took_s,
                "noted": entry.noted,
            }
        )

    def finish(self) -> None:
        """Note that the comparison has come to its end."""
        self._write(_END)

    def _begin(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        *lines, cut_off = self._file.read().split(b"\n")
        has_ended = bool(lines) and lines[-1] == json.dumps(_END).encode()
        if self._fresh or not lines or (has_ended and not self._resume):
            self._file.truncate(0)
            self._write({"format": FORMAT_VERSION, "kind": "journal", "machine": _machine()})
            return
        self._check(lines[0])
        if cut_off:
            self._file.truncate(sum(len(line) + 1 for line in lines))
        for number, line in enumerate(lines[1:], 2):
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
        except (KeyError, TypeError, ValueError) as error:
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
        self._file.write(json.dumps(plain, allow_nan=False, default=str).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


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
