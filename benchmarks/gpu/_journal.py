# SPDX-License-Identifier: Apache-2.0
"""The journal of a call: a line of JSON for each item, on the disk as soon as the item has ended.

Several processes write one journal: a line is one write to the end of the file. A call that is killed keeps
every line but, at worst, the last.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "GPUPROF_BENCHMARK_JOURNAL"
State = Literal["ok", "failed", "timed out", "skipped", "killed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of a step that has ended. `problem` is one line, None where the state is ok."""

    step: str
    item: str
    state: State
    seconds: float | None = None
    problem: str | None = None
    facts: Any = None


class Journal:
    """Appends entries to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_environment(cls) -> Journal | None:
        """Return the journal of the call that started this process, if one did."""
        path = os.environ.get(VARIABLE)
        return Journal(Path(path)) if path else None

    def add(self, entry: Entry) -> None:
        """Write an entry, and wait until it is on the disk."""
        line = json.dumps({"at": round(time.time(), 2), **asdict(entry)}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)


def read(path: Path) -> list[Entry]:
    """Return the entries in the order of their end; a line that was cut off is left out."""
    return [entry for line in path.read_bytes().splitlines() if (entry := _entry(line)) is not None]


def _entry(line: bytes) -> Entry | None:
    try:
        found = json.loads(line)
        return Entry(**{name: found[name] for name in Entry.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None
