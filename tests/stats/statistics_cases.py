# SPDX-License-Identifier: Apache-2.0
"""Calls of `gpuprof.stats` by name, with arguments and results as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuprof.stats.change_points import find_change_points
from gpuprof.stats.distributions import probability_of_at_least, student_p_value, student_quantile
from gpuprof.stats.proportions import (
    PairedCounts,
    change_of,
    exact_share,
    mcnemar,
    paired_difference,
    wilson,
)
from gpuprof.stats.quantiles import (
    PooledSamples,
    interval_ranks,
    quantile_of,
    relative_drift,
    samples_needed,
    summarize,
    theil_sen,
)
from gpuprof.stats.ratio_test import (
    Levels,
    bootstrap_ratio,
    cliffs_delta,
    compare,
    compare_many,
    hedges_g,
    launches_needed,
    log_ratio,
    required_files,
    required_margin,
    required_runs,
    smallest_change,
)
from gpuprof.stats.significance import (
    discoveries,
    plain_means,
    trimmed_means,
    welch,
)


def array(values: Any) -> Any:
    return np.array(values, dtype=np.float64)


def _log_ratio(old: list[float], new: list[float], level: float, margin: float) -> Any:
    found = log_ratio(array(old), array(new))
    return None if found is None else [found, found.interval(level), found.same_p_value(margin)]


def _levels(files: list[list[float]], changes: list[int], candidates: list[list[float]]) -> Any:
    levels = Levels(tuple(array(each) for each in files), tuple(changes))
    changed = [levels.change(number) for number in range(len(changes))]
    return [changed, levels.against([array(each) for each in candidates])]


def _welch(new: list[list[float]], old: list[list[float]], trimmed: bool, level: float) -> Any:
    means = trimmed_means if trimmed else plain_means
    found = welch(means(array(new)), means(array(old)))
    return [found, found.half_width(level)]


def _pooled(launches: list[list[float]], shares: list[float] | None, quantile: float) -> Any:
    pooled = PooledSamples([array(each) for each in launches], shares)
    return [pooled.count, pooled.quantile(quantile), pooled.mean(), pooled.summary()]


def _compare(old: list[float], new: list[float], margin: float) -> Any:
    # The bootstrap interval depends on random numbers, and has separate cases. The reason is a text.
    found = compare(old, new, margin=margin)
    return dataclasses.replace(found, ratio_of_medians=(None, 0.0, None), reason="")


def _compare_many(metrics: Mapping[str, Any], margin: float) -> Any:
    found = compare_many(metrics, margin=margin)
    return {name: [each.verdict, each.low, each.high, each.level] for name, each in found.items()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "samples_needed": samples_needed,
    "interval_ranks": interval_ranks,
    "probability_of_at_least": probability_of_at_least,
    "exact_share": exact_share,
    "quantile_of": lambda samples, quantile: quantile_of(array(samples), quantile),
    "summarize": lambda samples: summarize(array(samples)),
    "theil_sen": lambda places, values: theil_sen(array(places), array(values)),
    "relative_drift": lambda samples: relative_drift(array(samples)),
    "pooled": _pooled,
    "student_p_value": lambda t, freedom: student_p_value(array(t), array(freedom)),
    "student_quantile": lambda level, freedom: student_quantile(level, array(freedom)),
    "welch": _welch,
    "discoveries": lambda p_values, rate: discoveries(array(p_values), rate),
    "log_ratio": _log_ratio,
    "compare": _compare,
    "compare_many": _compare_many,
    "hedges_g": lambda old, new: hedges_g(array(old), array(new)),
    "cliffs_delta": lambda old, new: cliffs_delta(array(old), array(new)),
    "bootstrap_ratio": lambda old, new: bootstrap_ratio(array(old), array(new)),
    "launches_needed": lambda *words: launches_needed(*words[:2], margin=words[2]),
    "required_runs": required_runs,
    "smallest_change": smallest_change,
    "required_files": required_files,
    "required_margin": required_margin,
    "levels": _levels,
    "find_change_points": find_change_points,
    "mcnemar": mcnemar,
    "wilson": wilson,
    "paired_difference": lambda *counts: paired_difference(PairedCounts(*counts)),
    "change_of": lambda *words: change_of(PairedCounts(*words[:4]), words[4]),
}


def plain(value: Any) -> Any:
    """Return a result as JSON has it; its `NaN` and `Infinity` are Python's."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
