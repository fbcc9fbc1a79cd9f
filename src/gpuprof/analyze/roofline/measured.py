# SPDX-License-Identifier: Apache-2.0
"""What a GPU's hardware counters say of counted operators and of their kernels (table `counters`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuprof.record.work.rows import TENSOR_TYPES

if TYPE_CHECKING:
    from gpuprof.analyze.roofline.counted import CountedRow
    from gpuprof.run.folder import RunFolder

DRAM_BYTES = "dram_bytes"
_Place = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one operator call, all its kernels together, or of one kernel; None: not known.

    `tensor_operations` are those of the type that the operator calculates in, a multiply-add is two.
    """

    dram_bytes: float | None = None
    tensor_operations: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A kernel of an operator call, in the order of their launches."""

    name: str
    measured: Measured


class HardwareCounters:
    """The counters of a run, asked by counted operators."""

    def __init__(
        self, rows: Iterable[tuple[str, str, str, int, str | None, int | None, str, float | None]]
    ) -> None:
        """Take rows of root, layer, phase, ordinal, kernel, kernel_number, metric, value."""
        self._values: dict[_Place, dict[str, dict[int | None, float | None]]] = {}
        self._names: dict[_Place, dict[int, str]] = defaultdict(dict)
        for root, layer, phase, ordinal, kernel, number, metric, value in rows:
            place = (root, layer, phase, ordinal)
            self._values.setdefault(place, {}).setdefault(metric, {})[number] = value
            if kernel is not None and number is not None:
                self._names[place][number] = kernel

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._values)

    def operator(self, row: CountedRow) -> Measured:
        """Return what was measured of an operator call. A part that is missing leaves the sum unknown."""
        return Measured(
            self._sum(row, DRAM_BYTES),
            self._sum(row, _tensor_metric(row)),
        )

    def kernels(self, row: CountedRow) -> tuple[MeasuredKernel, ...]:
        """Return what was measured of each of its kernels."""
        place = _place(row)
        values = self._values.get(place, {})
        dram, tensor = values.get(DRAM_BYTES, {}), values.get(_tensor_metric(row), {})
        return tuple(
            MeasuredKernel(name, Measured(dram.get(number), tensor.get(number)))
            for number, name in sorted(self._names.get(place, {}).items())
        )

    def _sum(self, row: CountedRow, metric: str) -> float | None:
        values = self._values.get(_place(row), {}).get(metric, {})
        known = [value for value in values.values() if value is not None]
        return sum(known) if known and len(known) == len(values) else None


def load_measured(folder: RunFolder) -> HardwareCounters:
    """Return the counters of a run; runs without them, and those of earlier versions, have none."""
    if "counters" not in folder.tables:
        return HardwareCounters(())
    columns = "root, layer, phase, ordinal, kernel, kernel_number, metric, value"
    return HardwareCounters(folder.sql("FROM counters").select(columns).fetchall())


def with_measured(rows: Sequence[CountedRow], counters: HardwareCounters) -> list[CountedRow]:
    """Return the rows with what was measured of them; all None where the counters lack an operator."""
    if not counters:
        return list(rows)
    return [replace(row, measured=counters.operator(row)) for row in rows]


def _place(row: CountedRow) -> _Place:
    return row.root, row.layer, row.phase, row.ordinal


def _tensor_metric(row: CountedRow) -> str:
    return f"tensor_operations.{TENSOR_TYPES.get(row.dtype or '', '')}"
