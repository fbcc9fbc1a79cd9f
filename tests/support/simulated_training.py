# SPDX-License-Identifier: Apache-2.0
"""Runs of an invented training program on one thread, with planted causes; each can be left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
from run_edits import change_meta
from simulated_gpu import write_table
from simulated_program import CALL_NS, GAP_NS, LATENCY_NS, PROCESS, RETURN_NS, Host

from gpuprof.record.facts import Method, SourceStatus

MS = 1_000_000
SAMPLE_NS = MS
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MAIN = ("<module> (train.py)", "main (train.py:9)")
ON = SourceStatus.on(Method.TEXT, text="simulated").to_plain()


@dataclass
class TrainingHost(Host):
    """The main thread of a training program: steps, Python functions, and a sample of its stack each ms."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    sources: tuple[str, ...] = ("operators", "python", "gc", "kernels")
    source_of_steps: str = "span"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._frames: list[str] = list(MAIN)

    def work(self, duration_ns: int) -> None:
        """Compute."""
        self._pass(duration_ns, on_processor=True)

    def sleep(self, duration_ns: int) -> None:
        """Wait in `time.sleep`."""
        with self.function("time.sleep (built-in)"):
            self._pass(duration_ns, on_processor=False)

    @contextmanager
    def function(self, *frames: str) -> Iterator[None]:
        """Do the block in Python functions."""
        self._frames += frames
        yield
        del self._frames[-len(frames) :]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Do a step of the training."""
        begin = self.now_ns
        yield
        self.steps.append((begin, self.now_ns))

    def operator(self, name: str, duration_ns: int) -> None:
        """Do an operator."""
        with self.span(name, "operator"):
            self.work(duration_ns)

    def copy(self, duration_ns: int, *, pageable: bool, stream: int = 7) -> None:
        """Copy to the GPU: from pageable memory, the call returns at the end of the copy."""
        begin = self.now_ns
        start = max(begin + LATENCY_NS, self.ends_ns.get(stream, 0) + GAP_NS)
        self.ends_ns[stream] = start + duration_ns
        self.now_ns = start + duration_ns + RETURN_NS if pageable else begin + CALL_NS
        self.transfers.append(
            {
                **self._place(stream),
                "kind": "copy",
                "bytes": duration_ns * 10,
                "src": "pageable" if pageable else "pinned",
                "dst": "device",
                "device": 0,
                "start_ns": start,
                "duration_ns": duration_ns,
                "launch_ns": begin,
                "launch_end_ns": self.now_ns,
            }
        )

    def write(self, path: Path) -> Path:
        """Write a run folder."""
        super().write(path)
        stacks = self.samples if "python" in self.sources else []
        tables = {"steps": self._steps(), "stacks": stacks, "transfers": self.transfers}
        with duckdb.connect() as connection:
            for table, rows in tables.items():
                if rows:
                    write_table(connection, path, table, rows)
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        change_meta(
            path,
            origin_unix_ns=str(self.now_ns),
            processes=[{**meta["processes"][0], "start_ns": 0, "end_ns": self.now_ns}],
            sources=dict.fromkeys(self.sources, ON),
            stacks={"samples": len(self.samples), "interval_ns": SAMPLE_NS, "threads": 1},
            settings=self.settings,
        )
        return path

    def _pass(self, duration_ns: int, *, on_processor: bool) -> None:
        due = (self.now_ns // SAMPLE_NS + 1) * SAMPLE_NS
        self.now_ns += duration_ns
        self.samples += [
            {
                "t_ns": t_ns,
                "process_id": PROCESS,
                "thread_id": PROCESS,
                "duration_ns": SAMPLE_NS,
                "frames": list(self._frames),
                "cpu_ns": SAMPLE_NS if on_processor else 0,
                "queued_ns": 0,
                "line": 10,
            }
            for t_ns in range(due, self.now_ns + 1, SAMPLE_NS)
        ]

    def _steps(self) -> list[dict[str, Any]]:
        unknown = dict.fromkeys(["backward_ns", "optimizer_ns", "data_ns", "other_ns", "forward_ns"])
        return [
            {
                "process_id": PROCESS,
                "index": index,
                "begin_ns": begin,
                "end_ns": end,
                "kind": "training",
                "source": self.source_of_steps,
                **unknown,
            }
            for index, (begin, end) in enumerate(self.steps)
        ]


@dataclass(frozen=True)
class Planted:
    """Causes in each step, in ms; 0 leaves one out. `import_` and `startup` are before the first step.

    `collect_every` is the number of steps from one collection to the next; the last of them has it.
    """

    load: float = 0
    load_sleeps: bool = False
    log: float = 0
    values: int = 0
    collect: float = 0
    collect_every: int = 1
    sleep: float = 0
    import_: float = 0
    startup: float = 0
    is_fused: bool = True


def train(host: TrainingHost, planted: Planted, steps: int = 12) -> TrainingHost:
    """Train with the planted causes; a step without any takes 30 ms."""
    _start(host, planted)
    for number in range(steps):
        has_collection = (number + 1) % planted.collect_every == 0
        with host.step():
            train_step(host, planted if has_collection else replace(planted, collect=0))
    return host


def _start(host: TrainingHost, planted: Planted) -> None:
    host.work(5 * MS)
    if planted.import_:
        with host.function("<module> (plots/__init__.py)"):
            host.work(round(planted.import_ * MS))
    if planted.startup:
        with host.function("read_vocabulary (train.py:77)"):
            host.work(round(planted.startup * MS))


def train_step(host: TrainingHost, planted: Planted) -> None:
    """Do what a step of `train` does, without its begin and end."""
    if planted.load:
        with host.span(LOADER), host.function("Samples.__getitem__ (data.py:5)"):
            (host.sleep if planted.load_sleeps else host.work)(round(planted.load * MS))
    with host.span("model", "layer"), host.function("Model.forward (model.py:3)"):
        host.operator("aten::mm", 10 * MS)
    with host.span("MmBackward0", "backward"):
        host.operator("aten::mm", 15 * MS)
    _optimize(host, is_fused=planted.is_fused)
    if planted.collect:
        with host.span("generation 2", "gc"):
            host.work(round(planted.collect * MS))
    if planted.log:
        with host.function("write_norms (train.py:40)"):
            for _ in range(planted.values):
                host.operator("aten::item", 1_000)
            host.work(round(planted.log * MS) - 1_000 * planted.values)
    if planted.sleep:
        with host.function("poll (train.py:60)"):
            host.sleep(round(planted.sleep * MS))


def _optimize(host: TrainingHost, *, is_fused: bool) -> None:
    with host.span("Optimizer.step#AdamW.step"):
        if is_fused:
            host.operator("aten::_fused_adamw_", 5 * MS)
            return
        for name, duration_ns in ADAMW_NS.items():
            host.operator(name, duration_ns)
            host.work(ADAMW_PYTHON_NS)


# The loop of AdamW, whose fused step takes 5 ms.
ADAMW_PYTHON_NS = 500_000
ADAMW_NS = {
    "aten::mul_": 2 * MS,
    "aten::lerp_": 2 * MS,
    "aten::addcmul_": 2 * MS,
    "aten::sqrt": 2 * MS,
    "aten::div": 2 * MS,
    "aten::addcdiv_": 3 * MS,
}


def settings(*, fused: bool | None = None, threads: int = 2, **loader: Any) -> dict[str, Any]:
    """Settings of the program; `loader` replaces those of its loader."""
    return {
        "loaders": [
            {
                "dataset": "Samples",
                "workers": 0,
                "prefetch_factor": None,
                "pin_memory": False,
                "persistent_workers": False,
                "batch_size": 4,
                **loader,
            }
        ],
        "optimizers": [
            {
                "name": "AdamW",
                "fused": fused,
                "foreach": None,
                "can_be_fused": True,
                "parameters": 49,
                "elements": 1_000_000,
                "devices": ["cpu"],
            }
        ],
        "threads": {"intra_op": threads, "inter_op": 2, "usable_processors": 4.0},
    }
