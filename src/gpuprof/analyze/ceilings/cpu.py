# SPDX-License-Identifier: Apache-2.0
"""Ceilings of the processors: arithmetic and memory natively, products and dispatch through PyTorch.

A value is the best of many short repeats: a disturbance makes a repeat slower, never faster. The relative
interquartile range of the repeats is in the column `spread`. PyTorch uses its own threads, as many as the
program set: no setting of the program is changed.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gpuprof import _native
from gpuprof.analyze.ceilings.ceiling import (
    ALL_CORES,
    ONE_CORE,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    Ceilings,
    Unit,
    best_of,
    relative_iqr,
)
from gpuprof.errors import UnavailableError
from gpuprof.record.processor import (
    Cache,
    available_memory_bytes,
    data_caches,
    processor_quota,
    usable_processors,
)
from gpuprof.run.machine import describe_machine

# STREAM's rule: an array at least four times as large as all last-level caches together.
DRAM_OVER_CACHE = 4
LEAST_DRAM_ARRAY_BYTES = 64 << 20
# Three arrays together take at most this fraction of the free memory.
MOST_OF_FREE_MEMORY = 0.4
# Where the size of the last-level cache is unknown.
ASSUMED_CACHE_BYTES = 32 << 20
# A control group's period is 100 ms: a repeat that is shorter can run before the quota bites.
QUOTA_SECONDS = 0.25

_DTYPES: list[str | None] = ["fp64", "fp32", "bf16", "fp16", "int8"]
_CACHE_STREAMS = ["read", "copy", "triad"]
_DRAM_STREAMS = [*_CACHE_STREAMS, "copy_non_temporal", "triad_non_temporal"]
# Where a store to a line that no cache holds first reads the line: what moves, over what the stream names.
_WITH_WRITE_ALLOCATE = {"copy": 3 / 2, "triad": 4 / 3}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _CpuEffort:
    """How long and how often each measurement repeats; one of DRAM takes as long as its arrays need."""

    seconds: float
    repeats: int
    dram_repeats: int
    library_seconds: float
    devices: tuple[str, ...]


# About a scheduler's time slice: on a busy machine, some repeats pass before another program has its turn.
_SHORT_SECONDS = 0.003
_FULL = _CpuEffort(_SHORT_SECONDS, 48, 16, 0.4, (ALL_CORES, ONE_CORE))
_QUICK = _CpuEffort(_SHORT_SECONDS, 16, 8, 0, (ALL_CORES,))
_LAUNCH_SECONDS = 0.1


def measure_ceilings(quick: bool = False, progress: Progress | None = None) -> Ceilings:
    """Measure this process's processors, in about ten seconds; `quick` in two, for a comparison.

    `quick` leaves out single cores, narrower instruction sets than the widest, and the products of
    PyTorch, which is not imported for it. `progress` is called with the next measurement's name. Measuring
    uses threads of its own, one on each processor of the affinity mask, and leaves the program's threads
    and settings alone. Raises UnavailableError during a recording: each would disturb the other.
    """
    if _native.is_recording():
        raise UnavailableError(
            "recording_active",
            "ceilings cannot be measured during a recording",
            hint="measure them before or after it",
        )
    measurement = _CpuMeasurement(quick, progress or _report_nothing)
    rows = tuple(measurement.rows())
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Ceilings(rows, now, machine_key(), quick, tuple(measurement.notes))


def machine_key() -> dict[str, Any]:
    """Return what ceilings depend on; equal keys mean that a cached measurement may be used."""
    return {
        "processor": describe_machine()["processor"],
        "processors": usable_processors(),
        "quota": processor_quota(),
        "instruction_sets": _native.cpu_instruction_sets(),
        "gpuprof": _native.build_info()["version"],
        "torch": torch_version(),
    }


def torch_version() -> str | None:
    """Return the version of PyTorch that is installed, without importing it."""
    try:
        return version("torch") if importlib.util.find_spec("torch") else None
    except PackageNotFoundError:
        return "unknown"


def _report_nothing(_what: str) -> None:
    pass


class _CpuMeasurement:
    """One measurement of everything that this machine offers; collects notes."""

    def __init__(self, quick: bool, progress: Progress) -> None:
        self.quick = quick
        self.progress = progress
        self.notes: list[CeilingNote] = []
        self.effort = _QUICK if quick else _FULL
        self.processors = usable_processors()
        self.caches = data_caches(self.processors)
        self._pinned = True
        self._apply_quota()

    def _apply_quota(self) -> None:
        quota = processor_quota()
        if quota is None or quota >= len(self.processors):
            return
        # More threads than the quota allows would run and pause together.
        self.processors = self.processors[: max(1, math.ceil(quota))]
        self.effort = _CpuEffort(QUOTA_SECONDS, 3, 3, self.effort.library_seconds, self.effort.devices)
        self._note(CeilingNoteCode.QUOTA, processors=quota)

    def _note(self, code: CeilingNoteCode, **values: Any) -> None:
        self.notes.append(CeilingNote(code, values))

    def rows(self) -> Iterator[Ceiling]:
        """Measure; raises OSError where not even a thread or its memory can be had."""
        for device in self.effort.devices:
            processors = self.processors if device == ALL_CORES else self.processors[:1]
            yield from self._compute(device, processors)
            yield from self._memory(device, processors)
        yield from self._launch()
        if not self._pinned:
            self._note(CeilingNoteCode.THREADS_NOT_PINNED)

    def _compute(self, device: str, processors: list[int]) -> Iterator[Ceiling]:
        measured = [*self._kernels(device, processors)]
        if device == ALL_CORES and not self.quick:
            measured += self._library()
        for dtype in sorted({row.dtype for row in measured}, key=_DTYPES.index):
            rows = [row for row in measured if row.dtype == dtype]
            yield from best_of("compute", rows)
            yield from rows

    def _kernels(self, device: str, processors: list[int]) -> Iterator[Ceiling]:
        for kernel in _wanted_kernels(self.quick):
            names = kernel["instruction_set"], kernel["dtype"]
            self.progress(f"{_where(processors)}: {names[1]} arithmetic, {names[0]}")
            found = _native.measure_compute(*names, processors, self.effort.seconds, self.effort.repeats)
            if found is None:
                self._note(CeilingNoteCode.INSTRUCTION_SET_DENIED, instruction_set=names[0])
                continue
            self._check_pinned(found, processors)
            rates = found["per_second"]
            yield _row(device, f"compute.{names[0]}", names[1], rates, "flop_per_s", kernel["method"])

    def _library(self) -> list[Ceiling]:
        if importlib.util.find_spec("torch") is None:
            self._note(CeilingNoteCode.NO_TORCH)
            return []
        self.progress("products of PyTorch")
        try:
            return list(library_ceilings(self.effort.library_seconds))
        except Exception as error:
            self._note(CeilingNoteCode.PRODUCTS_NOT_MEASURED, error=one_line(error))
            return []

    def _launch(self) -> Iterator[Ceiling]:
        # A quick measurement imports nothing.
        if "torch" not in sys.modules and (self.quick or importlib.util.find_spec("torch") is None):
            return
        self.progress("dispatch of an operator")
        try:
            yield launch_ceiling(_LAUNCH_SECONDS)
        except Exception as error:
            self._note(CeilingNoteCode.DISPATCH_NOT_MEASURED, error=one_line(error))

    def _memory(self, device: str, processors: list[int]) -> Iterator[Ceiling]:
        count = len(processors)
        for level, bytes_each in _cache_working_sets(self.caches, processors).items():
            what = f"{bytes_each / 1e3:,.0f} kB" + (" each core" if count > 1 else "")
            array_bytes = bytes_each * count // 3
            found = self._streams(processors, f"memory.l{level}", _CACHE_STREAMS, array_bytes)
            rows = [
                _row(device, f"memory.l{level}.{stream}", None, rates, "bytes_per_s", what)
                for stream, rates in found.items()
            ]
            yield from best_of(f"memory.l{level}", rows)
            yield from rows
        yield from self._dram(device, processors)

    def _dram(self, device: str, processors: list[int]) -> Iterator[Ceiling]:
        """Yield traffic: what a stream names, and what is read because it will be written.

        The ceiling is the best stream whose traffic is certain: reading, and the non-temporal streams.
        Where there are no non-temporal stores (Arm), no write-allocate is assumed, since such processors
        mostly detect long runs of stores.
        """
        array_bytes = self._dram_array_bytes()
        size = f"{array_bytes / 1e6:,.0f} MB"
        found = self._streams(processors, "memory.dram", _DRAM_STREAMS, array_bytes)
        allocates = _WITH_WRITE_ALLOCATE if "triad_non_temporal" in found else {}
        rows, certain = [], []
        for stream, rates in found.items():
            factor = allocates.get(stream, 1.0)
            method = f"{size} arrays" if factor == 1 else f"{size}, write-allocate x{factor:.2f}"
            traffic = [rate * factor for rate in rates]
            rows.append(_row(device, f"memory.dram.{stream}", None, traffic, "bytes_per_s", method))
            certain += rows[-1:] if factor == 1 else []
        yield from best_of("memory.dram", certain)
        yield from rows

    def _streams(
        self, processors: list[int], resource: str, streams: list[str], array_bytes: int
    ) -> dict[str, list[float]]:
        self.progress(f"{_where(processors)}: {resource}")
        repeats = self.effort.dram_repeats if resource == "memory.dram" else self.effort.repeats
        found = _native.measure_streams(streams, array_bytes, processors, self.effort.seconds, repeats)
        for result in found.values():
            self._check_pinned(result, processors)
        return {stream: result["per_second"] for stream, result in found.items()}

    def _dram_array_bytes(self) -> int:
        """Return an array's size; adds a note where free memory is too small for the wanted one."""
        last = max((cache.level for cache in self.caches), default=0)
        cache_bytes = sum(cache.bytes for cache in self.caches if cache.level == last) or ASSUMED_CACHE_BYTES
        wanted = max(DRAM_OVER_CACHE * cache_bytes, LEAST_DRAM_ARRAY_BYTES)
        free = available_memory_bytes()
        room = wanted if free is None else int(MOST_OF_FREE_MEMORY * free / 3)
        if room < wanted:
            self._note(CeilingNoteCode.SMALL_ARRAYS, array_bytes=room, needed_bytes=wanted)
        return min(room, wanted)

    def _check_pinned(self, result: dict[str, Any], processors: list[int]) -> None:
        self._pinned = self._pinned and result["pinned_threads"] == len(processors)


