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
    `kernels` are those of an operator in the order of their launches, by name.
    """

    dram_bytes: float | None = None
    tensor_operations: float | None = None
    kernels: tuple[tuple[str, Measured], ...] = ()

    def kernel(self, name: str) -> Measured:
        """Return what one launch of the kernel of that name has, on average of those in the operator call."""
        found = [measured for each, measured in self.kernels if each == name]
        return Measured(
            _mean([measured.dram_bytes for measured in found]),
            _mean([measured.tensor_operations for measured in found]),
        )


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
        place = _place(row)
        dram, tensor = self._of(place, DRAM_BYTES), self._of(place, _tensor_metric(row))
        kernels = (
            (name, Measured(dram.get(number), tensor.get(number)))
            for number, name in sorted(self._names.get(place, {}).items())
        )
        return Measured(_sum(dram), _sum(tensor), tuple(kernels))

    def _of(self, place: _Place, metric: str) -> dict[int | None, float | None]:
        """Return the values by the numbers of the kernels; None is what was not measured."""
        return self._values.get(place, {}).get(metric, {})


def _sum(values: dict[int | None, float | None]) -> float | None:
    known = [value for value in values.values() if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


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
