# SPDX-License-Identifier: Apache-2.0
"""What the dashboard shows of a folder: runs and results, with their state and their figures."""

from __future__ import annotations

import enum
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.text.sanitize import visible_text

Plain = dict[str, Any]


class ItemKind(str, enum.Enum):
    """What an entry of the folder is."""

    RUN = "run"
    BENCHMARK = "benchmark"
    COMPARISON = "comparison"
    LOAD = "load"
    GATE = "gate"
    RESULT = "result"  # a JSON file that is not read yet


class ItemState(str, enum.Enum):
    """What is known of an entry."""

    PENDING = "pending"  # found, not read yet
    READY = "ready"
    RECORDING = "recording"
    UNCLOSED = "unclosed"  # its program has ended without closing it
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry cannot be read: the code, the text and the hint of the error."""

    code: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return visible_text(f"{self.message}; hint: {self.hint}" if self.hint else self.message)

    def to_plain(self) -> Plain:
        """Return the code and the text, as plain values."""
        return {"code": self.code, "message": str(self)}


@dataclass(frozen=True, slots=True)
class FileStamp:
    """By which a change of a file is recognized."""

    mtime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of a file."""
        return cls(status.st_mtime_ns, status.st_size, status.st_ino)


@dataclass(frozen=True, slots=True)
class Item:
    """A run or a result. `path` is relative to the served folder, `digest` has its figures."""

    path: str
    kind: ItemKind
    state: ItemState
    stamp: FileStamp
    digest: Plain | None = None
    problem: Problem | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it is a file of other software, or not known to be a result: it is not shown."""
        return self.kind is ItemKind.RESULT and self.state is not ItemState.DAMAGED

    @property
    def item_id(self) -> str:
        """Return the name by which a request asks for it: a request has no paths."""
        return item_id(self.path)

    def to_plain(self) -> Plain:
        """Return what a list of items needs, as plain values."""
        digest = self.digest or {}
        return {
            "id": self.item_id,
            "path": visible_text(self.path),
            "name": visible_text(Path(self.path).name),
            "kind": self.kind.value,
            "state": self.state.value,
            "unix_ms": digest.get("unix_ms") or self.stamp.mtime_ns // 1_000_000,
            "summary": visible_values(digest.get("summary")),
            "problem": None if self.problem is None else self.problem.to_plain(),
        }

    def refusal(self) -> GpuprofError:
        """Return why an entry that is not ready cannot be opened, and what to do."""
        path = visible_text(self.path)
        if self.problem is not None:
            return GpuprofError(
                "damaged_entry", f"{path}: {visible_text(self.problem.message)}", hint=self.problem.hint
            )
        if self.state is ItemState.UNCLOSED:
            return GpuprofError(
                "unclosed",
                f"{path} was not closed by its program, which has ended",
                hint=f"gpuprof summary {path} closes it",
            )
        if self.state is ItemState.RECORDING:
            return GpuprofError(
                "recording",
                f"{path} is being recorded",
                hint="wait until its program has ended and the run is closed",
            )
        return GpuprofError("not_ready", f"{path} is not read yet", hint="try again in a few seconds")


def visible_values(value: Any) -> Any:
    """Return plain values with an escape in place of each invisible character of their texts."""
    if isinstance(value, str):
        return visible_text(value, kept="\n")
    if isinstance(value, dict):
        return {visible_values(key): visible_values(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_values(each) for each in value]
    return value


def item_id(path: str) -> str:
    """Return the id of a path; any file name has one."""
    return hashlib.blake2s(os.fsencode(path), digest_size=8).hexdigest()
