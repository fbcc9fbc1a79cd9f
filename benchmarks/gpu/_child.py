# SPDX-License-Identifier: Apache-2.0
"""One process of the comparison: some workloads under one profiler. Prints a line of JSON for each.

    python -m benchmarks.gpu._child PROFILER DEVICE FOLDER PLAN

PLAN is JSON: `workloads`, a list of [name, steps in a chunk]; `chunks`; `seed`; `warmup_s`; `tiny`.

Each workload runs three times as many chunks: before the profiler is on, while it is, and after. In a
process that profiled a workload before, what the profiler left in it is in the next one's "before".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

# isort: off
import gpuprof  # noqa: F401 - before torch, so that PyTorch finds its operator collector
import torch

# isort: on
from benchmarks.gpu._profilers import PROFILERS
from benchmarks.gpu._workloads import WORKLOADS, Job, Sizes


def main(profiler: str, device: str, folder: str, plan_text: str) -> None:
    """Run the plan; a workload that fails has an error in its line, and the next one starts."""
    plan = json.loads(plan_text)
    for name, steps in plan["workloads"]:
        try:
            figures = measure(name, steps, profiler, torch.device(device), Path(folder), plan)
        except Exception as error:
            figures = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps({"workload": name, **figures}), flush=True)


def measure(
    name: str, steps: int, profiler: str, device: torch.device, folder: Path, plan: dict[str, Any]
) -> dict[str, Any]:
    """Return the seconds of a step in each chunk, by phase. `steps` 0: only how long a step takes."""
    torch.manual_seed(plan["seed"])
    job = WORKLOADS[name].make(device, Sizes.tiny() if plan["tiny"] else Sizes())
    step_s = _warm_up(job, device, plan["warmup_s"])
    if steps == 0:
        return {"step_s": step_s}
    before = _chunks(job, device, steps, plan["chunks"])
    begin = time.perf_counter()
    active = PROFILERS[profiler].start(folder, job.model)
    started = time.perf_counter()
    _chunk(job, device, steps)
    during = _chunks(job, device, steps, plan["chunks"])
    ended = time.perf_counter()
    recorded = active.stop()
    stopped = time.perf_counter()
    after = _chunks(job, device, steps, plan["chunks"])
    return {
        "before_s": before,
        "during_s": during,
        "after_s": after,
        "start_s": started - begin,
        "stop_s": stopped - ended,
        "recorded": recorded,
    }


def _warm_up(job: Job, device: torch.device, seconds: float) -> float:
    """Run for a while, and return what a step takes at the end of it."""
    job.step()  # lazy initialization, compilation
    _wait(device)
    deadline = time.perf_counter() + seconds
    steps = 1
    while True:
        step_s = _chunk(job, device, steps)
        if time.perf_counter() >= deadline:
            return step_s
        steps = min(2 * steps, max(1, int(0.05 / step_s)))


def _chunks(job: Job, device: torch.device, steps: int, count: int) -> list[float]:
    return [_chunk(job, device, steps) for _ in range(count)]


def _chunk(job: Job, device: torch.device, steps: int) -> float:
    _wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        job.step()
    _wait(device)
    return (time.perf_counter() - begin) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(*sys.argv[1:])
