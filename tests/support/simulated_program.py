# SPDX-License-Identifier: Apache-2.0
"""Runs of an invented program: one thread that works, launches, and waits for streams of an invented GPU.

The times follow from the rules of CUDA alone, step by step, without any code of the product.
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from simulated_gpu import write_table

from gpuprof.record.facts import Method, SourceStatus
from gpuprof.run.format import META_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESS = 7
LATENCY_NS, GAP_NS, CALL_NS, RETURN_NS = 4_000, 900, 2_000, 1_500


@dataclass
class Host:
    """The thread: each method advances its clock. `jitter` is a standard deviation of latencies and gaps."""

    jitter: float = 0.0
    seed: int = 1
    now_ns: int = 0
    spans: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    synchronizations: list[dict[str, Any]] = field(default_factory=list)
    ends_ns: dict[int, int] = field(default_factory=dict)  # of streams
    events: dict[int, int] = field(default_factory=dict)
    awaited_ns: dict[int, int] = field(default_factory=dict)  # by the next work of a stream
    cores: int = 4
    machine_busy_ns: int | None = None  # of all processors
    stacks: list[dict[str, Any]] = field(default_factory=list)
    threads: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._open: list[dict[str, Any]] = []
        self._paths: dict[tuple[str, ...], int] = {}

    def work(self, duration_ns: int) -> None:
        """Compute."""
        self.now_ns += duration_ns

    def sample(self, duration_ns: int) -> None:
        """Compute, with one sample of the stack, on a processor all the time."""
        self.now_ns += duration_ns
        self.stacks.append(
            {
                "t_ns": self.now_ns,
                "process_id": PROCESS,
                "thread_id": PROCESS,
                "duration_ns": duration_ns,
                "frames": ["main (program.py:1)"],
                "cpu_ns": duration_ns,
                "queued_ns": 0,
                "line": 1,
            }
        )

    def other_thread(self, thread_id: int, cpu_ns: int, queued_ns: int = 0) -> None:
        """Count a thread without calls: since the begin it was on a processor, in the queue, and waited."""
        self.threads.append(
            {
                "process_id": PROCESS,
                "thread_id": thread_id,
                "name": "simulated",
                "begin_ns": 0,
                "end_ns": self.now_ns,
                "cpu_ns": cpu_ns,
                "queued_ns": queued_ns,
                "waiting_ns": self.now_ns - cpu_ns - queued_ns,
                "voluntary_switches": 0,
                "involuntary_switches": 0,
            }
        )

    @contextmanager
    def span(self, name: str, kind: str = "span") -> Iterator[None]:
        """Do the block inside a span."""
        path = (*(each["name"] for each in self._open), name)
        span = {
            "span_id": len(self.spans),
            "parent_id": self._open[-1]["span_id"] if self._open else None,
            "process_id": PROCESS,
            "thread_id": PROCESS,
            "kind": kind,
            "name": name,
            "start_ns": self.now_ns,
            "duration_ns": 0,
            "depth": len(self._open),
            "path_id": self._paths.setdefault(path, len(self._paths)),
        }
        self.spans.append(span)
        self._open.append(span)
        yield
        self._open.pop()
        span["duration_ns"] = self.now_ns - span["start_ns"]

    def launch(self, name: str, duration_ns: int, stream: int = 7) -> None:
        """ProcessRunResult a kernel; the call returns before the kernel ends."""
        start = self.now_ns + self._varied(LATENCY_NS)
        if stream in self.ends_ns:
            start = max(start, self.ends_ns[stream] + self._varied(GAP_NS))
        start = max(start, self.awaited_ns.pop(stream, 0))
        self.ends_ns[stream] = start + duration_ns
        self.kernels.append(
            {
                "kernel_id": len(self.kernels),
                "name": name,
                "start_ns": start,
                "duration_ns": duration_ns,
                "device": 0,
                "launch_ns": self.now_ns,
                "launch_end_ns": self.now_ns + CALL_NS,
                **self._place(stream),
            }
        )
        self.now_ns += CALL_NS

    def wait(self, stream: int = 7, least_ns: int = 100) -> None:
        """Wait until a stream has done everything; the call takes `least_ns` if it has."""
        begin = self.now_ns
        self.now_ns = max(begin + least_ns, self.ends_ns.get(stream, 0) + RETURN_NS)
        self._synchronization("stream", stream, begin)

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream."""
        begin = self.now_ns
        self.events[event] = self.ends_ns.get(stream, 0)
        self.now_ns += CALL_NS
        self._synchronization("event record", stream, begin, event)

    def wait_for_event(self, event: int, stream: int) -> None:
        """Let the next work of a stream wait for an event."""
        begin = self.now_ns
        self.awaited_ns[stream] = max(self.awaited_ns.get(stream, 0), self.events[event])
        self.now_ns += CALL_NS
        self._synchronization("stream waits for event", stream, begin, event)

    def write(self, path: Path) -> Path:
        """Write a run folder."""
        path.mkdir()
        tables = {
            "spans": self.spans,
            "call_tree": self._call_tree(),
            "kernels": self.kernels,
            "synchronizations": self.synchronizations,
            "stacks": self.stacks,
            "threads": self.threads,
        }
        with duckdb.connect() as connection:
            for table, rows in tables.items():
                if rows:
                    write_table(connection, path, table, rows)
        (path / META_FILE).write_text(json.dumps(self._meta()), encoding="utf-8")
        return path

    def _varied(self, duration_ns: int) -> int:
        return max(0, round(duration_ns * (1 + self.jitter * abs(self._random.gauss(0, 1)))))

    def _place(self, stream: int) -> dict[str, Any]:
        return {
            "span_id": self._open[-1]["span_id"] if self._open else None,
            "process_id": PROCESS,
            "correlation_id": len(self.kernels) + len(self.synchronizations) + 1,
            "context": 1,
            "stream": stream,
        }

    def _synchronization(self, kind: str, stream: int, begin_ns: int, event: int | None = None) -> None:
        self.synchronizations.append(
            {
                "type": kind,
                "start_ns": begin_ns,
                "duration_ns": self.now_ns - begin_ns,
                "event_id": event,
                "event_sync_id": event,
                **self._place(stream),
            }
        )

    def _call_tree(self) -> list[dict[str, Any]]:
        """Return the nodes in pre-order: the process, the paths of spans, and kernels below them."""
        kinds = {(span["path_id"]): (span["kind"], span["name"]) for span in self.spans}
        calls: dict[int, list[int]] = {}
        for span in self.spans:
            calls.setdefault(span["path_id"], []).append(span["duration_ns"])
        rows = [self._node(0, None, "process", "simulated", 0, self.now_ns, None)]
        places: dict[tuple[str, ...], int] = {(): 0}
        for path in sorted(self._paths):
            number = self._paths[path]
            places[path] = len(rows)
            kind, name = kinds[number]
            rows.append(
                self._node(
                    len(rows), places[path[:-1]], kind, name, len(calls[number]), sum(calls[number]), number
                )
            )
            launched = {
                kernel["name"]
                for kernel in self.kernels
                if kernel["span_id"] is not None and self.spans[kernel["span_id"]]["path_id"] == number
            }
            parent = places[path]
            rows += [
                self._node(len(rows) + i, parent, "kernel", each, 1, 0, None)
                for i, each in enumerate(sorted(launched))
            ]
        for row in rows[1:]:
            rows[row["parent_id"]]["own_ns"] -= row["total_ns"]
        return rows

    def _node(
        self, node: int, parent: int | None, kind: str, name: str, calls: int, total_ns: int, path: int | None
    ) -> dict[str, Any]:
        return {
            "node_id": node,
            "parent_id": parent,
            "process_id": PROCESS,
            "kind": kind,
            "name": name,
            "calls": calls,
            "total_ns": total_ns,
            "own_ns": total_ns,
            "threads": 1,
            "gpu_ns": 0,
            "path_id": path,
        }

    def _meta(self) -> dict[str, Any]:
        return {
            "format_version": 2,
            "complete": True,
            "process_id": PROCESS,
            "processes": [{"process_id": PROCESS, "name": "simulated", "start_ns": 0, "end_ns": self.now_ns}],
            "threads": [{"process_id": PROCESS, "thread_id": PROCESS, "name": "main"}],
            "totals": {"spans": len(self.spans)},
            "sources": {"kernels": SourceStatus.on(Method.TEXT, text="simulated").to_plain()},
            "machine": {"cores": self.cores},
            "machine_busy_ns": self.machine_busy_ns,
            "versions": {},
            "duration_ns": self.now_ns,
            "notes": [],
        }
