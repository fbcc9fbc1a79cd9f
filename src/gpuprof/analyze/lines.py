# SPDX-License-Identifier: Apache-2.0
"""The time of source lines, from the table `lines` of a run (`gpuprof run --profiler line`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from gpuprof.analyze.devices import Tables
from gpuprof.errors import RunError
from gpuprof.text.sanitize import escape_text, shorten
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import format_count, format_duration, format_share

_QUERY = "SELECT file, function, line, hits, total_ns, source FROM lines ORDER BY total_ns DESC, file, line"
_WIDEST_SOURCE = 40
_COLUMNS = (
    Column("line", right=False),
    Column("function", right=False),
    Column("hits"),
    Column("total"),
    Column("mean"),
    Column("of function"),
    Column("source", right=False),
)


@dataclass(frozen=True, slots=True)
class LineRow:
    """One line of one function: `total_ns` holds what the line calls; `share` is of its function's lines."""

    file: str
    function: str
    line: int
    hits: int
    total_ns: int
    source: str
    share: float | None

    @property
    def mean_ns(self) -> float | None:
        """The mean time of one run of the line."""
        return self.total_ns / self.hits if self.hits else None


@dataclass(frozen=True, slots=True)
class LineSummary:
    """The lines of a run, the most time first."""

    rows: tuple[LineRow, ...]

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"by": "line", "rows": [{**asdict(each), "mean_ns": each.mean_ns} for each in self.rows[:top]]}

    def to_text(self, top: int | None = None) -> str:
        """Return a table."""
        shown = self.rows[:top]
        rows = [
            (
                escape_text(f"{PurePath(each.file).name}:{each.line}"),
                escape_text(shorten(each.function, _WIDEST_SOURCE)),
                format_count(each.hits),
                format_duration(each.total_ns),
                "-" if each.mean_ns is None else format_duration(each.mean_ns),
                "-" if each.share is None else format_share(each.share),
                escape_text(shorten(each.source, _WIDEST_SOURCE)),
            )
            for each in shown
        ]
        more = len(self.rows) - len(shown)
        end = f"\n{more:,} more lines" if more else ""
        return f"{text_table(_COLUMNS, rows)}\ntimes of lines hold the calls that they make{end}"

    def __str__(self) -> str:
        return self.to_text()


def summarize_lines(run: Tables) -> LineSummary:
    """Return the lines of a run. Raises RunError where it has none."""
    found = run.sql(_QUERY).fetchall() if "lines" in run.tables else []
    if not found:
        raise RunError(
            "no_lines",
            "no line was timed in this run",
            hint="record it with gpuprof run --profiler line SCRIPT.py",
        )
    totals: dict[tuple[str, str], int] = {}
    for file, function, _line, _hits, total_ns, _source in found:
        totals[file, function] = totals.get((file, function), 0) + total_ns
    rows = []
    for file, function, line, hits, total_ns, source in found:
        whole = totals[file, function]
        share = total_ns / whole if whole else None
        rows.append(LineRow(file, function, line, hits, total_ns, source, share))
    return LineSummary(tuple(rows))
