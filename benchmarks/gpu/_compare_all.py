# SPDX-License-Identifier: Apache-2.0
"""Compares the profilers that this machine has: `python -m benchmarks.gpu._compare_all PLAN.json`.

Its own process, since it needs what the build made. The section is written after each measured process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu._compare import Comparison, Plan
from benchmarks.gpu._processes import end_children_when_ended
from benchmarks.gpu._profilers import BASE, PROFILERS
from benchmarks.gpu._workloads import WORKLOADS


def main(path: str) -> int:
    """Measure; 1 where a workload could not be measured under gpuprof."""
    end_children_when_ended()
    wanted = json.loads(Path(path).read_text(encoding="utf-8"))
    section = Path(wanted["section"])
    left_out = _left_out(wanted)
    profilers = [name for name in wanted["profilers"] or PROFILERS if name not in left_out]
    plan = Plan(
        device=wanted["device"],
        workloads=[name for name in wanted["workloads"] or WORKLOADS if name not in left_out],
        profilers=[BASE, *(name for name in profilers if name != BASE)],
        rounds=wanted["rounds"],
        limit_s=wanted["limit_s"],
        apart=wanted["apart"],
        tiny=wanted["tiny"],
        chunks=2 if wanted["tiny"] else Plan.chunks,
        chunk_s=0.001 if wanted["tiny"] else Plan.chunk_s,
        warmup_s=0.0 if wanted["tiny"] else Plan.warmup_s,
    )
    folder = Path(wanted["folder"])

    def save(result: dict[str, Any]) -> None:
        draft = section.with_suffix(".new")
        draft.write_text(json.dumps({**_with_budgets(result), "left_out": left_out}), encoding="utf-8")
        draft.replace(section)

    wrappers = {name: profiler.wrapper for name, profiler in PROFILERS.items()}
    prefix = {name: wrapper(folder) for name, wrapper in wrappers.items() if wrapper is not None}
    comparison = Comparison(plan, folder, Path(wanted["log"]), save, prefix)
    result = comparison.run()
    save(result)
    missing = [
        name
        for name, row in result["workloads"].items()
        if "gpuprof" in plan.profilers and "to_unprofiled" not in row["profilers"].get("gpuprof", {})
    ]
    if missing:
        print(f"not measured under gpuprof: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def _left_out(wanted: dict[str, Any]) -> dict[str, str]:
    """Return what cannot be had here, with the reason."""
    found = {}
    for name, profiler in PROFILERS.items():
        if (why := profiler.missing(wanted["device"])) is not None:
            found[name] = why
    if not wanted["profilers"]:
        found["nsys"] = found.get("nsys", "not asked for: --profiler nsys")
    for name, workload in WORKLOADS.items():
        if workload.needs_cuda and wanted["device"] != "cuda":
            found[name] = "needs a CUDA device"
    return found


def _with_budgets(result: dict[str, Any]) -> dict[str, Any]:
    for name, row in result["workloads"].items():
        row["what"] = WORKLOADS[name].what
        row["budget"] = WORKLOADS[name].budget
    return result


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
