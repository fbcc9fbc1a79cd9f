# SPDX-License-Identifier: Apache-2.0
"""What `gpuprof run` adds to a short program: from its command to the last line, next to peers.

    python benchmarks/run_startup.py [--script FILE] [--rounds 15] [--json FILE|-]

Each contestant runs the script, an empty one by default, in processes of their own, in turns and in random
order. Times are those of the command with all its processes: wall time, and processor time, which other
programs disturb less. The first round, which fills the caches, is left out. Compiled files of Python are used
also where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

BARE = "python"
# SCRIPT and OUT are filled in.
COMMANDS: dict[str, tuple[str, ...]] = {
    BARE: ("SCRIPT",),
    "gpuprof run": ("-m", "gpuprof", "run", "--out", "OUT", "SCRIPT"),
    "gpuprof run --no-python": ("-m", "gpuprof", "run", "--no-python", "--out", "OUT", "SCRIPT"),
    "pyinstrument": ("-m", "pyinstrument", "-o", "OUT", "SCRIPT"),
    "cProfile": ("-m", "cProfile", "-o", "OUT", "SCRIPT"),
}


class Times(NamedTuple):
    """What a command took, in seconds."""

    wall_s: float
    cpu_s: float


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure what gpuprof run adds to a short program.")
    parser.add_argument("--script", metavar="FILE", help="the program; an empty one by default")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which contestants run")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    rows = measure(options.script, options.rounds, random.Random(options.seed))
    result = {
        "benchmark": "run_startup",
        "script": options.script,
        "rounds": options.rounds,
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "rows": rows,
    }
    columns = [
        Column("command", 24, lambda row: str(row["command"])),
        Column("wall, median", 13, lambda row: _ms(row["wall_s"])),
        Column("added", 9, lambda row: _ms(row["added_wall_s"])),
        Column("CPU, median", 13, lambda row: _ms(row["cpu_s"])),
        Column("added", 9, lambda row: _ms(row["added_cpu_s"])),
        Column("CPU / python", 13, lambda row: f"{row['cpu_ratio']:.1f}"),
    ]
    show(result, plain_table(columns, rows), options.json, indent=1)
    return 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def measure(script: str | None, rounds: int, order: random.Random) -> list[dict[str, Any]]:
    """Return the medians of each command, and their differences from those of Python alone."""
    found: dict[str, list[Times]] = {name: [] for name in _installed()}
    with tempfile.TemporaryDirectory(prefix="gpuprof-startup-") as folder:
        path = Path(folder, "empty.py") if script is None else Path(script)
        if script is None:
            path.write_text("", encoding="utf-8")
        for _ in range(rounds + 1):
            for name in order.sample(list(found), len(found)):
                found[name].append(once(COMMANDS[name], path, Path(folder, "out")))
    medians = {
        name: Times(*map(statistics.median, zip(*each[1:], strict=True))) for name, each in found.items()
    }
    return [_row(name, times, medians[BARE]) for name, times in medians.items()]


def _row(name: str, times: Times, bare: Times) -> dict[str, Any]:
    return {
        "command": name,
        **times._asdict(),
        "added_wall_s": times.wall_s - bare.wall_s,
        "added_cpu_s": times.cpu_s - bare.cpu_s,
        "cpu_ratio": times.cpu_s / bare.cpu_s,
    }


def _installed() -> list[str]:
    """Return the commands whose tools are here."""
    from importlib.util import find_spec

    return [name for name in COMMANDS if name != "pyinstrument" or find_spec(name) is not None]


def once(words: Sequence[str], script: Path, out: Path) -> Times:
    """Run one command; raises CalledProcessError where it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    filled = {"SCRIPT": str(script), "OUT": str(out)}
    command = [sys.executable, *(filled.get(word, word) for word in words)]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env=environment, capture_output=True)
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Times(wall_s, cpu_s)


if __name__ == "__main__":
    sys.exit(main())
