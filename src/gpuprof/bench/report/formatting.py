# SPDX-License-Identifier: Apache-2.0
"""The figures of a comparison as text: four significant digits, and the unit that suits them."""

from __future__ import annotations

from gpuprof.analyze.roofline.labels import Bound
from gpuprof.bench.compare.document import BatchFigures, DegradedClass, LayerFigures
from gpuprof.bench.facts import TextEnum
from gpuprof.bench.results.target import QUANTILES
from gpuprof.bench.verdicts import QualityMeasure, SpeedVerdict
from gpuprof.stats.quantiles import samples_needed
from gpuprof.text.units import BYTES, PREFIXES, TIMES_NS, Quantity

UNAVAILABLE = "unavailable"
# Verdicts whose word alone is not clear enough.
_VERDICTS = {SpeedVerdict.SAME: "same speed", SpeedVerdict.MIXED: "faster and slower, by batch size"}


number = Quantity()
rate = Quantity(((1, "/s"),))
ratio = Quantity(((1, "×"),))
energy = Quantity(((1, "J"),))
time = Quantity(TIMES_NS, scale=1e9)
size = Quantity(BYTES, whole_below=1e3)
count = Quantity(PREFIXES, whole_below=1e6)
share = Quantity(((0.01, "%"),), decimals=2)
points = Quantity(((0.01, "pp"),), decimals=2, is_signed=True)


def relative_iqr(value: float) -> str:
    """Return the width of the middle half of samples over their median, as a factor where it is above 1."""
    return share(value) if value <= 1 else f"{ratio(value)} the median"


def money(currency: str) -> Quantity:
    """Return how costs are written."""
    return Quantity(((1, currency),))


def of_quality(measure: QualityMeasure) -> Quantity:
    """Return how a figure of quality is written: fractions as percentages."""
    return number if measure == QualityMeasure.COSINE else share


def missing_quantile(batch: BatchFigures, name: str) -> str:
    """Return why there is no figure for a quantile of a batch size."""
    if not batch.samples:
        return UNAVAILABLE
    needed = samples_needed(QUANTILES[name])
    # Process runs of different lengths count less than as many samples of one.
    more = f", needs {needed:,}" if batch.samples < needed else ""
    return f"too few samples (n={batch.samples:,}{more})"


def verdict(name: TextEnum) -> str:
    """Return a verdict in words."""
    return _VERDICTS.get(name, str(name)) if isinstance(name, SpeedVerdict) else str(name)


def bound(layer: LayerFigures) -> str | None:
    """Return the bottleneck of a layer in words."""
    more = layer.nearest if layer.bound == Bound.UNDERUTILIZED else None
    more = layer.memory_level if layer.bound == Bound.MEMORY else more
    return layer.bound if more is None else f"{layer.bound} ({more})"


def degraded_class(found: DegradedClass) -> str:
    """Return a class whose accuracy became lower, with its figures."""
    text = found.name
    if found.baseline is not None and found.accuracy is not None:
        text += f" from {share(found.baseline)} to {share(found.accuracy)}"
    if found.samples is not None:
        text += f" of {found.samples:,} samples"
    if found.p_value is not None:
        text += f" (p={found.p_value:.2g})"
    return text if found.becomes is None else f"{text}, mostly predicted as {found.becomes}"
