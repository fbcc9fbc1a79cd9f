# SPDX-License-Identifier: Apache-2.0
"""The plots of a comparison: speed-ups, latency, quality and layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuprof.analyze.roofline.labels import Bound
from gpuprof.bench.compare.document import (
    BatchFigures,
    ComparisonDocument,
    LayerFigures,
    ParetoPoint,
    VariantFigures,
)
from gpuprof.bench.report import formatting
from gpuprof.bench.report.plot_parts import (
    HEIGHT,
    LINE,
    PAGE,
    QUIET,
    TEXT,
    Figure,
    Look,
    Mark,
    Plain,
    axis,
    batch_axis,
    errors,
    is_wide,
    label,
    layout,
    lines,
    logarithmic_axis,
    looks_of,
    padded,
    rows_figure,
    scaled,
    scatter,
)
from gpuprof.bench.verdicts import QualityMeasure, SpeedVerdict
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.units import Quantity

_SPEEDUP = "speed-up over the baseline (right is faster)"
# From this many points on, only those that matter have their names in the plot.
_MOST_NAMES = 8
_NAME = 22
_NAMES_ABOVE = {"l": 8, "r": 16, "t": 32, "b": 8}  # names of points at the upper end of an axis


class Plots:
    """Draws one document; None for a plot without figures."""

    def __init__(self, document: ComparisonDocument) -> None:
        self._document = document
        self.looks: dict[str, Look] = looks_of(document)

    def latency(self) -> Figure | None:
        """Medians with their intervals."""
        return self._over_batches("latency", "median latency", lambda batch: batch.median_s, formatting.time)

    def throughput(self) -> Figure | None:
        """Throughput against the batch size."""
        return self._over_batches(
            "throughput", "throughput", lambda batch: batch.throughput_per_s, formatting.rate, "samples/s"
        )

    def tokens(self) -> Figure | None:
        """Tokens per second against the batch size."""
        return self._over_batches(
            "tokens", "token throughput", lambda batch: batch.tokens_per_s, formatting.rate, "tokens/s"
        )

    def utilization(self) -> Figure | None:
        """Utilization of the device against the batch size."""

        def read(batch: BatchFigures) -> Estimate | None:
            found = batch.device_utilization
            return None if found is None else Estimate(None, found, None)

        return self._over_batches("utilization", "device utilization", read, formatting.share)

    def memory(self) -> Figure | None:
        """Peak memory."""

        def read(batch: BatchFigures) -> Estimate | None:
            found = batch.peak_memory
            return None if found is None else Estimate(None, found[0], None)

        return self._over_batches("memory", "peak memory", read, formatting.size)

    def _over_batches(
        self,
        key: str,
        title: str,
        read: Callable[[BatchFigures], Estimate | None],
        write: Quantity,
        unit: str | None = None,
    ) -> Figure | None:
        """Return lines over batch sizes, or bars where there is one size only."""
        found = [
            (variant.name, batch.batch_size, estimate)
            for variant in self._document.variants
            for batch in variant.batches
            if (estimate := read(batch)) is not None
        ]
        if not found:
            return None
        factor, unit_of_axis = write.axis(max(estimate.value for *_, estimate in found))
        marks = [_batch_mark(name, size, estimate, write, factor) for name, size, estimate in found]
        sizes = sorted({size for _, size, _ in found})
        head = f"{title} ({unit or unit_of_axis})"
        described = f"{title.capitalize()} of {len({mark.variant for mark in marks})} variants"
        if len(sizes) == 1:
            alternative = f"{described} at batch size {sizes[0]}, as bars."
            return rows_figure(key, alternative, marks, self.looks, axis(head, rangemode="tozero"))
        values = [mark.found.value for mark in marks]
        wide = is_wide(values)
        y_axis = logarithmic_axis(head, values) if wide else axis(head, rangemode="tozero")
        on = ", on logarithmic axes" if wide else ""
        body = layout(HEIGHT, xaxis=batch_axis(sizes), yaxis=y_axis)
        return Figure(
            key, f"{described} against the batch size, as lines{on}.", lines(marks, self.looks), body
        )

    def technique(self) -> Figure | None:
        """Speed-ups with their intervals, the fastest first, named by technique."""
        marks = [mark for each in self._document.by_speedup for mark in _technique_marks(each)]
        if not marks:
            return None
        ends = [end for mark in marks for end in (mark.found.low, mark.found.value, mark.found.high) if end]
        band = self._document.method.margin
        shapes = [shape for place in range(len(marks)) for shape in _margin_shapes(place, band)]
        x_axis = (
            logarithmic_axis(_SPEEDUP, [1.0, *ends])
            if is_wide([1.0, *ends])
            else axis(_SPEEDUP, ticksuffix="×", range=padded([1.0, *ends]))
        )
        alternative = f"Speed-up of {len(marks)} variants over the baseline, the fastest first."
        return rows_figure("technique", alternative, marks, self.looks, x_axis, bars=False, shapes=shapes)

    def cost(self) -> Figure | None:
        """Cost per million inferences, at the batch size where it is lowest."""
        currency = self._document.method.currency
        write, marks = formatting.money(currency), []
        for variant in self._document.variants:
            if variant.lowest_cost is not None:
                cost, size = variant.lowest_cost
                found = Estimate(None, cost, None)
                mark = _batch_mark(variant.name, size, found, write, 1.0)
                marks.append(replace(mark, title=f"{mark.title} at batch size {size}"))
        x_axis = axis(f"cost per million inferences ({label(currency)})", rangemode="tozero")
        alternative = f"Lowest cost per million inferences of {len(marks)} variants, as bars."
        return rows_figure("cost", alternative, marks, self.looks, x_axis) if marks else None

    def sizes(self) -> Figure | None:
        """Model size of each variant, as bars."""
        found = [(each.name, each.model_bytes) for each in self._document.variants if each.model_bytes]
        if not found:
            return None
        factor, unit = formatting.size.axis(max(size for _, size in found))
        marks = []
        for name, size in found:
            shown = label(formatting.size(size))
            text, title = f"<b>{label(name)}</b><br>{shown}", f"{label(name)}   <b>{shown}</b>"
            marks.append(Mark(name, scaled(Estimate(None, size, None), factor), text, title=title))
        x_axis = axis(f"model size ({unit})", rangemode="tozero")
        return rows_figure(
            "sizes", f"Model size of {len(marks)} variants, as bars.", marks, self.looks, x_axis
        )

    def size_and_speed(self) -> Figure | None:
        """Speed-up against model size, a point for each variant."""
        found = []
        for each in self._document.variants:
            speedup = _speedup_or_baseline(each)
            if each.model_bytes and speedup is not None:
                found.append((each.name, Estimate(None, each.model_bytes, None), speedup))
        if len(found) < 2:
            return None
        factor, unit = formatting.size.axis(max(size.value for _, size, _ in found))
        points = [
            PlotPoint(
                name,
                scaled(size, factor),
                speedup,
                f"{formatting.size(size.value)}, {formatting.ratio(speedup.value)}",
            )
            for name, size, speedup in found
        ]
        titles = f"model size ({unit}; left is smaller)", "speed-up over the baseline (up is faster)"
        alternative = f"Speed-up against model size of {len(points)} variants."
        return self._points_figure("size-speed", alternative, points, titles, {"ticksuffix": "×"})

    def accuracy_and_time(self, batch_size: int) -> Figure | None:
        """Quality against the median latency of a batch size, a point for each variant."""
        measure = self._document.quality.measure
        found = []
        for each in self._document.variants:
            batch, quality = each.batch(batch_size), each.quality(measure)
            if (
                batch is not None
                and batch.median_s is not None
                and measure is not None
                and quality is not None
            ):
                found.append((each.name, batch.median_s, quality[1]))
        if not found or measure is None:
            return None
        factor, unit = formatting.time.axis(max(median.value for _, median, _ in found))
        write = formatting.of_quality(measure)
        scale = 1.0 if measure == QualityMeasure.COSINE else 100.0
        points = [
            PlotPoint(
                name,
                scaled(median, factor),
                Estimate(None, quality * scale, None),
                f"{formatting.time(median.value)}, {measure} {write(quality)}",
            )
            for name, median, quality in found
        ]
        titles = (
            f"median latency at batch size {batch_size} ({unit}; left is faster)",
            f"{label(str(measure))}{' (%)' if scale == 100 else ''} (up is better)",
        )
        up = _quality_range([each.y.value for each in points], scale)
        alternative = f"{str(measure).capitalize()} against median latency of {len(points)} variants."
        return self._points_figure("accuracy-time", alternative, points, titles, {"range": up})

    def _points_figure(
        self, key: str, alternative: str, points: list[PlotPoint], titles: tuple[str, str], of_y: Plain
    ) -> Figure:
        """Return a named point for each variant."""
        across = [each.x.value for each in points]
        middle = (min(across) + max(across)) / 2
        x_axis = (
            logarithmic_axis(titles[0], across) if is_wide(across) else axis(titles[0], range=padded(across))
        )
        y_axis = axis(titles[1], **{"range": padded([each.y.value for each in points]), **of_y})
        # The recommended variant last: its name is kept where names meet.
        points.sort(key=lambda each: each.variant == self._document.summary.choice)
        traces = [self._point(each, to_left=each.x.value > middle) for each in points]
        return Figure(
            key, alternative, traces, layout(HEIGHT, xaxis=x_axis, yaxis=y_axis, margin=_NAMES_ABOVE)
        )

    def _point(self, point: PlotPoint, *, to_left: bool) -> Plain:
        look, name = self.looks[point.variant], label(point.variant, _NAME)
        mark = Mark(point.variant, point.x, f"<b>{label(point.variant)}</b><br>{label(point.text)}")
        vertical = Mark(point.variant, point.y, "")
        return scatter(
            [mark],
            look,
            12,
            "markers+text",
            x=[point.x.value],
            y=[point.y.value],
            error_x=errors([mark], look.color),
            error_y=errors([vertical], look.color),
            text=[name],
            textposition="top left" if to_left else "top right",
            textfont={"color": TEXT, "size": 13},
        )

    def quality(self) -> Figure | None:
        """Quality against speed-up, a point for each variant."""
        points = [point for point in self._document.pareto if point.variant in self.looks]
        measure = self._document.quality.measure
        if not points or measure is None:
            return None
        name, scale = str(measure), 1.0 if measure == QualityMeasure.COSINE else 100.0
        across = padded([1.0, *(point.speedup for point in points)])
        up = _quality_range([point.quality * scale for point in points], scale)
        # What matters is drawn last: above the others, and its name is kept where names meet.
        points.sort(key=lambda each: (each.variant == self._document.summary.choice, each.on_front))
        traces = _front(points, scale, across[0], up[0])
        traces += [self._quality_point(point, measure, scale, sum(across) / 2) for point in points]
        line = {"color": QUIET, "width": 1, "dash": "dot"}
        reference = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        body = layout(
            HEIGHT + 40,
            xaxis=axis(_SPEEDUP, ticksuffix="×", range=across),
            yaxis=axis(f"{label(name)}{' (%)' if scale == 100 else ''} (up is better)", range=up),
            margin=_NAMES_ABOVE,
            shapes=[{**reference, "layer": "below"}],
        )
        alternative = f"{name.capitalize()} against speed-up of {len(points)} points, with the Pareto front."
        return Figure("quality", alternative, traces, body)

    def _quality_point(
        self, point: ParetoPoint, measure: QualityMeasure, scale: float, middle: float
    ) -> Plain:
        document, look, name = self._document, self.looks[point.variant], point.variant
        variant = document.variant(name)
        speedup = None if variant is None else variant.speedup
        state = "on the Pareto front" if point.on_front else "another variant is faster and not worse"
        quality = f"{measure} {formatting.of_quality(measure)(point.quality)}"
        text = f"<b>{label(name)}</b><br>{formatting.ratio(point.speedup)}, {quality}<br>{state}"
        mark = Mark(name, speedup or Estimate(None, point.speedup, None), text)
        is_choice = name == document.summary.choice
        matters = point.on_front or is_choice or name == document.baseline
        shown = label(name, _NAME) if matters or len(document.pareto) <= _MOST_NAMES else ""
        found = scatter(
            [mark],
            look,
            17 if is_choice else 12,
            "markers+text",
            x=[point.speedup],
            y=[point.quality * scale],
            error_x=errors([mark], look.color),
            text=[f"<b>{shown}</b>" if is_choice and shown else shown],
            # Towards the middle, where there is room.
            textposition="top left" if point.speedup > middle else "top right",
            textfont={"color": TEXT if matters else QUIET, "size": 13},
        )
        if is_choice:
            found["marker"]["line"] = {"width": 2.5, "color": TEXT}
        return found

    def layers(self) -> Figure | None:
        """Self time of the top layers of each variant in percent, by their bottleneck."""
        marks = [mark for variant in self._document.variants for mark in _segments(variant)]
        if not marks:
            return None
        count = len({mark.variant for mark in marks})
        x_axis = axis("self time in a recorded call (%), the top layers", range=[0, 100])
        alternative = f"Self time by the bottleneck of the top layers of {count} variants, as stacked bars."
        return rows_figure("layers", alternative, marks, self.looks, x_axis, barmode="stack")


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A variant in a plot of two figures, in the units of its axes; `text` is for the mouse."""

    variant: str
    x: Estimate
    y: Estimate
    text: str


