# SPDX-License-Identifier: Apache-2.0
"""The counted operators of a run: rows of the table `work`, with the hardware counters measured of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuprof.record.work.rows import TENSOR_TYPES, Exactness, Phase, Reuse

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

# The operators of a compiled layer are folded into one: none of them can be timed.
COMPILED = "(compiled)"

DRAM_BYTES = "dram_bytes"
_Place = tuple[str, str, str, int]

_COLUMNS = (
    "root",
    "layer",
    "ordinal",
    "operator",
    "phase",
    "flops",
    "bytes",
    "exactness",
    "dtype",
    "input_shapes",
    "page_faults",
)


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


@dataclass(frozen=True, slots=True)
class CountedRow:
    """One operator call of the counting pass; the columns are those of the table `work`.

    `measured` is from hardware counters, None in a run without them.
    """

    root: str
    layer: str
    ordinal: int
    operator: str
    phase: Phase
    flops: int | None
    bytes: int | None
    exactness: Exactness
    dtype: str | None
    input_shapes: str
    page_faults: int | None
    reuse: tuple[Reuse, ...]
    is_compiled: bool = False
    measured: Measured | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


# Names that differ under a counting mode.
_SAME = {
    "aten::_native_batch_norm_legit": "aten::native_batch_norm",
    "aten::_native_batch_norm_legit_no_training": "aten::native_batch_norm",
}


def plain_name(operator: str) -> str:
    """Return the name under which counted and timed operators are compared, in place or not.

    Where gradients are added up, PyTorch works in place, and under a counting mode it does not.
    """
    plain = operator[:-1] if operator.endswith("_") and not operator.endswith("__") else operator
    return _SAME.get(plain, plain)


def load_counted(folder: RunFolder) -> list[CountedRow]:
    """Return the counted operators, those of each root in the order of their calls."""
    columns = (*_COLUMNS, "reuse_distance_bytes", "reuse_bytes", "reuse_written", "compiled")
    rows = []
    for values in folder.sql("FROM work").select(", ".join(columns)).fetchall():
        reuse = tuple(map(Reuse, *(part or () for part in values[11:14])))
        plain: dict[str, Any] = dict(zip(_COLUMNS, values, strict=False))
        rows.append(CountedRow(**plain, reuse=reuse, is_compiled=values[14] is not None))
    return rows


def mean_row(rows: Sequence[CountedRow]) -> CountedRow:
    """Return the mean work of several calls of one operator, in the place of the first."""
    pieces: dict[tuple[int | None, bool], int] = defaultdict(int)
    for row in rows:
        for piece in row.reuse:
            pieces[piece.distance_bytes, piece.written] += piece.bytes
    measured = [row.measured for row in rows if row.measured is not None]
    return replace(
        rows[0],
        flops=_mean_count([row.flops for row in rows]),
        bytes=_mean_count([row.bytes for row in rows]),
        page_faults=_mean_count([row.page_faults for row in rows]),
        reuse=tuple(
            Reuse(distance, round(size / len(rows)), written) for (distance, written), size in pieces.items()
        ),
        measured=_mean_measured(measured) if measured else None,
    )


def _mean_count(values: Sequence[int | None]) -> int | None:
    mean = _mean(values)
    return None if mean is None else round(mean)


def _mean_measured(measured: Sequence[Measured]) -> Measured:
    return Measured(
        _mean([each.dram_bytes for each in measured]),
        _mean([each.tensor_operations for each in measured]),
        tuple(kernel for each in measured for kernel in each.kernels),
    )


# ---- hardware counters -----------------------------------------------------------------------


class HardwareCounters:
    """The hardware counters of a run by counted operator."""

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
