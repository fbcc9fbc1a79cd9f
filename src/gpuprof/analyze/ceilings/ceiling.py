# SPDX-License-Identifier: Apache-2.0
"""Ceilings as data: rows of the table `ceilings`, and the drift between two measurements of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

Unit = Literal["flop_per_s", "bytes_per_s", "ns"]
UNITS: tuple[Unit, ...] = ("flop_per_s", "bytes_per_s", "ns")
ALL_CORES = "cpu"
ONE_CORE = "cpu.core"
# The names of GPUs begin with it: "cuda:0".
GPU = "cuda"
# Labels of a roofline tolerate a drift up to this; shared machines exceed it within minutes.
MOST_DRIFT = 0.1
# The last part of the resource of a value that was calculated from clocks.
THEORETICAL = "theoretical"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One row: the highest rate (or shortest time) of `resource` that `device` sustains.

    `device` is "cpu" (all processors of the affinity mask together), "cpu.core" (one of them) or a GPU as
    PyTorch calls it ("cuda:0").
    `resource` is a ceiling ("compute", "memory.dram", "memory.l1" to "memory.l3", "launch") or one of
    the measurements of which the ceiling is the best ("compute.avx512", "memory.dram.read"). A last part
    "theoretical" marks a value that was calculated from clocks. `dtype` is None where it does not matter.
    `spread` is the interquartile range of the repeats over their median, None for fewer than three repeats.
    `method` is one line for people; no code reads it.
    """

    device: str
    resource: str
    dtype: str | None
    value: float
    unit: Unit
    spread: float | None
    method: str

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The identity of the row: device, resource and type."""
        return self.device, self.resource, self.dtype

    @property
    def is_best(self) -> bool:
        """Whether this is the best of its measurements, and not one of them."""
        return self.resource in ("compute", "launch") or (
            self.resource.count(".") == 1 and (self.resource.startswith("memory."))
        )

    @property
    def is_theoretical(self) -> bool:
        """Whether this value was calculated from clocks and not measured."""
        return self.resource.endswith(f".{THEORETICAL}")


def best_part(ceiling: Ceiling, rows: Iterable[Ceiling]) -> Ceiling | None:
    """Return the measurement among `rows` that `ceiling` is the best of; None where the rows lack it."""
    parts = (
        row
        for row in rows
        if row.resource.startswith(f"{ceiling.resource}.")
        and (row.device, row.dtype, row.value) == (ceiling.device, ceiling.dtype, ceiling.value)
    )
    return next(parts, None)


@dataclass(frozen=True, slots=True)
class Drift:
    """The relative change of a measurement that was repeated: -0.2 is a fifth of the rate lost."""

    device: str
    resource: str
    dtype: str | None
    change: float

    @property
    def is_large(self) -> bool:
        """Whether the change lowers the confidence in labels that use the earlier value."""
        return abs(self.change) > MOST_DRIFT


class CeilingNoteCode(str, Enum):
    """What a reader of ceilings must know besides their values."""

    QUOTA = "quota"
    THREADS_NOT_PINNED = "threads_not_pinned"
    INSTRUCTION_SET_DENIED = "instruction_set_denied"
    NO_TORCH = "no_torch"
    PRODUCTS_NOT_MEASURED = "products_not_measured"
    DISPATCH_NOT_MEASURED = "dispatch_not_measured"
    SMALL_ARRAYS = "small_arrays"
    CACHE_WITHOUT_FOLDER = "cache_without_folder"
    CACHE_NOT_READABLE = "cache_not_readable"
    CACHE_DAMAGED = "cache_damaged"
    NOT_CACHED = "not_cached"
    NONE = "none"  # of a run whose machine could not be measured
    IMPORTED_GPUS = "imported_gpus"
    GPUS_DURING_RECORDING = "gpus_during_recording"
    GPU_NOT_SHOWN = "gpu_not_shown"
    GPU_TIMEOUT = "gpu_timeout"
    GPU_NO_PROCESS = "gpu_no_process"
    GPU_EXIT_CODE = "gpu_exit_code"
    GPU_INVALID_OUTPUT = "gpu_invalid_output"
    GPU_INVALID_CEILINGS = "gpu_invalid_ceilings"
    GPU_REFUSED = "gpu_refused"
    GPU_WITHOUT_OWN_KERNELS = "gpu_without_own_kernels"
    GPU_PART_NOT_MEASURED = "gpu_part_not_measured"
    GPU_LAUNCHES_TOO_SLOW = "gpu_launches_too_slow"
    GPU_SMALL_ARRAYS = "gpu_small_arrays"
    GPU_NO_TORCH = "gpu_no_torch"
    GPU_PRODUCTS_CALCULATED = "gpu_products_calculated"
    GPU_MEMORY_CALCULATED = "gpu_memory_calculated"
    TEXT = "text"  # of an older version, or of a code that this one does not know


@dataclass(frozen=True, slots=True)
class CeilingNote:
    """A fact about ceilings; `values` are plain, `device` among them is the GPU that it is about."""

    code: CeilingNoteCode
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, plain: Any) -> CeilingNote:
        """Read what `dataclasses.asdict` made; what is not that, such as an older text, is kept as text."""
        try:
            return cls(CeilingNoteCode(plain["code"]), dict(plain["values"]))
        except (KeyError, TypeError, ValueError):
            return cls(CeilingNoteCode.TEXT, {"text": str(plain)})


@dataclass(frozen=True, slots=True)
class Ceilings:
    """All rows of one measurement, what they were measured on (`machine`), and when (`measured_at`)."""

    rows: tuple[Ceiling, ...]
    measured_at: str
    machine: dict[str, Any]
    quick: bool = False
    notes: tuple[CeilingNote, ...] = field(default=())

    def find(self, resource: str, dtype: str | None = None, device: str = ALL_CORES) -> Ceiling | None:
        """Return a row, or None where this machine has no such ceiling or it was not measured."""
        return next((row for row in self.rows if row.key == (device, resource, dtype)), None)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; `from_dict` takes it back."""
        return asdict(self)

    def drift_to(self, later: Ceilings) -> list[Drift]:
        """Compare with a later measurement, row by row, where both have the row.

        Ceilings that are the best of several measurements are left out: a quick measurement has fewer parts.
        """
        found = {row.key: row for row in later.rows if row.resource == "launch" or not row.is_best}
        return [
            Drift(*row.key, change=found[row.key].value / row.value - 1)
            for row in self.rows
            if row.key in found
        ]


