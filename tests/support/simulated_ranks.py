# SPDX-License-Identifier: Apache-2.0
"""Runs of an invented training with several ranks, which wait for each other in collective operations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
from run_edits import change_meta
from simulated_program import PROCESS
from simulated_training import MS, TrainingHost, settings

LAUNCHER = 1
ALL_REDUCE = "gloo:all_reduce"
FORWARD = "DistributedDataParallel.forward"


def train_ranks(
    works: Sequence[float],
    *,
    steps: int = 12,
    passes: int = 1,
    synchronized: int | None = None,
    transfer: float = 2,
    **values: Any,
) -> list[TrainingHost]:
    """Train one rank for each of `works`: its work in a forward pass, in ms.

    The gradients of the last `synchronized` of the passes in a step are exchanged (all by default), after the
    backward pass of 10 ms, in `transfer` ms.
    """
    hosts = [TrainingHost(**{"settings": settings(fused=True), **values}) for _ in works]
    for _ in range(steps):
        begins = [host.now_ns for host in hosts]
        for number in range(passes):
            for host, work in zip(hosts, works, strict=True):
                compute(host, work)
            if number >= passes - (passes if synchronized is None else synchronized):
                exchange(hosts, transfer)
        finish(hosts, begins)
    return hosts


def finish(hosts: Sequence[TrainingHost], begins: Sequence[int]) -> None:
    """End a step that began at these times with the optimizer's."""
    for host, begin in zip(hosts, begins, strict=True):
        with host.span("Optimizer.step#SGD.step"):
            host.operator("aten::add_", MS)
        host.steps.append((begin, host.now_ns))


def compute(host: TrainingHost, work: float) -> None:
    """Do a forward pass with so much work, and its backward pass."""
    with host.span(FORWARD), host.span("model", "layer"):
        host.operator("aten::mm", round(work * MS))
    with host.span("MmBackward0", "backward"):
        host.operator("aten::mm", 10 * MS)


def exchange(hosts: Sequence[TrainingHost], transfer: float) -> None:
    """Have all ranks meet: the operation ends for all at the same time."""
    ends = max(host.now_ns for host in hosts) + round(transfer * MS)
    for host in hosts:
        with host.span(ALL_REDUCE), host.function("run_backward (torch/autograd/graph.py:1)"):
            host.sleep(ends - host.now_ns)


def write_ranks(folder: Path, hosts: Sequence[TrainingHost], numbers: Sequence[int] | None = None) -> Path:
    """Write one run folder with a launcher; `numbers` are the ranks of the hosts, 0, 1, ... by default."""
    path = folder / "ranks.gpuprof"
    processes = []
    for place, host in enumerate(hosts):
        own = host.write(folder / f"rank{place}")
        for part in sorted(own.glob("*/rank=0/*.parquet")):
            _add(path / part.relative_to(own).with_name(f"part-{place}.parquet"), part, place)
        number = place if numbers is None else numbers[place]
        processes.append(
            {
                "process_id": PROCESS + place,
                "name": f"rank {number}",
                "rank": number,
                "start_ns": 0,
                "end_ns": host.now_ns,
            }
        )
    meta = json.loads((folder / "rank0" / "meta.json").read_text(encoding="utf-8"))
    launcher = {"process_id": LAUNCHER, "name": "launcher", "start_ns": 0, "end_ns": meta["duration_ns"]}
    meta["totals"] = {"spans": sum(len(host.spans) for host in hosts)}
    (path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    change_meta(path, process_id=LAUNCHER, processes=[launcher, *processes])
    return path


# Numbers that are unique in a run, and those of processes.
_IDS = ("span_id", "parent_id", "path_id", "node_id", "kernel_id", "correlation_id")
_PROCESS_IDS = ("process_id", "thread_id")
_MOST = 1_000_000


def _add(target: Path, part: Path, place: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as connection:
        rows = connection.read_parquet(str(part))
        moved = [f"{name} + {place * _MOST} AS {name}" for name in rows.columns if name in _IDS]
        moved += [f"{name} + {place} AS {name}" for name in rows.columns if name in _PROCESS_IDS]
        rows.select(f"* REPLACE ({', '.join(moved)})" if moved else "*").write_parquet(str(target))
