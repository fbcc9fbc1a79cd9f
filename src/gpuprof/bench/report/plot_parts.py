# SPDX-License-Identifier: Apache-2.0
"""The parts that plots share: plain data for plotly.js, axes, bars, lines, points and style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.compare.document import ComparisonDocument
from gpuprof.render.page import readable
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.sanitize import shorten

Plain = dict[str, Any]
_WIDE = 20.0  # from this span on, a linear axis hides the small ones
_MOST_TICKS = 9
_ROW, _HEAD = 44, 64  # height in pixels of a row of bars, and of what a plot needs besides
HEIGHT = 360
# Colors are properties of the style sheet.
TEXT, QUIET, LINE, PAGE = "var(--text)", "var(--quiet)", "var(--line)", "var(--page)"
_LAYOUT: Plain = {
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
}
_AXIS: Plain = {
    "gridcolor": LINE,
    "linecolor": LINE,
    "zeroline": False,
    "tickfont": {"color": QUIET, "size": 12},
    "automargin": True,
}
_ROW_TITLE: Plain = {
    "xref": "paper",
    "x": 0,
    "xanchor": "left",
    "yanchor": "middle",
    "align": "left",
    "showarrow": False,
    "bgcolor": PAGE,
    "borderpad": 1,
    "font": {"color": TEXT, "size": 13},
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: its data for plotly.js, colors as names of the style sheet, and what it shows in words."""

    key: str
    alternative: str
    traces: list[Plain]
    layout: Plain

    @property
    def variants(self) -> list[int]:
        """The numbers of the variants that are drawn."""
        return sorted({each["meta"]["variant"] for each in self.traces if "meta" in each})

    def to_dict(self) -> Plain:
        """Return plain data for JSON."""
        return {"key": self.key, "traces": self.traces, "layout": self.layout}


# --- the style of a variant ----------------------------------------------------------------------

COLORS = 8
# Two variants differ by more than color. The swatch is the same symbol in a font.
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
    """How one variant is drawn, of which `number` it is; `color` is a property of the style sheet."""

    number: int
    color: str
    symbol: str
    glyph: str
    dash: str
    size: float = 1.0

    def marker(self, size: float) -> Plain:
        """Return its symbol; those that lie upon one another stay apart."""
        edge = {"width": 1, "color": PAGE}
        return {"color": self.color, "symbol": self.symbol, "size": size * self.size, "line": edge}