def _wanted_kernels(quick: bool) -> list[dict[str, str]]:
    """Return the kernels to time: generic ones only where no wider one exists; for quick, the widest."""
    kernels = _native.cpu_kernels()
    widest = {kernel["dtype"]: kernel for kernel in kernels}
    if quick:
        return list(widest.values())
    return [
        kernel
        for kernel in kernels
        if kernel["instruction_set"] != "generic" or widest[kernel["dtype"]] is kernel
    ]


def _cache_working_sets(caches: list[Cache], processors: list[int]) -> dict[int, int]:
    """Return, for each level, the bytes that each of `processors` is to work on at the same time.

    Far above the size of the level before and well below the processor's part of this one: their
    geometric mean. Where this part is no larger than the level before, as with victim caches, a little above
    that level.
    """
    sizes: dict[int, int] = {}
    before = 0
    for level in sorted({cache.level for cache in caches}):
        share = min(
            cache.bytes // max(1, len(set(cache.processors) & set(processors)))
            for cache in caches
            if cache.level == level and set(cache.processors) & set(processors)
        )
        sizes[level] = int(max(math.sqrt(before * share), 1.35 * before)) if before else share // 2
        before = share
    return sizes


def _row(
    device: str, resource: str, dtype: str | None, rates: list[float], unit: Unit, method: str
) -> Ceiling:
    return Ceiling(device, resource, dtype, max(rates), unit, relative_iqr(rates), method)


