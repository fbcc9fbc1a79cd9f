# SPDX-License-Identifier: Apache-2.0
"""Runs of an invented load: requests whose parts take given times. Nothing is recorded or measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulated_gpu import write_table

from gpuprof.run.database import connect
from gpuprof.run.format import META_FILE
from gpuprof.run.spanless import write_empty_tables

PROCESS, WORKER, OTHER = 100, 101, 102
MS = 1_000_000
OUTSIDE_NS = 20_000  # between sending and the begin of the span, and as long again after it
THREADING = ("Thread._bootstrap (python3.11/threading.py:995)", "Thread.run (python3.11/threading.py:975)")
MODULE_CALL = "Module._wrapped_call_impl (torch/nn/modules/module.py)"


@dataclass(frozen=True)
class Part:
    """A piece of a request: a span with its own pieces, or, with `frames`, a time of samples without a span.

    `own_ms` comes before the inner pieces. With `thread_id` the span runs on another thread meanwhile.
    """

    kind: str
    name: str
    own_ms: float = 0.0
    inner: tuple[Part, ...] = ()
    frames: tuple[str, ...] = ()
    waits: bool = False
    thread_id: int | None = None


def layer(name: str, own_ms: float, *inner: Part) -> Part:
    return Part("layer", name, own_ms, inner)


def operator(name: str, own_ms: float) -> Part:
    return Part("operator", name, own_ms)


def python(own_ms: int, *frames: str) -> Part:
    """Samples of 1 ms in functions."""
    return Part("", "", own_ms, frames=frames)


def wait(own_ms: int, *frames: str) -> Part:
    """Samples of 1 ms of a thread that waits; the last frame may be a built-in function."""
    return Part("", "", own_ms, frames=frames, waits=True)


@dataclass
class SimulatedLoad:
    """Rows of the tables of a run. Requests are served one after the other by one thread."""

    spans: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    now_ns: int = 0

    def serve(self, *parts: Part, planned_ns: int | None = None, batch: int = 1, status: str = "ok") -> None:
        """Serve a request, or a batch of them, as soon as the one before has ended."""
        sent = max(self.now_ns, self.now_ns if planned_ns is None else planned_ns)
        self.now_ns = sent + OUTSIDE_NS
        root = self._span(Part("span", "batch" if batch > 1 else "request", inner=parts), None, WORKER)
        self.now_ns += OUTSIDE_NS
        for _ in range(batch):
            self.requests.append(
                {
                    "index": len(self.requests),
                    "planned_ns": sent if planned_ns is None else planned_ns,
                    "sent_ns": sent,
                    "end_ns": self.now_ns,
                    "status": status,
                    "units": 1,
                    "process_id": PROCESS,
                    "thread_id": WORKER,
                    "span_id": root,
                }
            )

    def _span(self, part: Part, parent: int | None, thread_id: int) -> int:
        row: dict[str, Any] = {"span_id": len(self.spans), "parent_id": parent, "process_id": PROCESS}
        row |= {"thread_id": thread_id, "kind": part.kind, "name": part.name, "start_ns": self.now_ns}
        self.spans.append(row)
        self.now_ns += round(part.own_ms * MS)
        for each in part.inner:
            if each.frames:
                self._samples(each, thread_id)
            elif each.thread_id is not None:
                begin = self.now_ns
                self._span(each, row["span_id"], each.thread_id)
                self.now_ns = begin
            else:
                self._span(each, row["span_id"], thread_id)
        row |= {"duration_ns": self.now_ns - row["start_ns"], "depth": 0, "path_id": 0}
        return int(row["span_id"])

    def _samples(self, part: Part, thread_id: int) -> None:
        for _ in range(round(part.own_ms)):
            self.now_ns += MS
            self.stacks.append(
                {
                    "t_ns": self.now_ns,
                    "process_id": PROCESS,
                    "thread_id": thread_id,
                    "duration_ns": MS,
                    "frames": [*THREADING, *part.frames],
                    "cpu_ns": 0 if part.waits else MS,
                    "queued_ns": 0,
                    "line": 1,
                }
            )

    def write(self, path: Path) -> Path:
        """Write the run."""
        path.mkdir()
        connection = connect()
        tables = {"spans": self.spans, "stacks": self.stacks, "requests": self.requests}
        written = {table: rows for table, rows in tables.items() if rows}
        for table, rows in written.items():
            write_table(connection, path, table, rows)
        connection.close()
        write_empty_tables(path, set(written))
        meta = {
            "format_version": 2,
            "process_id": PROCESS,
            "processes": [{"process_id": PROCESS, "name": "simulated"}],
            "threads": [{"process_id": PROCESS, "thread_id": WORKER, "name": "load 0"}],
            "totals": {"spans": len(self.spans)},
            "sources": {},
            "machine": {},
            "versions": {},
            "duration_ns": self.now_ns,
            "notes": [],
            "complete": True,
        }
        (path / META_FILE).write_text(json.dumps(meta), encoding="utf-8")
        return path


USUAL = (layer("net", 1.0, layer("net.fc", 0.5, operator("aten::addmm", 1.5))),)


def with_rare(rare: Sequence[Part], *, requests: int = 100, every: int = 50) -> SimulatedLoad:
    """Return a load in which each `every`-th request has more to do, and the others vary by microseconds."""
    load = SimulatedLoad()
    jitter = itertools.cycle((0.0, 0.003, 0.001, 0.002))
    for index in range(requests):
        extra = tuple(rare) if index % every == every - 1 else ()
        load.serve(*USUAL, operator("aten::copy_", 0.1 + next(jitter)), *extra)
    return load
