# SPDX-License-Identifier: Apache-2.0
"""A report of the capacity that a growing load needs, from the load now and measured service times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprof.errors import BenchmarkError
from gpuprof.load.capacity_plan import CapacityPlan, plan_text
from gpuprof.load.planning import plan_measured
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.text.units import counted

CPU_LIMIT_PERCENT = 80.0
MEMORY_LIMIT_MB = 8_000.0
_UNITS = {"cpu_usage": "%", "memory_usage": " MB", "request_rate": "/s", "latency": " ms"}
_TITLES = {
    "cpu_usage": "CPU usage", "memory_usage": "Memory usage", "request_rate": "Request rate",
    "latency": "Latency",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The load now and after growth, and what it needs; `str()` is Markdown.

    The keys are cpu_usage (percent), memory_usage (MB), request_rate (per second) and latency (ms). Latency
    is not projected: it does not grow in proportion. `plan` is the plan of measured service times, None
    without them.
    """

    current_load: Mapping[str, float]
    projected_growth: float
    projected: Mapping[str, float]
    instances: int
    reasons: tuple[LoadReason, ...]
    plan: CapacityPlan | None = None

    def __str__(self) -> str:
        now = [f"- {_TITLES[name]}: {_text(name, value)}" for name, value in self.current_load.items()]
        then = [f"- {_TITLES[name]}: {_text(name, value)}" for name, value in self.projected.items()]
        latency = "- Latency: unknown without measured service times"
        if self.plan is not None:
            p = self.plan
            machines = counted(int(p.machines.value), "machine")
            latency = f"- Latency: {p.target.figure} {p.latency_s * 1e3:.4g} ms at {machines}"
        lines = ["# Capacity Planning Report", "", "## Current System Load", "", *now]
        lines += ["", f"## Projected Requirements (growth {self.projected_growth:g})", "", *then, latency]
        lines += ["", "## Scaling Recommendations", ""]
        lines += [f"- {each}" for each in self.reasons if each.code != "memory_above"] or ["- none"]
        lines += ["", "## Infrastructure Recommendations", ""]
        lines += [f"- {each}" for each in self.reasons if each.code == "memory_above"] or ["- none"]
        if self.plan is not None:
            lines += ["", "```", plan_text(self.plan), "```"]
        return "\n".join(lines) + "\n"


def generate_capacity_planning_report(
    current_load: Mapping[str, float],
    projected_growth: float = 1.5,
    *,
    measured: Any = None,
    slo: str | None = None,
    price_per_hour: float | None = None,
) -> CapacityReport:
    """Return what a load needs after growth.

    `current_load` has cpu_usage (percent), memory_usage (MB), request_rate (per second) and latency (ms), or
    some of them. CPU usage is projected in proportion; above 80% instances are added until each is below it.
    Memory above 8,000 MB needs a larger machine. With service times that were `measured` (a result, as of
    `gpuprof.plan_capacity`) and a latency target `slo`, the number of machines is that of the simulation.
    Raises BenchmarkError for what cannot be planned.
    """
    load = _checked(current_load, projected_growth)
    projected = {name: value * projected_growth for name, value in load.items() if name != "latency"}
    plan = None
    if measured is not None or slo is not None:
        plan = _plan(load, projected_growth, measured, slo, price_per_hour)
    instances, reasons = 1, []
    cpu, memory = projected.get("cpu_usage"), projected.get("memory_usage")
    if plan is not None:
        instances = int(plan.machines.value)
        reasons.append(reason("machines_planned", machines=instances, target=plan.target.text))
    elif cpu is not None and cpu > CPU_LIMIT_PERCENT:
        instances = math.ceil(cpu / CPU_LIMIT_PERCENT - 1e-9)
        reasons.append(reason("cpu_above", percent=cpu, limit=CPU_LIMIT_PERCENT, instances=instances))
    if memory is not None and memory > MEMORY_LIMIT_MB:
        reasons.append(reason("memory_above", megabytes=memory, limit=MEMORY_LIMIT_MB))
    return CapacityReport(load, projected_growth, projected, instances, tuple(reasons), plan)


def _checked(current_load: Mapping[str, float], growth: float) -> dict[str, float]:
    unknown = [name for name in current_load if name not in _UNITS]
    if unknown or not current_load:
        raise BenchmarkError(
            "invalid_load",
            f"current_load has {unknown[0]!r}" if unknown else "current_load is empty",
            hint=f"use {', '.join(_UNITS)}",
        )
    numbers = {**current_load, "projected_growth": growth}
    for name, value in numbers.items():
        least = value > 0 if name == "projected_growth" else value >= 0
        if not least or not math.isfinite(value):
            raise BenchmarkError(
                "invalid_load", f"{name} {value} is not a positive number", hint=f"give a {name} above 0"
            )
    return {name: float(current_load[name]) for name in _UNITS if name in current_load}


def _plan(
    load: Mapping[str, float], growth: float, measured: Any, slo: str | None, price_per_hour: float | None
) -> CapacityPlan:
    if measured is None or slo is None or not load.get("request_rate"):
        raise BenchmarkError(
            "invalid_load",
            "a plan needs measured service times, a latency target and a request rate",
            hint="give measured, slo='p99<100ms' and current_load['request_rate']",
        )
    return plan_measured(
        measured, load["request_rate"], slo, growth=growth, peak=1.0, seasons=(), arrivals_s=None,
        router="least-loaded", replicas=1, largest_batch=1, price_per_hour=price_per_hour, model=None, seed=0,
    )  # fmt: skip


def _text(name: str, value: float) -> str:
    return f"{value:,.4g}{_UNITS[name]}"
