# SPDX-License-Identifier: Apache-2.0
"""What changed most between runs, as a table: one row a layer, operator, span or kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.aggregate import grouped, part_of
from gpuprof.analyze.compared_runs import (
    ComparedRuns,
    ComparedSide,
    WallChange,
    before_and_now,
    comparison_notes,
    load_compared,
    method_text,
    single_run_note,
    wall_change,
)
from gpuprof.analyze.difference import STATES, Difference, Scaling, can_scale_by_calls, compare
from gpuprof.analyze.kernel_labels import kernel_labels, label_of
from gpuprof.analyze.summary import DEFAULT_TOP, MEMBER_KINDS
from gpuprof.errors import RunError
from gpuprof.text.sanitize import quoted_if_blank
from gpuprof.text.table import TABLE_WIDTH, Column, text_table, wrapped
from gpuprof.text.units import format_change, format_count, format_duration

if TYPE_CHECKING:
    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.run.folder import RunFolder

_CHANGED = ("slower", "faster", "new", "gone")


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One name: its self time before and now, as `SummaryRow.own_ns` counts it.

    `change_ns` is new less old. `low_ns` and `high_ns` bound the change; they are None where it could not be
    judged. `state` is "slower" or "faster" where the change is significant, "same" where it may be chance or
    is too small, "new" or "gone" where only one side has the name, "unknown" where it could not be judged.
    """

    name: str
    kind: str
    state: str
    old_ns: float
    new_ns: float
    change_ns: float
    low_ns: float | None
    high_ns: float | None
    calls_old: float
    calls_new: float

    @property
    def ratio(self) -> float | None:
        """The change as a fraction of the old time; None where there was none."""
        return self.change_ns / self.old_ns if self.old_ns > 0 else None


