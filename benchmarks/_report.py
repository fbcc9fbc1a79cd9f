# SPDX-License-Identifier: Apache-2.0
"""The results as a table of at most 100 columns, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from benchmarks._measure import Entry, Figure, Row

WIDTH = 100
_NAME = 52
_LEGEND = (
    "IQR: interquartile range of the n repeats. ratio: the line's median over gpuprof's; on gpuprof's own "
    "line that of the best peer, which is marked *. Lines in brackets are there for scale and are no peers."
)
_VERDICTS = {True: "yes", False: "NO", None: "-"}


def table(rows: Sequence[Row], machine: dict[str, Any], code: dict[str, Any]) -> str:
    """Return what a person reads."""
    lines = [*_heading(machine, code), "", *_line("", "median", "IQR", "n", "budget", "within", "ratio")]
    for row in rows:
        lines += ["-" * WIDTH, *_row_lines(row)]
    lines += ["-" * WIDTH, *textwrap.wrap(_LEGEND, WIDTH)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain data; None where a value could not be measured or does not apply."""
    return [_row_data(row) for row in rows]


def _heading(machine: dict[str, Any], code: dict[str, Any]) -> list[str]:
    revision = (code["revision"] or "unknown revision")[:12] + (" with changes" if code["dirty"] else "")
    load = machine["load_average"]
    return [
        f"gpuprof {code['version']} at {revision}",
        f"{machine['cpu'] or machine['architecture']}, {machine['cores_usable']} cores, {machine['system']}, "
        f"governor {machine['governor'] or 'unknown'}",
        f"Python {machine['python']}, torch {machine['torch']}, nvtx {machine['nvtx']}, "
        f"load average {'unknown' if load is None else f'{load:.2f}'} at the start",
    ]


def _row_lines(row: Row) -> list[str]:
    best = row.best_peer
    budget = "-" if row.budget is None else _number(row.budget, row.unit)
    ratio = _ratio(row, best) if best is not None else "-"
    measured = _figure(row.measured, row.unit)
    lines = _line(f"{row.name}: {row.what}", *measured, budget, _VERDICTS[row.within], ratio)
    for entry in row.others:
        name = f"[{entry.name}]" if entry.role == "scale" else f"{entry.name}{' *' if entry is best else ''}"
        lines += _line(f"    {name}", *_figure(entry.figure, row.unit), "", "", _ratio(row, entry))
    for note in row.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="    note: ", subsequent_indent=" " * 10)
    return lines


def _line(
    name: str, median: str, spread: str, repeats: str, budget: str, within: str, ratio: str
) -> list[str]:
    figures = f"{median:>11}{spread:>10}{repeats:>4}{budget:>8}{within:>7}{ratio:>8}"
    *above, last = textwrap.wrap(name, _NAME, subsequent_indent="    ") or [""]
    return [*above, f"{last:<{_NAME}}{figures}"]


def _figure(figure: Figure | None, unit: str) -> tuple[str, str, str]:
    if figure is None:
        return "unavailable", "-", "-"
    return f"{_number(figure.median, unit)} {unit}", _number(figure.iqr, unit), str(figure.repeats)


def _number(value: float, unit: str) -> str:
    digits = {"s": 3, "x": 3, "ns": 1, "MB": 1}[unit]
    return f"{value:,.{digits}f}"


def _ratio(row: Row, entry: Entry) -> str:
    ratio = row.ratio_to(entry)
    if ratio is None:
        return "-"
    digits = 3 if row.unit == "x" else 1 if ratio < 1000 else 0
    return f"{ratio:,.{digits}f}x"


def _row_data(row: Row) -> dict[str, Any]:
    best = row.best_peer
    return {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "measured": _figure_data(row.measured),
        "budget": row.budget,
        "within": row.within,
        "best_peer": best.name if best is not None else None,
        "best_peer_ratio": row.ratio_to(best) if best is not None else None,
        "others": [
            {
                "name": entry.name,
                "role": entry.role,
                "measured": _figure_data(entry.figure),
                "ratio": row.ratio_to(entry),
            }
            for entry in row.others
        ],
        "notes": list(row.notes),
    }


def _figure_data(figure: Figure | None) -> dict[str, float | int] | None:
    if figure is None:
        return None
    return {
        "median": figure.median,
        "first_quartile": figure.first_quartile,
        "third_quartile": figure.third_quartile,
        "iqr": figure.iqr,
        "repeats": figure.repeats,
    }
