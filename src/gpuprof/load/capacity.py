# SPDX-License-Identifier: Apache-2.0
"""How many machines a load needs, by simulation from measured service times.

Formulas of queues are off by up to 1.9 times in the mean and 1.7 times in the p99, since they know the mean
and the variation of the service times alone. So the farm is simulated: service times are drawn from the
measured ones, requests arrive as a Poisson process or as in a recorded trace, and a router sends them to
machines. The interval is over the process runs of the measurement, by a bootstrap. The formulas
(`load/queue_formulas.py`) are a check next to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gpuprof import _native
from gpuprof.errors import BenchmarkError
from gpuprof.load.capacity_plan import CapacityPlan, Load, MachineCount, MachineModel, Router, ServiceRun
from gpuprof.load.queue_formulas import formula_machines
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.bench.results.target import LatencyTarget
    from gpuprof.stats.arrays import Floats

RESAMPLES = 200
REQUESTS = 40_000  # of the simulation of one resample
_LONGER = 10  # of that of the plan itself
FEWEST_RUNS = 3
MOST_MACHINES = 100_000
_WARMUP = 0.1  # of the requests, while the queues fill


def plan_farm(
    runs: Sequence[ServiceRun],
    load: Load,
    target: LatencyTarget,
    model: MachineModel | None = None,
    *,
    price_per_hour: float | None = None,
    resamples: int = RESAMPLES,
    requests: int = REQUESTS,
    seed: int = 0,
) -> CapacityPlan:
    """Return how many machines meet a target, with an interval over the process runs that were measured.

    Raises BenchmarkError for a load or a target that cannot be planned, and where no number of machines
    meets the target.
    """
    model = model or MachineModel()
    share = _check(runs, load, target, model, price_per_hour)
    # Near saturation a queue takes long to fill: only many requests show where it ends.
    farm = _Farm(model, share, target.limit_s, _LONGER * requests)
    pool = _pool(runs)
    _check_service(pool, share, target)
    # At least as many are busy; and infinite for a rate beyond numbers.
    if not _utilization(pool, model, load.planned_rate) <= MOST_MACHINES:
        raise _unbounded()
    value = farm.machines_needed(pool, load, load.planned_rate, seed)
    short = _Farm(model, share, target.limit_s, requests)
    low, high, reasons = _interval(short, runs, load, value, resamples, seed)
    rates = [load.rate * load.growth * load.peak * each for each in load.seasons]
    return CapacityPlan(
        load=load,
        target=target,
        model=model,
        machines=MachineCount(low and min(low, value), value, high and max(high, value)),
        latency_s=farm.latency_s(pool, load, load.planned_rate, value, seed),
        utilization=_utilization(pool, model, load.planned_rate / value),
        formula=_formula(pool, model, load, farm),
        price_per_hour=price_per_hour,
        by_season=tuple(farm.machines_needed(pool, load, each, seed) for each in rates),
        reasons=reasons,
    )


def _check(
    runs: Sequence[ServiceRun],
    load: Load,
    target: LatencyTarget,
    model: MachineModel,
    price_per_hour: float | None,
) -> float:
    """Return the quantile of the target. Raises BenchmarkError."""
    share = target.share
    if share is None:
        raise BenchmarkError(
            "target_without_quantile", f"the target {target.text!r} has no quantile", hint="write 'p99<20ms'"
        )
    positive = {"rate": load.rate, "growth": load.growth, "peak": load.peak}
    positive |= {} if price_per_hour is None else {"price": price_per_hour}
    positive |= {f"season {number}": each for number, each in enumerate(load.seasons, 1)}
    for name, given in positive.items():
        if not 0 < given < math.inf:
            raise BenchmarkError(
                "invalid_load", f"{name} is {given}, not a positive number", hint="give a number above 0"
            )
    if load.gaps_s is not None and not (len(load.gaps_s) > 1 and load.gaps_s.min() >= 0 < load.gaps_s.sum()):
        raise BenchmarkError(
            "invalid_trace", "the arrival trace has no gaps between requests", hint="record a longer trace"
        )
    if not runs or not all(run.times_s and all(map(len, run.times_s.values())) for run in runs):
        raise BenchmarkError(
            "no_service_times", "there are no measured service times", hint="measure with gpuprof bench"
        )
    most = min(max(run.times_s) for run in runs)
    if model.most_in_service > most:
        raise BenchmarkError(
            "not_measured",
            f"no measurement has {counted(model.most_in_service, 'request')} at a time (at most {most})",
            hint=f"measure them: {_ways_to_measure(model)}; or plan with at most {most}",
        )
    return share


def _ways_to_measure(model: MachineModel) -> str:
    """Return the options of both commands that measure as many requests at a time as a machine serves."""
    most = model.most_in_service
    of_load = (
        f"--max-batch {most}" if model.largest_batch > 1 else f"--scenario closed-loop --concurrency {most}"
    )
    return f"gpuprof bench --batch-sizes 1,{most}, or gpuprof load {of_load}"


def _check_service(pool: Pool, share: float, target: LatencyTarget) -> None:
    service_s = float(np.quantile(pool[min(pool)], share))
    if service_s >= target.limit_s:
        raise BenchmarkError(
            "service_above_limit",
            f"{target.figure} of the service time alone, {service_s * 1e3:.4g} ms, is above the limit of "
            f"{target.limit_s * 1e3:.4g} ms",
            hint="use a faster model, or a larger limit",
        )


Pool = Mapping[int, "Floats"]


def _pool(runs: Sequence[ServiceRun]) -> Pool:
    """Return the service times of several process runs together, by the number in service."""
    levels = set.intersection(*(set(run.times_s) for run in runs))
    return {level: np.concatenate([run.times_s[level] for run in runs]) for level in sorted(levels)}


@dataclass(frozen=True, slots=True)
class _Farm:
    model: MachineModel
    share: float
    limit_s: float
    requests: int

    def latency_s(self, pool: Pool, load: Load, rate: float, machines: int, seed: int) -> float:
        """Return the quantile of the latency, after the queues have filled."""
        times = self._simulated(pool, _arrivals(load, rate, self.requests, seed), machines, seed)
        return float(np.quantile(times[int(_WARMUP * len(times)) :], self.share, method="higher"))

    def machines_needed(self, pool: Pool, load: Load, rate: float, seed: int, near: int = 0) -> int:
        """Return the fewest machines that meet the target, searched from `near` on."""
        arrivals = _arrivals(load, rate, self.requests, seed)

        def is_met(machines: int) -> bool:
            return machines > 0 and self._is_met(pool, arrivals, machines, seed)

        low, high = _bracket(is_met, near or max(1, math.floor(_utilization(pool, self.model, rate))))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_met(middle) else (middle, high)
        return high

    def _is_met(self, pool: Pool, arrivals: Floats, machines: int, seed: int) -> bool:
        times = self._simulated(pool, arrivals, machines, seed)[int(_WARMUP * len(arrivals)) :]
        return float((times >= self.limit_s).mean()) < 1 - self.share

    def _simulated(self, pool: Pool, arrivals: Floats, machines: int, seed: int) -> Floats:
        return _native.simulate_farm(
            arrivals,
            np.array(list(pool), dtype=np.int64),
            np.cumsum([0, *(len(each) for each in pool.values())], dtype=np.int64),
            np.concatenate(list(pool.values())),
            machines=machines,
            slots=self.model.replicas,
            largest_batch=self.model.largest_batch,
            least_loaded=self.model.router is Router.LEAST_LOADED,
            seed=seed,
        )


def _bracket(is_met: Callable[[int], bool], start: int) -> tuple[int, int]:
    """Return a number of machines that misses the target and a larger one that meets it."""
    step = 1
    if is_met(start):
        while is_met(start - step):
            start, step = start - step, 2 * step
        return max(start - step, 0), start
    while not is_met(start + step):
        start, step = start + step, 2 * step
        if start > MOST_MACHINES:
            raise _unbounded()
    return start, start + step


def _unbounded() -> BenchmarkError:
    return BenchmarkError(
        "unbounded",
        f"up to {MOST_MACHINES:,} machines miss the target",
        hint="use a lower rate, or a larger limit",
    )


def _arrivals(load: Load, rate: float, requests: int, seed: int) -> Floats:
    """Return the times of arrival: a Poisson process, or the trace, repeated, at another rate."""
    if load.gaps_s is None:
        gaps = np.random.default_rng(seed).exponential(1 / rate, requests)
    else:
        repeats = -(-requests // len(load.gaps_s))
        gaps = np.tile(load.gaps_s, repeats) / (load.gaps_s.mean() * rate)
    return np.cumsum(gaps)


def _usual_times(pool: Pool, model: MachineModel) -> Floats:
    """Return the service times with all replicas at work."""
    level = min((each for each in pool if each >= model.most_in_service), default=max(pool))
    return pool[level]


def _formula(pool: Pool, model: MachineModel, load: Load, farm: _Farm) -> int | None:
    """Return the machines by the formulas; None where they do not apply: batches, and recorded arrivals."""
    if model.largest_batch > 1 or load.gaps_s is not None:
        return None
    return formula_machines(
        _usual_times(pool, model),
        load.planned_rate,
        farm.share,
        farm.limit_s,
        replicas=model.replicas,
        is_shared=model.router is Router.LEAST_LOADED,
    )


def _utilization(pool: Pool, model: MachineModel, rate: float) -> float:
    """Return how many machines' worth of time a rate takes, in batches as large as they can be."""
    return rate * float(_usual_times(pool, model).mean()) / model.most_in_service


def _interval(
    farm: _Farm, runs: Sequence[ServiceRun], load: Load, value: int, resamples: int, seed: int
) -> tuple[int | None, int | None, tuple[LoadReason, ...]]:
    """Return the ends of the bootstrap interval over process runs.

    Percentiles of few runs give too narrow an interval; the levels are those of Student's distribution
    (Hesterberg, American Statistician 69, 2015, expanded percentile interval). Each resample has arrivals of
    its own, so the interval contains the error of the simulation.
    """
    count = len(runs)
    if count < FEWEST_RUNS:
        return None, None, (reason("too_few_runs", runs=count, least=FEWEST_RUNS),)
    generator = np.random.default_rng(seed)
    found = []
    for number in range(1, resamples + 1):
        chosen = [runs[place] for place in generator.integers(0, count, count)]
        found.append(farm.machines_needed(_pool(chosen), load, load.planned_rate, seed + number, value))
    t = float(student_quantile(1 - CONFIDENCE, count - 1)) * math.sqrt(count / (count - 1))
    tail = NormalDist().cdf(-t)
    low, high = np.quantile(found, [tail, 1 - tail], method="nearest")
    return int(low), int(high), ()
