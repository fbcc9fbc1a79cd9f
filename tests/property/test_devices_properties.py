# SPDX-License-Identifier: Apache-2.0
"""Figures of devices against the formulas of `analyze/devices.py`, written out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import duckdb
import hypothesis
import hypothesis.strategies as some
import pytest
from refusals import refused

from gpuprof.analyze.devices import THROTTLE_REASONS, DeviceUse, device_use
from gpuprof.cli.header import header
from gpuprof.errors import RunError

Reading = tuple[int, float]


class FakeRun:
    """A run that holds only these samples: rows of time, device, metric, value."""

    tables = ("samples", "spans")

    def __init__(self, rows: list[tuple[int, int, str, float]]) -> None:
        self._connection = duckdb.connect(":memory:")
        self.sql = self._connection.sql
        self._connection.execute("CREATE TABLE samples (t_ns BIGINT, device INT, metric TEXT, value DOUBLE)")
        if rows:
            self._connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)


def use_of(described: Any = (), **metrics: list[Reading]) -> DeviceUse:
    rows = [(t_ns, 0, metric, value) for metric, readings in metrics.items() for t_ns, value in readings]
    (use,) = device_use(FakeRun(rows), described)
    return use


def readings(largest: float = 1e3, fewest: int = 2) -> some.SearchStrategy[list[Reading]]:
    values = some.floats(0, largest)
    times = some.lists(some.integers(0, 10**12), min_size=fewest, max_size=20, unique=True).map(sorted)
    return times.flatmap(
        lambda each: some.lists(values, min_size=len(each), max_size=len(each)).map(
            lambda found: list(zip(each, found, strict=True))
        )
    )


def integral(points: list[Reading]) -> float:
    pairs = itertools.pairwise(points)
    return math.fsum((v + w) / 2 * (u - t) / 1e9 for (t, v), (u, w) in pairs)


def window_s(points: list[Reading]) -> float:
    return (points[-1][0] - points[0][0]) / 1e9


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@hypothesis.settings(max_examples=50)
@hypothesis.given(readings(), readings(100), some.randoms())
def test_energy_is_the_integral_of_power(
    power: list[Reading], utilization: list[Reading], random: Any
) -> None:
    shuffled = random.sample(power, len(power))  # the order in the table is not guaranteed
    use = use_of(power_w=shuffled, utilization_percent=utilization)
    assert use.energy_j == near(integral(power))
    assert use.power_mean_w == near(integral(power) / window_s(power))
    assert use.energy_method == "integral of power"
    assert use.utilization_mean_percent == near(integral(utilization) / window_s(utilization))
    assert use.utilization_max_percent == max(value for _, value in utilization)
    times = [t_ns for t_ns, _ in (*power, *utilization)]
    assert use.window_s == near((max(times) - min(times)) / 1e9)


@hypothesis.settings(max_examples=50)
@hypothesis.given(readings(), readings())
def test_energy_is_the_difference_of_the_counter(power: list[Reading], steps: list[Reading]) -> None:
    sums = itertools.accumulate(value for _, value in steps)
    counter = [(t_ns, value) for (t_ns, _), value in zip(steps, sums, strict=True)]
    use = use_of(power_w=power, energy_j=counter)
    assert use.energy_j == near(counter[-1][1] - counter[0][1])
    assert use.power_mean_w == near((counter[-1][1] - counter[0][1]) / window_s(counter))
    assert use.energy_method == "counter"


def test_a_counter_that_steps_back_is_not_believed() -> None:
    use = use_of(power_w=[(0, 10), (2 * 10**9, 20)], energy_j=[(0, 0), (10**9, 5), (2 * 10**9, 4)])
    assert (use.energy_j, use.power_mean_w, use.energy_method) == (30, 15, "integral of power")
    use = use_of(energy_j=[(0, 0), (10**9, 5), (2 * 10**9, 4)])
    assert (use.energy_j, use.power_mean_w, use.energy_method) == (None, None, None)


def test_a_lone_reading_is_its_own_mean_and_no_energy() -> None:
    use = use_of(power_w=[(5, 80)], energy_j=[(5, 0)], utilization_percent=[(5, 30)])
    assert (use.window_s, use.power_mean_w, use.utilization_mean_percent) == (0, 80, 30)
    assert (use.energy_j, use.energy_method) == (None, None)


def test_what_was_not_read_is_unknown() -> None:
    use = use_of(temperature_c=[(1, 40), (2, 41)])
    assert use == DeviceUse(0, None, 1e-9, None, None, None, None, None, None, None, {})
    assert device_use(FakeRun([])) == []
    assert device_use(type("Older", (), {"tables": ["spans"]})()) == []  # a run from before there were any


@hypothesis.settings(max_examples=30)
@hypothesis.given(some.lists(some.integers(0, 0x7FF), min_size=1, max_size=30))
def test_throttling_is_the_fraction_of_readings_with_the_bit(masks: list[int]) -> None:
    use = use_of(throttle_reasons=[(number, mask) for number, mask in enumerate(masks)])
    expected = {name: sum(bool(mask & bit) for mask in masks) for bit, name in THROTTLE_REASONS.items()}
    assert use.throttled == {name: near(count / len(masks)) for name, count in expected.items() if count}


def test_devices_are_kept_apart_and_named() -> None:
    rows = [(t, device, "memory_used_bytes", 10.0 * device + t) for t in range(3) for device in (1, 0)]
    described = [{"index": 1, "name": "B", "memory_bytes": 80}, {"index": 0, "name": 7}, "odd", {"index": []}]
    first, second = device_use(FakeRun(rows), described)
    assert (first.device, first.name, first.memory_peak_bytes, first.memory_bytes) == (0, None, 2, None)
    assert (second.device, second.name, second.memory_peak_bytes, second.memory_bytes) == (1, "B", 12, 80)


def test_a_damaged_table_is_one_line() -> None:
    run = FakeRun([])
    run.sql("DROP TABLE samples")
    with refused(RunError, "damaged"):
        device_use(run)


def test_the_header_has_a_line_for_each_device(tmp_path: Any) -> None:
    known = DeviceUse(0, "Stub 100", 2.0, 45.4, 98, 310.4, 620.8, "counter", 12 * 10**9, 80 * 10**9, {})
    throttled = DeviceUse(
        1, None, 2.0, None, None, 90, 180, "integral of power", 5, None, {"power cap": 0.125}
    )
    lines = header(tmp_path / "r.gpuprof", {}, [known, throttled]).splitlines()[-4:]
    assert lines == [
        "device 0  Stub 100, 45% used on average, 98% at most, 310 W on average, 620.8 J in 2.00 s "
        "(counter),",
        "          at most 12.0 GB of 80.0 GB memory used",
        "device 1  90 W on average, 180.0 J in 2.00 s (integral of power), at most 5 B memory used, "
        "throttled",
        "          by power cap in 12% of readings",
    ]
