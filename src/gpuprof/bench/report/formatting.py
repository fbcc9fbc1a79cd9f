# SPDX-License-Identifier: Apache-2.0
"""The figures of a comparison as text: four significant digits, and the unit that suits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuprof.bench.compare.document import (
    UNDERUTILIZED,
    BatchFigures,
    ComparisonDocument,
    DegradedClass,
    LayerFigures,
    QualityAxis,
    VariantFigures,
)
from gpuprof.bench.facts import Diagnostic, TextEnum
from gpuprof.bench.messages import message
from gpuprof.bench.results.target import QUANTILES
from gpuprof.bench.verdicts import QualityMeasure
from gpuprof.stats.quantiles import Estimate, samples_needed

UNAVAILABLE = "unavailable"
MINUS = "\u2212"
_DIGITS = 4
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
# Verdicts whose word alone is not clear enough.
VERDICTS = {
    "baseline": "baseline",
    "faster": "faster",
    "slower": "slower",
    "same": "same speed",
    "inconclusive": "inconclusive",
    "mixed": "faster and slower, by batch size",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """How figures of one kind are written: a number, then its unit."""

    parts: Callable[[float], tuple[str, str]]

    def __call__(self, value: float) -> str:
        """Return a figure with its unit."""
        return "".join(self.parts(value))

    def interval(self, found: Estimate) -> str:
        """Return the ends of an interval, with the unit once where it is the same; empty without an end."""
        if found.low is None or found.high is None:
            return ""
        (low, unit), (high, unit_of_high) = self.parts(found.low), self.parts(found.high)
        return f"{low}{'' if unit == unit_of_high else unit} to {high}{unit_of_high}"


def _digits(value: float) -> str:
    """Return four significant digits, without an exponent where the number is readable without."""
    if value == 0:
        return "0"
    # Of the rounded value: 0.99999 is 1.000.
    magnitude = abs(float(f"{value:.{_DIGITS - 1}e}"))
    if not 1e-4 <= magnitude < 1e9:
        return f"{value:.{_DIGITS - 1}e}".replace("-", MINUS)
    digits = 0
    while magnitude * 10**digits < 10 ** (_DIGITS - 1) and digits < _DIGITS + 3:
        digits += 1
    return f"{value:,.{digits}f}".replace("-", MINUS)


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> tuple[str, str]:
    size, unit = next((pair for pair in units if abs(value) >= 0.99995 * pair[0]), units[-1])
    return _digits(value / size), f" {unit}"


def _signed(value: float, specification: str) -> str:
    return format(value, specification).replace("-", MINUS)


number = Quantity(lambda value: (_digits(value), ""))
time = Quantity(lambda seconds: _scaled(seconds, _TIMES))
size = Quantity(
    lambda count_bytes: (
        (f"{count_bytes:,.0f}", " B") if abs(count_bytes) < 1e3 else _scaled(count_bytes, _BYTES)
    )
)
count = Quantity(lambda value: (f"{value:,.0f}", "") if abs(value) < 1e6 else _scaled(value, _LARGE))
rate = Quantity(lambda per_s: (_digits(per_s), "/s"))
ratio = Quantity(lambda value: (_digits(value), "×"))
share = Quantity(lambda fraction: (_signed(fraction * 100, ".2f"), "%"))
# What rounds to zero has no sign.
points = Quantity(lambda fraction: (_signed(round(fraction * 100, 2) + 0.0, "+.2f"), " pp"))
energy = Quantity(lambda joules: (_digits(joules), " J"))


def relative_iqr(value: float) -> str:
    """Return the width of the middle half of samples over their median, as a factor where it is above 1."""
    return share(value) if value <= 1 else f"{ratio(value)} the median"


def money(value: float, currency: str) -> str:
    """Return a cost."""
    return f"{number(value)} {currency}"


def missing_quantile(batch: BatchFigures, name: str) -> str:
    """Return why there is no figure for a quantile of a batch size."""
    if not batch.samples:
        return UNAVAILABLE
    needed = samples_needed(QUANTILES[name])
    # Process runs of different lengths count less than as many samples of one.
    more = f", needs {needed:,}" if batch.samples < needed else ""
    return f"too few samples (n={batch.samples:,}{more})"


def verdict(name: TextEnum | None) -> str:
    """Return a verdict in words."""
    return UNAVAILABLE if name is None else VERDICTS.get(str(name), str(name))


def in_batches(sizes: Sequence[int]) -> str:
    """Return batch sizes as words."""
    return f"batch size {sizes[0]}" if len(sizes) == 1 else f"batch sizes {', '.join(map(str, sizes))}"


def reason(fact: Diagnostic | None) -> str:
    """Return why something is unavailable."""
    return "no reason was given" if fact is None else message(fact)


def bound(layer: LayerFigures) -> str | None:
    """Return the bottleneck of a layer in words."""
    if layer.bound == "memory" and layer.memory_level is not None:
        return f"memory ({layer.memory_level})"
    if layer.bound == UNDERUTILIZED and layer.nearest is not None:
        return f"{UNDERUTILIZED} ({layer.nearest})"
    return layer.bound


def degraded_class(found: DegradedClass) -> str:
    """Return a class whose accuracy became lower, with its figures."""
    text = found.name
    if found.baseline is not None and found.accuracy is not None:
        text += f" from {found.baseline:.2%} to {found.accuracy:.2%}"
    if found.samples is not None:
        text += f" of {found.samples:,} samples"
    if found.p_value is not None:
        text += f" (p={found.p_value:.2g})"
    return text if found.becomes is None else f"{text}, mostly predicted as {found.becomes}"


def quality_basis(quality: QualityAxis) -> str:
    """Return what the quality of all variants is measured by."""
    bases = {
        QualityMeasure.ACCURACY: "labels of",
        QualityMeasure.AGREEMENT: "the baseline's predictions on",
        QualityMeasure.COSINE: "the baseline's outputs on",
    }
    if quality.measure is None:
        return "no outputs were compared"
    return f"{bases[quality.measure]} {quality.samples:,} samples"


def peak_memory(batch: BatchFigures) -> tuple[int, str] | None:
    """Return the peak that counts for a batch size, and of which memory it is."""
    if batch.device_peak_bytes is not None:
        return batch.device_peak_bytes, "device"
    return None if batch.host_peak_bytes is None else (batch.host_peak_bytes, "host")


def lowest_cost(variant: VariantFigures) -> tuple[float, int] | None:
    """Return the cost per million at the batch size where it is lowest, and that size."""
    costs = ((each.cost_per_million, each.batch_size) for each in variant.batches)
    return min(((cost, batch_size) for cost, batch_size in costs if cost is not None), default=None)


def quality_of(variant: VariantFigures, document: ComparisonDocument) -> tuple[float, QualityMeasure] | None:
    """Return the figure of a variant's quality, and which one it is."""
    if variant.accuracy is None:
        return None
    wanted = document.quality.measure
    for measure in QualityMeasure if wanted is None else (wanted,):
        found = variant.accuracy.quality(measure)
        if found is not None:
            return found, measure
    return None
