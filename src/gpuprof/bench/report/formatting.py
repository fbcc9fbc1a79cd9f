# SPDX-License-Identifier: Apache-2.0
"""Figures as words: four significant digits, the unit that suits them, and words for what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuprof.bench.report.model import Batch, Interval, Report, Variant
from gpuprof.bench.results.target import QUANTILES
from gpuprof.stats.quantiles import samples_needed

UNAVAILABLE = "unavailable"
MINUS = "\u2212"
_DIGITS = 4
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_UNIT = re.compile(r"(.*?[\d.,]*)(\D*)", re.DOTALL)
# What verdicts mean to somebody who did not choose the words.
VERDICTS = {
    "baseline": "baseline",
    "faster": "faster",
    "slower": "slower",
    "same": "same speed",
    "inconclusive": "inconclusive",
    "mixed": "faster and slower, by batch size",
}


def number(value: float) -> str:
    """Return a number with four significant digits, without an exponent where it can be read without."""
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


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next((pair for pair in units if abs(value) >= 0.99995 * pair[0]), units[-1])
    return f"{number(value / size)} {unit}"


def time(seconds: float) -> str:
    """Return a time."""
    return _scaled(seconds, _TIMES)


def size(count_bytes: float) -> str:
    """Return a size in decimal units."""
    return f"{count_bytes:,.0f} B" if abs(count_bytes) < 1e3 else _scaled(count_bytes, _BYTES)


def count(value: float) -> str:
    """Return a whole number, or a large one with its prefix."""
    return f"{value:,.0f}" if abs(value) < 1e6 else _scaled(value, _LARGE)


def rate(per_s: float) -> str:
    """Return samples per second."""
    return f"{number(per_s)}/s"


def ratio(value: float) -> str:
    """Return a speed-up."""
    return f"{number(value)}×"


def share(value: float) -> str:
    """Return a fraction of 1 as a percentage."""
    return f"{value * 100:.2f}%".replace("-", MINUS)


def spread(value: float) -> str:
    """Return the width of the middle half of samples over their median, as a factor where it is no part."""
    return share(value) if value <= 1 else f"{ratio(value)} the median"


def points(value: float) -> str:
    """Return a change of a share, in percentage points, always with its sign."""
    # What rounds to zero has no side.
    return f"{round(value * 100, 2) + 0.0:+.2f} pp".replace("-", MINUS)


def money(value: float, currency: str) -> str:
    """Return a cost."""
    return f"{number(value)} {currency}"


def interval(found: Interval, write: Callable[[float], str]) -> str:
    """Return the ends of an interval; empty where either is missing."""
    if found.low is None or found.high is None:
        return ""
    low, high = write(found.low), write(found.high)
    number_of_low, unit = _UNIT.fullmatch(low).groups()  # type: ignore[union-attr]
    return f"{number_of_low} to {high}" if high.endswith(unit) else f"{low} to {high}"


def missing_quantile(batch: Batch, name: str) -> str:
    """Return why there is no figure for a quantile of a batch size."""
    if not batch.samples:
        return UNAVAILABLE
    needed = samples_needed(QUANTILES[name])
    # Launches of different lengths tell less than as many samples of one.
    more = f"; it needs {needed:,}" if batch.samples < needed else ""
    return f"insufficient (n={batch.samples:,}{more})"


def verdict(name: str | None) -> str:
    """Return a verdict in words; one that is not known stays as it came."""
    return UNAVAILABLE if name is None else VERDICTS.get(name, name)


def in_batches(sizes: tuple[int, ...]) -> str:
    """Return batch sizes as words."""
    return f"batch size {sizes[0]}" if len(sizes) == 1 else f"batch sizes {', '.join(map(str, sizes))}"


def peak_memory(batch: Batch) -> tuple[int, str] | None:
    """Return the peak that counts for a batch size, and whose memory it is."""
    if batch.device_peak_bytes is not None:
        return batch.device_peak_bytes, "device"
    return None if batch.host_peak_bytes is None else (batch.host_peak_bytes, "host")


def lowest_cost(variant: Variant) -> tuple[float, int] | None:
    """Return the cost per million at the batch size where it is lowest, and that size."""
    told = [
        (each.cost_per_million, each.batch_size)
        for each in variant.batches
        if each.cost_per_million is not None
    ]
    return min(told, default=None)


def quality_of(variant: Variant, report: Report) -> tuple[float, str] | None:
    """Return what stands for a variant's quality, and what that is called."""
    accuracy = variant.accuracy
    if accuracy is None:
        return None
    told = {
        "accuracy": accuracy.figures["accuracy"],
        "top-1 agreement": accuracy.figures["agreement_top1"],
        "cosine": accuracy.figures["cosine"],
    }
    wanted = report.quality_name if report.quality_name in told else None
    if wanted is not None:
        found = told[wanted]
        return None if found is None else (found, wanted)
    return next(((value, name) for name, value in told.items() if value is not None), None)