def looks_of(document: ComparisonDocument) -> dict[str, Look]:
    """Return the look of each variant. The baseline is gray: the colors are the candidates'."""
    found, place = {}, 0
    for number, variant in enumerate(document.variants):
        if variant.name == document.baseline and len(document.variants) > 1:
            found[variant.name] = Look(number, "var(--variant-baseline)", "circle", "●", "solid", 1.1)
            continue
        symbol, glyph = _SYMBOLS[(place + place // COLORS) % len(_SYMBOLS)]
        dash = _DASHES[place // COLORS % len(_DASHES)]
        color = f"var(--variant-{place % COLORS})"
        found[variant.name] = Look(number, color, symbol, glyph, dash, _SIZES.get(symbol, 1.0))
        place += 1
    return found


def label(name: str, width: int = _LONGEST_LABEL) -> str:
    """Return a name for a plot, which reads a little HTML: as text, on one line, not too long."""
    short = shorten(readable(name), width)
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- axes ----------------------------------------------------------------------------------------


def is_wide(values: Iterable[float]) -> bool:
    """Whether values span too much for a linear axis."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) / min(positive) > _WIDE


def axis(title: str, **more: Any) -> Plain:
    """Return an axis in the colors of the page."""
    return {
        "title": {"text": title, "font": {"color": TEXT, "size": 12}, "standoff": 8},
        **_AXIS,
        **more,
    }


def logarithmic_axis(title: str, values: Iterable[float]) -> Plain:
    """Return a logarithmic axis with ticks at 1, 2 and 5 of each decade, fewer where these are too many."""
    positive = [value for value in values if value > 0]
    low, high = math.log10(min(positive)) - 0.08, math.log10(max(positive)) + 0.08
    for steps in ((1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(low), math.ceil(high) + 1)
        places = [step * 10.0**decade for decade in decades for step in steps]
        shown = [place for place in places if low <= math.log10(place) <= high]
        if len(shown) <= _MOST_TICKS:
            break
    ticks = {"tickvals": shown, "ticktext": [f"{place:,.10g}" for place in shown]} if len(shown) > 1 else {}
    return axis(title, type="log", range=[low, high], **ticks)


def batch_axis(sizes: Sequence[int]) -> Plain:
    """Return the axis of batch sizes, logarithmic, with a tick at each that was measured."""
    span = [math.log10(min(sizes)) - 0.06, math.log10(max(sizes)) + 0.06]
    ticks = {"tickvals": list(sizes), "ticktext": list(map(str, sizes))}
    return axis("batch size", type="log", range=span, **ticks)


def layout(height: int, **more: Any) -> Plain:
    """Return what all plots have."""
    return {"height": height, **_LAYOUT, **more}


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return a range around values with room for labels."""
    low, high = min(values), max(values)
    room = (high - low) * 0.15 or abs(high) * 0.05 or 1.0
    # No speed-up and no fraction lies below 0.
    return max(low - room, 0.0) if low >= 0 else low - room, high + room


# --- traces --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """One figure of one variant, in the unit of its axis.

    `x` is its place where marks of a variant make a line, `title` that of its row; `marker` is for bars.
    """

    variant: str
    found: Estimate
    text: str
    x: float = 0.0
    title: str = ""
    marker: Plain = field(default_factory=dict)


def scaled(found: Estimate, factor: float) -> Estimate:
    """Return an estimate in another unit."""
    ends = (None if end is None else end * factor for end in (found.low, found.high))
    return Estimate(next(ends), found.value * factor, next(ends))


def errors(marks: Sequence[Mark], color: str, **more: Any) -> Plain:
    """Return the error bars of marks; an end that is not known is no bar."""
    if all(mark.found.low is None and mark.found.high is None for mark in marks):
        return {"visible": False}

    def length(mark: Mark, end: float | None) -> float:
        return 0.0 if end is None else abs(end - mark.found.value)

    return {
        "type": "data",
        "symmetric": False,
        "array": [length(mark, mark.found.high) for mark in marks],
        "arrayminus": [length(mark, mark.found.low) for mark in marks],
        "color": color,
        "thickness": 1.5,
        "width": 4,
        **more,
    }


def _trace(marks: Sequence[Mark], look: Look, kind: str, **more: Any) -> Plain:
    return {
        "type": kind,
        "meta": {"variant": look.number},
        "name": label(marks[0].variant),
        "hoverinfo": "text",
        "hovertext": [mark.text for mark in marks],
        **more,
    }


def scatter(marks: Sequence[Mark], look: Look, size: float, mode: str = "markers", **more: Any) -> Plain:
    """Return points of one variant."""
    return _trace(marks, look, "scatter", mode=mode, marker=look.marker(size), cliponaxis=False, **more)


def lines(marks: Sequence[Mark], looks: Mapping[str, Look]) -> list[Plain]:
    """Return a line for each variant through its marks."""
    found = []
    for name in dict.fromkeys(mark.variant for mark in marks):
        own, look = [mark for mark in marks if mark.variant == name], looks[name]
        line = {"color": look.color, "width": 2, "dash": look.dash}
        values = {"x": [mark.x for mark in own], "y": [mark.found.value for mark in own]}
        error_y = errors(own, look.color)
        found.append(scatter(own, look, 10, "lines+markers", line=line, error_y=error_y, **values))
    return found


def rows_figure(
    key: str,
    alternative: str,
    marks: Sequence[Mark],
    looks: Mapping[str, Look],
    x_axis: Plain,
    *,
    bars: bool = True,
    **more: Any,
) -> Figure:
    """Return a row for each variant, its title above it, which leaves the whole width to the figures."""
    titles = {mark.variant: mark.title for mark in reversed(marks)}
    rows = list(dict.fromkeys(mark.variant for mark in marks))
    draw = _bar if bars else _point
    traces = [draw(mark, looks[mark.variant], -rows.index(mark.variant) - 0.13) for mark in marks]
    annotations = [{**_ROW_TITLE, "text": titles[name], "y": 0.33 - place} for place, name in enumerate(rows)]
    y_axis = axis("", visible=False, fixedrange=True, range=[0.55 - len(rows), 0.6])
    height = _HEAD + _ROW * len(rows)
    body = layout(height, xaxis=x_axis, yaxis=y_axis, annotations=annotations, **more)
    return Figure(key, alternative, traces, body)


def _bar(mark: Mark, look: Look, y: float) -> Plain:
    place = {"orientation": "h", "x": [mark.found.value], "y": [y], "width": 0.36}
    marker = mark.marker or {"color": look.color}
    return _trace(
        [mark], look, "bar", **place, marker=marker, error_x=errors([mark], TEXT), textposition="none"
    )


def _point(mark: Mark, look: Look, y: float) -> Plain:
    error_x = errors([mark], look.color, thickness=3, width=0)
    return scatter([mark], look, 13, x=[mark.found.value], y=[y], error_x=error_x)
