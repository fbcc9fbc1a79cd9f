# SPDX-License-Identifier: Apache-2.0
"""The parts that plots share: plain data for plotly.js, axes, bars, lines, points and style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.compare.document import ComparisonDocument
from gpuprof.render.page import readable
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.sanitize import shorten

_WIDE = 20.0  # from this span on, a linear axis hides the small ones
_MOST_TICKS = 9
_ROW, _HEAD = 44, 64  # height in pixels of a row of bars, and of what a plot needs besides
HEIGHT = 360
TEXT, QUIET, LINE, PAGE = "var(--text)", "var(--quiet)", "var(--line)", "var(--page)"
# Symbols that lie upon one another stay apart.
EDGE = {"width": 1, "color": PAGE}


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: its data for plotly.js, colours as names of the style sheet, and what it shows in words."""

    key: str
    alternative: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    variants: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"key": self.key, "traces": self.traces, "layout": self.layout}


@dataclass(frozen=True, slots=True)
class Mark:
    """One figure of one variant; `x` is its place where marks of a variant make a line."""

    variant: str
    found: Estimate
    text: str
    x: float = 0.0
    title: str = ""
    colour: str | None = None
    hollow: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


def is_wide(values: Iterable[float]) -> bool:
    """Say whether values span too much for a linear axis."""
    told = [value for value in values if value > 0]
    return bool(told) and max(told) / min(told) > _WIDE


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis in the colours of the page."""
    return {
        "title": {"text": title, "font": {"color": TEXT, "size": 12}, "standoff": 8},
        "gridcolor": LINE,
        "linecolor": LINE,
        "zeroline": False,
        "tickfont": {"color": QUIET, "size": 12},
        "automargin": True,
        **more,
    }


def value_axis(title: str, values: Sequence[float], *, logarithmic: bool) -> dict[str, Any]:
    """Return the axis of a quantity: from 0, or logarithmic with ticks as people write numbers."""
    if not logarithmic:
        return axis(title, rangemode="tozero")
    low, high = min(value for value in values if value > 0), max(values)
    span = [math.log10(low) - 0.08, math.log10(high) + 0.08]
    return axis(title, type="log", range=span, **_ticks(*span))


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks at 1, 2 and 5 of each decade, fewer where they would be too many."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(low), math.ceil(high) + 1)
        places = [step * 10.0**decade for decade in decades for step in steps]
        shown = [place for place in places if low <= math.log10(place) <= high]
        if len(shown) <= _MOST_TICKS:
            break
    return {"tickvals": shown, "ticktext": [f"{place:,.10g}" for place in shown]} if len(shown) > 1 else {}


def batch_axis(sizes: Sequence[int]) -> dict[str, Any]:
    """Return the axis of batch sizes, logarithmic, with a tick at each that was measured."""
    span = [math.log10(min(sizes)) - 0.06, math.log10(max(sizes)) + 0.06]
    texts = [str(size) for size in sizes]
    return axis("batch size", type="log", range=span, tickvals=list(sizes), ticktext=texts)


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return what all plots have."""
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 16, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        "hoverlabel": {
            "bgcolor": PAGE,
            "bordercolor": LINE,
            "font": {"color": TEXT, "size": 13},
            "align": "left",
        },
        "font": {"color": TEXT, "size": 12, "family": "inherit"},
        **more,
    }


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return a range around values with room for labels."""
    low, high = min(values), max(values)
    room = (high - low) * 0.15 or abs(high) * 0.05 or 1.0
    # No speed-up and no share lies below 0.
    return max(low - room, 0.0) if low >= 0 else low - room, high + room


def errors(marks: Sequence[Mark], scale: float, colour: str) -> dict[str, Any]:
    """Return the error bars of marks; an end that is not known is no bar."""

    def length(mark: Mark, end: float | None) -> float:
        return 0.0 if end is None else abs(end - mark.found.value) * scale

    if all(mark.found.low is None and mark.found.high is None for mark in marks):
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [length(mark, mark.found.high) for mark in marks],
        "arrayminus": [length(mark, mark.found.low) for mark in marks],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def line_traces(
    marks: Sequence[Mark], looks: Mapping[str, Look], scale: float, *, joined: bool = True
) -> list[dict[str, Any]]:
    """Return a trace for each variant, its marks joined in their order."""
    traces = []
    for name in dict.fromkeys(mark.variant for mark in marks):
        own, look = [mark for mark in marks if mark.variant == name], looks[name]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if joined else "markers",
                "meta": {"variant": name},
                "name": label(name),
                "x": [mark.x for mark in own],
                "y": [mark.found.value * scale for mark in own],
                "error_y": errors(own, scale, look.colour),
                "line": {"color": look.colour, "width": 2, "dash": look.dash},
                "marker": {"color": look.colour, "symbol": look.symbol, "size": 10 * look.size, "line": EDGE},
                "hoverinfo": "text",
                "hovertext": [mark.text for mark in own],
                "cliponaxis": False,
            }
        )
    return traces


def rows_figure(
    key: str,
    alternative: str,
    marks: Sequence[Mark],
    looks: Mapping[str, Look],
    x_axis: dict[str, Any],
    *,
    scale: float = 1.0,
    bars: bool = True,
    **more: Any,
) -> Figure:
    """Return one row for each mark, its title above it, which leaves the whole width to the figures."""
    draw: Callable[..., dict[str, Any]] = _bar if bars else _point
    traces = [draw(mark, looks[mark.variant], float(-place), scale) for place, mark in enumerate(marks)]
    titles = [_title(mark.title, 0.33 - place) for place, mark in enumerate(marks)]
    y_axis = axis("", visible=False, fixedrange=True, range=[0.55 - len(marks), 0.6])
    shapes = more.pop("shapes", [])
    body = layout(
        _HEAD + _ROW * len(marks), xaxis=x_axis, yaxis=y_axis, annotations=titles, shapes=shapes, **more
    )
    return Figure(key, alternative, traces, body, tuple(dict.fromkeys(mark.variant for mark in marks)))


def _title(text: str, y: float) -> dict[str, Any]:
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "y": y, "yanchor": "middle", "text": text,
        "align": "left", "showarrow": False, "bgcolor": PAGE, "borderpad": 1,
        "font": {"color": TEXT, "size": 13},
    }  # fmt: skip


def _bar(mark: Mark, look: Look, place: float, scale: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "meta": {"variant": mark.variant},
        "name": label(mark.variant),
        "x": [mark.found.value * scale],
        "y": [place - 0.13],
        "width": 0.36,
        "marker": {"color": mark.colour or look.colour},
        "error_x": errors([mark], scale, TEXT),
        "hoverinfo": "text",
        "hovertext": [mark.text],
        "textposition": "none",
        **mark.more,
    }


def _point(mark: Mark, look: Look, place: float, scale: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": {"variant": mark.variant},
        "name": label(mark.variant),
        "x": [mark.found.value * scale],
        "y": [place - 0.13],
        "error_x": {**errors([mark], scale, look.colour), "thickness": 3, "width": 0},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 13 * look.size, "line": EDGE},
        "hoverinfo": "text",
        "hovertext": [mark.text],
        "cliponaxis": False,
        **mark.more,
    }


COLOURS = 8
# No colour alone tells two variants apart. The swatch is the same symbol in a font.
_SYMBOLS = (
    ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"),
    ("pentagon", "⬟"), ("hexagon", "⬢"), ("star", "★"), ("cross", "✚"),
)  # fmt: skip
# Symbols of the same nominal size fill different areas.
_SIZES = {"triangle-up": 1.4, "triangle-down": 1.4, "star": 1.45, "diamond": 1.15, "pentagon": 1.15}
_DASHES = ("solid", "dash", "dot", "dashdot")
_LONGEST_LABEL = 34


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant is drawn; `colour` is a property of the style sheet."""

    colour: str
    symbol: str
    glyph: str
    dash: str
    size: float = 1.0


def looks_of(document: ComparisonDocument) -> dict[str, Look]:
    """Return the look of each variant. The baseline is grey: the colours are the candidates'."""
    found, place = {}, 0
    for variant in document.variants:
        if variant.name == document.baseline:
            found[variant.name] = Look("var(--variant-baseline)", "circle", "●", "solid", 1.1)
            continue
        symbol, glyph = _SYMBOLS[(place + place // COLOURS) % len(_SYMBOLS)]
        dash = _DASHES[place // COLOURS % len(_DASHES)]
        found[variant.name] = Look(
            f"var(--variant-{place % COLOURS})", symbol, glyph, dash, _SIZES.get(symbol, 1.0)
        )
        place += 1
    return found


def label(name: str, width: int = _LONGEST_LABEL) -> str:
    """Return a name for a plot, which reads a little HTML: as text, on one line, not too long."""
    short = shorten(readable(name), width)
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
