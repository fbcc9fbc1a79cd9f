# SPDX-License-Identifier: Apache-2.0
"""How much of the time of operators has a label in the roofline, for whole programs.

    python benchmarks/roofline_coverage.py [--program "SCRIPT ARGS"]... [--json FILE|-]

Each program is recorded with `gpuprof run --work`: by default the training and the generation of the
example; name others with --program.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

_EXAMPLE = str(Path(__file__).resolve().parent.parent / "examples" / "transformer.py")
_PROGRAMS = (f"{_EXAMPLE} --steps 10 --tokens 1", f"{_EXAMPLE} --steps 1 --batch 1 --tokens 100")
_COLUMNS = (
    Column("program", 60, lambda row: row["program"][-60:]),
    Column("operators", 10, lambda row: f"{row['operators_ns'] / 1e6:.0f} ms"),
    Column("labeled", 8, lambda row: f"{row['labeled_share']:.1%}"),
)


def main(arguments: list[str] | None = None) -> int:
    """Record each program, print the percent of operator time with a label, and return the exit code."""
    parser = argparse.ArgumentParser(description="The percent of operator time that has a label.")
    parser.add_argument("--program", action="append", help="a script with its arguments; repeatable")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    rows = [coverage(program) for program in options.program or _PROGRAMS]
    result = {
        "benchmark": "roofline_coverage",
        "machine": describe_machine(),
        "code": describe_code(),
        "rows": rows,
    }
    show(result, plain_table(_COLUMNS, rows), options.json)
    return 0


def coverage(program: str) -> dict[str, Any]:
    """Return the labeled fraction of a program's operator time, and the time without a label by reason."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-coverage-") as folder:
        run = Path(folder) / "r.gpuprof"
        command = [sys.executable, "-m", "gpuprof", "run", "--work", "--no-python", "--out", str(run)]
        subprocess.run([*command, *shlex.split(program)], check=True, stdout=subprocess.DEVNULL)
        roofline = gpuprof.open(run).roofline()
    reasons: Counter[str] = Counter()
    for row in roofline.unmatched:
        reasons[str(row.reason)] += row.total_ns
    share = roofline.labeled_share or 0.0
    unlabeled_ns = sum(reasons.values())
    return {
        "program": program,
        "labeled_share": share,
        "operators_ns": unlabeled_ns / (1 - share) if share < 1 else 0,
        "unlabeled_ns": dict(reasons.most_common()),
    }


if __name__ == "__main__":
    sys.exit(main())
