# SPDX-License-Identifier: Apache-2.0
"""Ceilings of one GPU, measured in a process of its own: a kernel that fails there cannot harm the program.

The parent starts the process with `measure_device()`; the process prints its result as JSON in its last line.
A value that cannot be measured is calculated from clocks and compute capability (never from a name), for
dense matrices. Arithmetic, memory and launches use our own kernels, products PyTorch's.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from gpuprof import _native
from gpuprof.analyze.ceilings.ceiling import (
    THEORETICAL,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    Ceilings,
    Unit,
    best_of,
    from_dict,
    relative_iqr,
)
from gpuprof.analyze.ceilings.cpu import one_line
from gpuprof.record.helper_process import WITHOUT_CURRENT_FOLDER
from gpuprof.record.kernels import nvrtc_folders

# The order of the rows.
TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_FMA_TYPES = ("fp64", "fp32", "bf16", "fp16")
# Arrays that each stream names.
_STREAMS = {"read": 1, "copy": 2, "triad": 3}
OF_CACHE = 0.5
# A cache that does not replace in strict order keeps some of an array: of a larger one a smaller part.
DRAM_OVER_CACHE = 32
LEAST_DRAM_ARRAY_BYTES = 1 << 30
MOST_DRAM_ARRAY_BYTES = 2 << 30
MOST_OF_FREE_MEMORY = 0.4
# Below this multiple of the cache, what is measured may be the cache's rate.
LEAST_OVER_CACHE = 8


class Bench(Protocol):
    """What measures; `_native.GpuBench`."""

    def free_bytes(self) -> int:
        """Return the memory that is free on the device."""

    def measure_compute(self, dtype: str, seconds: float, repeats: int) -> list[float]:
        """Return operations a second, for each repeat."""

    def measure_stream(self, stream: str, array_bytes: int, seconds: float, repeats: int) -> list[float]:
        """Return bytes a second, for each repeat."""

    def measure_launch(self, repeats: int) -> dict[str, list[float]]:
        """Return the times of empty kernels."""


@dataclass(frozen=True, slots=True)
class _GpuEffort:
    seconds: float
    repeats: int
    launch_repeats: int
    library_seconds: float


_FULL = _GpuEffort(0.01, 20, 20, 0.3)
_QUICK = _GpuEffort(0.005, 8, 8, 0.0)

MakeBench = Callable[[int], Bench]


def open_bench(ordinal: int) -> Bench:
    """Return what measures a device with kernels of our own. Raises RuntimeError with one line."""
    return _native.GpuBench(ordinal, [os.fsencode(folder) for folder in nvrtc_folders()])


def dram_array_bytes(l2_bytes: int, free_bytes: int) -> int:
    """Return how large each of three arrays is whose rate is the device memory's and not the L2 cache's."""
    wanted = min(max(DRAM_OVER_CACHE * l2_bytes, LEAST_DRAM_ARRAY_BYTES), MOST_DRAM_ARRAY_BYTES)
    return min(wanted, int(MOST_OF_FREE_MEMORY * free_bytes / 3))


def measure_gpu(
    ordinal: int, facts: dict[str, Any], quick: bool = False, make_bench: MakeBench = open_bench
) -> Ceilings:
    """Measure a GPU, in about ten seconds; `quick` in two, for a comparison, without PyTorch.

    A value that cannot be measured is calculated from clocks and widths; its resource ends in
    "theoretical", and a note lists it.
    """
    measurement = _GpuMeasurement(f"cuda:{ordinal}", facts, quick)
    rows = tuple(measurement.rows(ordinal, make_bench))
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Ceilings(rows, now, facts, quick, tuple(measurement.notes))


class _GpuMeasurement:
    def __init__(self, device: str, facts: dict[str, Any], quick: bool) -> None:
        self.device = device
        self.facts = facts
        self.quick = quick
        self.effort = _QUICK if quick else _FULL
        self.notes: list[CeilingNote] = []

    def rows(self, ordinal: int, make_bench: MakeBench) -> Iterator[Ceiling]:
        bench: Bench | None = None
        try:
            bench = make_bench(ordinal)
        except RuntimeError as error:
            self._note(CeilingNoteCode.GPU_WITHOUT_OWN_KERNELS, error=" ".join(str(error).split()))
        compute, memory, launch = self._own(bench) if bench is not None else ([], [], [])
        del bench  # its memory is PyTorch's from here on
        compute += [] if self.quick else self._library()
        theory = [] if self.quick else list(theoretical_ceilings(self.device, self.facts))
        yield from self._compute(compute, theory)
        yield from self._memory(memory, theory)
        yield from launch

    def _note(self, code: CeilingNoteCode, **values: Any) -> None:
        note = CeilingNote(code, {"device": self.device, **values})
        if note not in self.notes:
            self.notes.append(note)

    def _own(self, bench: Bench) -> tuple[list[Ceiling], list[Ceiling], list[Ceiling]]:
        """Return what our own kernels measure: arithmetic, memory, launching."""
        parts: list[list[Ceiling]] = []
        for measure in (self._multiply_adds, self._streams, self._launches):
            rows: list[Ceiling] = []
            try:
                rows.extend(measure(bench))
            except RuntimeError as error:
                self._note(CeilingNoteCode.GPU_PART_NOT_MEASURED, error=" ".join(str(error).split()))
            parts.append(rows)
        return parts[0], parts[1], parts[2]

    def _multiply_adds(self, bench: Bench) -> Iterator[Ceiling]:
        for dtype in _FMA_TYPES:
            rates = bench.measure_compute(dtype, self.effort.seconds, self.effort.repeats)
            if rates:
                yield self._row("compute.fma", dtype, rates, "flop_per_s", "multiply-adds, 8 accumulators")

    def _streams(self, bench: Bench) -> list[Ceiling]:
        l2_bytes = int(self.facts["l2_cache_bytes"])
        rows: list[Ceiling] = []
        for stream, arrays in _STREAMS.items():
            if l2_bytes > 0:
                size = int(OF_CACHE * l2_bytes) // arrays
                rows += self._stream(bench, "memory.l2", stream, size)
        size = dram_array_bytes(l2_bytes, bench.free_bytes())
        if size < LEAST_OVER_CACHE * l2_bytes:
            self._note(CeilingNoteCode.GPU_SMALL_ARRAYS, array_bytes=size, caches=LEAST_OVER_CACHE)
        for stream in _STREAMS:
            rows += self._stream(bench, "memory.dram", stream, size)
        return rows

    def _stream(self, bench: Bench, resource: str, stream: str, array_bytes: int) -> Iterator[Ceiling]:
        rates = bench.measure_stream(stream, array_bytes, self.effort.seconds, self.effort.repeats)
        if rates:
            method = f"{array_bytes / 1e6:,.1f} MB arrays"
            yield self._row(f"{resource}.{stream}", None, rates, "bytes_per_s", method)

    def _launches(self, bench: Bench) -> Iterator[Ceiling]:
        found = bench.measure_launch(self.effort.launch_repeats)
        if found["floor_ns"]:
            yield self._time("launch", found["floor_ns"], "from one queued empty kernel to the next")
        else:
            self._note(CeilingNoteCode.GPU_LAUNCHES_TOO_SLOW)
        if found["period_ns"]:
            yield self._time(
                "launch.period", found["period_ns"], "empty kernels, one launched after the other"
            )

    def _library(self) -> list[Ceiling]:
        if importlib.util.find_spec("torch") is None:
            self._note(CeilingNoteCode.GPU_NO_TORCH)
            return []
        rows: list[Ceiling] = []
        try:
            rows.extend(gpu_library_ceilings(self.device, self.effort.library_seconds))
        except Exception as error:
            self._note(CeilingNoteCode.PRODUCTS_NOT_MEASURED, error=one_line(error))
        return rows

    def _compute(self, measured: list[Ceiling], theory: list[Ceiling]) -> Iterator[Ceiling]:
        """Yield the ceilings. Where no product was measured, multiply-adds alone do not show tensor cores."""
        products = {row.dtype for row in measured if row.resource == "compute.matmul"}
        calculated = [
            row for row in theory if row.resource.startswith("compute.") and row.dtype not in products
        ]
        if calculated:
            types = [row.dtype for row in calculated]
            self._note(CeilingNoteCode.GPU_PRODUCTS_CALCULATED, types=types)
        for dtype in TYPES:
            rows = [row for row in (*measured, *calculated) if row.dtype == dtype]
            yield from best_of("compute", rows)
            yield from rows

    def _memory(self, measured: list[Ceiling], theory: list[Ceiling]) -> Iterator[Ceiling]:
        for resource in ("memory.l2", "memory.dram"):
            rows = [row for row in measured if row.resource.startswith(resource)]
            if not rows:
                rows = [row for row in theory if row.resource.startswith(resource)]
                if rows:
                    self._note(CeilingNoteCode.GPU_MEMORY_CALCULATED, resource=resource)
            yield from best_of(resource, rows)
            yield from rows

    def _row(self, resource: str, dtype: str | None, rates: list[float], unit: Unit, method: str) -> Ceiling:
        return Ceiling(self.device, resource, dtype, max(rates), unit, relative_iqr(rates), method)

    def _time(self, resource: str, times_ns: list[float], method: str) -> Ceiling:
        return Ceiling(self.device, resource, None, min(times_ns), "ns", relative_iqr(times_ns), method)


# ---- PyTorch's products ----------------------------------------------------------------------------

# Large enough for every multiprocessor; what is slow here takes a smaller one.
_SIZES = {"fp64": 4096, "fp32": 8192, "tf32": 8192, "fp16": 8192, "bf16": 8192, "int8": 8192, "fp8": 8192}
_LEAST_TIMES = 3
_Product = Callable[[], object]


def gpu_library_ceilings(device: str, seconds: float) -> Iterator[Ceiling]:
    """Yield a row for each type that PyTorch multiplies on `device`, each in about `seconds`."""
    torch = importlib.import_module("torch")
    with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.cuda.device(device):
        for dtype, size in _SIZES.items():
            # A type that this build, this GPU or its memory cannot multiply has no row.
            with contextlib.suppress(RuntimeError, TypeError, AttributeError, ValueError):
                yield _ceiling(torch, device, dtype, size, seconds)
            torch.cuda.empty_cache()


def _ceiling(torch: Any, device: str, dtype: str, size: int, seconds: float) -> Ceiling:
    with _precision(torch, "high" if dtype == "tf32" else "highest"):
        name, product = _product(torch, device, dtype, size)
        times_ms = _times_ms(torch, product, seconds)
    rates = [2.0 * size**3 / ms * 1e3 for ms in times_ms]
    method = f"{name} {size}x{size}"
    return Ceiling(device, "compute.matmul", dtype, max(rates), "flop_per_s", relative_iqr(rates), method)


@contextlib.contextmanager
def _precision(torch: Any, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _product(torch: Any, device: str, dtype: str, size: int) -> tuple[str, _Product]:
    # Values as networks have them: how fast a GPU clocks depends on how many bits change.
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    if dtype == "int8":
        left, right = ((each * 30).to(torch.int8) for each in (a, b))
        return "torch._int_mm", lambda: torch._int_mm(left, right)
    if dtype == "fp8":
        return "torch._scaled_mm", _scaled_product(torch, device, a, b)
    kinds = {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
    left, right = (each.to(kinds.get(dtype, torch.float32)) for each in (a, b))
    out = torch.empty_like(left)
    return "torch.mm", lambda: torch.mm(left, right, out=out)


def _scaled_product(torch: Any, device: str, a: Any, b: Any) -> _Product:
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _times_ms(torch: Any, product: _Product, seconds: float) -> list[float]:
    """Return the times of products by events on the GPU; two more warm up before."""
    for _ in range(2):
        product()
    torch.cuda.synchronize()
    times: list[float] = []
    end_s = time.monotonic() + seconds
    while len(times) < _LEAST_TIMES or time.monotonic() < end_s:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        product()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


# ---- theoretical ceilings --------------------------------------------------------------------------

# Operations of each multiprocessor in each clock cycle, by compute capability: multiply-adds of fp32 and fp64
# (tensor cores too, where they have fp64), and dense products of fp16 by tensor cores. The smaller kinds of
# 8.6, 8.9 and 12.0 do half of the last where sums are kept in fp32.
_OPERATIONS: dict[int, tuple[int, int, int]] = {
    70: (128, 64, 1024),
    75: (128, 4, 1024),
    80: (128, 128, 2048),
    86: (256, 4, 1024),
    89: (256, 4, 1024),
    90: (256, 256, 4096),
    100: (256, 128, 8192),
    120: (256, 4, 1024),
}
_FIRST_WITH_BF16, _FIRST_WITH_INT8, _FIRST_WITH_FP8 = 80, 75, 89


def theoretical_ceilings(device: str, facts: dict[str, Any]) -> Iterator[Ceiling]:
    """Yield a row for each type and for memory; none for what the driver does not report."""
    cycles = 1000.0 * facts["clock_khz"] * facts["multiprocessors"]
    clocks = f"{facts['multiprocessors']} multiprocessors at {facts['clock_khz'] / 1000:,.0f} MHz"
    for dtype, operations in _by_type(facts["capability"]).items():
        if cycles > 0:
            method = f"{THEORETICAL}: {operations:,} a clock, {clocks}"
            yield Ceiling(
                device, f"compute.{THEORETICAL}", dtype, operations * cycles, "flop_per_s", None, method
            )
    bandwidth = 2000.0 * facts["memory_clock_khz"] * facts["memory_bus_bits"] / 8
    if bandwidth > 0:
        bus = f"{facts['memory_bus_bits']:,} bits at 2 x {facts['memory_clock_khz'] / 1000:,.0f} MHz"
        method = f"{THEORETICAL}: {bus}"
        yield Ceiling(device, f"memory.dram.{THEORETICAL}", None, bandwidth, "bytes_per_s", None, method)


def _by_type(capability: int) -> dict[str, int]:
    if capability not in _OPERATIONS:
        return {}
    fp32, fp64, fp16 = _OPERATIONS[capability]
    found = {"fp64": fp64, "fp32": fp32, "fp16": fp16}
    if capability >= _FIRST_WITH_BF16:
        found |= {"bf16": fp16, "tf32": fp16 // 2}
    if capability >= _FIRST_WITH_INT8:
        found["int8"] = 2 * fp16
    if capability >= _FIRST_WITH_FP8:
        found["fp8"] = 2 * fp16
    return found


# ---- the measuring process -------------------------------------------------------------------------

_PROGRAM = (
    f"{WITHOUT_CURRENT_FOLDER}from gpuprof.analyze.ceilings.gpu import run_measuring_process; "
    "run_measuring_process(sys.argv[1:])"
)
LIST_SECONDS, MEASURE_SECONDS = 60, 180
# With these, we or another tool would record the measuring process.
_NOT_INHERITED = ("INTEL_LIBITTNOTIFY64", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")


class MeasuringError(Exception):
    """A GPU without a result; `note` has the reason."""

    def __init__(self, code: CeilingNoteCode, **values: Any) -> None:
        super().__init__(code.value)
        self.note = CeilingNote(code, values)


def list_devices() -> list[dict[str, Any]]:
    """Return the driver's facts about each GPU that CUDA shows here. Raises MeasuringError."""
    devices: list[dict[str, Any]] = _request(["devices"], LIST_SECONDS)
    return devices


