# SPDX-License-Identifier: Apache-2.0
"""Builds gpuprof on a machine with a GPU, tests it there and measures it beside its peers.

    python benchmarks/gpu/run.py [--steps build,tests,...] [--out FOLDER] [--device cpu]

Needs no network: see benchmarks/gpu/README.md. One JSON is written, anew after each step; a step that fails
or outlasts its limit is told there, and the next one goes on.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks._machine import _git
from benchmarks.gpu import _run_steps
from benchmarks.gpu._processes import REPOSITORY
from benchmarks.gpu._report import Report, merge, source_digest

Step = Callable[["_run_steps.Settings", float], dict[str, Any]]
# In the order in which they run, with the seconds that each may take.
STEPS: dict[str, tuple[Step, float]] = {
    "build": (_run_steps.build_step, 300),
    "doctor": (_run_steps.doctor_step, 60),
    "tests": (_run_steps.tests_step, 400),
    "captures": (_run_steps.captures_step, 120),
    "settle": (_run_steps.settle_step, 240),
    "ceilings": (_run_steps.ceilings_step, 180),
    "roofline": (_run_steps.roofline_step, 300),
    "workloads": (_run_steps.workloads_step, 540),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that are asked for; 1 where one of them failed, 3 where the run was cut short."""
    options = _parse(arguments)
    if options.merge:
        try:
            merge(options.merge, options.out)
        except (OSError, ValueError, KeyError) as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 2
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    settings = _run_steps.Settings(
        out=options.out,
        device=options.device,
        quick=options.quick,
        workloads=options.workload,
        profilers=options.profiler,
        rounds=options.rounds,
        apart=options.apart,
        long_run=options.long_run,
    )
    facts = {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:] if arguments is None else list(arguments),
        "revision": options.revision or _git("rev-parse", "HEAD"),
        "dirty": None if (status := _git("status", "--porcelain")) is None else bool(status),
        "source_digest": source_digest(),
        "device": options.device,
        "quick": options.quick,
    }
    report = Report(options.out / f"{options.name}.json", facts)
    return _run_all(report, settings, options)


def _run_all(report: Report, settings: _run_steps.Settings, options: argparse.Namespace) -> int:
    limits = dict(options.limit)
    deadline = time.monotonic() + options.time
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        report.content["machine"] = _run_steps.describe(settings)
        for name in options.steps:
            step, limit_s = STEPS[name]
            left_s = min(limits.get(name, limit_s), deadline - time.monotonic())
            _run_step(report, settings, name, step, left_s)
    except KeyboardInterrupt:
        print("interrupted: what was done stands in the report", file=sys.stderr)
        report.put("end", {"state": "interrupted"})
        return 3
    print(f"wrote {report.path}", flush=True)
    failed = [name for name, section in report.content["steps"].items() if section["state"] != "ok"]
    if failed:
        print(f"not ok: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_step(report: Report, settings: _run_steps.Settings, name: str, step: Step, limit_s: float) -> None:
    if limit_s <= 0:
        report.put(name, {"state": "skipped", "problem": "no time was left"})
        return
    print(f"{name}: up to {limit_s:.0f} s", flush=True)
    begin = time.monotonic()
    settings.save = lambda section: report.put(name, {"state": "running", **section})
    report.put(name, {"state": "running"})
    try:
        section = step(settings, limit_s)
    except Exception as error:
        section = {"problem": f"{type(error).__name__}: {error}"}
    seconds = round(time.monotonic() - begin, 1)
    state = "failed" if section.get("problem") else "ok"
    report.put(name, {"state": state, "seconds": seconds, **section})
    print(f"{name}: {state} in {seconds} s {section.get('problem') or ''}".rstrip(), flush=True)


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="gpuprof on a GPU: built, tested, measured.")
    default = Path(os.environ.get("OUT") or REPOSITORY / "benchmarks" / "results")
    add = parser.add_argument
    add("--out", type=Path, default=default, help="the folder for the report, its log and the captures")
    add("--name", default="gpu", help="of the report, without .json")
    add("--steps", type=_names(STEPS), default=list(STEPS), help=f"of {','.join(STEPS)}")
    add("--limit", type=_limit, action="append", default=[], metavar="STEP=SECONDS", help="may be repeated")
    add("--time", type=float, default=float("inf"), metavar="SECONDS", help="for all steps together")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="of the workloads")
    add("--workload", action="append", help="measure this one only; may be repeated")
    add("--profiler", action="append", help="compare this one only; may be repeated")
    add("--rounds", type=int, default=20, help="at most; the time ends them too")
    add("--apart", action="store_true", help="each workload in a process of its own")
    add("--long-run", action="store_true", help="tests: the run of ten million kernels in full")
    add("--quick", action="store_true", help="tiny networks, one round: whether it runs, no figures")
    add("--revision", help="of the sources, where there is no repository around them")
    add("--merge", type=Path, nargs="+", metavar="REPORT", help="join reports into the file --out instead")
    return parser.parse_args(arguments)


def _names(known: dict[str, Any]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown step {unknown[0]!r}: choose of {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def _limit(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    if name not in STEPS:
        raise argparse.ArgumentTypeError(f"unknown step {name!r}: choose of {', '.join(STEPS)}")
    return name, float(seconds)


if __name__ == "__main__":
    sys.exit(main())