def _speedup_or_baseline(variant: VariantFigures) -> Estimate | None:
    return Estimate(None, 1.0, None) if variant.verdict == SpeedVerdict.BASELINE else variant.speedup


def _batch_mark(name: str, size: int, found: Estimate, write: Quantity, factor: float) -> Mark:
    interval, shown = write.interval(found.low, found.high), label(write(found.value))
    text = f"<b>{label(name)}</b>, batch size {size}<br>{shown}{f' ({interval})' if interval else ''}"
    return Mark(name, scaled(found, factor), text, x=size, title=f"{label(name)}   <b>{shown}</b>")


def _technique_marks(variant: VariantFigures) -> Iterator[Mark]:
    found, verdict = variant.speedup, variant.verdict
    if found is not None:
        value, name = formatting.ratio(found.value), label(variant.name)
        interval = formatting.ratio.interval(found.low, found.high) or "no interval"
        judged = formatting.UNAVAILABLE if verdict is None else formatting.verdict(verdict)
        title = f"{label(variant.technique)} · {label(variant.name, 24)}   <b>{value}</b>"
        yield Mark(variant.name, found, f"<b>{name}</b>: {value} ({interval}), {judged}", title=title)


def _margin_shapes(place: int, band: float) -> list[Plain]:
    """Return the equivalence margin next to one row's point: the row's title above stays clear of it."""
    shape = {"type": "rect", "y0": -place - 0.38, "y1": -place + 0.12, "layer": "below"}
    around, dotted = {"x0": 1 / (1 + band), "x1": 1 + band}, {"color": QUIET, "width": 1.5, "dash": "dot"}
    return [
        {**shape, **around, "fillcolor": LINE, "opacity": 0.6, "line": {"width": 0}},
        {**shape, "type": "line", "x0": 1, "x1": 1, "line": dotted},
    ]


