# SPDX-License-Identifier: Apache-2.0
"""A target such as `p99<20ms`, held against a figure with its interval."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpuprof.bench.result import Result
from gpuprof.errors import BenchmarkError

Verdict = Literal["met", "missed", "inconclusive"]
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_NAMES = (*QUANTILES, "mean", "max")


@dataclass(frozen=True, slots=True)
class Target:
    """An upper bound of a latency."""

    figure: str
    limit_s: float
    text: str

    @property
    def share(self) -> float | None:
        """The quantile, None for mean and maximum."""
        return QUANTILES.get(self.figure)

    def verdict(self, result: Result) -> Verdict:
        """Say whether the whole interval lies on one side of the limit. Mean and maximum have no interval."""
        if self.figure not in QUANTILES:
            value = self._plain(result)
            return "inconclusive" if value is None else "met" if value < self.limit_s else "missed"
        estimate = result.estimate(QUANTILES[self.figure])
        if estimate is None:
            return "inconclusive"
        if estimate.high is not None and estimate.high < self.limit_s:
            return "met"
        if estimate.low is not None and estimate.low >= self.limit_s:
            return "missed"
        return "inconclusive"

    def seems_met(self, result: Result) -> bool:
        """Say which side is likelier, for a search: by the interval, else the value, else all samples."""
        verdict = self.verdict(result)
        if verdict != "inconclusive":
            return verdict == "met"
        value = result.quantile(QUANTILES[self.figure]) if self.figure in QUANTILES else None
        summary = result.summary
        if value is None and summary is not None:
            value = summary.maximum
        return value is not None and value < self.limit_s

    def _plain(self, result: Result) -> float | None:
        summary = result.summary
        if summary is None:
            return None
        return summary.mean if self.figure == "mean" else summary.maximum


def parse_target(text: str) -> Target:
    """Read `p99<20ms`. Raises BenchmarkError."""
    match = re.fullmatch(r"\s*([a-z]+\d*)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)\s*", text)
    if match is None or match[1] not in _NAMES or float(match[2]) == 0:
        raise BenchmarkError(
            f"--slo {text!r} is no target: write one of {', '.join(_NAMES)} and a time, as in 'p99<20ms'"
        )
    return Target(match[1], float(match[2]) * _SECONDS[match[3]], text.strip())