@dataclass(frozen=True, slots=True)
class DifferenceSummary:
    """The table of a comparison; `print` shows it. What changed comes first, the largest change on top.

    `old_total_ns` and `new_total_ns` are sums over all threads, of kernels over all GPUs. `wall` is None
    where a run has no wall time.
    """

    by: str
    scaling: Scaling
    rows: tuple[DifferenceRow, ...]
    level: float
    method: str
    old_total_ns: float
    new_total_ns: float
    notes: tuple[str, ...] = ()
    wall: WallChange | None = None

    def __str__(self) -> str:
        return self.to_text()

    @property
    def changed(self) -> tuple[DifferenceRow, ...]:
        """The rows whose change is significant, and those that one side alone has."""
        return tuple(row for row in self.rows if row.state in _CHANGED)

    def to_text(self, top: int | None = DEFAULT_TOP, width: int = TABLE_WIDTH) -> str:
        """Return the verdict, the table of what changed, and the notes, as plain text."""
        lines = [] if self.wall is None else [wrapped(str(self.wall), width)]
        lines += [self._verdict(), ""]
        shown = self.changed[:top]
        if shown:
            lines += [_table(self.by, shown, width)]
            if len(shown) < len(self.changed):
                lines.append(f"... and {format_count(len(self.changed) - len(shown))} more that changed")
            lines.append("")
        lines += [wrapped(line, width) for line in (*self._rest(), f"judged by {self.method}")]
        lines += [wrapped(f"note: {note}", width) for note in self.notes]
        return "\n".join(lines)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return plain values for JSON, with the `top` rows (None: all); times are nanoseconds."""
        return {
            "by": self.by,
            "scaling": self.scaling,
            "old_total_ns": self.old_total_ns,
            "new_total_ns": self.new_total_ns,
            "wall": None if self.wall is None else asdict(self.wall),
            "level": self.level,
            "method": self.method,
            "row_count": len(self.rows),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in self.rows[:top]],
            "notes": list(self.notes),
        }

    def _verdict(self) -> str:
        time = "GPU time" if self.by == "kernel" else "thread time"
        total = f"{time} {before_and_now(self.old_total_ns, self.new_total_ns)}"
        count = len(self.changed)
        unknown = sum(row.state == "unknown" for row in self.rows)
        if not count and unknown:
            of_all = f"{format_count(unknown)} of {format_count(len(self.rows))} {self._members}"
            return f"no difference found, but {of_all} could not be judged ({total})"
        if not count:
            return f"no difference by {self.by} ({total})"
        return f"{format_count(count)} of {format_count(len(self.rows))} {self._members} differ ({total})"

    @property
    def _members(self) -> str:
        return "Python functions" if self.by == "python" else f"{self.by}s"

    def _rest(self) -> list[str]:
        same, unknown = (sum(row.state == state for row in self.rows) for state in ("same", "unknown"))
        lines = [f"{format_count(same)} {self._members} show no difference beyond chance"] if same else []
        if unknown:
            lines.append(
                f"{format_count(unknown)} could not be judged: too few calls, or not in every repetition"
            )
        return lines


def summarize_difference(
    runs: ComparedRuns, by: str, scaling: Scaling, *, method: str, notes: Sequence[str] = ()
) -> DifferenceSummary:
    """Compare the self times of all processes by name. Raises RunError for an unknown `by`."""
    if by not in MEMBER_KINDS:
        raise RunError(
            "unknown_grouping", f"cannot compare by {by!r}", hint=f"choose one of {', '.join(MEMBER_KINDS)}"
        )
    calls = np.sum([run.calls for run in (*runs.new, *runs.old)], axis=0)
    tree = dataclasses.replace(runs.tree, calls=calls)
    part = part_of(tree, tuple(np.unique(tree.process_id).tolist()))
    groups = grouped(part, MEMBER_KINDS[by])
    whole = [float(np.mean([run.whole_ns for run in side])) for side in (runs.old, runs.new)]
    rows: tuple[DifferenceRow, ...] = ()
    level = 0.0
    if groups is not None:
        # Where the times of a name are those of its outermost calls, its calls are still all of them.
        members = np.where(np.isin(tree.kind, _codes(by)), groups.holder, -1)
        sides = [
            [
                dataclasses.replace(
                    run.gathered(groups.holder, groups.total_of, len(groups.names)),
                    calls=run.gathered(members, members, len(groups.names)).calls,
                )
                for run in side
            ]
            for side in (runs.new, runs.old)
        ]
        found = compare(sides[0], sides[1], scaling)
        rows, level = _rows(groups.names, groups.kinds, found), found.level
    else:
        notes = [f"no {by} was recorded in any of the runs", *notes]
    return DifferenceSummary(by, scaling, rows, level, method, whole[0], whole[1], tuple(notes))


def _codes(by: str) -> list[int]:
    from gpuprof.run.format import KINDS

    return [KINDS.index(kind) for kind in MEMBER_KINDS[by]]


def _rows(names: list[str], kinds: list[str], found: Difference) -> tuple[DifferenceRow, ...]:
    own = found.own
    columns = (own.old_ns, own.new_ns, own.change_ns, own.low_ns, own.high_ns)
    times = zip(*(column.tolist() for column in columns), strict=True)
    calls = zip(found.calls_old.tolist(), found.calls_new.tolist(), strict=True)
    rows = [
        DifferenceRow(name, kind, STATES[state], old, new, change, _known(low), _known(high), *called)
        for name, kind, state, (old, new, change, low, high), called in zip(
            names, kinds, own.state.tolist(), times, calls, strict=True
        )
    ]
    return tuple(sorted(rows, key=lambda row: (row.state not in _CHANGED, -abs(row.change_ns), row.name)))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _table(by: str, rows: Sequence[DifferenceRow], width: int) -> str:
    titles = ("old own", "new own", "change", "%", "interval", "calls")
    columns = [Column(by, right=False), *map(Column, titles), Column("", right=False)]
    labels = kernel_labels(row.name for row in rows if row.kind == "kernel")
    return text_table(columns, [_cells(row, labels) for row in rows], width)


def _cells(row: DifferenceRow, labels: Mapping[str, str]) -> list[str]:
    interval = "-"
    if row.low_ns is not None and row.high_ns is not None:
        interval = f"{_signed(row.low_ns)} to {_signed(row.high_ns)}"
    calls = [format_count(round(count)) for count in (row.calls_old, row.calls_new)]
    return [
        quoted_if_blank(label_of(row.name, row.kind, labels) or row.name),
        format_duration(row.old_ns),
        format_duration(row.new_ns),
        _signed(row.change_ns),
        _ratio_text(row.ratio),
        interval,
        calls[0] if calls[0] == calls[1] else f"{calls[0]} > {calls[1]}",
        row.state,
    ]


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return format_change(ratio)


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "") + format_duration(ns)


def compare_runs(
    new: Sequence[tuple[RunFolder, CallTree]],
    old: Sequence[tuple[RunFolder, CallTree]],
    by: str,
    scaling: Scaling,
) -> DifferenceSummary:
    """Compare runs, each with its call tree, by name. Raises RunError."""
    runs = load_compared(new, old, "gpu" if by == "kernel" else "cpu")
    if scaling == "calls" and not can_scale_by_calls(runs.new, runs.old):
        raise RunError(
            "no_scale",
            "the runs repeat no call often enough to be scaled by it",
            hint="scale by total, or not",
        )
    sides = [ComparedSide.of([folder for folder, _ in side]) for side in (new, old)]
    found = summarize_difference(
        runs,
        by,
        scaling,
        method=method_text(new, old, runs.repeated_name),
        notes=[*comparison_notes(*sides), *single_run_note(new, old)],
    )
    return dataclasses.replace(found, wall=wall_change(*sides))
