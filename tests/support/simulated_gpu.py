# SPDX-License-Identifier: Apache-2.0
"""Runs of an invented GPU: a host and streams whose clocks move by given times. No GPU is involved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
from roofline_rows import CACHES, CEILINGS, far

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.counted import Reuse
from gpuprof.record.facts import Method, SourceStatus
from gpuprof.run.format import META_FILE, TABLES

DEVICE = "cuda:0"
L2_BYTES = 10_000_000
FLOOR_NS, PERIOD_NS = 2000, 3000
# From the call that launches until the GPU begins, where it has nothing else to do.
LAUNCH_TAKES_NS = 2500
PROCESS = 7


def ceilings_of(device: str = DEVICE, factor: float = 1) -> list[Ceiling]:
    """10 TFLOP/s in fp32, 40 in TF32, 100 in bf16; 1 TB/s from memory, 4 TB/s from 10 MB of cache."""

    def row(resource: str, dtype: str | None, value: float, unit: Any, method: str = "by hand") -> Ceiling:
        return Ceiling(device, resource, dtype, value * (1 if unit == "ns" else factor), unit, 0.0, method)

    return [
        row("compute", "fp32", 10e12, "flop_per_s", "best: fma"),
        row("compute.fma", "fp32", 10e12, "flop_per_s"),
        row("compute.matmul", "fp32", 9e12, "flop_per_s"),
        row("compute", "tf32", 40e12, "flop_per_s", "best: matmul"),
        row("compute", "bf16", 100e12, "flop_per_s", "best: matmul"),
        row("compute.matmul", "bf16", 100e12, "flop_per_s"),
        row("memory.l2", None, 4e12, "bytes_per_s", "best: read"),
        row("memory.dram", None, 1e12, "bytes_per_s", "best: read"),
        row("memory.dram.read", None, 1e12, "bytes_per_s"),
        row("launch", None, FLOOR_NS, "ns"),
        row("launch.period", None, PERIOD_NS, "ns"),
    ]


@dataclass(frozen=True)
class Operator:
    """An operator of the model: its counted work, how long the host takes over it, what it launches where."""

    name: str
    kernels: Sequence[tuple[str, int]] = ()
    flops: int | None = 0
    bytes: int | None = 0
    reuse: tuple[Reuse, ...] = ()
    dtype: str = "float32"
    layer: str = "fc"
    host_ns: int = 5000
    device: str = DEVICE
    exactness: str = "exact"
    phase: str = "forward"
    copies: tuple[str, str] | None = None  # its kernels are copies from here to there
    is_counted: bool = True


def copying(size: int, took_ns: int, **values: Any) -> Operator:
    """Half of the bytes are read, half are written, and no cache has them."""
    reuse = (far(size // 2), far(size // 2, written=True))
    return Operator("aten::copy_", [("copy_kernel", took_ns)], bytes=size, reuse=reuse, **values)


@dataclass
class SimulatedRun:
    """A model called again and again; `write` makes a run folder of it."""

    operators: Sequence[Operator]
    gpus: Sequence[str] = (DEVICE,)
    ceilings: Sequence[Ceiling] | None = None
    tf32: dict[str, bool | None] = field(default_factory=dict)
    spans: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    # Hardware counters: (operator, kernel, metric) and its value.
    counters: dict[tuple[str, str, str], float] = field(default_factory=dict)
    now_ns: int = 1_000_000
    free_ns: dict[str, int] = field(default_factory=dict)  # when each device's stream is empty
    correlation: int = 0

    def call(self, times: int = 1) -> SimulatedRun:
        """Call the model; the host launches and continues, each stream does one thing after the other."""
        forward = [each for each in self.operators if each.phase == "forward"]
        backward = [each for each in self.operators if each.phase == "backward"]
        for _ in range(times):
            root = self._span("layer", "Net", None)
            for layer in dict.fromkeys(each.layer for each in forward):
                around = root if layer == "Net" else self._span("layer", layer, root)
                for each in forward:
                    if each.layer == layer:
                        self._operator(each, around)
                self._end(around)
            self._end(root)
            if backward:
                around = self._span("backward", "backward", None)
                for each in backward:
                    self._operator(each, around)
                self._end(around)
        return self

    def replay(self, times: int) -> SimulatedRun:
        """Replay a CUDA graph of the model: the kernels belong to where they were captured."""
        captured = {span["name"]: span["span_id"] for span in self.spans if span["kind"] == "operator"}
        for _ in range(times):
            self.correlation += 1
            self.now_ns += 20_000
            for each in self.operators:
                for name, took_ns in each.kernels:
                    self._piece(each, name, took_ns, captured[each.name], graph_id=1)
        return self

    def wait(self, idle_ns: int = 0) -> SimulatedRun:
        """Have the host wait until the GPUs are idle, and do nothing for a while."""
        self.now_ns = max([self.now_ns, *self.free_ns.values()]) + idle_ns
        return self

    def stray(self, name: str, took_ns: int) -> SimulatedRun:
        """ProcessRunResult a kernel in no operator and no layer."""
        self.correlation += 1
        self._piece(Operator("", device=DEVICE), name, took_ns, None)
        return self

    def _operator(self, each: Operator, around: dict[str, Any]) -> None:
        span = self._span("operator", each.name, around)
        begin_ns = self.now_ns
        for number, (name, took_ns) in enumerate(each.kernels, 1):
            self.correlation += 1
            self.now_ns = begin_ns + each.host_ns * number // (len(each.kernels) + 1)
            self._piece(each, name, took_ns, span["span_id"])
        self.now_ns = begin_ns + each.host_ns
        self._end(span)

    def _piece(
        self, each: Operator, name: str, took_ns: int, span_id: int | None, graph_id: int | None = None
    ) -> None:
        start_ns = max(self.free_ns.get(each.device, 0), self.now_ns + LAUNCH_TAKES_NS)
        self.free_ns[each.device] = start_ns + took_ns
        shared = {
            "span_id": span_id,
            "process_id": PROCESS,
            "correlation_id": self.correlation,
            "device": int(each.device.partition(":")[2]),
            "context": 1,
            "stream": 7,
            "start_ns": start_ns,
            "duration_ns": took_ns,
            "launch_ns": self.now_ns,
            "graph_id": graph_id,
        }
        if each.copies is None:
            self.kernels.append({"kernel_id": len(self.kernels), "name": name, **shared})
        else:
            self.transfers.append({"kind": "copy", "src": each.copies[0], "dst": each.copies[1], **shared})

    def _span(self, kind: str, name: str, around: dict[str, Any] | None) -> dict[str, Any]:
        self.now_ns += 10
        span = {
            "span_id": len(self.spans),
            "parent_id": None if around is None else around["span_id"],
            "process_id": PROCESS,
            "thread_id": 1,
            "kind": kind,
            "name": name,
            "start_ns": self.now_ns,
            "duration_ns": 0,
            "depth": 0,
            "path_id": 0,
        }
        self.spans.append(span)
        return span

    def _end(self, span: dict[str, Any]) -> None:
        self.now_ns += 10
        span["duration_ns"] = self.now_ns - span["start_ns"]

    def write(self, path: Path) -> Path:
        """Write the run's folder."""
        tables = {
            "spans": self.spans,
            "kernels": self.kernels,
            "transfers": self.transfers,
            "work": self._work(),
            "counters": self._counters(),
            "ceilings": [asdict(row) for row in self._ceilings()],
        }
        path.mkdir()
        with duckdb.connect() as connection:
            for table, rows in tables.items():
                if rows:
                    write_table(connection, path, table, rows)
        (path / META_FILE).write_text(json.dumps(self._meta()), encoding="utf-8")
        return path

    def _ceilings(self) -> Sequence[Ceiling]:
        gpus = [row for gpu in self.gpus for row in ceilings_of(gpu)]
        return [*CEILINGS, *(gpus if self.ceilings is None else self.ceilings)]

    def _work(self) -> list[dict[str, Any]]:
        layers: dict[str, int] = {}
        rows = []
        for each in self.operators:
            ordinal = layers[each.layer] = layers.get(each.layer, -1) + 1
            row = {
                "root": "Net",
                "layer": each.layer,
                "ordinal": ordinal,
                "operator": each.name,
                "overload": "default",
                "phase": each.phase,
                "flops": each.flops,
                "bytes": each.bytes,
                "exactness": each.exactness,
                "dtype": each.dtype,
                "input_shapes": "",
                "page_faults": 3,
                "reuse_distance_bytes": [part.distance_bytes for part in each.reuse],
                "reuse_bytes": [part.bytes for part in each.reuse],
                "reuse_written": [part.written for part in each.reuse],
            }
            rows += [row] if each.is_counted else []
        return rows

    def _counters(self) -> list[dict[str, Any]]:
        return [
            {
                **{key: row[key] for key in ("root", "layer", "ordinal", "operator", "phase")},
                "process_id": PROCESS,
                "kernel": kernel,
                "kernel_number": number,
                "metric": metric,
                "value": value,
            }
            for row in self._work()
            for number, ((operator, kernel, metric), value) in enumerate(self.counters.items())
            if operator == row["operator"]
        ]

    def _meta(self) -> dict[str, Any]:
        devices = [{"ordinal": int(gpu[5:]), "name": "Invented", "uuid": gpu} for gpu in self.gpus]
        gpus = [
            {"device": gpu, "gpu": "Invented", "uuid": gpu, "l2_cache_bytes": L2_BYTES} for gpu in self.gpus
        ]
        gpu = {"roots": {"Net": DEVICE}, "devices": devices, "tf32": self.tf32} if devices else None
        work = {"roots": ["Net"], "threads": 4, "page_faults": [], "given": [], "caches": CACHES, "gpu": gpu}
        return {
            "format_version": 2,
            "process_id": PROCESS,
            "processes": [{"process_id": PROCESS, "name": "simulated"}],
            "threads": [{"process_id": PROCESS, "thread_id": 1, "name": "main"}],
            "totals": {"spans": len(self.spans)},
            "sources": {"kernels": SourceStatus.on(Method.TEXT, text="simulated").to_plain()},
            "machine": {},
            "versions": {},
            "duration_ns": self.now_ns,
            "notes": [],
            "work": work,
            "ceilings": {"measured_at": None, "drift": [], "notes": [], "gpus": gpus},
        }


def write_table(
    connection: duckdb.DuckDBPyConnection, path: Path, table: str, rows: list[dict[str, Any]]
) -> None:
    folder = path / table / "rank=0"
    folder.mkdir(parents=True)
    draft = path / f"{table}.jsonl"
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = connection.read_json(str(draft), columns=TABLES[table], format="newline_delimited")
    found.write_parquet(str(folder / "part-0.parquet"))
    draft.unlink()


def on(device: str, *operators: Operator) -> list[Operator]:
    """Return the operators on another device."""
    return [replace(each, device=device) for each in operators]
