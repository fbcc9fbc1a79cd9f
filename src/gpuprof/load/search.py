# SPDX-License-Identifier: Apache-2.0
"""The highest rate that meets a latency target, with an interval over independent runs.

One run at each rate meets a target by luck: in a queue, runs of 1,000 requests from empty find a capacity of
70% to 97% of a server whose true one is 80%. Here each rate gets several runs with seeds of their own, and is
met, missed or inconclusive by the interval of `load/intervals.py`. The capacity is between the highest rate
that is met and the lowest one that is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.load.intervals import FEWEST_RUNS, QueueQuantile, lower_end_of_runs, quantile_of_runs
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.load.stopping import TargetStoppedError
from gpuprof.stats.distributions import scipy_module
from gpuprof.stats.quantiles import samples_needed

if TYPE_CHECKING:
    from gpuprof.bench.results.target import LatencyTarget
    from gpuprof.stats.arrays import Floats

# measure(rate, seed) -> latencies in seconds, in the order of arrival, those of failed requests infinite.
Measure = Callable[[float, int], "Floats"]
RUNS = 8
MOST_RATES = 24
PRECISION = 0.02
# Of each rate: several rates near the limit are judged, and all of them must be right.
CONFIDENCE = 0.99
_GROWTH = 2.0


@dataclass(frozen=True, slots=True)
class RateProbe:
    """The runs at one rate: requests per second, the quantile in seconds, and whether the target is met.

    A rate is inconclusive if its interval has the limit in it, or if its runs are too short for an interval.
    """

    rate: float
    quantile: QueueQuantile
    verdict: TargetVerdict


# Called with each rate once it has a verdict.
AfterRate = Callable[[RateProbe], None]


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The highest rate that meets a target, in requests per second.

    `low` is the highest rate that is met below all that are missed, and `high` the lowest that is missed.
    `value` is where the quantile crosses the limit, from `low` to below `high`: an estimate where no run was
    made at it. It is `low` where the figures between give no crossing. An end is None where no rate shows it,
    and `reasons` are why.
    """

    low: float | None
    value: float | None
    high: float | None
    probes: tuple[RateProbe, ...]
    reasons: tuple[LoadReason, ...] = ()

    @property
    def is_conclusive(self) -> bool:
        """Whether the capacity has both ends, and no rate above the upper one contradicts it."""
        return self.low is not None and self.high is not None and self.is_in_order

    @property
    def is_estimate(self) -> bool:
        """Whether `value` is not a rate that is shown to be met."""
        return self.value is not None and self.value != self.low

    @property
    def is_in_order(self) -> bool:
        """Whether all rates from the lowest missed one on are missed."""
        return not _above_missed(self.probes)


@dataclass(slots=True)
class _Search:
    measure: Measure
    share: float
    limit_s: float
    runs: int
    seed: int
    most_rates: int
    after_rate: AfterRate | None = None
    lowest: float = 0.0
    probes: dict[float, RateProbe] = field(default_factory=dict)
    is_at_lowest: bool = False  # whether no rate was met, and a lower one has too few requests

    @property
    def is_over(self) -> bool:
        return len(self.probes) >= self.most_rates

    @property
    def met(self) -> float | None:
        """The highest rate that is met below all that are missed."""
        missed = self.missed
        rates = [each.rate for each in self.probes.values() if each.verdict is TargetVerdict.MET]
        return max((each for each in rates if missed is None or each < missed), default=None)

    @property
    def missed(self) -> float | None:
        rates = [each.rate for each in self.probes.values() if each.verdict is TargetVerdict.MISSED]
        return min(rates, default=None)

    def probe(self, rate: float) -> TargetVerdict:
        if rate not in self.probes:
            first = self.seed + self.runs * len(self.probes)
            runs = [self.measure(rate, first + number) for number in range(self.runs)]
            found = quantile_of_runs(runs, self.share, CONFIDENCE)
            self.probes[rate] = RateProbe(rate, found, _verdict(found, runs, self.share, self.limit_s))
            if self.after_rate is not None:
                self.after_rate(self.probes[rate])
        return self.probes[rate].verdict


def _verdict(found: QueueQuantile, runs: list[Floats], share: float, limit_s: float) -> TargetVerdict:
    if found.high is not None and found.high < limit_s:
        return TargetVerdict.MET
    low = lower_end_of_runs(runs, share, CONFIDENCE)
    return TargetVerdict.MISSED if low is not None and low >= limit_s else TargetVerdict.INCONCLUSIVE


def find_max_rate(
    measure: Measure,
    target: LatencyTarget,
    start: float,
    *,
    runs: int = RUNS,
    precision: float = PRECISION,
    highest: float = math.inf,
    lowest: float = 0.0,
    most_rates: int = MOST_RATES,
    seed: int = 0,
    ended_by: list[BaseException] | None = None,
    after_rate: AfterRate | None = None,
) -> MaxRate:
    """Search the highest rate at which a quantile is below its limit.

    `measure(rate, seed)` makes one independent run and returns its latencies in seconds from the plan.
    `start` is the first rate; it is doubled or halved until one rate is met and one missed. It is not halved
    to below `lowest`, where no run can meet the target (`lowest_rate`). Then the gaps on
    both sides of the inconclusive rates are halved until they are narrower than `precision` of the rate.
    Latency is taken to rise with the rate. With a list for `ended_by`, Ctrl-C and TargetStoppedError end the
    search with the rates that were measured, and are added to the list; Ctrl-C needs one such rate.
    `after_rate` is called with each rate once it has a verdict. Raises BenchmarkError for a target without a
    quantile.
    """
    share = target.share
    if share is None:
        raise BenchmarkError(
            "target_without_quantile",
            f"the target {target.text!r} has no quantile",
            hint="write 'p99<20ms'",
        )
    _check(start, runs, precision)
    search = _Search(measure, share, target.limit_s, runs, seed, most_rates, after_rate, lowest)
    try:
        _bracket(search, start, highest)
        if search.met is not None and search.missed is not None:
            _narrow(search, precision)
    except (KeyboardInterrupt, TargetStoppedError) as end:
        if ended_by is None or not (search.probes or isinstance(end, TargetStoppedError)):
            raise
        ended_by.append(end)
    return _result(search)


