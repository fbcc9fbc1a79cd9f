# SPDX-License-Identifier: Apache-2.0
"""The history and the list of entries as rows, and the history as a page without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from gpuprof.live.dashboard.history_chart import CHART_STYLE, history_chart
from gpuprof.live.dashboard.items import Item, Plain
from gpuprof.render.page import duration, escaped, html_table, page_style
from gpuprof.text.units import counted, format_bytes, format_change, format_quantity

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
HISTORY_COLUMNS = [
    "model", "technique", "metric", "unit", "time", "value", "low", "high", "is_change_point", "change_ratio",
    "change_low", "change_high", "level", "revision", "id", "path",
]  # fmt: skip
ENTRY_COLUMNS = ["id", "path", "kind", "state", "time", "title", "duration_s", "p50_s", "problem"]


def history_rows(history: Plain, paths: dict[str, str]) -> list[Plain]:
    """Return a row for each point; the first point of a new level has the change."""
    rows = []
    for series in history["series"]:
        changes = {each["at"]: each for each in series["changes"]}
        for index, point in enumerate(series["points"]):
            change = changes.get(index, {})
            level = next(value for begin, end, value in series["levels"] if begin <= index < end)
            rows.append(
                {
                    "model": history["model"],
                    "technique": series["label"],
                    "metric": history["metric"],
                    "unit": history["unit"],
                    "time": _time(point["t"]),
                    **{name: point[name] for name in ("value", "low", "high", "revision", "id")},
                    "is_change_point": index in changes,
                    **{f"change_{name}": change.get(name) for name in ("ratio", "low", "high")},
                    "level": level,
                    "path": paths.get(point["id"]),
                }
            )
    return rows


def entry_rows(items: Iterable[Item]) -> list[Plain]:
    """Return a row for each entry."""
    rows = []
    for plain in (each.to_plain() for each in items):
        summary = plain["summary"] or {}
        p50, duration_ns = summary.get("p50_s"), summary.get("duration_ns")
        rows.append(
            {
                **{name: plain[name] for name in ("id", "path", "kind", "state")},
                "time": _time(plain["unix_ms"]),
                "title": summary.get("title"),
                "duration_s": None if duration_ns is None else duration_ns / 1e9,
                "p50_s": None if p50 is None else p50[1],
                "problem": None if plain["problem"] is None else plain["problem"]["code"],
            }
        )
    return rows


def history_page(history: Plain, paths: dict[str, str]) -> str:
    """Return the history of a model as a page: its change points, and its results."""
    title = f"{history['model']}, {history['metric']}"
    sections = []
    for series in history["series"]:
        points, unit = series["points"], history["unit"]
        changes = [
            (
                escaped(_time(points[each["at"]]["t"])),
                format_change(each["ratio"] - 1),
                f"{format_change(each['low'] - 1)} to {format_change(each['high'] - 1)}",
                "worse" if each["is_worse"] else "better",
                escaped(", ".join(each["versions"]) or "–"),
            )
            for each in series["changes"]
        ]
        heads = (
            "First result of the new level",
            "Change",
            "95% interval",
            "Verdict",
            "Versions that changed",
        )
        results = [
            (
                escaped(_time(each["t"])),
                escaped(_value(each["value"], unit)),
                escaped(paths.get(each["id"], "–")),
            )
            for each in points
        ]
        where = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in series["where"].items())
        sections.append(
            f"<h2>{escaped(series['label'])}</h2><p>{escaped(where)}</p>"
            + (html_table(heads, changes) if changes else "<p>No change point.</p>")
            + f"<details><summary>{counted(len(points), 'result')}</summary>"
            + html_table(("Time", escaped(history["metric"]), "File"), results)
            + "</details>"
        )
    style = f"{page_style('kit/page.css')}{CHART_STYLE}"
    chart = history_chart(history, lambda value: _value(value, history["unit"]), _time)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>"
        f'<h1>{escaped(title)}</h1>{chart}<div class="static">{"".join(sections)}</div></body></html>'
    )


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return duration(value * 1e9)
    return format_bytes(value) if unit == "B" else f"{format_quantity(value)}{unit}"


def _time(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # a file may have any number as its time
        return "-"
