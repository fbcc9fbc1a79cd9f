# SPDX-License-Identifier: Apache-2.0
"""What binds the layers of each variant, as one stacked bar a variant."""

from __future__ import annotations

from gpuprof.bench.campaign_report import words
from gpuprof.bench.campaign_report.looks import label
from gpuprof.bench.campaign_report.plot_parts import PAGE, Figure, Mark, axis, rows_figure
from gpuprof.bench.campaign_report.plots import Plots
from gpuprof.bench.campaign_report.reading import Interval, Report, Variant

UNKNOWN = "unknown"
# As on the roofline page, whose colours these have.
BOUNDS = ("compute", "memory", "latency", "page faults", "balanced", "under-utilised", UNKNOWN)


def bound_of(told: str | None) -> str:
    """Return the kind of a bound: `memory (dram)` is memory."""
    kind = (told or UNKNOWN).split(" (")[0].strip()
    return kind if kind in BOUNDS else UNKNOWN


def bound_colour(kind: str) -> str:
    """Return the colour of a kind of bound."""
    return f"var(--bound-{kind.replace(' ', '-')})"


def layer_figure(report: Report, plots: Plots) -> Figure | None:
    """Return the shares of time that its top layers take in each variant, by what binds them."""
    marks = [mark for variant in report.variants for mark in _segments(variant)]
    if not marks:
        return None
    rows = list(dict.fromkeys(mark.variant for mark in marks))
    firsts = [next(mark for mark in marks if mark.variant == name) for name in rows]
    x_axis = axis("share of the variant's time (%), its top layers", range=[0, 100])
    alternative = f"Share of time by what binds the top layers of {len(rows)} variants, as stacked bars."
    base = rows_figure("layers", alternative, firsts, plots.looks, x_axis, barmode="stack")
    traces = []
    for mark in marks:
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "meta": {"variant": mark.variant},
                "x": [mark.found.value],
                "y": [-rows.index(mark.variant) - 0.13],
                "width": 0.36,
                "marker": {"color": mark.colour, "line": {"color": PAGE, "width": 1}},
                "hoverinfo": "text",
                "hovertext": [mark.text],
            }
        )
    return Figure("layers", alternative, traces, base.layout, tuple(rows))


def _segments(variant: Variant) -> list[Mark]:
    shares: dict[str, float] = {}
    for layer in variant.layers or ():
        if layer.share is not None:
            kind = bound_of(layer.bound)
            shares[kind] = shares.get(kind, 0.0) + layer.share
    return [
        Mark(
            variant.name,
            Interval(None, shares[kind] * 100, None),
            f"<b>{label(variant.name)}</b><br>{kind}: {words.share(shares[kind])}",
            title=label(variant.name),
            colour=bound_colour(kind),
        )
        for kind in BOUNDS
        if kind in shares
    ]
