# SPDX-License-Identifier: Apache-2.0
"""The plots of a comparison: speed-ups, latency, quality and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.compare.document import (
    UNDERUTILIZED,
    BatchFigures,
    ComparisonDocument,
    LayerFigures,
    ParetoPoint,
    VariantFigures,
)
from gpuprof.bench.report import formatting
from gpuprof.bench.report.formatting import Quantity
from gpuprof.bench.report.plot_parts import (
    EDGE,
    HEIGHT,
    LINE,
    PAGE,
    QUIET,
    TEXT,
    Figure,
    Look,
    Mark,
    axis,
    batch_axis,
    errors,
    is_wide,
    label,
    layout,
    line_traces,
    looks_of,
    padded,
    rows_figure,
    value_axis,
)
from gpuprof.bench.verdicts import QualityMeasure
from gpuprof.stats.quantiles import Estimate

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
Read = Callable[[BatchFigures], Estimate | None]


class Plots:
    """Draws one document."""

    def __init__(self, document: ComparisonDocument) -> None:
        self._document = document
        self.looks: dict[str, Look] = looks_of(document)

    def latency(self) -> Figure | None:
        """Medians with their intervals."""
        return self._over_batches(
            "latency", "median latency", lambda batch: batch.median_s, formatting.time, _TIME_UNITS
        )

    def throughput(self) -> Figure | None:
        """Throughput against the batch size."""
        units = ((1.0, "samples/s"),)
        return self._over_batches(
            "throughput", "throughput", lambda batch: batch.throughput_per_s, formatting.rate, units
        )

    def memory(self) -> Figure | None:
        """Peak memory."""

        def read(batch: BatchFigures) -> Estimate | None:
            found = formatting.peak_memory(batch)
            return None if found is None else Estimate(None, found[0], None)

        return self._over_batches("memory", "peak memory", read, formatting.size, _BYTE_UNITS)

    def _over_batches(
        self, key: str, title: str, read: Read, write: Quantity, units: tuple[tuple[float, str], ...]
    ) -> Figure | None:
        """Return lines over batch sizes, or bars where there is one size only."""
        marks = self._marks(read, write)
        if not marks:
            return None
        values = [mark.found.value for mark in marks]
        scale, unit = _unit(values, units)
        sizes = sorted({int(mark.x) for mark in marks})
        described = f"{title.capitalize()} of {len({mark.variant for mark in marks})} variants"
        if len(sizes) == 1:
            x_axis = value_axis(f"{title} ({unit})", [], logarithmic=False)
            alternative = f"{described} at batch size {sizes[0]}, as bars."
            return rows_figure(key, alternative, marks, self.looks, x_axis, scale=scale)
        wide = is_wide(values)
        y_axis = value_axis(f"{title} ({unit})", [value * scale for value in values], logarithmic=wide)
        alternative = (
            f"{described} against the batch size, as lines{', on logarithmic axes' if wide else ''}."
        )
        body = layout(HEIGHT, xaxis=batch_axis(sizes), yaxis=y_axis)
        shown = tuple(dict.fromkeys(mark.variant for mark in marks))
        return Figure(key, alternative, line_traces(marks, self.looks, scale), body, shown)

    def _marks(self, read: Read, write: Quantity) -> list[Mark]:
        marks = []
        for variant in self._document.variants:
            for batch in variant.batches:
                found = read(batch)
                if found is None:
                    continue
                between = write.interval(found)
                told = f"{write(found.value)}{f' ({between})' if between else ''}"
                text = f"<b>{label(variant.name)}</b>, batch size {batch.batch_size}<br>{told}"
                title = f"{label(variant.name)}   <b>{write(found.value)}</b>"
                marks.append(Mark(variant.name, found, text, x=batch.batch_size, title=title))
        return marks

    def technique(self) -> Figure | None:
        """Speed-ups with their intervals, the fastest first, named by technique."""
        told = [each for each in self._document.measured if each.speedup is not None]
        if not told:
            return None
        told.sort(key=lambda each: -(each.speedup.value if each.speedup else 0))
        marks = [self._technique_mark(each) for each in told]
        band = self._document.method.margin
        ends = [end for mark in marks for end in (mark.found.low, mark.found.value, mark.found.high) if end]
        shapes = [shape for place in range(len(marks)) for shape in _margin_shapes(place, band)]
        x_axis = _ratio_axis([1.0, *ends])
        alternative = f"Speed-up of {len(marks)} variants over the baseline, the fastest first."
        return rows_figure("technique", alternative, marks, self.looks, x_axis, bars=False, shapes=shapes)

    def _technique_mark(self, variant: VariantFigures) -> Mark:
        found = variant.speedup
        assert found is not None
        between = formatting.ratio.interval(found)
        verdict = formatting.verdict(variant.verdict)
        title = (
            f"{label(variant.technique)} · {label(variant.name, 24)}   <b>{formatting.ratio(found.value)}</b>"
        )
        told = f"{formatting.ratio(found.value)} ({between or 'no interval'}), {verdict}"
        text = f"<b>{label(variant.name)}</b>: {told}"
        return Mark(variant.name, found, text, title=title)

    def cost(self) -> Figure | None:
        """Cost per million inferences, at the batch size where it is lowest."""
        marks = []
        for variant in self._document.variants:
            found = formatting.lowest_cost(variant)
            if found is not None:
                told = formatting.money(found[0], self._document.method.currency)
                title = f"{label(variant.name)}   <b>{label(told)}</b> at batch size {found[1]}"
                text = f"<b>{label(variant.name)}</b>, batch size {found[1]}<br>{label(told)}"
                marks.append(Mark(variant.name, Estimate(None, found[0], None), text, title=title))
        if not marks:
            return None
        x_axis = axis(
            f"cost per million inferences ({label(self._document.method.currency)})", rangemode="tozero"
        )
        alternative = f"Lowest cost per million inferences of {len(marks)} variants, as bars."
        return rows_figure("cost", alternative, marks, self.looks, x_axis)


def _margin_shapes(place: int, band: float) -> list[dict[str, Any]]:
    """Return the practical margin beside one row's point: the row's title above stays clear of it."""
    shape = {"type": "rect", "y0": -place - 0.38, "y1": -place + 0.12, "layer": "below"}
    around, dotted = {"x0": 1 / (1 + band), "x1": 1 + band}, {"color": QUIET, "width": 1.5, "dash": "dot"}
    return [
        {**shape, **around, "fillcolor": LINE, "opacity": 0.6, "line": {"width": 0}},
        {**shape, "type": "line", "x0": 1, "x1": 1, "line": dotted},
    ]


def _ratio_axis(values: Sequence[float]) -> dict[str, Any]:
    title = "speed-up over the baseline (right is faster)"
    if is_wide(values):
        return value_axis(title, [value for value in values if value > 0], logarithmic=True)
    return axis(title, ticksuffix="×", range=padded(values))


def _unit(values: Sequence[float], units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """Return what values are multiplied with for an axis, and the unit that suits the largest."""
    largest = max(values)
    size, unit = next((pair for pair in units if largest >= pair[0]), units[-1])
    return 1 / size, unit


# From this many points on, only those that matter have their names in the plot.
_MOST_NAMES = 8
_NAME = 22


def quality_figure(document: ComparisonDocument, looks: Mapping[str, Look]) -> Figure | None:
    """Return a point for each variant; None where no outputs were compared."""
    points = [point for point in document.pareto if point.variant in looks]
    measure = document.quality.measure
    if not points or measure is None:
        return None
    name, scale = str(measure), quality_scale(measure)
    across = padded([1.0, *(point.speedup for point in points)])
    up = padded([point.quality * scale for point in points])
    traces = _front(points, scale, across[0], up[0])
    # What matters is drawn last: above the others, and its name is kept where names meet.
    points.sort(key=lambda each: (each.variant == document.summary.choice, each.on_front))
    traces += [_point(point, document, looks[point.variant], sum(across) / 2) for point in points]
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


def quality_scale(measure: QualityMeasure) -> float:
    """Return what a quality is multiplied with for its axis: fractions are percents."""
    return 1.0 if measure == QualityMeasure.COSINE else 100.0


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


def _point(point: ParetoPoint, document: ComparisonDocument, look: Look, middle: float) -> dict[str, Any]:
    measure = document.quality.measure
    assert measure is not None
    variant = document.variant(point.variant)
    speedup = None if variant is None else variant.speedup
    mark = Mark(point.variant, speedup or Estimate(None, point.speedup, None), _hover_text(point, measure))
    is_choice = point.variant == document.summary.choice
    matters = point.on_front or is_choice or point.variant == document.baseline
    text = label(point.variant, _NAME) if matters or len(document.pareto) <= _MOST_NAMES else ""
    marker = {"color": look.colour, "symbol": look.symbol, "size": 12 * look.size, "line": EDGE}
    if is_choice:
        marker |= {"size": 17 * look.size, "line": {"width": 2.5, "color": TEXT}}
    return {
        "type": "scatter",
        "mode": "markers+text",
        "meta": {"variant": point.variant},
        "name": label(point.variant),
        "x": [point.speedup],
        "y": [point.quality * quality_scale(measure)],
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


def _hover_text(point: ParetoPoint, measure: QualityMeasure) -> str:
    is_cosine = measure == QualityMeasure.COSINE
    value = formatting.number(point.quality) if is_cosine else formatting.share(point.quality)
    state = "on the Pareto front" if point.on_front else "another variant is faster and not worse"
    figures = f"{formatting.ratio(point.speedup)}, {measure} {value}"
    return f"<b>{label(point.variant)}</b><br>{figures}<br>{state}"


# As on the roofline page, whose colours these have.
BOUNDS = ("compute", "memory", "latency", "page faults", "no dominant bottleneck", "unknown")


@dataclass(frozen=True, slots=True)
class LayerBound:
    """What layers with one colour have in common: the bottleneck, or the nearest one, then hatched."""

    kind: str
    is_hatched: bool = False

    @property
    def colour(self) -> str:
        """The colour, as a name of the style sheet."""
        return f"var(--bound-{self.kind.replace(' ', '-')})"

    def __str__(self) -> str:
        if not self.is_hatched:
            return self.kind
        return UNDERUTILIZED if self.kind == "unknown" else f"{UNDERUTILIZED} ({self.kind})"


# Layers that use no resource well have the colour of the nearest one.
LAYER_BOUNDS = (
    *(LayerBound(kind) for kind in BOUNDS[:-1]),
    *(LayerBound(kind, is_hatched=True) for kind in BOUNDS),
    LayerBound(BOUNDS[-1]),
)


def bound_of(layer: LayerFigures) -> LayerBound:
    """Return the bound of a layer as the plot shows it."""
    is_hatched = layer.bound == UNDERUTILIZED
    kind = layer.nearest if is_hatched else layer.bound
    return LayerBound(kind if kind in BOUNDS else "unknown", is_hatched)


def _fill(mark: Mark) -> dict[str, Any]:
    edge = {"color": mark.colour, "line": {"color": PAGE, "width": 1}}
    if not mark.hollow:
        return edge
    pattern = {"shape": "/", "size": 6, "solidity": 0.4, "bgcolor": mark.colour, "fgcolor": PAGE}
    return edge | {"pattern": {**pattern, "fillmode": "overlay"}}


def layer_figure(document: ComparisonDocument, plots: Plots) -> Figure | None:
    """Return the self time of the top layers of each variant in percent, by their bottleneck."""
    marks = [mark for variant in document.variants for mark in _segments(variant)]
    if not marks:
        return None
    rows = list(dict.fromkeys(mark.variant for mark in marks))
    firsts = [next(mark for mark in marks if mark.variant == name) for name in rows]
    x_axis = axis("self time in a recorded call (%), the top layers", range=[0, 100])
    alternative = f"Self time by the bottleneck of the top layers of {len(rows)} variants, as stacked bars."
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


def _segments(variant: VariantFigures) -> list[Mark]:
    shares: dict[LayerBound, float] = {}
    names: dict[LayerBound, dict[str, None]] = {}
    for layer in variant.layers or ():
        if layer.share is not None:
            found = bound_of(layer)
            shares[found] = shares.get(found, 0.0) + layer.share
            names.setdefault(found, {})[label(formatting.bound(layer) or found.kind)] = None
    return [
        Mark(
            variant.name,
            Estimate(None, shares[each] * 100, None),
            f"<b>{label(variant.name)}</b><br>{', '.join(names[each])}: {formatting.share(shares[each])}",
            title=label(variant.name),
            colour=each.colour,
            hollow=each.is_hatched,
        )
        for each in LAYER_BOUNDS
        if each in shares
    ]
