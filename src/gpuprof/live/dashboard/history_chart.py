# SPDX-License-Identifier: Apache-2.0
"""The chart of a history as SVG, for a page without scripts: lines of techniques, and change points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuprof.live.dashboard.items import Plain
from gpuprof.render.page import escaped
from gpuprof.text.units import format_change

_COLORS = (
    ("#0b5cad", "#7cb8f5"), ("#c2571a", "#f0a35e"), ("#1a7f4b", "#58c98b"), ("#7a4fb5", "#b99af0"),
    ("#0f7c86", "#5cc8d2"), ("#b3261e", "#ff8a80"), ("#7a7000", "#cdc04a"), ("#59636e", "#a0a9b6"),
)  # fmt: skip
_WIDTH, _HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 30, 52  # pixels around the lines
_DAY_MS = 86_400_000
_LABEL_WIDTH = 56  # pixels of the size of a change
CHART_STYLE = (
    ".history-chart { overflow-x: auto; }"
    " .history-chart svg { display: block; width: 100%; min-width: 760px; max-width: 1100px; }"
    " .history-chart text { font-size: 12px; fill: var(--quiet); }"
    " .history-chart .grid { stroke: var(--line); }"
    " .history-chart .legend i { border-radius: 50%; } h2 { margin-top: 28px; }"
    " .static table { min-width: 660px; }"
    # Without scripts a box is known to scroll by the least width of what is in it, and of the page's margins.
    ' @media screen and (max-width: 791px) { .history-chart { --hint: "scroll \\2192"; } }'
    ' @media screen and (max-width: 691px) { .static { --hint: "scroll \\2192"; } }'
    " .history-chart::before, .static::before { content: var(--hint, none); position: sticky; left: 0;"
    " display: block; width: max-content; color: var(--accent); font-size: 12px; font-weight: 600; }"
)


@dataclass(frozen=True, slots=True)
class _Scales:
    """From milliseconds since 1970 and values to pixels."""

    times: tuple[float, float]
    values: tuple[float, float]

    def x(self, unix_ms: float) -> float:
        first, last = self.times
        return _LEFT + (unix_ms - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.values
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def history_chart(history: Plain, value_text: Callable[[float], str], time_text: Callable[[int], str]) -> str:
    """Return the chart with its legend; empty without points."""
    points = [point for series in history["series"] for point in series["points"]]
    if not points:
        return ""
    scales = _Scales(
        _widened([point["t"] for point in points], 0.01),
        _widened([end for point in points for end in _ends(point)], 0.08),
    )
    parts = [*_axes(scales, history["metric"], value_text, time_text)]
    for number, series in enumerate(history["series"]):
        parts += _lines(scales, series, _color(number))
    parts += _sizes([each for series in history["series"] for each in _changes(scales, series)])
    items = "".join(
        f'<li><i style="background: {_color(number)}"></i>{escaped(series["label"])}</li>'
        for number, series in enumerate(history["series"])
    )
    name = escaped(f"{history['model']}, {history['metric']} over time")
    return (
        f'<div class="history-chart"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
        f'{"".join(parts)}</svg><ul class="legend">{items}</ul></div>'
    )


def _color(number: int) -> str:
    return "light-dark({}, {})".format(*_COLORS[number % len(_COLORS)])


def _ends(point: Plain) -> list[float]:
    return [each for each in (point["low"], point["value"], point["high"]) if each is not None]


def _widened(values: list[float], part: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * part or abs(high) * part or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values within a range."""
    rough = (high - low) / count
    size = 10 ** math.floor(math.log10(rough))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough * 0.999)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _day_ticks(first: float, last: float) -> list[int]:
    """Return midnights, at most seven; none of a range that has fewer than two."""
    step = max(1, math.ceil((last - first) / _DAY_MS / 7)) * _DAY_MS
    ticks = list(range(math.ceil(first / _DAY_MS) * _DAY_MS, math.floor(last) + 1, step))
    return ticks if len(ticks) > 1 else []


def _axes(
    scales: _Scales, metric: str, value_text: Callable[[float], str], time_text: Callable[[int], str]
) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    yield f'<text x="2" y="14">{escaped(metric)}</text>'
    for value in _ticks(*scales.values, 5):
        y = scales.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escaped(value_text(value))}</text>'
    days = _day_ticks(*scales.times)
    for unix_ms in days or scales.times:
        x, text = scales.x(unix_ms), time_text(int(unix_ms))[: 10 if days else None]
        anchor = "end" if x > _WIDTH - 3 * _RIGHT else "middle" if days else "start"
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">{text}</text>'
    yield f'<text x="{(_LEFT + _WIDTH) / 2}" y="{bottom + 42}" text-anchor="middle">Date of the result</text>'


def _lines(scales: _Scales, series: Plain, color: str) -> Iterator[str]:
    """Yield the intervals, the line through the points, the levels, and a dashed line at each change."""
    points = series["points"]
    places = [(scales.x(point["t"]), scales.y(point["value"])) for point in points]
    style = f'style="stroke: {color}" fill="none"'
    for (x, _), point in zip(places, points, strict=True):
        if point["low"] is not None and point["high"] is not None:
            ends = scales.y(point["low"]), scales.y(point["high"])
            yield f'<path {style} opacity="0.45" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>'
    yield f'<polyline {style} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill: {color}"/>' for x, y in places)
    for begin, end, level in series["levels"]:
        ends = places[begin][0], places[end - 1][0]
        yield f'<path {style} stroke-width="3" d="M{ends[0]:.1f} {scales.y(level):.1f}H{ends[1]:.1f}"/>'
    for x, _ in _changes(scales, series):
        yield f'<path {style} stroke-dasharray="4 3" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'


def _changes(scales: _Scales, series: Plain) -> Iterator[tuple[float, str]]:
    """Yield the place and the size of each change of level."""
    points = series["points"]
    for change in series["changes"]:
        before, after = (scales.x(points[change["at"] - each]["t"]) for each in (1, 0))
        yield (before + after) / 2, format_change(change["ratio"] - 1)


def _sizes(changes: list[tuple[float, str]]) -> Iterator[str]:
    """Yield the sizes of changes; one that would be on another is below it, or left out."""
    free = [0.0, 0.0]
    for x, text in sorted(changes):
        row = next((row for row, begin in enumerate(free) if begin <= x), None)
        if row is not None:
            free[row] = x + _LABEL_WIDTH
            yield f'<text x="{x + 4:.1f}" y="{_TOP + 10 + 14 * row}">{text}</text>'