def _front(points: list[ParetoPoint], scale: float, left: float, bottom: float) -> list[Plain]:
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


# --- layers --------------------------------------------------------------------------------------

# As on the roofline page, whose colors these have.
BOUNDS = (
    *(each.value for each in Bound if each not in (Bound.UNDERUTILIZED, Bound.UNKNOWN)),
    Bound.UNKNOWN.value,
)


@dataclass(frozen=True, slots=True)
class LayerBound:
    """What layers with one color have in common: the bottleneck, or the nearest one, then hatched."""

    kind: str
    is_hatched: bool = False

    @property
    def color(self) -> str:
        """The color, as a name of the style sheet."""
        return f"var(--bound-{self.kind.replace(' ', '-')})"

    @property
    def marker(self) -> Plain:
        """How plotly.js fills its bars."""
        edge = {"color": self.color, "line": {"color": PAGE, "width": 1}}
        if not self.is_hatched:
            return edge
        pattern = {"shape": "/", "size": 6, "solidity": 0.4, "bgcolor": self.color, "fgcolor": PAGE}
        return edge | {"pattern": {**pattern, "fillmode": "overlay"}}

    def __str__(self) -> str:
        if not self.is_hatched:
            return self.kind
        nearest = "" if self.kind == Bound.UNKNOWN else f" ({self.kind})"
        return f"{Bound.UNDERUTILIZED}{nearest}"


