# SPDX-License-Identifier: Apache-2.0
"""Ceilings as data: rows of the table `ceilings`, and how far two measurements of them lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Unit = Literal["flop_per_s", "bytes_per_s", "ns"]
UNITS: tuple[Unit, ...] = ("flop_per_s", "bytes_per_s", "ns")
ALL_CORES = "cpu"
ONE_CORE = "cpu.core"
# What the devices begin with that are GPUs: "cuda:0".
GPU = "cuda"
# What the labels of a roofline may rest on, and what shared machines exceed within minutes.
MOST_DRIFT = 0.1


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One row: what `device` sustains at best of `resource`.

    `device` is "cpu" (all processors of the affinity mask together), "cpu.core" (one of them) or a GPU as
    PyTorch calls it ("cuda:0").
    `resource` is a roof ("compute", "memory.dram", "memory.l1" to "memory.l3", "launch") or one of
    the measurements that the roof is the best of ("compute.avx512", "memory.dram.read"). `dtype` is
    None where it does not matter. `spread` is the interquartile range of the repeats over their
    median, None where there were fewer than three.
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
        """What tells the row from the others."""
        return self.device, self.resource, self.dtype

    @property
    def is_roof(self) -> bool:
        """Whether this is the best of its measurements, and not one of them."""
        return self.resource in ("compute", "launch") or (
            self.resource.count(".") == 1 and (self.resource.startswith("memory."))
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """A measurement that was made again: `change` is -0.2 where a fifth of the rate was lost."""

    device: str
    resource: str
    dtype: str | None
    change: float

    @property
    def is_large(self) -> bool:
        """Whether labels that rest on the earlier value would be in doubt."""
        return abs(self.change) > MOST_DRIFT


@dataclass(frozen=True, slots=True)
class Ceilings:
    """All rows of one measurement, what they were measured on (`machine`), and when (`measured_at`)."""

    rows: tuple[Ceiling, ...]
    measured_at: str
    machine: dict[str, Any]
    quick: bool = False
    notes: tuple[str, ...] = field(default=())

    def find(self, resource: str, dtype: str | None = None, device: str = ALL_CORES) -> Ceiling | None:
        """Return a row, or None where this machine has no such ceiling or it was not measured."""
        return next((row for row in self.rows if row.key == (device, resource, dtype)), None)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; `from_dict` takes it back."""
        return asdict(self)

    def drift_to(self, later: Ceilings) -> list[Drift]:
        """Compare with a later measurement, row by row, where both have the row.

        Roofs are left out: what they are the best of says more, and a quick measurement has fewer.
        """
        found = {row.key: row for row in later.rows if row.resource == "launch" or not row.is_roof}
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
        raise TypeError("the date or the machine is not what it should be")
    return Ceilings(rows, measured_at, machine, bool(values["quick"]), tuple(map(str, notes)))


def _check(row: Ceiling) -> None:
    texts = (row.device, row.resource, row.method, row.dtype or "")
    if not all(isinstance(text, str) for text in texts) or row.unit not in UNITS:
        raise TypeError(f"not a ceiling: {row}")
    numbers = (row.value,) if row.spread is None else (row.value, row.spread)
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        raise ValueError(f"not a ceiling: {row}")
    if row.value <= 0:
        raise ValueError(f"not a ceiling: {row}")


def relative_spread(values: Sequence[float]) -> float | None:
    """Return the interquartile range over the median; None of fewer than three values."""
    if len(values) < 3:
        return None
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / median if median > 0 else None


def roof(resource: str, measurements: Iterable[Ceiling]) -> list[Ceiling]:
    """Return the row for the best of `measurements` of one device and type; nothing of nothing."""
    rows = list(measurements)
    if not rows:
        return []
    best = max(rows, key=lambda row: row.value)
    method = f"best: {best.resource.removeprefix(resource + '.')}"
    return [Ceiling(best.device, resource, best.dtype, best.value, best.unit, best.spread, method)]
