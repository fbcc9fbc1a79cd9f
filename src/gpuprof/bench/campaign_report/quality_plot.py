# SPDX-License-Identifier: Apache-2.0
"""Quality against speed-up, with the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprof.bench.campaign_report import words
from gpuprof.bench.campaign_report.looks import Look, label
from gpuprof.bench.campaign_report.plot_parts import (
    EDGE,
    HEIGHT,
    QUIET,
    TEXT,
    Figure,
    Mark,
    axis,
    errors,
    layout,
    padded,
)
from gpuprof.bench.campaign_report.reading import Interval, ParetoPoint, Report

# From this many points on, only those that matter have their names in the plot.
_MOST_NAMES = 8
_NAME = 22


def quality_figure(report: Report, looks: Mapping[str, Look]) -> Figure | None:
    """Return a point for each variant, or for each of its batch sizes; None where nothing was compared."""
    points = [point for point in report.pareto if point.variant in looks]
    if not points:
        return None
    name = report.quality_name or "quality"
    scale = quality_scale(name)
    across = padded([1.0, *(point.speedup for point in points)])
    up = padded([point.quality * scale for point in points])
    traces = _front(points, scale, across[0], up[0])
    # What matters is drawn last: above the others, and its name is kept where names meet.
    points.sort(key=lambda each: (each.variant == report.choice, each.on_front))
    traces += [_point(point, report, looks[point.variant], sum(across) / 2) for point in points]
    unit = " (%)" if scale == 100 else ""
    line = {"color": QUIET, "width": 1, "dash": "dot"}
    reference = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    body = layout(
        HEIGHT + 40,
        xaxis=axis("speed-up over the baseline (right is faster)", ticksuffix="×", range=across),
        yaxis=axis(f"{label(name)}{unit} (up is better)", range=up),
        shapes=[{**reference, "layer": "below"}],
    )
    alternative = f"{name.capitalize()} against speed-up of {len(points)} points, with the Pareto front."
    shown = tuple(name for name in looks if any(name == each.variant for each in points))
    return Figure("quality", alternative, traces, body, shown)


def quality_scale(name: str) -> float:
    """Return what a quality is multiplied with for its axis: shares are percents."""
    return 1.0 if name == "cosine" else 100.0


def _front(points: list[ParetoPoint], scale: float, left: float, bottom: float) -> list[dict[str, Any]]:
    """Return the steps of the front, from the left edge to the lower one; what lies below is dominated."""
    front = sorted((each for each in points if each.on_front), key=lambda each: each.speedup)
    if not front:
        return []
    x = [left, *(each.speedup for each in front), front[-1].speedup]
    y = [front[0].quality * scale, *(each.quality * scale for each in front), bottom]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "x": x,
            "y": y,
            "line": {"color": QUIET, "width": 2, "shape": "vh"},
            "fill": "tozeroy",
            "fillcolor": "var(--dominated)",
            "hoverinfo": "skip",
        }
    ]


def _point(point: ParetoPoint, report: Report, look: Look, middle: float) -> dict[str, Any]:
    mark = Mark(point.variant, _speedup(point, report), _told(point, report))
    is_choice = point.variant == report.choice
    matters = point.on_front or is_choice or point.variant == report.baseline
    text = _short(point, report) if matters or len(report.pareto) <= _MOST_NAMES else ""
    marker = {"color": look.colour, "symbol": look.symbol, "size": 12 * look.size, "line": EDGE}
    if is_choice:
        marker |= {"size": 17 * look.size, "line": {"width": 2.5, "color": TEXT}}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "meta": {"variant": point.variant},
        "name": label(point.variant),
        "x": [point.speedup],
        "y": [point.quality * quality_scale(report.quality_name or "quality")],
        "error_x": errors([mark], 1.0, look.colour),
        "text": [f"<b>{text}</b>" if is_choice and text else text],
        # Towards the middle, where there is room.
        "textposition": "top left" if point.speedup > middle else "top right",
        "textfont": {"color": TEXT if matters else QUIET, "size": 13},
        "marker": marker,
        "hoverinfo": "text",
        "hovertext": [mark.text],
        "cliponaxis": False,
    }


def _short(point: ParetoPoint, report: Report) -> str:
    """Return a name for the plot, with the batch size where a variant has several."""
    several = sum(each.variant == point.variant for each in report.pareto) > 1
    size = f" @{point.batch_size}" if several and point.batch_size is not None else ""
    return f"{label(point.variant, _NAME)}{size}"


def _told(point: ParetoPoint, report: Report) -> str:
    name = report.quality_name or "quality"
    size = f", batch size {point.batch_size}" if point.batch_size is not None else ""
    value = words.number(point.quality) if name == "cosine" else words.share(point.quality)
    state = "on the Pareto front" if point.on_front else "another variant is faster and not worse"
    figures = f"{words.ratio(point.speedup)}, {label(name)} {value}"
    return f"<b>{label(point.variant)}</b>{size}<br>{figures}<br>{state}"


def _speedup(point: ParetoPoint, report: Report) -> Interval:
    """Return the interval of a point's speed-up; without ends where the document has none."""
    variant = report.variant(point.variant)
    batch = None if variant is None or point.batch_size is None else variant.batch(point.batch_size)
    found = None if variant is None else variant.speedup if batch is None else batch.speedup
    return found or Interval(None, point.speedup, None)
