# SPDX-License-Identifier: Apache-2.0
"""A target such as `p99<20ms`, compared with a figure and its interval."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.stats.distributions import probability_of_at_least

if TYPE_CHECKING:
    from gpuprof.bench.results.result import Result

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TARGET = re.compile(
    r"\s*(mean|max|p(?!0+(?:\.0+)?[\s<])[0-9]{1,2}(?:\.[0-9]{1,6})?)\s*<=?"
    r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ns|us|ms|s)\s*"
)
_LEVEL = 0.025  # one tail of a 95% interval


@dataclass(frozen=True, slots=True)
class LatencyTarget:
    """An upper bound of a latency."""

    figure: str
    limit_s: float
    text: str

    @property
    def share(self) -> float | None:
        """The quantile, such as 0.999 of p99.9; None for mean and maximum."""
        percent = self.figure.removeprefix("p")
        # 99.9 / 100 is not the nearest number to 0.999.
        return None if percent == self.figure else float(Decimal(percent).scaleb(-2))

    def scaled(self, factor: float) -> LatencyTarget:
        """Return the target with another limit."""
        return dataclasses.replace(self, limit_s=self.limit_s * factor)

    def verdict(self, result: Result) -> TargetVerdict:
        """Return whether the whole interval is on one side of the limit.

        A maximum has no interval: it is what was seen. Where the samples are too few for one, it may still
        be certain that the target is missed.
        """
        if self.figure == "max":
            return self._verdict_of_maximum(result)
        share = self.share
        estimate = result.mean_estimate if share is None else result.estimate(share)
        if estimate is None:
            is_missed = share is not None and self._too_many_beyond(result, share)
            return TargetVerdict.MISSED if is_missed else TargetVerdict.INCONCLUSIVE
        if estimate.high is not None and estimate.high < self.limit_s:
            return TargetVerdict.MET
        if estimate.low is not None and estimate.low >= self.limit_s:
            return TargetVerdict.MISSED
        return TargetVerdict.INCONCLUSIVE

    def _verdict_of_maximum(self, result: Result) -> TargetVerdict:
        summary = result.summary
        if summary is None:
            return TargetVerdict.INCONCLUSIVE
        return TargetVerdict.MET if summary.maximum < self.limit_s else TargetVerdict.MISSED

    def _too_many_beyond(self, result: Result, share: float) -> bool:
        """Whether so many samples beyond the limit are improbable, were the quantile below it."""
        beyond = int((result.samples >= self.limit_s).sum())
        return beyond > 0 and probability_of_at_least(beyond, len(result.samples), 1 - share) <= _LEVEL


def parse_target(text: str) -> LatencyTarget:
    """Read `p99<20ms`, or with any quantile above 0 and below 100, `p99.9<100ms`. Raises BenchmarkError."""
    match = _TARGET.fullmatch(text)
    if match is None or float(match[2]) == 0:
        raise BenchmarkError(
            "invalid_target",
            f"--slo {text!r} is not a target",
            hint="write a quantile, mean or max, and a time, as in 'p99<20ms' or 'p99.9<0.1s'",
        )
    return LatencyTarget(match[1], float(match[2]) * _SECONDS[match[3]], text.strip())
