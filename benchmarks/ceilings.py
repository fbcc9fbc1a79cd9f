# SPDX-License-Identifier: Apache-2.0
"""Compare the ceilings that gpuprof measures with independent measurements of the same things, in one run.

    python benchmarks/ceilings.py [--stream PATH]... [--rounds N] [--repeats N] [--json FILE|-]

Arithmetic is compared with clock times units times lanes. The clock is measured: additions that wait for
each other take one cycle each. The number of units is the measured work of one cycle, rounded to a whole
number: so the ratio shows how busy the units were, and does not detect a unit that never worked.

Memory is compared with STREAM, whose compiled binary you name, and for scale against copies and sums that
NumPy and PyTorch make. STREAM's triad counts what it names; so does `triad` here. Contestants take turns.
Each is taken at its best, as a ceiling is: other programs can slow a round down and cannot speed it up. Where
the host is never idle, the two best rounds may come from different hours: the median of the ratios within a
turn, with its 95% interval, compares both under the same conditions. Use many rounds of few repeats there.

How STREAM was compiled is worth a tenth of its rate and more (docs/ceilings.md). Name several builds, and a
row compares with the best of them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine, load_average
from benchmarks._output import show
from gpuprof import _native
from gpuprof.analyze.ceilings.cpu import DRAM_OVER_CACHE, LEAST_DRAM_ARRAY_BYTES
from gpuprof.record.processor import data_caches, usable_processors
from gpuprof.stats.quantiles import quantile_of

LONGEST_STREAM_S = 120
_VECTOR_BYTES = {
    "neon": 16,
    "avx2": 32,
    "avx512": 64,
}
_NUMBER_BYTES = {"fp64": 8, "fp32": 4}
_SECONDS = 0.003
_STREAMS = ("read", "copy", "triad")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What gpuprof measured (`ours`), the independent measurement (`theirs`), and ours over theirs.

    These are the bests of all turns. `turn_ratio` is the median of the ratios within a turn, with the ends of
    its 95% interval; None where the turns are too few for one.
    """

    name: str
    ours: float
    theirs: float
    ratio: float
    turn_ratio: float
    turn_ratio_low: float | None
    turn_ratio_high: float | None
    unit: str
    against: str


# For each turn what gpuprof measured and what the other did.
Pairs = list[tuple[float, float]]


def _compare(name: str, against: str, pairs: Pairs, unit: str) -> Comparison:
    ours, theirs = (max(rates) for rates in zip(*pairs, strict=True))
    ratios = np.array([one / other for one, other in pairs])
    found = quantile_of(ratios, 0.5)
    low, high = (None, None) if found is None else (found.low, found.high)
    return Comparison(name, ours, theirs, ours / theirs, float(np.median(ratios)), low, high, unit, against)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compare gpuprof's ceilings with independent measurements.")
    parser.add_argument(
        "--stream",
        metavar="PATH",
        action="append",
        default=[],
        help="a compiled STREAM; repeatable",
    )
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
            pairs = _rates_and_clocks(name, dtype, list(where), rounds, repeats)
            if not pairs:
                continue
            # Of one unit, for a multiply-add in each lane.
            per_hertz = 2.0 * _VECTOR_BYTES[name] / _NUMBER_BYTES[dtype] * len(where)
            # One core is measured first, and gives the number of units of a core.
            units.setdefault(name + dtype, _units(pairs, per_hertz))
            bound = per_hertz * units[name + dtype]
            comparisons.append(
                _against_clock(f"{name} {dtype}", len(where), pairs, bound, units[name + dtype])
            )
    return comparisons


def _rates_and_clocks(name: str, dtype: str, where: list[int], rounds: int, repeats: int) -> Pairs:
    """Return nothing where the clock cannot be measured."""
    pairs: Pairs = []
    for _ in range(rounds):
        clock = _native.measure_clock(where, _SECONDS, repeats)
        if clock is None:
            return []
        found = _native.measure_compute(name, dtype, where, _SECONDS, repeats)
        if found is None:
            raise SystemExit(f"{name} {dtype} cannot be measured here")
        pairs.append((max(found["per_second"]), max(clock["per_second"])))
    return pairs


def _units(pairs: Pairs, per_hertz: float) -> int:
    rate, clock = max(rate for rate, _ in pairs), max(clock for _, clock in pairs)
    return max(1, round(rate / (clock * per_hertz)))