def from_dict(values: Any) -> Ceilings:
    """Return the ceilings that `as_dict` gave; raises ValueError, TypeError or KeyError for anything else."""
    rows = tuple(Ceiling(**row) for row in values["rows"])
    for row in rows:
        _check(row)
    measured_at, machine, notes = values["measured_at"], values["machine"], values["notes"]
    if not isinstance(measured_at, str) or not isinstance(machine, dict):
        raise TypeError("the date or the machine has the wrong type")
    return Ceilings(
        rows, measured_at, machine, bool(values["quick"]), tuple(map(CeilingNote.from_plain, notes))
    )


def _check(row: Ceiling) -> None:
    texts = (row.device, row.resource, row.method, row.dtype or "")
    if not all(isinstance(text, str) for text in texts) or row.unit not in UNITS:
        raise TypeError(f"not a ceiling: {row}")
    numbers = (row.value,) if row.spread is None else (row.value, row.spread)
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        raise ValueError(f"not a ceiling: {row}")
    if row.value <= 0:
        raise ValueError(f"not a ceiling: {row}")


def relative_iqr(values: Sequence[float]) -> float | None:
    """Return the interquartile range over the median; None of fewer than three values."""
    if len(values) < 3:
        return None
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / median if median > 0 else None


def best_of(resource: str, measurements: Iterable[Ceiling]) -> list[Ceiling]:
    """Return the row for the best of `measurements` of one device and type; an empty list for none."""
    rows = list(measurements)
    if not rows:
        return []
    best = max(rows, key=lambda row: row.value)
    method = f"best: {best.resource.removeprefix(resource + '.')}"
    return [Ceiling(best.device, resource, best.dtype, best.value, best.unit, best.spread, method)]