def measure_device(ordinal: int, facts: dict[str, Any], quick: bool) -> Ceilings:
    """Return the ceilings of one GPU. Raises MeasuringError."""
    found = _request(
        ["measure", str(ordinal), json.dumps(facts), "quick" if quick else "full"], MEASURE_SECONDS
    )
    try:
        return from_dict(found)
    except (ValueError, TypeError, KeyError) as error:
        raise MeasuringError(
            CeilingNoteCode.GPU_INVALID_CEILINGS, device=f"cuda:{ordinal}", error=str(error)
        ) from error


def run_measuring_process(words: list[str]) -> None:
    """Print the result of one request: the devices, or the ceilings of one."""
    try:
        if words[0] == "devices":
            values: Any = _native.cuda_devices()
        else:
            values = measure_gpu(int(words[1]), json.loads(words[2]), words[3] == "quick").as_dict()
    except RuntimeError as error:
        values = {"error": str(error)}
    print(json.dumps(values), flush=True)


def _request(words: list[str], seconds: float) -> Any:
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    command = [sys.executable, "-c", _PROGRAM, *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MeasuringError(CeilingNoteCode.GPU_TIMEOUT, limit_s=seconds) from None
    except OSError as error:
        raise MeasuringError(CeilingNoteCode.GPU_NO_PROCESS, error=error.strerror) from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = next(reversed(done.stderr.strip().splitlines()), "no message")
        raise MeasuringError(CeilingNoteCode.GPU_EXIT_CODE, exit_code=done.returncode, error=last[:200])
    try:
        found = json.loads(lines[-1])
    except ValueError as error:
        raise MeasuringError(CeilingNoteCode.GPU_INVALID_OUTPUT, output=lines[-1][:100]) from error
    if isinstance(found, dict) and "error" in found:
        raise MeasuringError(CeilingNoteCode.GPU_REFUSED, error=found["error"])
    return found
