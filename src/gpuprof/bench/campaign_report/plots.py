# SPDX-License-Identifier: Apache-2.0
"""The plots of a comparison. Each shows figures that a table beside it tells too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuprof.bench.campaign_report import words
from gpuprof.bench.campaign_report.looks import Look, label, looks_of
from gpuprof.bench.campaign_report.plot_parts import (
    HEIGHT,
    LINE,
    QUIET,
    Figure,
    Mark,
    axis,
    batch_axis,
    is_wide,
    layout,
    line_traces,
    padded,
    rows_figure,
    value_axis,
)
from gpuprof.bench.campaign_report.reading import Batch, Interval, Report, Variant

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
Read = Callable[[Batch], Interval | None]
Write = Callable[[float], str]


class Plots:
    """Draws one report."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.looks: dict[str, Look] = looks_of(report)

    def latency(self) -> Figure | None:
        """Medians with their intervals."""
        return self._over_batches(
            "latency", "median latency", lambda batch: batch.median, words.time, _TIME_UNITS
        )

    def throughput(self) -> Figure | None:
        """Throughput against the batch size."""
        units = ((1.0, "samples/s"),)
        return self._over_batches(
            "throughput", "throughput", lambda batch: batch.throughput, words.rate, units
        )

    def memory(self) -> Figure | None:
        """Peak memory."""

        def read(batch: Batch) -> Interval | None:
            found = words.peak_memory(batch)
            return None if found is None else Interval(None, found[0], None)

        return self._over_batches("memory", "peak memory", read, words.size, _BYTE_UNITS)

    def _over_batches(
        self, key: str, title: str, read: Read, write: Write, units: tuple[tuple[float, str], ...]
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

    def _marks(self, read: Read, write: Write) -> list[Mark]:
        marks = []
        for variant in self._report.variants:
            for batch in variant.batches:
                found = read(batch)
                if found is None:
                    continue
                between = words.interval(found, write)
                told = f"{write(found.value)}{f' ({between})' if between else ''}"
                text = f"<b>{label(variant.name)}</b>, batch size {batch.batch_size}<br>{told}"
                title = f"{label(variant.name)}   <b>{write(found.value)}</b>"
                marks.append(Mark(variant.name, found, text, x=batch.batch_size, title=title))
        return marks

    def technique(self) -> Figure | None:
        """Speed-ups with their intervals, the fastest first, named by technique."""
        told = [each for each in self._report.measured if each.speedup is not None]
        if not told:
            return None
        told.sort(key=lambda each: -(each.speedup.value if each.speedup else 0))
        marks = [self._technique_mark(each) for each in told]
        margin = self._report.method.get("margin")
        band = margin if isinstance(margin, float) else 0.0
        ends = [end for mark in marks for end in (mark.found.low, mark.found.value, mark.found.high) if end]
        shapes = [shape for place in range(len(marks)) for shape in _margin_shapes(place, band)]
        x_axis = _ratio_axis([1.0, *ends])
        alternative = f"Speed-up of {len(marks)} variants over the baseline, the fastest first."
        return rows_figure("technique", alternative, marks, self.looks, x_axis, bars=False, shapes=shapes)

    def _technique_mark(self, variant: Variant) -> Mark:
        found = variant.speedup
        assert found is not None
        between = words.interval(found, words.ratio)
        verdict = words.verdict(variant.verdict)
        title = f"{label(variant.technique)} · {label(variant.name, 24)}   <b>{words.ratio(found.value)}</b>"
        told = f"{words.ratio(found.value)} ({between or 'no interval'}), {verdict}"
        text = f"<b>{label(variant.name)}</b>: {told}"
        return Mark(variant.name, found, text, title=title)

    def cost(self) -> Figure | None:
        """Cost per million inferences, at the batch size where it is lowest."""
        marks = []
        for variant in self._report.variants:
            found = words.lowest_cost(variant)
            if found is not None:
                told = words.money(found[0], self._report.currency)
                title = f"{label(variant.name)}   <b>{label(told)}</b> at batch size {found[1]}"
                text = f"<b>{label(variant.name)}</b>, batch size {found[1]}<br>{label(told)}"
                marks.append(Mark(variant.name, Interval(None, found[0], None), text, title=title))
        if not marks:
            return None
        x_axis = axis(f"cost per million inferences ({label(self._report.currency)})", rangemode="tozero")
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
