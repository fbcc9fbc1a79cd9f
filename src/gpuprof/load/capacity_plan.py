# SPDX-License-Identifier: Apache-2.0
"""A capacity plan: the load, the machines, what they cost, and their text and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuprof.bench.facts import TextEnum
from gpuprof.load.reasons import LoadReason
from gpuprof.text.table import wrapped
from gpuprof.text.units import counted, format_duration, significant

if TYPE_CHECKING:
    from gpuprof.bench.results.target import LatencyTarget
    from gpuprof.stats.arrays import Floats

_SECONDS_PER_HOUR = 3_600
_LABEL_WIDTH = 14


class Router(TextEnum):
    """Which machine gets a request: any, or the one with the fewest requests."""

    RANDOM = "random"
    LEAST_LOADED = "least-loaded"


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """Service times in seconds of one process run, by the number of requests in service at a time.

    That is the batch size, or how many requests ran next to each other on one device.
    """

    times_s: Mapping[int, Floats]


@dataclass(frozen=True, slots=True)
class MachineModel:
    """What one machine does: `replicas` serve next to each other, each up to `largest_batch` requests."""

    replicas: int = 1
    largest_batch: int = 1
    router: Router = Router.LEAST_LOADED

    @property
    def most_in_service(self) -> int:
        """The most requests that a machine serves at a time."""
        return self.replicas * self.largest_batch


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second now, and how they will grow.

    `peak` is the busiest time over the mean. `gaps_s` are recorded gaps between arrivals, which are scaled to
    the rate; None is a Poisson process. `seasons` are the rates of parts of a day over the mean.
    """

    rate: float
    growth: float = 1.0
    peak: float = 1.0
    gaps_s: Floats | None = None
    seasons: tuple[float, ...] = ()

    @property
    def planned_rate(self) -> float:
        """The rate to plan for: with growth, at the peak and in the busiest season."""
        return self.rate * self.growth * self.peak * max(self.seasons, default=1.0)


@dataclass(frozen=True, slots=True)
class MachineCount:
    """A number with the ends of its interval over process runs; None where there is none."""

    low: float | None
    value: float
    high: float | None


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The machines that a load needs, what they cost, and how busy they are.

    `latency_s` is the quantile of the target with `machines.value`, and `utilization` how busy these are.
    Prices are in the unit of the price of a machine and hour; None without a price.
    `by_season` is the machines of each season. `formula` is the number that the formulas give.
    """

    load: Load
    target: LatencyTarget
    model: MachineModel
    machines: MachineCount
    latency_s: float
    utilization: float
    formula: int | None
    price_per_hour: float | None
    by_season: tuple[int, ...] = ()
    reasons: tuple[LoadReason, ...] = field(default=())

    def __str__(self) -> str:
        return plan_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the latency is in seconds."""
        return plan_dict(self)

    @property
    def cost_per_hour(self) -> float | None:
        """The cost of all machines in an hour."""
        return None if self.price_per_hour is None else self.price_per_hour * self.machines.value

    @property
    def cost_per_million(self) -> float | None:
        """The cost of a million requests at the rate with growth, not at saturation."""
        hourly = self.cost_per_hour
        requests = self.load.rate * self.load.growth * _SECONDS_PER_HOUR
        return None if hourly is None else hourly / requests * 1e6

    @property
    def scaled_cost_per_day(self) -> float | None:
        """The cost of a day if machines follow the seasons; None without seasons or a price."""
        if self.price_per_hour is None or not self.by_season:
            return None
        return 24 * self.price_per_hour * sum(self.by_season) / len(self.by_season)


def plan_text(plan: CapacityPlan) -> str:
    """Return a plan as lines for people."""
    lines = [f"{name:<{_LABEL_WIDTH}}{value}" for name, value in _rows(plan)]
    reasons = [wrapped(f"warning: {each}") for each in plan.reasons]
    return "\n".join([f"{plan.target.text} at {load_text(plan.load)}", *lines, *reasons])


def load_text(load: Load) -> str:
    """Return a load as its rate with what it was multiplied with."""
    factors = [f"{load.rate:,.6g}/s"]
    factors += [f"growth {load.growth:g}"] if load.growth != 1 else []
    factors += [f"peak {load.peak:g}"] if load.peak != 1 else []
    factors += [f"season {max(load.seasons):g}"] if load.seasons else []
    planned = f"{load.planned_rate:,.6g}/s"
    return planned if len(factors) == 1 else f"{planned} ({' x '.join(factors)})"


def machines_text(machines: MachineCount) -> str:
    """Return a number of machines with its interval, as `5 (95% CI 5-6)`."""
    if machines.low is None or machines.high is None:
        return f"{machines.value} (no interval)"
    return f"{machines.value} (95% CI {machines.low}-{machines.high})"


def _rows(plan: CapacityPlan) -> Iterator[tuple[str, str]]:
    machines = counted(int(plan.machines.value), "machine")
    yield "machines", machines_text(plan.machines)
    yield plan.target.figure, f"{format_duration(plan.latency_s * 1e9)} at {machines}"
    yield "utilization", f"{plan.utilization:.1%}, without a reserve for a machine that fails"
    yield "router", str(plan.model.router)
    if plan.model.replicas > 1 or plan.model.largest_batch > 1:
        replicas = counted(plan.model.replicas, "replica")
        yield "machine", f"{replicas}, batches of up to {plan.model.largest_batch}"
    if plan.formula is not None:
        yield "formulas", f"{counted(plan.formula, 'machine')} (Allen-Cunneen, Erlang C)"
    if plan.by_season:
        yield "by season", ", ".join(map(str, plan.by_season))
    if plan.cost_per_hour is not None and plan.cost_per_million is not None:
        yield (
            "cost",
            f"{plan.cost_per_hour:,.2f} an hour, {significant(plan.cost_per_million)} a million requests",
        )
    if plan.scaled_cost_per_day is not None and plan.cost_per_hour is not None:
        yield (
            "cost a day",
            f"{plan.scaled_cost_per_day:,.2f} by season, {24 * plan.cost_per_hour:,.2f} without",
        )


def plan_dict(plan: CapacityPlan) -> dict[str, Any]:
    """Return a plan as plain data for JSON; the latency is in seconds."""
    machines = plan.machines
    return {
        "target": plan.target.text,
        "rate_per_s": plan.load.rate,
        "growth": plan.load.growth,
        "peak": plan.load.peak,
        "seasons": list(plan.load.seasons),
        "planned_rate_per_s": plan.load.planned_rate,
        "arrivals": "poisson" if plan.load.gaps_s is None else "trace",
        "router": str(plan.model.router),
        "replicas": plan.model.replicas,
        "largest_batch": plan.model.largest_batch,
        "machines": machines.value,
        "machines_low": machines.low,
        "machines_high": machines.high,
        "latency_s": plan.latency_s,
        "utilization": plan.utilization,
        "machines_by_formula": plan.formula,
        "machines_by_season": list(plan.by_season),
        "price_per_hour": plan.price_per_hour,
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_million_requests": plan.cost_per_million,
        "cost_per_day_by_season": plan.scaled_cost_per_day,
        "reasons": [each.to_dict() for each in plan.reasons],
    }
