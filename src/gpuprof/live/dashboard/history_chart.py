# SPDX-License-Identifier: Apache-2.0
"""The chart of a history as SVG, for a page without scripts: lines of techniques, and change points."""

from __future__ import annotations

import itertools
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
CHART_STYLE = (
    ".history-chart { overflow-x: auto; }"
    " .history-chart svg { display: block; width: 100%; min-width: 760px; max-width: 1100px; }"
    " .history-chart text { font-size: 12px; fill: var(--quiet); }"
    " .history-chart .grid { stroke: var(--line); }"
    " .history-chart .legend i { border-radius: 50%; } h2 { margin-top: 28px; }"
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


def history_chart(history: Plain, value_text: Callable[[float], str], day_text: Callable[[int], str]) -> str:
    """Return the chart with its legend; empty without points."""
    points = [point for series in history["series"] for point in series["points"]]
    if not points:
        return ""
    scales = _Scales(
        _widened([point["t"] for point in points], 0.01),
        _widened([end for point in points for end in _ends(point)], 0.08),
    )
    parts = [*_axes(scales, history["metric"], value_text, day_text)]
    for number, series in enumerate(history["series"]):
        parts += _lines(scales, series, _color(number))
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


def _axes(
    scales: _Scales, metric: str, value_text: Callable[[float], str], day_text: Callable[[int], str]
) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    yield f'<text x="2" y="14">{escaped(metric)}</text>'
    for value in _ticks(*scales.values, 5):
        y = scales.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escaped(value_text(value))}</text>'
    first, last = scales.times
    for number in range(5):
        unix_ms = first + (last - first) * (0.05 + 0.9 * number / 4)
        x = scales.x(unix_ms)
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{day_text(int(unix_ms))}</text>'
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
    pairs = list(itertools.pairwise(places))
    for change in series["changes"]:
        (before, _), (after, _) = pairs[change["at"] - 1]
        x = (before + after) / 2
        yield f'<path {style} stroke-dasharray="4 3" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x + 4:.1f}" y="{_TOP + 10}">{format_change(change["ratio"] - 1)}</text>'
