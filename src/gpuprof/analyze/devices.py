# SPDX-License-Identifier: Apache-2.0
"""What the devices did during a run, from the table `samples`.

All figures are of the time from a device's first reading to its last, which is a little shorter than the
run. With readings v_1 .. v_n of a metric at t_1 .. t_n:

- integral: the sum over i of (v_i + v_(i+1)) / 2 * (t_(i+1) - t_i), the trapezoid rule;
- mean: integral / (t_n - t_1), so readings that are not evenly spaced do not weigh more; v_1 where n = 1;
- energy: v_n - v_1 of `energy_j`, the driver's counter, where there are two readings of it and it never
  steps back; else the integral of `power_w`, where there are two readings of that; else unknown;
- mean power: energy / (t_n - t_1) of the metric that the energy was taken from; a lone reading of power is
  its own mean;
- peak memory: the largest reading of `memory_used_bytes`, of all processes on the device; a peak between two
  readings is not seen;
- a reason to throttle: the fraction of the readings of `throttle_reasons` in which its bit is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gpuprof.errors import RunError
from gpuprof.run.database import reason_of

if TYPE_CHECKING:
    import duckdb

# NVML's bits, `nvmlClocksEventReasons...`, that mean lower clocks than the work could use. Those
# for idling (1), clocks that a user set (2) and a display's needs (256) are none of these.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}

_METRICS_QUERY = """
    WITH steps AS (
        SELECT device, metric, t_ns, value,
               t_ns - lag(t_ns) OVER readings AS step_ns,
               lag(value) OVER readings AS former
        FROM samples WINDOW readings AS (PARTITION BY device, metric ORDER BY t_ns)
    )
    SELECT device, metric, count(*), min(t_ns), max(t_ns), max(value),
           arg_min(value, t_ns), arg_max(value, t_ns),
           sum((value + former) / 2 * (step_ns / 1e9)), coalesce(min(value - former), 0)
    FROM steps GROUP BY device, metric ORDER BY device, metric
"""
_REASONS_QUERY = """
    SELECT device, value::BIGINT, count(*) FROM samples
    WHERE metric = 'throttle_reasons' AND value BETWEEN 0 AND 9e15 GROUP BY ALL
"""


class Tables(Protocol):
    """What is asked here: a run, or its folder."""

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        ...

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Ask them."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device during a run. What was not read, or does not follow from the readings, is None."""

    device: int
    name: str | None
    window_s: float
    utilization_mean_percent: float | None
    utilization_max_percent: float | None
    power_mean_w: float | None
    energy_j: float | None
    energy_method: Literal["counter", "integral of power"] | None
    memory_peak_bytes: int | None
    memory_bytes: int | None
    throttled: dict[
        str, float
    ]  # reason: fraction of the readings; empty where none was seen, or none was read


@dataclass(frozen=True, slots=True)
class _Metric:
    readings: int
    start_ns: int
    end_ns: int
    largest: float
    first: float
    last: float
    integral: float | None  # value times seconds
    smallest_step: float

    @property
    def window_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def mean(self) -> float:
        if self.integral is None or self.window_s == 0:
            return self.first
        return self.integral / self.window_s


def device_use(
    run: Tables, described: Iterable[Mapping[str, Any]] = (), *, path: Path | None = None
) -> list[DeviceUse]:
    """Sum up each device that was read; `described` is `devices` of the meta data, `path` the run's.

    Empty for a run without readings. Raises RunError where the table is damaged.
    """
    if "samples" not in run.tables:
        return []
    import duckdb

    try:
        metrics = run.sql(_METRICS_QUERY).fetchall()
        reasons = run.sql(_REASONS_QUERY).fetchall()
    except duckdb.Error as error:
        table = "the table samples" if path is None else f"the table samples of {path}"
        raise RunError(
            "damaged", f"{table} is damaged ({reason_of(error)})", hint="restore it from a copy"
        ) from None
    by_device: dict[int, dict[str, _Metric]] = {}
    for device, metric, *figures in metrics:
        by_device.setdefault(device, {})[metric] = _Metric(*figures)
    facts = {str(each.get("index")): each for each in described if isinstance(each, Mapping)}
    return [
        _sum_up(device, facts.get(str(device), {}), metrics, _throttled(device, reasons))
        for device, metrics in by_device.items()
    ]


def _sum_up(
    device: int, facts: Mapping[str, Any], metrics: Mapping[str, _Metric], throttled: dict[str, float]
) -> DeviceUse:
    utilization, memory = metrics.get("utilization_percent"), metrics.get("memory_used_bytes")
    energy_j, power_w, method = _energy(metrics.get("energy_j"), metrics.get("power_w"))
    name, memory_bytes = facts.get("name"), facts.get("memory_bytes")
    start_ns = min(metric.start_ns for metric in metrics.values())
    end_ns = max(metric.end_ns for metric in metrics.values())
    return DeviceUse(
        device=device,
        name=name if isinstance(name, str) else None,
        window_s=(end_ns - start_ns) / 1e9,
        utilization_mean_percent=None if utilization is None else utilization.mean,
        utilization_max_percent=None if utilization is None else utilization.largest,
        power_mean_w=power_w,
        energy_j=energy_j,
        energy_method=method,
        memory_peak_bytes=None if memory is None else int(memory.largest),
        memory_bytes=memory_bytes if isinstance(memory_bytes, int) else None,
        throttled=throttled,
    )


def _energy(
    counter: _Metric | None, power: _Metric | None
) -> tuple[float | None, float | None, Literal["counter", "integral of power"] | None]:
    """Return energy, mean power, and what they were taken from."""
    if counter is not None and counter.window_s > 0 and counter.smallest_step >= 0:
        energy_j = counter.last - counter.first
        return energy_j, energy_j / counter.window_s, "counter"
    if power is None:
        return None, None, None
    if power.window_s > 0:
        return power.integral, power.mean, "integral of power"
    return None, power.mean, None


def _throttled(device: int, reasons: Iterable[tuple[int, int, int]]) -> dict[str, float]:
    of_device = [(mask, count) for each, mask, count in reasons if each == device]
    total = sum(count for _, count in of_device)
    counts = {
        name: sum(count for mask, count in of_device if mask & bit) for bit, name in THROTTLE_REASONS.items()
    }
    return {name: count / total for name, count in counts.items() if count}
