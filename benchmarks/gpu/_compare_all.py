# SPDX-License-Identifier: Apache-2.0
"""Compares the profilers that this machine has: `python -m benchmarks.gpu._compare_all PLAN.json`.

Its own process, since it needs what the build made. Each measured process is an item of the call's journal.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu._compare import Comparison, Plan
from benchmarks.gpu._journal import Entry, Journal
from benchmarks.gpu._profilers import PROFILERS
from benchmarks.gpu._pytest_journal import STEP_VARIABLE
from benchmarks.gpu._rounds import BASE
from benchmarks.gpu._workloads import WORKLOADS


def main(path: str) -> int:
    """Measure, and print what was left out and how many rounds are complete; 1 where there is none."""
    wanted = json.loads(Path(path).read_text(encoding="utf-8"))
    left_out = _left_out(wanted)
    plan = _plan(wanted, left_out)
    folder, journal = Path(wanted["folder"]), Journal.of_environment()

    def add(entry: Entry) -> None:
        print(f"  {entry.item}: {entry.state} in {entry.seconds} s", file=sys.stderr, flush=True)
        if journal is not None:
            journal.add(entry)

    wrappers = {name: profiler.wrapper for name, profiler in PROFILERS.items()}
    comparison = Comparison(
        plan,
        folder,
        Path(wanted["log"]),
        add,
        os.environ.get(STEP_VARIABLE, "workloads"),
        {name: wrapper(folder) for name, wrapper in wrappers.items() if wrapper is not None},
        _sees,
    )
    rounds = comparison.run()
    missing = [name for name in plan.workloads if name not in comparison.steps]
    print(json.dumps({"left_out": left_out, "rounds": rounds, "not_calibrated": missing}))
    if missing:
        print(f"could not be run at all: {', '.join(missing)}", file=sys.stderr)
    elif not rounds:
        print("no round is complete: give the step more time, or name fewer profilers", file=sys.stderr)
    return 1 if missing or not rounds else 0


def _plan(wanted: dict[str, Any], left_out: dict[str, str]) -> Plan:
    profilers = [name for name in wanted["profilers"] or PROFILERS if name not in left_out]
    tiny = wanted["tiny"]
    return Plan(
        device=wanted["device"],
        workloads=[name for name in wanted["workloads"] or WORKLOADS if name not in left_out],
        profilers=[BASE, *(name for name in profilers if name != BASE)],
        rounds=wanted["rounds"],
        limit_s=wanted["limit_s"],
        apart=wanted["apart"],
        tiny=tiny,
        chunks=2 if tiny else Plan.chunks,
        chunk_s=0.001 if tiny else Plan.chunk_s,
        warmup_s=0.0 if tiny else Plan.warmup_s,
    )


def _sees(profiler: str, workload: str) -> bool:
    known = PROFILERS[profiler]
    return (
        not known.is_blind_to_earlier_graphs if WORKLOADS[workload].captured_before else not known.only_graphs
    )


def _left_out(wanted: dict[str, Any]) -> dict[str, str]:
    """Return what cannot be had here, with the reason."""
    found = {}
    for name, profiler in PROFILERS.items():
        if (why := profiler.missing(wanted["device"])) is not None:
            found[name] = why
    if not wanted["profilers"]:
        found["nsys"] = found.get("nsys", "only where asked for: --profiler nsys")
    for name, workload in WORKLOADS.items():
        if workload.needs_cuda and wanted["device"] != "cuda":
            found[name] = "needs a CUDA device"
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
