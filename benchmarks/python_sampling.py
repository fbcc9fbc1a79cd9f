# SPDX-License-Identifier: Apache-2.0
"""What sampling Python's stacks costs the sampled program, by sampler.

    python benchmarks/python_sampling.py [--rounds 5] [--peers FOLDER] [--json FILE|-]

Two programs run under each sampler in turn, round by round: one that does nothing but call functions, and a
small network trained by PyTorch. Each measures the processor time of its main thread and its wall time,
without start-up; a row is the median of the ratios to the same round without a sampler. Samplers that run in
a process or thread of their own cost the program little processor time and take a processor of their own, so
the time of all threads and processes is given too. py-spy, austin and Scalene are found in the folder
`--peers` (the `bin` of an environment) or in PATH; what is not there is left out of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

PROGRAMS = {
    "calls": """
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)
def work():
    for _ in range(6):
        fibonacci(25)
""",
    "training": """
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(8)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(16, 64)
def work():
    for _ in range(600):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
""",
}
MEASURE = """
import json, sys, time
work()
cpu, wall = time.thread_time(), time.perf_counter()
work()
json.dump([time.thread_time() - cpu, time.perf_counter() - wall], open(sys.argv[1], "w"))
"""
PYINSTRUMENT = """
import pyinstrument
profiler = pyinstrument.Profiler(interval=0.001)
profiler.start()
"""
PLAIN = "none"

Times = tuple[float, float, float]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="What sampling Python's stacks costs.")
    parser.add_argument("--rounds", type=int, default=5, help="times that each runs (%(default)s)")
    parser.add_argument("--peers", metavar="FOLDER", help="where py-spy, austin and scalene are")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    rows = [row for program in PROGRAMS for row in measure(program, options.rounds, options.peers)]
    result = {
        "benchmark": "python_sampling",
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "rows": rows,
    }
    columns = [
        Column("program", 10, lambda row: str(row["program"])),
        Column("sampler", 28, lambda row: str(row["sampler"])),
        Column("main thread, CPU", 18, lambda row: f"{row['cpu_ratio']:.3f}x"),
        Column("wall", 10, lambda row: f"{row['wall_ratio']:.3f}x"),
        Column("all CPU, added", 18, lambda row: f"{row['added_cpu_s']:.2f} s"),
    ]
    show(result, plain_table(columns, rows), options.json, indent=1)
    return 0


def commands(peers: str | None, python: str) -> dict[str, list[str]]:
    """Return the beginning of each sampler's command, before the script; those that are there."""
    path = os.pathsep.join(filter(None, (peers, os.environ.get("PATH"))))
    native = [python, "-m", "gpuprof", "run", "--no-layers", "--no-operators", "--no-gpu", "--out"]
    found = {
        PLAIN: [python],
        "gpuprof, 1 ms": [*native, "FOLDER/r.gpuprof"],
        "pyinstrument, 1 ms": [
            python,
            "-c",
            f"{PYINSTRUMENT}\nimport runpy, sys\nsys.argv.pop(0)\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\nprofiler.stop()",
        ],
        "cProfile": [python, "-m", "cProfile", "-o", "FOLDER/p.prof"],
    }
    others = {
        "py-spy, 1 ms": ["py-spy", "record", "-r", "1000", "-o", "FOLDER/p.svg", "--", python],
        "py-spy, 1 ms, not blocking": [
            "py-spy",
            "record",
            "--nonblocking",
            "-r",
            "1000",
            "-o",
            "FOLDER/p.svg",
            "--",
            python,
        ],
        "austin, 1 ms": ["austin", "-i", "1000", "-o", "FOLDER/p.austin", python],
        "scalene, CPU only": ["scalene", "run", "--cpu-only", "--outfile", "FOLDER/p.json"],
    }
    for name, (program, *words) in others.items():
        if (executable := shutil.which(program, path=path)) is not None:
            found[name] = [executable, *words]
    return found


def measure(program: str, rounds: int, peers: str | None) -> list[dict[str, Any]]:
    """Return the rows of one program."""
    samplers = commands(peers, sys.executable)
    taken: dict[str, list[Times]] = {name: [] for name in samplers}
    for _ in range(rounds):
        for name, command in samplers.items():
            if (times := run(program, command)) is None:
                print(f"{name} could not run the program {program}", file=sys.stderr)
            else:
                taken[name].append(times)
    return [
        {"program": program, "sampler": name, **_ratios(taken[name], taken[PLAIN])}
        for name in samplers
        if name != PLAIN and len(taken[name]) == rounds
    ]


def _ratios(
    sampled: list[tuple[float, float, float]], plain: list[tuple[float, float, float]]
) -> dict[str, float]:
    pairs = list(zip(sampled, plain, strict=True))
    return {
        "cpu_ratio": statistics.median(one[0] / other[0] for one, other in pairs),
        "wall_ratio": statistics.median(one[1] / other[1] for one, other in pairs),
        "added_cpu_s": statistics.median(one[2] - other[2] for one, other in pairs),
    }


def run(program: str, command: list[str]) -> Times | None:
    """Return the CPU and wall time of the main thread's work, and the CPU time of all that was started.

    None where the program did not complete.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "program.py")
        script.write_text(PROGRAMS[program] + MEASURE, encoding="utf-8")
        words = [word.replace("FOLDER", folder) for word in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*words, str(script), f"{folder}/times.json"], check=False, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times = Path(folder, "times.json")
        if not times.exists():
            return None
        cpu_s, wall_s = json.loads(times.read_text(encoding="utf-8"))
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu_s, wall_s, used


if __name__ == "__main__":
    sys.exit(main())
