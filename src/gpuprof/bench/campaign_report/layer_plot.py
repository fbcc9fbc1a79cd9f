# SPDX-License-Identifier: Apache-2.0
"""What binds the layers of each variant, as one stacked bar a variant."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.campaign_report import words
from gpuprof.bench.campaign_report.looks import label
from gpuprof.bench.campaign_report.plot_parts import PAGE, Figure, Mark, axis, rows_figure
from gpuprof.bench.campaign_report.plots import Plots
from gpuprof.bench.campaign_report.reading import Interval, Report, Variant

UNKNOWN = "unknown"
_UNUSED = "under-utilised"
# As on the roofline page, whose colours these have.
_KINDS = ("compute", "memory", "latency", "page faults", "balanced")
# What uses no roof well has the colour of the nearest one, hatched.
BOUNDS = (*_KINDS, *(f"{_UNUSED} ({kind})" for kind in _KINDS), _UNUSED, UNKNOWN)


def bound_of(told: str | None) -> str:
    """Return the kind of a bound: `memory (dram)` is memory, `under-utilised (memory)` stays as it is."""
    if told in BOUNDS:
        return str(told)
    kind = (told or UNKNOWN).split(" (")[0].strip()
    return kind if kind in BOUNDS else UNKNOWN


def bound_colour(kind: str) -> str:
    """Return the colour of a kind of bound: of the nearest roof where none binds."""
    nearest = kind.removeprefix(f"{_UNUSED} (").removesuffix(")")
    return f"var(--bound-{nearest.replace(' ', '-')})"


def _fill(mark: Mark) -> dict[str, Any]:
    edge = {"color": mark.colour, "line": {"color": PAGE, "width": 1}}
    if not mark.hollow:
        return edge
    pattern = {"shape": "/", "size": 6, "solidity": 0.4, "bgcolor": mark.colour, "fgcolor": PAGE}
    return edge | {"pattern": {**pattern, "fillmode": "overlay"}}


def layer_figure(report: Report, plots: Plots) -> Figure | None:
    """Return the shares of time that its top layers take in each variant, by what binds them."""
    marks = [mark for variant in report.variants for mark in _segments(variant)]
    if not marks:
        return None
    rows = list(dict.fromkeys(mark.variant for mark in marks))
    firsts = [next(mark for mark in marks if mark.variant == name) for name in rows]
    x_axis = axis("own share of a recorded call (%), the top layers", range=[0, 100])
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
                "marker": _fill(mark),
                "hoverinfo": "text",
                "hovertext": [mark.text],
            }
        )
    return Figure("layers", alternative, traces, base.layout, tuple(rows))


def _segments(variant: Variant) -> list[Mark]:
    shares: dict[str, float] = {}
    told: dict[str, dict[str, None]] = {}
    for layer in variant.layers or ():
        if layer.share is not None:
            kind = bound_of(layer.bound)
            shares[kind] = shares.get(kind, 0.0) + layer.share
            told.setdefault(kind, {})[label(layer.bound or kind)] = None
    return [
        Mark(
            variant.name,
            Interval(None, shares[kind] * 100, None),
            f"<b>{label(variant.name)}</b><br>{', '.join(told[kind])}: {words.share(shares[kind])}",
            title=label(variant.name),
            colour=bound_colour(kind),
            hollow=kind.startswith(_UNUSED),
        )
        for kind in BOUNDS
        if kind in shares
    ]