# Layers that use no resource well have the color of the nearest one.
LAYER_BOUNDS = (
    *(LayerBound(kind) for kind in BOUNDS[:-1]),
    *(LayerBound(kind, is_hatched=True) for kind in BOUNDS),
    LayerBound(BOUNDS[-1]),
)


def bound_of(layer: LayerFigures) -> LayerBound:
    """Return the bound of a layer as the plot shows it."""
    is_hatched = layer.bound == Bound.UNDERUTILIZED
    kind = layer.nearest if is_hatched else layer.bound
    return LayerBound(kind if kind and kind in BOUNDS else Bound.UNKNOWN.value, is_hatched)


def _segments(variant: VariantFigures) -> Iterator[Mark]:
    """Yield for each bottleneck the layers that have it."""
    name = label(variant.name)
    for each in LAYER_BOUNDS:
        layers = [
            layer for layer in variant.layers or () if layer.share is not None and bound_of(layer) == each
        ]
        if layers:
            share = sum(layer.share or 0.0 for layer in layers)
            bounds = ", ".join(dict.fromkeys(label(formatting.bound(layer) or each.kind) for layer in layers))
            text = f"<b>{name}</b><br>{bounds}: {formatting.share(share)}"
            percent = Estimate(None, share * 100, None)
            yield Mark(variant.name, percent, text, title=name, marker=each.marker)


def _quality_range(values: list[float], scale: float) -> tuple[float, float]:
    """Return the range of an axis of a quality, which is at most 1 times `scale`."""
    low, high = padded(values)
    return low, min(high, scale)
