# SPDX-License-Identifier: Apache-2.0
"""What a gate found as text: the outcome, a table, the changes of a history, reasons and notes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuprof.bench.gate.gate import MOST_RUNS
from gpuprof.bench.gate.result import ChangePoint, Gate, GateRow
from gpuprof.bench.number_text import interval_text, time_text
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.bench.results.stored import Configuration
from gpuprof.bench.verdicts import GateOutcome
from gpuprof.stats.change_points import LEVEL
from gpuprof.stats.ratio_test import Comparison
from gpuprof.text.messages import listed
from gpuprof.text.sanitize import cell_width, escape_text
from gpuprof.text.table import GAP, MIN_FLEXIBLE_WIDTH, Column, text_table, wrapped
from gpuprof.text.units import format_bytes, format_quantity

_WIDTH = 100
_COLUMNS = (
    Column("configuration", right=False),
    Column("metric", right=False),
    Column("baseline"),
    Column("candidate"),
    Column("ratio"),
    Column("95% CI"),
    Column("compared", right=False),
    Column("verdict", right=False),
)
_VALUES: dict[RunMetric, Callable[[float], str]] = {
    RunMetric.THROUGHPUT: lambda rate: f"{format_quantity(rate)}/s",
    RunMetric.MEMORY: lambda size: format_bytes(round(size)),
    RunMetric.PROCESS_MEMORY: lambda size: format_bytes(round(size)),
    **dict.fromkeys(
        (RunMetric.ACCURACY, RunMetric.SUCCESS, RunMetric.GOODPUT), lambda fraction: f"{fraction:.2%}"
    ),
    RunMetric.ENERGY: lambda joules: f"{joules:.3g} J",
}


def gate_text(gate: Gate) -> str:
    """Return the whole text, at most 100 columns wide where names allow it."""
    return "\n".join([wrapped(f"{gate.outcome}: {_sentence(gate)}"), "", gate_table(gate)])


def gate_table(gate: Gate) -> str:
    """Return the rows with their reasons, and the notes."""
    distinct = list(dict.fromkeys(row.configuration for row in gate.rows))
    shared, short = name_parts(distinct)
    names = dict(zip(distinct, short, strict=True))
    first = {each: next(row for row in gate.rows if row.configuration == each) for each in distinct}
    shown = [names[row.configuration] if row is first[row.configuration] else "" for row in gate.rows]
    table = _names_table(_COLUMNS, shown, [_cells(row) for row in gate.rows])
    lines = [wrapped(f"all: {shared}"), ""] if shared else []
    lines += [table, "", *_figure_lines(gate), *_change_lines(gate)]
    lines += [*_reason_lines(gate, names), *_required_runs(gate)]
    return "\n".join([*lines, *(wrapped(f"{each.severity}: {each}") for each in gate.notes)]).rstrip()


def _figure_lines(gate: Gate) -> Iterator[str]:
    """Yield what the figures are, where gpuprof bench shows another one of the same name."""
    if any(row.metric is RunMetric.P50 and row.configuration.load is None for row in gate.rows):
        yield "baseline, candidate: geometric means of process runs; the p50 of gpuprof bench is of all calls"


def _reason_lines(gate: Gate, names: Mapping[Configuration, str]) -> Iterator[str]:
    """Yield each reason once, with the rows that have it."""
    found: dict[str, list[str]] = {}
    for row in gate.rows:
        if row.reason is not None:
            where = f" of {names[row.configuration]}" if len(names) > 1 else ""
            found.setdefault(str(row.reason), []).append(f"{row.metric}{where}")
    yield from (wrapped(f"{listed(rows)}: {reason}") for reason, rows in found.items())


def _sentence(gate: Gate) -> str:
    count = len(gate.rows)
    beyond = f"{'than the level of the history ' if gate.is_history else ''}by more than the threshold"
    if gate.outcome == GateOutcome.FAILED:
        metrics = ", ".join(dict.fromkeys(str(row.metric) for row in gate.worse))
        return f"{len(gate.worse)} of {count} figures worse {beyond} ({metrics})"
    if gate.outcome == GateOutcome.PASSED:
        return f"none of {count} figures worse {beyond}"
    return (
        f"{len(gate.without_verdict)} of {count} figures without a verdict; none shown to be worse {beyond}"
    )


def _cells(row: GateRow) -> tuple[str, ...]:
    judged = row.judgement
    return (
        f"{row.metric} ({row.threshold * 100:.3g}%)",
        _value(row, row.baseline),
        _value(row, row.candidate),
        "-" if row.ratio is None or judged is None else f"{row.ratio:.3f}",
        "-" if judged is None else interval_text(judged.low, judged.high),
        _compared(row),
        str(row.verdict),
    )


def _value(row: GateRow, value: float | None) -> str:
    if value is not None and row.metric is RunMetric.THROUGHPUT and _is_stream(row.configuration):
        return f"{format_quantity(value)} tokens/s"
    return "-" if value is None else _VALUES.get(row.metric, time_text)(value)


def _is_stream(configuration: Configuration) -> bool:
    model = configuration.model
    return configuration.load is not None and model is not None and model.startswith("openai+")


def _compared(row: GateRow) -> str:
    if row.files:
        return f"{len(row.files)} of {row.all_files} files"
    found = row.judgement
    if isinstance(found, Comparison):
        return f"{found.old_launches} + {found.new_launches} runs"
    return "-" if found is None or row.configuration.load is None else "requests"


def _change_lines(gate: Gate) -> Iterator[str]:
    changed = [row for row in gate.rows if row.changes]
    if gate.is_history and not changed:
        yield "no change point in the history"
    if changed:
        yield f"changes of level (a history without any shows one in {LEVEL:.0%} of cases):"
    for row in changed:
        yield wrapped(f"  {row.configuration}, {row.metric}:", indent="  ")
        yield from (wrapped(f"    {_change(each)}", indent="      ") for each in row.changes)
    since = {row.files[0].timestamp[:10]: None for row in gate.rows if row.files}
    if gate.is_history:
        yield wrapped(f"compared with the files since {', '.join(since)}")
        yield ""


def _change(change: ChangePoint) -> str:
    versions = f"; {', '.join(change.versions)}" if change.versions else ""
    factor = f"{change.ratio:.3f}x ({change.low:.3f} to {change.high:.3f})"
    return f"{factor} between {change.before} and {change.after}{versions}"


def _required_runs(gate: Gate) -> Iterator[str]:
    """Yield the required sample size: that of the row that needs most."""
    known = [(row.runs_needed, row) for row in gate.rows if row.runs_needed is not None]
    if not known:
        return
    needed, row = max(known, key=lambda each: each[0])
    of_load = row.configuration.load is not None
    what = "runs" if of_load else "process runs"
    varies = f"{row.metric} of {row.configuration} varies by {row.variation:.1%} between {what}"
    if needed > MOST_RUNS:
        fix = f"more than {MOST_RUNS:,} {what} a side; use a quieter machine or a wider threshold"
    else:
        loads = "gpuprof load with another --seed and --out"
        more = loads if of_load else f"gpuprof bench --launches {needed}"
        fix = f"about {needed} {what} a side, {more}"
    yield wrapped(f"required sample size: {fix} ({varies}, its threshold is {row.threshold:.1%})")


def name_parts(configurations: Sequence[Configuration]) -> tuple[str, list[str]]:
    """Return what all configurations share, in words, and for each of them what only it has."""
    if len(configurations) < 2:
        return "", [str(each) for each in configurations]
    alike = {name for name in Configuration._fields if len({getattr(c, name) for c in configurations}) == 1}
    shared = configurations[0]._replace(**{n: None for n in Configuration._fields if n not in alike})
    others = [each._replace(**dict.fromkeys(alike)) for each in configurations]
    return str(shared).strip(", "), [str(each).strip(", ") for each in others]


def _names_table(columns: Sequence[Column], names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows after names, which are broken into lines where they are too long: none of them is cut."""
    cells = [[escape_text(cell) for cell in row] for row in rows]
    others = [
        max(cell_width(text) for text in (column.title, *column_cells))
        for column, column_cells in zip(columns[1:], zip(*cells, strict=True), strict=True)
    ]
    room = max(_WIDTH - sum(len(GAP) + other for other in others), MIN_FLEXIBLE_WIDTH)
    blank = [""] * len(others)
    lines: list[Sequence[str]] = []
    for name, row in zip(names, cells, strict=True):
        first, *more = textwrap.wrap(escape_text(name), room, break_on_hyphens=False) or [""]
        lines += [(first, *row), *((f"  {each}", *blank) for each in _indented(more, room))]
    return text_table(columns, lines, _WIDTH)


def _indented(lines: Sequence[str], room: int) -> list[str]:
    return textwrap.wrap(" ".join(lines), room - 2, break_on_hyphens=False) if lines else []
