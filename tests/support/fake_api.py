# SPDX-License-Identifier: Apache-2.0
"""A replacement of `gpuprof.api` in tests of commands: a run with a tree of a few nodes."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.summary import Summary, first_with_rows, summarize
from gpuprof.errors import RunError
from gpuprof.record.facts import Method, Reason, SourceStatus
from gpuprof.run.format import KINDS


def make_tree(*kinds: str) -> CallTree:
    """Build one process with a child of each kind, all equally long."""
    count = len(kinds) + 1
    return CallTree(
        parent=np.array([-1] + [0] * len(kinds), dtype=np.int32),
        kind=np.array([KINDS.index(kind) for kind in ("process", *kinds)], dtype=np.uint8),
        name=np.arange(count, dtype=np.int32),
        calls=np.ones(count, dtype=np.int64),
        total_ns=np.full(count, 1_000_000, dtype=np.int64),
        own_ns=np.array([0] + [1_000_000] * len(kinds), dtype=np.int64),
        threads=np.ones(count, dtype=np.int32),
        process_id=np.full(count, 42, dtype=np.int64),
        names=["python (42)", *(f"{kind} 火 number {index}" for index, kind in enumerate(kinds))],
    )


META = {
    "complete": True,
    "gpuprof": "0.1.0",
    "duration_ns": 4_210_000_000,
    "machine": {"system": "Linux 6.18", "processor": "AMD EPYC", "cores": 4, "memory_bytes": 25_300_000_000},
    "versions": {"python": "3.11.7", "torch": None},
    "sources": {
        "spans": SourceStatus.on(Method.RECORDED).to_plain(),
        "layers": SourceStatus.on(Method.INTERCEPTED_CALLS).to_plain(),
        "operators": SourceStatus.off(Reason.TORCH_NOT_IMPORTED).to_plain(),
    },
    "totals": {
        "events": 20,
        "spans": 10_000,
        "dropped_events": 0,
        "damaged_events": 0,
        "unfinished_spans": 0,
    },
    "damage": [],
    "notes": [],
    "processes": [{"process_id": 42, "start_ns": 0, "end_ns": 4_210_000_000, "closed": True}],
}


class FakeRun:
    """Replaces `gpuprof.api.Run`."""

    def __init__(self, path: Path, *kinds: str) -> None:
        self.path = path
        self.meta: dict[str, Any] = dict(META)
        self.call_tree = make_tree(*kinds)
        self.drawn: list[Path] = []

    def summary(self, by: str | None = None, *, process: Any = None) -> Summary:
        if by is None:
            return first_with_rows(lambda kind: self.summary(kind, process=process))
        return summarize(self.call_tree, by, process)

    def phases(self) -> None:
        """Return what an imported run has."""


class FakeApi(types.ModuleType):
    """Replaces `gpuprof.api`; remembers what was called."""

    def __init__(self, recorded: FakeRun) -> None:
        super().__init__("gpuprof.api")
        self.recorded = recorded
        self.failure: RunError | None = None
        self.exit_code = 0
        self.error: BaseException | None = None
        self.calls: list[tuple[str, list[str], dict[str, Any]]] = []

    def open(self, path: str) -> FakeRun:
        if self.error:
            raise self.error
        return self.recorded

    def write_flamegraph(self, path: Path, run: FakeRun, **_options: Any) -> None:
        run.drawn.append(path)

    def run_program(
        self, target: str, arguments: list[str], **options: Any
    ) -> tuple[int, FakeRun | RunError]:
        self.calls.append((target, list(arguments), options))
        if self.error:
            raise self.error
        return self.exit_code, self.failure or self.recorded
