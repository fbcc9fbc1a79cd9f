# SPDX-License-Identifier: Apache-2.0
"""The ceilings that gpuprof measures, beside independent measurements of the same things, in one run.

    python benchmarks/ceilings.py [--stream PATH] [--rounds N] [--repeats N] [--json FILE|-]

Arithmetic is held against clock times units times lanes. The clock is measured: additions that wait for
each other take one cycle each. The number of units is what one cycle was seen to do, rounded to a whole
number: so the ratio says how busy the units were kept, and would not notice a unit that never worked.

Memory is held against STREAM, whose compiled binary you name, and for scale against copies and sums that
NumPy and PyTorch make. STREAM's triad counts what it names; so does `triad` here. Contestants take turns;
each is taken at its best, as a ceiling is: a neighbour can slow a round down and cannot speed it up.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine, load_average
from benchmarks._output import show
from gpuprof import _native
from gpuprof.analyze.ceilings import DRAM_OVER_CACHE, LEAST_DRAM_ARRAY_BYTES
from gpuprof.run.processor import data_caches, usable_processors

LONGEST_STREAM_S = 120
_VECTOR_BYTES = {
    "neon": 16,
    "avx2": 32,
    "avx512": 64,
}
_NUMBER_BYTES = {"fp64": 8, "fp32": 4}
_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Comparison:
    """What gpuprof measured (`ours`), what something else says of it (`theirs`), and ours over theirs."""

    name: str
    ours: float
    theirs: float
    ratio: float
    unit: str
    against: str


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="gpuprof's ceilings beside independent measurements.")
    parser.add_argument("--stream", metavar="PATH", help="a compiled STREAM benchmark")
    parser.add_argument("--rounds", type=int, default=5, help="how often all take turns (5)")
    parser.add_argument("--repeats", type=int, default=30, help="measurements each turn is the best of (30)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    processors = usable_processors()
    array_bytes = dram_array_bytes(processors)
    comparisons = [
        *arithmetic(processors, options.rounds, options.repeats),
        *memory(processors, array_bytes, options.stream, options.rounds, options.repeats),
    ]
    machine["load_average_at_end"] = load_average()
    result = {
        "benchmark": "ceilings",
        "rounds": options.rounds,
        "array_bytes": array_bytes,
        "machine": machine,
        "gpuprof": describe_code(),
        "comparisons": [asdict(each) for each in comparisons],
    }
    show(result, table(comparisons, machine), options.json, indent=1)
    return 0


def dram_array_bytes(processors: list[int]) -> int:
    """Return the size of an array that no cache holds a good part of."""
    caches = data_caches(processors)
    last = max((cache.level for cache in caches), default=0)
    return max(
        DRAM_OVER_CACHE * sum(cache.bytes for cache in caches if cache.level == last), LEAST_DRAM_ARRAY_BYTES
    )


def arithmetic(processors: list[int], rounds: int, repeats: int) -> list[Comparison]:
    """Compare multiply-adds with what the measured clock allows, on one core and on all."""
    comparisons: list[Comparison] = []
    units: dict[str, int] = {}
    for where in dict.fromkeys((tuple(processors[:1]), tuple(processors))):
        for kernel in _native.cpu_kernels():
            name, dtype = kernel["instruction_set"], kernel["dtype"]
            if name not in _VECTOR_BYTES or dtype not in _NUMBER_BYTES:
                continue
            pairs = [_rate_and_clock(name, dtype, list(where), repeats) for _ in range(rounds)]
            if any(clock is None for _, clock in pairs):
                continue
            # Of one unit, for a multiply-add in each lane.
            per_hertz = 2.0 * _VECTOR_BYTES[name] / _NUMBER_BYTES[dtype] * len(where)
            # One core is measured first, and tells what a core has.
            units.setdefault(name + dtype, _units(pairs, per_hertz))
            bound = per_hertz * units[name + dtype]
            comparisons.append(
                _against_clock(f"{name} {dtype}", len(where), pairs, bound, units[name + dtype])
            )
    return comparisons


def _rate_and_clock(name: str, dtype: str, where: list[int], repeats: int) -> tuple[float, float | None]:
    clock = _native.measure_clock(where, _SECONDS, repeats)
    found = _native.measure_compute(name, dtype, where, _SECONDS, repeats)
    if found is None:
        raise SystemExit(f"{name} {dtype} cannot be measured here")
    return max(found["per_second"]), None if clock is None else max(clock["per_second"])


Pairs = list[tuple[float, float | None]]


def _units(pairs: Pairs, per_hertz: float) -> int:
    rate, clock = _bests(pairs)
    return max(1, round(rate / (clock * per_hertz)))


def _bests(pairs: Pairs) -> tuple[float, float]:
    return max(rate for rate, _ in pairs), max(clock for _, clock in pairs if clock is not None)


def _against_clock(name: str, cores: int, pairs: Pairs, per_hertz: float, units: int) -> Comparison:
    rate, clock = _bests(pairs)
    bound = clock * per_hertz
    where = f"{name}, {cores} core" + ("s" if cores > 1 else "")
    against = f"{clock / 1e9:.3f} GHz x {units} unit" + ("s" if units > 1 else "")
    return Comparison(where, rate, bound, rate / bound, "FLOP/s", against)


Contestant = Callable[[], float]


def memory(
    processors: list[int], array_bytes: int, stream: str | None, rounds: int, repeats: int
) -> list[Comparison]:
    """Compare with STREAM where it is given, and with what NumPy and PyTorch reach."""
    streams = ["read", "copy", "triad", "copy_non_temporal", "triad_non_temporal"]
    theirs: dict[str, tuple[str, Contestant]] = {}
    if stream is not None:
        theirs["STREAM triad"] = ("triad", lambda: run_stream(stream)["Triad"])
        theirs["STREAM copy"] = ("copy", lambda: run_stream(stream)["Copy"])
    theirs |= library_copies(array_bytes, repeats)
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in theirs}
    for _ in range(rounds):
        for name, (ours, measure) in theirs.items():
            found = _native.measure_streams(streams, array_bytes, processors, _SECONDS, repeats)
            rows[name].append((max(found[ours]["per_second"]), measure()))
    comparisons = []
    for name, pairs in rows.items():
        best, other = (max(rates) for rates in zip(*pairs, strict=True))
        where = f"{theirs[name][0]}, {len(processors)} cores"
        comparisons.append(Comparison(where, best, other, best / other, "B/s", name))
    return comparisons


def run_stream(path: str) -> dict[str, float]:
    """Return STREAM's best rates in bytes per second by the name of its kernel.

    It inherits this process's affinity: with OMP_PROC_BIND set, PyTorch leaves it one processor.
    """
    try:
        done = subprocess.run([path], capture_output=True, text=True, check=True, timeout=LONGEST_STREAM_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"ceilings: --stream {path} does not run: {error}") from None
    rates = {
        name: float(rate) * 1e6
        for name, rate in re.findall(r"^(Copy|Triad):\s+([\d.]+)", done.stdout, flags=re.MULTILINE)
    }
    if set(rates) != {"Copy", "Triad"}:
        raise SystemExit(f"ceilings: --stream {path} prints no rates of Copy and Triad")
    return rates


def library_copies(array_bytes: int, repeats: int) -> dict[str, tuple[str, Contestant]]:
    """Return what copies with NumPy (on one core) and PyTorch do, in bytes named per second."""
    import numpy as np

    source, target = (np.ones(array_bytes // 8) for _ in range(2))
    found = {
        "numpy copyto, 1 core": ("copy", _best(lambda: np.copyto(target, source), 2 * array_bytes, repeats))
    }
    try:
        import torch
    except ImportError:
        return found
    a, b, out = (torch.ones(array_bytes // 4) for _ in range(3))
    cores = f"{torch.get_num_threads()} threads"
    found[f"torch copy_, {cores}"] = ("copy", _best(lambda: out.copy_(a), 2 * array_bytes, repeats))
    found[f"torch add, {cores}"] = (
        "triad",
        _best(lambda: torch.add(a, b, out=out), 3 * array_bytes, repeats),
    )
    found[f"torch sum, {cores}"] = ("read", _best(lambda: a.sum(), array_bytes, repeats))
    return found


def _best(call: Callable[[], Any], moved_bytes: int, repeats: int) -> Contestant:
    def measure() -> float:
        call()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return moved_bytes / min(times)

    return measure


def table(comparisons: list[Comparison], machine: dict[str, Any]) -> str:
    """Return what a person reads."""
    load, end = (
        "unknown" if value is None else f"{value:.2f}"
        for value in (machine["load_average"], machine["load_average_at_end"])
    )
    lines = [
        f"{machine['cpu']}, {machine['cores_usable']} cores",
        f"load average {load} at the start, {end} at the end",
        "",
        f"{'gpuprof':<28}{'':>14}   {'against':<30}{'':>14}{'ratio':>8}",
    ]
    for each in comparisons:
        ours, theirs = (f"{value / 1e9:,.1f} G{each.unit}" for value in (each.ours, each.theirs))
        lines.append(f"{each.name:<28}{ours:>14}   {each.against:<30}{theirs:>14}{each.ratio:>8.3f}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
