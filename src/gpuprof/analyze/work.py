# SPDX-License-Identifier: Apache-2.0
"""Counted work: its totals, its tables, and what part of it is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from gpuprof.errors import WorkError
from gpuprof.record.work.rows import Exactness, OperatorWork, UnknownWork, known_sum, worst_of
from gpuprof.text.table import TABLE_WIDTH, Column, text_table
from gpuprof.text.units import format_bytes, format_count

WorkKind = Literal["layer", "operator", "dtype", "phase"]
DEFAULT_TOP = 20

_FLOP_UNITS = ("", "k", "M", "G", "T", "P", "E")
_OUTSIDE = "(outside of layers)"


@dataclass(frozen=True, slots=True)
class WorkRow:
    """The work of all operator calls with the same layer, operator, type or phase.

    `flops` and `bytes` add up what is known, and are None where nothing is; `unknown_calls` is the
    number of calls without FLOPs. `exactness` is the worst of them.
    """

    name: str
    calls: int
    flops: int | None
    bytes: int | None
    exactness: Exactness
    unknown_calls: int

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte; None where either is not known or no byte moves."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


@dataclass(frozen=True)
class Work:
    """What a model computes and moves; `print` shows it. `operators` holds a row for each operator call.

    Bytes are ideal: what a memory that keeps everything for the length of one operator would move. Where
    operators are fused, or a cache holds a result until it is used, less moves than the sum.
    """

    operators: tuple[OperatorWork, ...]
    failures: tuple[UnknownWork, ...] = ()

    @cached_property
    def flops(self) -> int | None:
        """All FLOPs that are known (a multiply-add is two); `unknown` lists what is missing."""
        return known_sum(row.flops for row in self.operators)

    @cached_property
    def bytes(self) -> int | None:
        """All bytes that are known."""
        return known_sum(row.bytes for row in self.operators)

    @cached_property
    def exactness(self) -> Exactness:
        """The worst exactness of any operator."""
        return worst_of(row.exactness for row in self.operators)

    @cached_property
    def unknown(self) -> dict[str, int]:
        """Operators whose FLOPs or bytes are not known, with how many calls of each."""
        return dict(
            Counter(row.operator for row in self.operators if row.exactness == "unknown").most_common()
        )

    def by(self, kind: WorkKind) -> tuple[WorkRow, ...]:
        """Return the work folded by layer (its own operators, without those of its parts), operator, ...

        Rows are ordered by FLOPs, then bytes, the largest first. Raises WorkError for another kind.
        """
        if kind not in get_args(WorkKind):
            raise WorkError(
                "unknown_grouping",
                f"work has no {kind!r}",
                hint=f"choose one of {', '.join(get_args(WorkKind))}",
            )
        groups: dict[str, list[OperatorWork]] = {}
        for row in self.operators:
            groups.setdefault(getattr(row, kind) or "", []).append(row)
        rows = [_fold(name, members) for name, members in groups.items()]
        return tuple(sorted(rows, key=lambda row: (row.flops or 0, row.bytes or 0, row.calls), reverse=True))

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Work: {self._totals()}>"

    def to_text(self, top: int | None = DEFAULT_TOP, width: int = TABLE_WIDTH) -> str:
        """Return the totals, the tables by layer and by operator, and the notes, as plain text."""
        lines = [self._totals()]
        if self.operators:
            lines += ["", *_table("layer", self.by("layer"), top, width)]
            lines += ["", *_table("operator", self.by("operator"), top, width)]
        if self.unknown:
            calls = ", ".join(f"{name} ({count:,})" for name, count in self.unknown.items())
            lines += ["", f"unknown, and not in the totals: {calls}"]
        lines += [f"note: {each.operator}: its work is unknown ({each.error})" for each in self.failures]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "flops": self.flops,
            "bytes": self.bytes,
            "exactness": self.exactness,
            "unknown": dict(self.unknown),
            "operators": [asdict(row) for row in self.operators],
            "failures": [asdict(each) for each in self.failures],
        }

    def _totals(self) -> str:
        whole = _fold("", self.operators)
        text = f"{_flops_cell(whole)}FLOP, {_bytes_cell(whole)}"
        if whole.intensity is not None:
            text += f", {whole.intensity:.3g} FLOP/B"
        return f"{text} ({self.exactness}; {len(self.operators):,} operator calls)"


def _fold(name: str, rows: Iterable[OperatorWork]) -> WorkRow:
    members = list(rows)
    return WorkRow(
        name,
        len(members),
        known_sum(row.flops for row in members),
        known_sum(row.bytes for row in members),
        worst_of(row.exactness for row in members),
        sum(row.flops is None for row in members),
    )


def _table(kind: str, rows: tuple[WorkRow, ...], top: int | None, width: int) -> list[str]:
    working = [row for row in rows if row.flops != 0 or row.bytes != 0]
    shown = working[:top]
    titles = ("calls" if kind == "operator" else "operator calls", "FLOPs", "bytes", "FLOP/B", "FLOPs %")
    columns = [Column(kind, right=False), *map(Column, titles), Column("exactness", right=False)]
    total = sum(row.flops or 0 for row in rows)
    lines = [text_table(columns, [_cells(row, total) for row in shown], width)]
    if len(shown) < len(working):
        lines.append(f"... and {len(working) - len(shown):,} more")
    if len(working) < len(rows):
        lines.append(f"... and {len(rows) - len(working):,} without work: views and memory set aside")
    return lines


def _cells(row: WorkRow, total: int) -> list[str]:
    return [
        row.name or _OUTSIDE,
        format_count(row.calls),
        _flops_cell(row).rstrip(),
        _bytes_cell(row),
        "-" if row.intensity is None else f"{row.intensity:.3g}",
        "-" if row.flops is None or not total else f"{row.flops / total:.1%}",
        row.exactness,
    ]


def _flops_cell(row: WorkRow) -> str:
    """Return the FLOPs with the prefix of their unit, at least so many where some are not known."""
    if row.flops is None:
        return "- "
    value, unit = float(row.flops), 0
    while value >= 999.5 and unit < len(_FLOP_UNITS) - 1:
        value, unit = value / 1_000, unit + 1
    digits = f"{value:.3g}" if unit else f"{value:.0f}"
    return f"{'>= ' if row.unknown_calls else ''}{digits} {_FLOP_UNITS[unit]}"


def _bytes_cell(row: WorkRow) -> str:
    return "-" if row.bytes is None else format_bytes(row.bytes)
