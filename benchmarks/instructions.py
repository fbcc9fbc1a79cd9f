# SPDX-License-Identifier: Apache-2.0
"""How many instructions a span executes: a figure that does not depend on other programs or the clock.

    python benchmarks/instructions.py [--python PATH]... [--json FILE|-]

Needs Valgrind. Each loop runs twice, short and long; their difference, less that of an empty loop, is what
one turn of the `with` statement executes, the interpreter's part included; in brackets is what of that lies
in gpuprof's own libraries. Name several interpreters to hold revisions of gpuprof, or builds of Python,
against each other: each must have gpuprof and nvtx installed.
Instructions are not time: two machines take different times for the same ones.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._instructions_child import LOOPS
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

_CHILD = Path(__file__).with_name("_instructions_child.py")
_SHORT, _LONG = 2_000, 52_000
_LONGEST_S = 300
_EMPTY = "empty"


class Counts(NamedTuple):
    """Instructions, and those of them in gpuprof's own libraries."""

    all: float
    of_gpuprof: float


def main(arguments: list[str] | None = None) -> int:
    """Count, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Instructions of a span, counted by Valgrind.")
    parser.add_argument(
        "--python",
        metavar="PATH",
        action="append",
        help="an interpreter that has gpuprof and nvtx (this one); repeatable",
    )
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    pythons = options.python or [sys.executable]
    empty = {python: per_turn(python, _EMPTY) for python in pythons}
    rows = [_row(loop, pythons, empty) for loop in LOOPS if loop != _EMPTY]
    result = {
        "benchmark": "instructions",
        "pythons": pythons,
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "rows": rows,
    }
    show(result, _table(rows, pythons), options.json, indent=1)
    return 0


def _row(loop: str, pythons: list[str], empty: dict[str, Counts]) -> dict[str, Any]:
    turns = [per_turn(python, loop) for python in pythons]
    return {
        "name": loop,
        "instructions": [turn.all - empty[python].all for python, turn in zip(pythons, turns, strict=True)],
        "of_gpuprof": [turn.of_gpuprof for turn in turns],
    }


def per_turn(python: str, loop: str) -> Counts:
    """Return the instructions of one turn of a loop, the loop's own included."""
    short, long = (count(python, loop, times) for times in (_SHORT, _LONG))
    turns = _LONG - _SHORT
    return Counts((long.all - short.all) / turns, (long.of_gpuprof - short.of_gpuprof) / turns)


def count(python: str, loop: str, times: int) -> Counts:
    """Return the instructions of a whole process that runs a loop so many times."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
        command += [python, str(_CHILD), loop, str(times), folder]
        try:
            subprocess.run(
                command,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                capture_output=True,
                text=True,
                check=True,
                timeout=_LONGEST_S,
            )
        except FileNotFoundError:
            raise SystemExit(
                "instructions: there is no valgrind: install Debian's package valgrind"
            ) from None
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise SystemExit(f"instructions: {python} fails under Valgrind: {reason}") from None
        found = counts_of(counts.read_text(encoding="utf-8", errors="replace"))
    if found.all == 0:
        raise SystemExit(f"instructions: Valgrind counted nothing of {python}")
    return found


def counts_of(text: str) -> Counts:
    """Add up a file of Callgrind's (valgrind.org/docs/manual/cl-format.html), by the library of each line."""
    libraries: dict[str, str] = {}
    library, is_of_callee = "", False
    found = {True: 0, False: 0}
    for line in text.splitlines():
        if named := re.match(r"c?ob=(\(\d+\))(?: (.*))?$", line):
            libraries.setdefault(named[1], named[2] or "")
            library = library if line.startswith("c") else libraries[named[1]]
        elif line.startswith("calls="):
            is_of_callee = True  # the next line is the callee's cost, which has lines of its own
        elif cost := re.match(r"[+*-]?\d* (\d+)$", line):
            if not is_of_callee:
                found[Path(library).parent.name == "gpuprof"] += int(cost[1])
            is_of_callee = False
    return Counts(sum(found.values()), found[True])


def _table(rows: list[dict[str, Any]], pythons: list[str]) -> str:
    columns = [Column("instructions of", 38, lambda row: str(row["name"]))]
    columns += [_column(place) for place in range(len(pythons))]
    names = "".join(f"[{number}] {python}\n" for number, python in enumerate(pythons, 1))
    return plain_table(columns, rows) + names


def _column(place: int) -> Column:
    def cell(row: dict[str, Any]) -> str:
        return f"{row['instructions'][place]:,.0f} ({row['of_gpuprof'][place]:,.0f})"

    return Column(f"[{place + 1}]", 14, cell)


if __name__ == "__main__":
    sys.exit(main())