def _where(processors: list[int]) -> str:
    return "one core" if len(processors) == 1 else f"{len(processors)} cores"


def one_line(error: BaseException) -> str:
    """Return an exception as one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


# ---- PyTorch's products and dispatch ---------------------------------------------------------------

MATRIX_SIZE = 1536
# Batch, channels and the result's edge of a 3x3 convolution such as residual networks are made of.
IMAGES, CHANNELS, EDGE = 8, 64, 56
_ADDITIONS = 500
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def library_ceilings(seconds: float) -> Iterator[Ceiling]:
    """Yield one measurement after the other, each in about `seconds`; raises what PyTorch raises."""
    torch = importlib.import_module("torch")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for dtype, name in _TYPES.items():
            yield from _matrix_product(torch, dtype, getattr(torch, name), seconds)
            yield from _convolution(torch, dtype, getattr(torch, name), seconds)


def launch_ceiling(seconds: float) -> Ceiling:
    """Return the least time from one `aten::add` of a single number to the next, called from Python."""
    torch = importlib.import_module("torch")
    a, b = (torch.ones(1, dtype=torch.float32, device="cpu") for _ in range(2))
    add = torch.add

    def batch() -> None:
        for _ in range(_ADDITIONS):
            add(a, b)

    with torch.no_grad():
        times_ns = [ns / _ADDITIONS for ns in _repeat(batch, seconds)]
    method = "aten::add of 1 number, from Python"
    return Ceiling(ALL_CORES, "launch", None, min(times_ns), "ns", relative_iqr(times_ns), method)


def _matrix_product(torch: Any, dtype: str, kind: Any, seconds: float) -> Iterator[Ceiling]:
    n = MATRIX_SIZE
    a, b, out = (torch.ones(n, n, dtype=kind, device="cpu") for _ in range(3))
    what = f"torch.mm {n}x{n}"
    flops = 2.0 * n**3
    yield from _rate(torch, "compute.matmul", dtype, flops, what, lambda: torch.mm(a, b, out=out), seconds)


def _convolution(torch: Any, dtype: str, kind: Any, seconds: float) -> Iterator[Ceiling]:
    # Without padding, so that each product that is counted is one that is made.
    options = {"dtype": kind, "device": "cpu"}
    images = torch.ones(IMAGES, CHANNELS, EDGE + 2, EDGE + 2, **options)
    weights = torch.ones(CHANNELS, CHANNELS, 3, 3, **options)
    images, weights = (each.to(memory_format=torch.channels_last) for each in (images, weights))
    what = f"torch.conv2d 3x3x{CHANNELS}"
    flops = 2.0 * IMAGES * EDGE**2 * CHANNELS**2 * 9
    call = functools.partial(torch.conv2d, images, weights)
    yield from _rate(torch, "compute.convolution", dtype, flops, what, call, seconds)


def _rate(
    torch: Any,
    resource: str,
    dtype: str,
    flops: float,
    what: str,
    call: Callable[[], object],
    seconds: float,
) -> Iterator[Ceiling]:
    try:
        rates = [flops / ns * 1e9 for ns in _repeat(call, seconds)]
    except RuntimeError:
        # This build lacks the product in this type: no ceiling, and the other ceilings of the type stay.
        return
    method = f"{what}, {torch.get_num_threads()} threads"
    yield Ceiling(ALL_CORES, resource, dtype, max(rates), "flop_per_s", relative_iqr(rates), method)


def _repeat(call: Callable[[], object], seconds: float) -> list[int]:
    """Return the times of calls for about `seconds`; one more warms up before.

    Three at least, unless the product is so slow here that they would take three times as long.
    """
    start_ns = time.perf_counter_ns()
    enough_ns, longest_ns = start_ns + int(seconds * 1e9), start_ns + int(3 * seconds * 1e9)
    call()
    times_ns: list[int] = []
    while True:
        start_ns = time.perf_counter_ns()
        call()
        end_ns = time.perf_counter_ns()
        times_ns.append(end_ns - start_ns)
        if end_ns >= (enough_ns if len(times_ns) >= 3 else longest_ns):
            return times_ns