def _against_clock(name: str, cores: int, pairs: Pairs, per_hertz: float, units: int) -> Comparison:
    bounds = [(rate, clock * per_hertz) for rate, clock in pairs]
    where = f"{name}, {cores} core" + ("s" if cores > 1 else "")
    clock = max(clock for _, clock in pairs)
    against = f"{clock / 1e9:.3f} GHz x {units} unit" + ("s" if units > 1 else "")
    return _compare(where, against, bounds, "FLOP/s")


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something else that moves memory; `measure` returns its bytes per second by the name of our stream."""

    name: str
    measure: Callable[[], dict[str, float]]


# By contestant and stream.
Turns = dict[tuple[str, str], Pairs]


def memory(
    processors: list[int], array_bytes: int, streams: list[str], rounds: int, repeats: int
) -> list[Comparison]:
    """Compare with the builds of STREAM that are given, and with what NumPy and PyTorch reach."""
    builds = [Contestant(name, partial(run_stream, path)) for name, path in names_of(streams).items()]
    contestants = [*builds, *library_copies(array_bytes, repeats)]
    turns: Turns = {}
    for _ in range(rounds):
        for each in contestants:
            ours = _native.measure_streams(list(_STREAMS), array_bytes, processors, _SECONDS, repeats)
            for stream, rate in each.measure().items():
                best = max(ours[stream]["per_second"])
                turns.setdefault((each.name, stream), []).append((best, rate))
    if len(builds) > 1:
        turns |= _best_build(turns, [each.name for each in builds])
    cores = f"{len(processors)} cores"
    return [_compare(f"{stream}, {cores}", name, pairs, "B/s") for (name, stream), pairs in turns.items()]


def _best_build(turns: Turns, builds: list[str]) -> Turns:
    """Return what the best of both sides did in each round."""
    best: Turns = {}
    for stream in ("triad", "copy"):
        rounds = zip(*(turns[build, stream] for build in builds), strict=True)
        best[f"STREAM, best of {len(builds)} builds", stream] = [
            (max(ours for ours, _ in each), max(theirs for _, theirs in each)) for each in rounds
        ]
    return best


def names_of(streams: list[str]) -> dict[str, str]:
    """Return the paths of STREAM's builds by what the table calls them."""
    if len(streams) == 1:
        return {"STREAM": streams[0]}
    return {f"STREAM {number}, {Path(path).name}": path for number, path in enumerate(streams, 1)}


def run_stream(path: str) -> dict[str, float]:
    """Return STREAM's best rates in bytes per second by the name of our stream that does the same.

    It inherits this process's affinity: with OMP_PROC_BIND set, PyTorch leaves it one processor.
    """
    try:
        done = subprocess.run([path], capture_output=True, text=True, check=True, timeout=LONGEST_STREAM_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"ceilings: --stream {path} does not run: {error}") from None
    rates = {
        name.lower(): float(rate) * 1e6
        for name, rate in re.findall(r"^(Copy|Triad):\s+([\d.]+)", done.stdout, flags=re.MULTILINE)
    }
    if set(rates) != {"copy", "triad"}:
        raise SystemExit(f"ceilings: --stream {path} prints no rates of Copy and Triad")
    return rates


def library_copies(array_bytes: int, repeats: int) -> list[Contestant]:
    """Return copies and sums with NumPy (on one core) and PyTorch; rates are of the bytes they name."""
    source, target = (np.ones(array_bytes // 8) for _ in range(2))
    found = [
        _call("numpy copyto, 1 core", "copy", lambda: np.copyto(target, source), 2 * array_bytes, repeats)
    ]
    try:
        import torch
    except ImportError:
        return found
    a, b, out = (torch.ones(array_bytes // 4) for _ in range(3))
    threads = f"{torch.get_num_threads()} threads"
    return [
        *found,
        _call(f"torch copy_, {threads}", "copy", lambda: out.copy_(a), 2 * array_bytes, repeats),
        _call(f"torch add, {threads}", "triad", lambda: torch.add(a, b, out=out), 3 * array_bytes, repeats),
        _call(f"torch sum, {threads}", "read", lambda: a.sum(), array_bytes, repeats),
    ]


def _call(name: str, stream: str, call: Callable[[], Any], moved_bytes: int, repeats: int) -> Contestant:
    def measure() -> dict[str, float]:
        call()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return {stream: moved_bytes / min(times)}

    return Contestant(name, measure)


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
        f"{'gpuprof':<22}{'':>14}   {'against':<29}{'':>14}{'best':>7}   within a turn",
    ]
    for each in comparisons:
        ours, theirs = (f"{value / 1e9:,.1f} G{each.unit}" for value in (each.ours, each.theirs))
        lines.append(
            f"{each.name:<22}{ours:>14}   {each.against:<29}{theirs:>14}{each.ratio:>7.3f}   {_turns(each)}"
        )
    return "\n".join(lines) + "\n"


def _turns(found: Comparison) -> str:
    if found.turn_ratio_low is None or found.turn_ratio_high is None:
        return f"{found.turn_ratio:.3f}"
    return f"{found.turn_ratio:.3f} ({found.turn_ratio_low:.3f} to {found.turn_ratio_high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
