# SPDX-License-Identifier: Apache-2.0
"""What one GPU can do at best, as rows of the table `ceilings`. For a process that does nothing else."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from gpuprof import _native
from gpuprof.analyze.ceiling_rows import Ceiling, Ceilings, Unit, relative_spread, roof
from gpuprof.analyze.gpu_library_ceilings import gpu_library_ceilings
from gpuprof.analyze.gpu_theory import theoretical_ceilings
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
class _Effort:
    seconds: float
    repeats: int
    launch_repeats: int
    library_seconds: float


_FULL = _Effort(0.01, 20, 20, 0.3)
_QUICK = _Effort(0.005, 8, 8, 0.0)

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

    What cannot be measured is worked out from clocks and widths, says so in its method, and is a note.
    """
    measurement = _Measurement(f"cuda:{ordinal}", facts, quick)
    rows = tuple(measurement.rows(ordinal, make_bench))
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Ceilings(rows, now, facts, quick, tuple(measurement.notes))


class _Measurement:
    def __init__(self, device: str, facts: dict[str, Any], quick: bool) -> None:
        self.device = device
        self.facts = facts
        self.quick = quick
        self.effort = _QUICK if quick else _FULL
        self.notes: list[str] = []

    def rows(self, ordinal: int, make_bench: MakeBench) -> Iterator[Ceiling]:
        bench: Bench | None = None
        try:
            bench = make_bench(ordinal)
        except RuntimeError as error:
            self._note(f"no kernels of our own: {error}")
        compute, memory, launch = self._own(bench) if bench is not None else ([], [], [])
        del bench  # its memory is PyTorch's from here on
        compute += [] if self.quick else self._library()
        theory = [] if self.quick else list(theoretical_ceilings(self.device, self.facts))
        yield from self._compute(compute, theory)
        yield from self._memory(memory, theory)
        yield from launch

    def _note(self, text: str) -> None:
        line = f"{self.device}: {' '.join(text.split())}"
        if line not in self.notes:
            self.notes.append(line)

    def _own(self, bench: Bench) -> tuple[list[Ceiling], list[Ceiling], list[Ceiling]]:
        """Return what our own kernels measure: arithmetic, memory, launching."""
        parts: list[list[Ceiling]] = []
        for measure in (self._multiply_adds, self._streams, self._launches):
            rows: list[Ceiling] = []
            try:
                rows.extend(measure(bench))
            except RuntimeError as error:
                self._note(f"not measured: {error}")
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
            self._note(
                f"free memory allows arrays of {size / 1e6:,.0f} MB, less than {LEAST_OVER_CACHE} times the "
                "L2 cache: memory.dram may include the cache's rate"
            )
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
            yield self._time("launch", found["floor_ns"], "from one empty kernel in line to the next")
        else:
            self._note("not measured: launching was slower than the GPU, so no kernel waited in line")
        if found["period_ns"]:
            yield self._time(
                "launch.period", found["period_ns"], "empty kernels, one launched after the other"
            )

    def _library(self) -> list[Ceiling]:
        if importlib.util.find_spec("torch") is None:
            self._note("torch is not installed: no ceilings of its products")
            return []
        rows: list[Ceiling] = []
        try:
            rows.extend(gpu_library_ceilings(self.device, self.effort.library_seconds))
        except Exception as error:
            self._note(f"PyTorch's products could not be measured: {type(error).__name__}: {error}")
        return rows

    def _compute(self, measured: list[Ceiling], theory: list[Ceiling]) -> Iterator[Ceiling]:
        """Yield roofs. Where no product was measured, our own multiply-adds know nothing of tensor cores."""
        products = {row.dtype for row in measured if row.resource == "compute.matmul"}
        worked_out = [
            row for row in theory if row.resource.startswith("compute.") and row.dtype not in products
        ]
        if worked_out:
            types = ", ".join(str(row.dtype) for row in worked_out)
            self._note(f"worked out from its clocks and not measured: products in {types}")
        for dtype in TYPES:
            rows = [row for row in (*measured, *worked_out) if row.dtype == dtype]
            yield from roof("compute", rows)
            yield from rows

    def _memory(self, measured: list[Ceiling], theory: list[Ceiling]) -> Iterator[Ceiling]:
        for resource in ("memory.l2", "memory.dram"):
            rows = [row for row in measured if row.resource.startswith(resource)]
            if not rows:
                rows = [row for row in theory if row.resource.startswith(resource)]
                if rows:
                    self._note(f"worked out from its clocks and not measured: {resource}")
            yield from roof(resource, rows)
            yield from rows

    def _row(self, resource: str, dtype: str | None, rates: list[float], unit: Unit, method: str) -> Ceiling:
        return Ceiling(self.device, resource, dtype, max(rates), unit, relative_spread(rates), method)

    def _time(self, resource: str, times_ns: list[float], method: str) -> Ceiling:
        return Ceiling(self.device, resource, None, min(times_ns), "ns", relative_spread(times_ns), method)
