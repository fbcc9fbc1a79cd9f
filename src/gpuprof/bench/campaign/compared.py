# SPDX-License-Identifier: Apache-2.0
"""How the variants' launches compare with the baseline's, at each batch size and over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.bench.campaign.runner import CampaignResult, VariantResult
from gpuprof.bench.comparison import Comparison, compare, compare_many
from gpuprof.bench.measurement import ENDED_EARLY
from gpuprof.bench.pooling import WIDEST_FACTOR
from gpuprof.bench.result import Launch

OVERALL = 0  # in the place of a batch size


@dataclass(frozen=True, slots=True)
class Speedup:
    """Old time over new time: above 1 is faster. None stands for what too few launches do not tell."""

    low: float | None
    value: float
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain data for JSON."""
        return {"low": self.low, "value": self.value, "high": self.high}


def speedup_of(comparison: Comparison) -> Speedup:
    """Return the speed-up that a ratio of times is."""
    low, high = comparison.low, comparison.high
    # Two launches that differ give ends from nothing to millions: those are no figures for anybody.
    if low is None or high is None or high > low * WIDEST_FACTOR**2:
        return Speedup(None, 1 / comparison.ratio, None)
    return Speedup(1 / high, 1 / comparison.ratio, 1 / low)


@dataclass(frozen=True, slots=True)
class Compared:
    """All comparisons of a campaign with its baseline, by variant and batch size, OVERALL for all of them."""

    comparisons: dict[tuple[str, int], Comparison]

    def at(self, variant: str, batch_size: int) -> Comparison | None:
        """Return a comparison; None for the baseline itself and where one side has no samples."""
        return self.comparisons.get((variant, batch_size))

    def overall(self, variant: str) -> Comparison | None:
        """Return the comparison over all batch sizes that both sides measured."""
        return self.at(variant, OVERALL)

    def verdict(self, variant: str) -> str | None:
        """Return the verdict over all batch sizes; `mixed` where one is faster and another is slower."""
        single = {
            found.verdict
            for (name, size), found in self.comparisons.items()
            if name == variant and size != OVERALL
        }
        overall = self.overall(variant)
        if {"faster", "slower"} <= single:
            return "mixed"
        return None if overall is None else overall.verdict


def compare_variants(result: CampaignResult) -> Compared:
    """Compare all variants with the baseline at once; of the differences found at most 5% are false."""
    baseline = result.baseline
    metrics: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    keys: dict[str, tuple[str, int]] = {}
    for each in result.variants:
        if each is baseline:
            continue
        for size, pair in _pairs(baseline, each):
            keys[str(len(keys))] = (each.variant.name, size)
            metrics[str(len(metrics))] = pair
    found = compare_many(metrics, margin=result.plan.margin) if metrics else {}
    return Compared({keys[name]: comparison for name, comparison in found.items()})


def _pairs(old: VariantResult, new: VariantResult) -> Iterable[tuple[int, tuple[list[float], list[float]]]]:
    sizes = common_sizes(old, new)
    for size in sizes:
        yield size, (medians_s(old, size), medians_s(new, size))
    pair = overall_s(old, sizes), overall_s(new, sizes)
    if all(pair):
        yield OVERALL, pair


def compare_two(first: VariantResult, second: VariantResult, margin: float) -> Comparison | None:
    """Compare two variants over the batch sizes that both measured; None where there are none."""
    sizes = common_sizes(first, second)
    old, new = overall_s(first, sizes), overall_s(second, sizes)
    return compare(old, new, margin=margin) if old and new else None


def common_sizes(first: VariantResult, second: VariantResult) -> list[int]:
    """Return the batch sizes of which both have samples."""
    return [
        batch.batch_size
        for batch in first.session.batches
        if medians_s(first, batch.batch_size) and medians_s(second, batch.batch_size)
    ]


def medians_s(each: VariantResult, batch_size: int) -> list[float]:
    """Return the median seconds of a call in each launch that measured a batch size to its end."""
    batch = each.session.batch(batch_size)
    return [] if batch is None else [_median(launch) for launch in batch.launches if is_whole(launch)]


def overall_s(each: VariantResult, sizes: Sequence[int]) -> list[float]:
    """Return for each launch that measured all sizes the geometric mean of its medians."""
    by_launch: dict[int, list[float]] = {}
    for size in sizes:
        batch = each.session.batch(size)
        for launch in [] if batch is None else batch.launches:
            if is_whole(launch):
                by_launch.setdefault(launch.position, []).append(math.log(_median(launch)))
    return [
        math.exp(float(np.mean(found))) for found in by_launch.values() if found and len(found) == len(sizes)
    ]


def is_whole(launch: Launch) -> bool:
    """Whether a launch has samples and did not end early."""
    measured = launch.measurement
    return measured is not None and bool(len(measured.wall_ns)) and measured.stopped_by not in ENDED_EARLY


def _median(launch: Launch) -> float:
    assert launch.measurement is not None
    return float(np.median(launch.measurement.samples))
