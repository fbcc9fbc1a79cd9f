# SPDX-License-Identifier: Apache-2.0
"""A run's ceilings as one asks them: peak of a type, bandwidth of a level, what fits into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.analyze.ceilings.ceiling import ALL_CORES, GPU, ONE_CORE, Ceiling, Drift

DRAM = "dram"
FAULT_IS_HUGE_FROM_BYTES = 1 << 16
# PyTorch's names of types, and those of the ceilings. What is missing has no ceiling.
_TYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "uint8": "int8",
    "qint8": "int8",
    "quint8": "int8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "complex64": "fp32",
    "complex128": "fp64",
}


@dataclass(frozen=True, slots=True)
class Level:
    """One level of memory: what it holds, in bytes (None: everything), and its bandwidth."""

    name: str
    holds_bytes: int | None
    ceiling: Ceiling


# What stands for the spread of a ceiling that was worked out: a GPU reaches half to nearly all of it.
_THEORETICAL_SPREAD = 0.5


class Machine:
    """Ceilings of the threads that a run used: those of one core where it used one thread; or of one GPU.

    `tf32` says of a GPU whether products ("matmul") and convolutions of fp32 numbers may use TF32.
    """

    def __init__(
        self,
        rows: Sequence[Ceiling],
        *,
        threads: int | None = None,
        caches: Sequence[dict[str, Any]] = (),
        drifts: Sequence[Drift] = (),
        gpu: str | None = None,
        name: str | None = None,
        tf32: Mapping[str, bool | None] | None = None,
    ) -> None:
        has_one_core = any(row.device == ONE_CORE for row in rows)
        self.device = gpu or (ONE_CORE if threads == 1 and has_one_core else ALL_CORES)
        self.name = name
        self.tf32 = dict(tf32 or {})
        self._rows = {row.key: row for row in rows}
        self._drifts = {(drift.device, drift.resource, drift.dtype): drift.change for drift in drifts}
        self.levels = self._levels(caches)
        self.write_traffic = self._write_traffic()

    @property
    def is_gpu(self) -> bool:
        """Whether these are the ceilings of a GPU."""
        return self.device.startswith(GPU)

    def find(self, resource: str, dtype: str | None = None) -> Ceiling | None:
        """Return a ceiling of the device, of one core that of all where there is no other."""
        own = self._rows.get((self.device, resource, dtype))
        return own or (None if self.is_gpu else self._rows.get((ALL_CORES, resource, dtype)))

    def spread(self, ceiling: Ceiling) -> float:
        """Return how far a ceiling may be off."""
        return _THEORETICAL_SPREAD if "theoretical" in ceiling.method else ceiling.spread or 0.0

    def peak(self, dtype: str | None) -> Ceiling | None:
        """Return what can be calculated in a type of PyTorch; None where that was not measured."""
        if dtype is None:
            return None
        return self.find("compute", _TYPES.get(dtype, dtype))

    def fault_ns(self, fault_bytes: float) -> float | None:
        """Return what a page fault costs that hands out so many bytes."""
        small, huge = self.find("page_fault"), self.find("page_fault.huge")
        row = huge if huge is not None and fault_bytes >= FAULT_IS_HUGE_FROM_BYTES else small or huge
        return None if row is None else row.value

    def drift(self, ceiling: Ceiling) -> float:
        """Return how far what a roof is the best of moved around the recording: the largest change."""
        changes = [
            change
            for (device, resource, dtype), change in self._drifts.items()
            if device == ceiling.device
            and dtype == ceiling.dtype
            and (resource == ceiling.resource or _is_what_is_best(resource, ceiling))
        ]
        return max(changes, key=abs, default=0.0)

    def _levels(self, caches: Sequence[dict[str, Any]]) -> list[Level]:
        """Return the levels with a bandwidth, the nearest first; memory itself is the last."""
        size = "one_core_bytes" if self.device == ONE_CORE else "bytes"
        levels = []
        for cache in sorted(caches, key=lambda cache: int(cache["level"])):
            ceiling = self.find(f"memory.l{cache['level']}")
            if ceiling is not None:
                levels.append(Level(f"l{cache['level']}", int(cache[size]), ceiling))
        dram = self.find(f"memory.{DRAM}")
        return [*levels, *([Level(DRAM, None, dram)] if dram is not None else [])]

    def _write_traffic(self) -> float:
        """Return the bytes that move when one byte is written with an ordinary store.

        Between 1 and 2: a store may read the line first. It is what makes a plain copy, whose bytes
        are half reads and half writes, reach the roof.
        """
        roof, copy = self.find(f"memory.{DRAM}"), self.find(f"memory.{DRAM}.copy")
        if roof is None or copy is None:
            return 1.0
        assumed = 1.5 if "write-allocate" in copy.method else 1.0
        return min(2.0, max(1.0, 2 * roof.value / (copy.value / assumed) - 1))


def _is_what_is_best(resource: str, ceiling: Ceiling) -> bool:
    return ceiling.method == f"best: {resource.removeprefix(ceiling.resource + '.')}"
