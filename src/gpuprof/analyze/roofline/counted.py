# SPDX-License-Identifier: Apache-2.0
"""The table `work` as rows, ready to be joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.roofline.measured import Measured
from gpuprof.record.work.rows import Exactness, Phase

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

# What a compiled layer's operators are folded into: no operator of it can be timed.
COMPILED = "(compiled)"

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
class Reuse:
    """Bytes, and what a cache must hold to have them still; None: they were in no cache."""

    distance_bytes: int | None
    bytes: int
    written: bool


@dataclass(frozen=True, slots=True)
class CountedRow:
    """One operator call of the counting pass; the columns are those of the table `work`.

    `measured` is what hardware counters say of it, None in a run without them.
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


# What PyTorch calls differently where a counting mode looks on.
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