def lowest_rate(target: LatencyTarget, duration_s: float) -> float:
    """Return the rate below which runs of `duration_s` have too few requests to show that a target is met."""
    return 0.0 if target.share is None else samples_needed(target.share, CONFIDENCE) / duration_s


def _check(start: float, runs: int, precision: float) -> None:
    if not 0 < start < math.inf:
        raise BenchmarkError(
            "invalid_rate", f"{start} is not a rate", hint="give requests per second above 0"
        )
    if runs < FEWEST_RUNS:
        raise BenchmarkError(
            "too_few_runs", f"{runs} runs give no interval", hint=f"make at least {FEWEST_RUNS} runs a rate"
        )
    if not 0 < precision < 1:
        raise BenchmarkError(
            "invalid_precision", f"{precision} is not a precision", hint="give a fraction such as 0.02"
        )


def _bracket(search: _Search, start: float, highest: float) -> None:
    """Double the rate until one is missed, and halve it until one is met."""
    rate = min(start, highest)
    search.probe(rate)
    while search.missed is None and rate < highest and not search.is_over:
        rate = min(rate * _GROWTH, highest)
        search.probe(rate)
    rate = start
    while search.met is None and not search.is_over:
        rate /= _GROWTH
        if rate < search.lowest:
            search.is_at_lowest = True
            break
        if (
            search.probe(rate) is TargetVerdict.INCONCLUSIVE
            and not search.probes[rate].quantile.is_sufficient
        ):
            # A lower rate has fewer requests in the same time: it shows still less.
            break


def _narrow(search: _Search, precision: float) -> None:
    """Halve the gap above the highest rate that is met, and the one below the lowest that is missed."""
    while not search.is_over:
        low, high = search.met, search.missed
        if low is None or high is None:
            return
        between = sorted(rate for rate in search.probes if low < rate < high)
        gaps = [(low, between[0]), (between[-1], high)] if between else [(low, high)]
        widest = max(gaps, key=lambda gap: gap[1] - gap[0])
        if widest[1] - widest[0] <= precision * widest[1]:
            return
        search.probe((widest[0] + widest[1]) / 2)


def _at_rate(probe: RateProbe, found: LoadReason) -> LoadReason:
    """Return why a quantile has no interval; runs at another rate have other numbers of requests."""
    if found.code != "short_runs":
        return found
    return reason("short_runs_at_rate", **found.values, rate=probe.rate)


def _result(search: _Search) -> MaxRate:
    probes = tuple(sorted(search.probes.values(), key=lambda each: each.rate))
    low, high = search.met, search.missed
    reasons = [_at_rate(each, found) for each in probes if (found := each.quantile.insufficiency)][:1]
    if low is None and probes:
        reasons.append(reason("never_met", rate=probes[0].rate))
    if search.is_at_lowest:
        least = samples_needed(search.share, CONFIDENCE)
        reasons.append(
            reason("lower_rates_short", rate=search.lowest, percent=100 * search.share, least=least)
        )
    if high is None and probes:
        reasons.append(reason("never_missed", rate=probes[-1].rate))
    if low is not None and high is not None and search.is_over:
        reasons.append(reason("rates_left", rates=len(probes), low=low, high=high))
    disordered = _above_missed(probes)
    if disordered and high is not None:
        first = disordered[0]
        reasons.append(reason("not_in_order", missed=high, rate=first.rate, verdict=str(first.verdict)))
    value = _value(probes, low, high, search.limit_s) if low is not None and high is not None else None
    return MaxRate(low, value, high, probes, tuple(reasons))


def _above_missed(probes: tuple[RateProbe, ...]) -> list[RateProbe]:
    """Return the rates above the lowest missed one that are not missed; `probes` are sorted by rate."""
    verdicts = [each.verdict for each in probes]
    first = verdicts.index(TargetVerdict.MISSED) if TargetVerdict.MISSED in verdicts else len(probes)
    return [each for each in probes[first:] if each.verdict is not TargetVerdict.MISSED]


def _value(probes: tuple[RateProbe, ...], low: float, high: float, limit_s: float) -> float:
    """Return the crossing by the rates from `low` to `high`; others are no evidence."""
    found = _crossing(tuple(each for each in probes if low <= each.rate <= high), limit_s)
    return found if found is not None and low < found < high else low


def _crossing(probes: tuple[RateProbe, ...], limit_s: float) -> float | None:
    """Return the rate at which the quantile crosses the limit, by the logarithms of adjacent rates.

    A quantile that falls with the rate is noise: the values are those of isotonic regression.
    """
    known = [
        (each.rate, math.log(each.quantile.value))
        for each in probes
        if each.quantile.value is not None and 0 < each.quantile.value < math.inf
    ]
    if not known:
        return None
    rates, logs = zip(*known, strict=True)
    rising = scipy_module("optimize").isotonic_regression(logs).x.tolist()
    limit = math.log(limit_s)
    above = next((at for at, value in enumerate(rising) if value >= limit), None)
    if not above:  # none, or the first one
        return None
    (rate, next_rate), (value, next_value) = rates[above - 1 : above + 1], rising[above - 1 : above + 1]
    return float(rate + (next_rate - rate) * (limit - value) / (next_value - value))
