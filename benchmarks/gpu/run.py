# SPDX-License-Identifier: Apache-2.0
"""Builds gpuprof on a machine with a GPU, tests it there and measures it next to other profilers.

    python benchmarks/gpu/run.py [--part 1|2] [--steps build,tests,...] [--out FOLDER] [--device cpu]

Needs no network: see benchmarks/gpu/README.md. Each item is a line of OUT/NAME.jsonl when it has ended; a
call that is killed leaves these lines and no process. The report, OUT/NAME.json, is made of them at the end.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks._machine import _git
from benchmarks.gpu import _report
from benchmarks.gpu._call import Call, Options
from benchmarks.gpu._keeper import keeper
from benchmarks.gpu._plan import EVERYTHING, PART_S, PARTS, STEPS, run_step
from benchmarks.gpu._processes import REPOSITORY


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that are asked for; 1 where an item failed, 3 where the call was interrupted."""
    options = _parse(arguments)
    if options.merge:
        return _merge(options.merge, options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    call = Call(
        options.out,
        options.name,
        Options(
            device=options.device,
            quick=options.quick,
            workloads=tuple(options.workload),
            profilers=tuple(options.profiler),
            rounds=options.rounds,
            apart=options.apart,
        ),
        time.monotonic() + options.time,
    )
    call.journal.path.unlink(missing_ok=True)
    call.log.unlink(missing_ok=True)
    call.add("begin", "ok", facts=_facts(options, sys.argv[1:] if arguments is None else arguments))
    return _run(call, _limits(options))


def _run(call: Call, limits: Iterable[tuple[str, float]]) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    code = 0
    with keeper(call.journal.path):
        try:
            for name, limit_s in limits:
                run_step(call, name, limit_s)
        except KeyboardInterrupt:
            code = 3
    call.step = "call"
    left_s = round(call.end_s - time.monotonic(), 1)
    call.add("end", "killed" if code else "ok", problem="interrupted" if code else None)
    _report.write(_report.merge([call.journal.path]), call.out / f"{call.name}.json")
    failed = sorted(call.failed - {"call"})
    left = f", {left_s:.0f} s left" if math.isfinite(left_s) else ""
    print(f"wrote {call.out / call.name}.json{left}", flush=True)
    if failed:
        print(f"not ok: {', '.join(failed)}", file=sys.stderr)
    return code or (1 if failed else 0)


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _merge(paths: Sequence[Path], target: Path) -> int:
    try:
        _report.write(_report.merge(paths), target)
    except (OSError, _report.MergeError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    return 0


def _facts(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    status = _git("status", "--porcelain")
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": list(arguments),
        "revision": options.revision or _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "source_digest": _report.source_digest(),
        "python": sys.version.split()[0],
        "device": options.device,
        "quick": options.quick,
    }


def _limits(options: argparse.Namespace) -> list[tuple[str, float]]:
    """Return the steps in their order, with their limits; the last one of a part has what is left."""
    own = dict(options.limit)
    part = PARTS.get(options.part, {})
    names = options.steps or tuple(part) or EVERYTHING
    last = names[-1] if part and not options.steps else None
    return [
        (name, own.get(name, float("inf") if name == last else part.get(name, STEPS[name].limit_s)))
        for name in names
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build, test and measure gpuprof on a GPU.")
    default = Path(os.environ.get("OUT") or REPOSITORY / "benchmarks" / "results")
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=default,
        help="Write journal, report, log and captures there.",
    )
    add("--name", default="gpu", help="Name them NAME.jsonl, NAME.json, NAME.log, NAME-golden.tar.gz.")
    add("--part", choices=sorted(PARTS), help=f"Run one part of the plan, in {PART_S:.0f} s.")
    add("--steps", type=_names, help=f"Run these in this order, of {','.join(STEPS)}.")
    add("--limit", type=_limit, action="append", default=[], metavar="STEP=S", help="May be repeated.")
    add("--time", type=float, metavar="SECONDS", help="End the whole call after that time.")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="Run the workloads on this device.")
    add("--workload", action="append", default=[], help="Measure this one only; may be repeated.")
    add("--profiler", action="append", default=[], help="Compare this one only; may be repeated.")
    add("--rounds", type=int, default=40, help="Stop after that many rounds; the time ends them too.")
    add("--apart", action="store_true", help="Run each workload in a process of its own.")
    add("--quick", action="store_true", help="Use tiny networks and one round: no figures.")
    add("--revision", help="Name the revision of the sources, where there is no repository around them.")
    add(
        "--merge",
        type=Path,
        nargs="+",
        metavar="JOURNAL",
        help="Write one report of calls to --out.",
    )
    options = parser.parse_args(arguments)
    if options.time is None:
        options.time = PART_S if options.part else float("inf")
    return options


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        _known(name)
    return names


def _limit(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    return _known(name), float(seconds)


def _known(name: str) -> str:
    if name not in STEPS:
        raise argparse.ArgumentTypeError(f"unknown step {name!r}: choose from {', '.join(STEPS)}")
    return name


if __name__ == "__main__":
    sys.exit(main())
