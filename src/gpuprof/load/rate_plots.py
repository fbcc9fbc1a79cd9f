# SPDX-License-Identifier: Apache-2.0
"""Plots of several runs: throughput and a quantile against the rate or the concurrency, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.bench.report import formatting
from gpuprof.bench.report.plot_parts import Figure, axis, is_wide, logarithmic_axis
from gpuprof.load.plots import line, plot_of
from gpuprof.text.units import Quantity


@dataclass(frozen=True, slots=True)
class RatePoint:
    """A figure at a rate or concurrency; an end of its interval is None where it is unknown."""

    at: float
    value: float
    low: float | None
    high: float | None
    name: str


@dataclass(frozen=True, slots=True)
class PlotMark:
    """A vertical line, such as the saturation point."""

    name: str
    at: float
    text: str


def throughput_plot(
    points: Sequence[RatePoint], x_title: str, marks: Sequence[PlotMark] = (), *, is_offered: bool = False
) -> Figure | None:
    """Return the throughput; with `is_offered` also the line where it is what was offered."""
    traces = []
    if is_offered and points:
        most = max(each.at for each in points)
        traces.append(line("offered", 1, [0.0, most], [0.0, most], ["", ""]))
    return _plot("throughput", "throughput", points, formatting.rate, x_title, marks, traces)


def quantile_plot(
    points: Sequence[RatePoint],
    name: str,
    x_title: str,
    marks: Sequence[PlotMark] = (),
    *,
    limit_s: float | None = None,
) -> Figure | None:
    """Return a quantile of the latency; `limit_s` is that of its target."""
    traces = []
    if limit_s is not None and points:
        factor, _ = formatting.time.axis(max(each.high or each.value for each in points))
        ends, limit = [min(each.at for each in points), max(each.at for each in points)], limit_s * factor
        traces.append(line("target", 3, ends, [limit, limit], [formatting.time(limit_s)] * 2))
    return _plot("quantile", f"{name} of the latency", points, formatting.time, x_title, marks, traces)


def _plot(
    key: str,
    name: str,
    points: Sequence[RatePoint],
    quantity: Quantity,
    x_title: str,
    marks: Sequence[PlotMark],
    traces: list[dict[str, object]],
) -> Figure | None:
    if len(points) < 2:
        return None
    ordered = sorted(points, key=lambda each: each.at)
    is_time = quantity is formatting.time
    factor, unit = quantity.axis(max(each.high or each.value for each in ordered)) if is_time else (1.0, "")
    texts = [f"{each.name}: {quantity(each.value)}{_between(each, quantity)}" for each in ordered]
    values = [each.value * factor for each in ordered]
    trace = line(name, 0, [each.at for each in ordered], values, texts)
    trace |= {"mode": "lines+markers", "marker": {"color": "var(--variant-0)", "size": 8}}
    trace["error_y"] = {
        "type": "data",
        "symmetric": False,
        "array": [max((each.high or each.value) - each.value, 0.0) * factor for each in ordered],
        "arrayminus": [
            max(each.value - (each.value if each.low is None else each.low), 0.0) * factor for each in ordered
        ],
        "color": "var(--variant-0)",
        "thickness": 1.5,
        "width": 5,
    }
    ends = [end * factor for each in ordered for end in (each.value, each.high or each.value)]
    shown = [value for value in [*ends, *(each.low * factor for each in ordered if each.low)] if value > 0]
    wide = is_time and bool(shown) and is_wide(shown)
    for number, mark in enumerate(marks):
        top = max([*shown, *(max(each["y"]) for each in traces)])  # type: ignore[call-overload]
        bottom = min(shown) if wide else 0.0
        traces.append(line(mark.name, 2 + 2 * number, [mark.at] * 2, [bottom, top], [mark.text] * 2))
    head = f"{name} ({unit})" if is_time else "requests per second"
    y_axis = logarithmic_axis(head, shown) if wide else axis(head, rangemode="tozero")
    alternative = f"The {name} of {len(ordered)} measured points against the {x_title}, with intervals."
    return plot_of(key, alternative, [*traces, trace], x_title, y_axis)


def _between(point: RatePoint, quantity: Quantity) -> str:
    if point.low is None or point.high is None:
        return ", no interval"
    return f" ({quantity.interval(point.low, point.high)})"
