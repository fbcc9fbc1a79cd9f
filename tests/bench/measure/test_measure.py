# SPDX-License-Identifier: Apache-2.0
"""Measuring simulated systems on a clock that only they move: every figure is known exactly."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused
from simulated import MS, FakeClock, SimulatedSystem, flag_names, measured

from gpuprof.bench.config import Settings
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.measure.diagnostics import warnings_of
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.measure.timer import CallTimer
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.stats.quantiles import quantile_of


def test_a_spin_of_fixed_length_is_measured_exactly() -> None:
    found, system = measured(lambda call: MS)
    assert set(found.samples_ns.tolist()) == {MS}
    assert found.enqueue_ns is not None
    assert set(found.enqueue_ns.tolist()) == {MS // 4}
    assert found.stopped_by == "precision"
    assert found.enqueue_share == 0.25
    assert flag_names(found) == set()
    assert found.warmup is not None
    assert system.calls == found.warmup.calls + len(found.samples_ns)
    # Latency mode waits after each call.
    assert system.synchronized == system.calls


def test_throughput_mode_waits_once_a_window() -> None:
    found, system = measured(lambda call: MS, mode="throughput", warmup=10)
    assert found.calls_per_sample == 20
    assert set(found.samples_ns.tolist()) == {20 * MS}
    assert found.samples.tolist() == [pytest.approx(0.001)] * len(found.samples_ns)
    assert found.calls == 20 * len(found.samples_ns)
    assert system.synchronized == 10 + len(found.samples_ns)


def test_window_calls_and_iterations_of_throughput() -> None:
    found, _ = measured(lambda call: MS, mode="throughput", window_calls=7, iterations=70, warmup=0)
    assert (len(found.samples_ns), found.calls_per_sample, found.stopped_by) == (10, 7, "iterations")
    few, _ = measured(lambda call: MS, mode="throughput", iterations=90, warmup=1)
    assert (len(few.samples_ns), few.calls_per_sample) == (30, 3)


def test_iterations_are_exact() -> None:
    found, system = measured(lambda call: MS, iterations=123, warmup=17)
    assert (len(found.samples_ns), system.calls, found.stopped_by) == (123, 140, "iterations")
    assert found.warmup is not None
    assert (found.warmup.calls, found.warmup.settled) == (17, None)


def plateau(call: int) -> float:
    return 2 * MS if call < 200 else MS


def decline(call: int) -> float:
    return MS * (1 + math.exp(-call / 50))


@pytest.mark.parametrize("slow_at_first", [plateau, decline])
def test_a_warm_up_of_200_calls_is_found(slow_at_first: Callable[[int], float]) -> None:
    found, _ = measured(slow_at_first)
    assert found.warmup is not None
    assert found.warmup.settled is True
    assert found.warmup.settled_after is not None
    assert 150 <= found.warmup.settled_after <= 500
    # Nothing of the slow calls is left among the samples.
    assert found.samples_ns.max() < 1.01 * MS


def test_a_system_that_is_never_steady_is_reported() -> None:
    found, _ = measured(lambda call: MS * (1 + call / 500), warmup_limit_s=2.0, duration_s=1.0)
    assert found.warmup is not None
    assert found.warmup.settled is False
    assert "never steady" in str(found.warmup)
    assert {"warmup", "drift"} <= flag_names(found)


def test_noise_alone_does_not_prevent_steady_times() -> None:
    generator = np.random.default_rng(40)
    found, _ = measured(lambda call: MS * generator.lognormal(0, 0.05))
    assert found.warmup is not None
    assert found.warmup.settled is True
    assert found.stopped_by == "precision"
    assert flag_names(found) == {"relative_iqr"}


def test_a_long_first_call_is_separate_and_not_part_of_the_warm_up_limit() -> None:
    found, _ = measured(lambda call: 60_000 * MS if call == 0 else MS)
    assert found.warmup is not None
    assert found.warmup.first_call_s == 60.0
    assert found.warmup.settled is True
    assert found.samples_ns.max() == MS


def test_slow_calls_need_fewer() -> None:
    found, system = measured(lambda call: 500 * MS)
    assert found.warmup is not None
    assert found.warmup.settled is True
    assert system.calls < 70
    assert found.stopped_by == "time limit"
    assert found.stop_values["limit_s"] == 10


def test_a_slow_tail_is_kept() -> None:
    found, _ = measured(
        lambda call: 100 * MS if call % 50 == 0 else MS, quantile=0.99, warmup=1, iterations=1_000
    )
    assert found.samples_ns.tolist().count(100 * MS) in (19, 20)
    tail = quantile_of(found.samples, 0.99)
    assert tail is not None
    assert tail.value == pytest.approx(0.1)
    middle = quantile_of(found.samples, 0.5)
    assert middle is not None
    assert middle.value == pytest.approx(0.001)


def test_the_asked_quantile_decides_when_it_is_enough() -> None:
    generator = np.random.default_rng(43)

    def duration(call: int) -> float:
        return MS * generator.lognormal(0, 0.02)

    middle, _ = measured(duration, warmup=0)
    tail, _ = measured(duration, warmup=0, quantile=0.99)
    assert middle.stopped_by == tail.stopped_by == "precision"
    assert len(tail.samples_ns) > len(middle.samples_ns)
    reached = quantile_of(tail.samples, 0.99)
    assert reached is not None
    assert reached.relative_width is not None
    assert reached.relative_width <= 0.01


@pytest.mark.slow
def test_stopping_at_a_narrow_interval_costs_little_confidence() -> None:
    generator = np.random.default_rng(45)
    repeats, covered = 20, 0
    for _ in range(repeats):
        found, _ = measured(lambda call: 5 * MS * generator.lognormal(0, 0.05), warmup=0)
        assert found.stopped_by == "precision"
        interval = quantile_of(found.samples, 0.5)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.005 <= interval.high
    assert covered / repeats >= 0.9


def test_the_time_limit_reports_the_precision_reached() -> None:
    generator = np.random.default_rng(44)
    found, _ = measured(lambda call: MS * generator.lognormal(0, 1.0), duration_s=0.5, warmup=0)
    assert found.stopped_by == "time limit"
    assert (found.stop_values["limit_s"], found.stop_values["quantile"]) == (0.5, 0.5)
    assert found.stop_values["width"] > 0
    both, _ = measured(lambda call: MS, duration_s=0.1, iterations=10_000, warmup=0)
    assert both.stopped_by == "time limit"
    assert both.stop_values == {"limit_s": 0.1, "iterations": 10_000}


def test_cold_flushes_before_each_call_outside_the_timed_part() -> None:
    clock = FakeClock()
    system = SimulatedSystem(clock, lambda call: MS, device_type="cuda")
    flushed = []

    def flush() -> None:
        clock.now_ns += 7 * MS
        flushed.append(system.calls)

    found = measure(system, Settings(caches="cold", iterations=20, warmup=3), clock=clock, flush=flush)
    assert set(found.samples_ns.tolist()) == {MS}
    assert flushed == list(range(23))
    assert found.settings.caches == "cold"
    with refused(BenchmarkError, "cold_device"):
        measure(system, Settings(caches="cold"), clock=clock)


def test_a_call_that_raises_keeps_what_was_measured() -> None:
    def duration(call: int) -> float:
        if call == 450:
            raise ValueError("too\nmuch")
        return MS

    found, _ = measured(duration, warmup=400, iterations=200)
    assert len(found.samples_ns) == 50
    assert found.enqueue_ns is not None
    assert len(found.enqueue_ns) == 50
    assert found.failure is not None
    assert found.failure.code is FailureCode.FAILED
    assert "ValueError: too" in found.failure.message
    assert "test_measure.py:" in found.failure.message
    assert "\n" not in found.failure.message
    assert gc.isenabled()


def test_a_systems_own_errors_are_unchanged() -> None:
    def duration(call: int) -> float:
        raise UnavailableError("batch 64 does not fit: take a smaller one")

    found, _ = measured(duration)
    assert found.failure == Failure(FailureCode.UNAVAILABLE, "batch 64 does not fit: take a smaller one")


def test_a_first_call_that_raises_leaves_no_samples() -> None:
    found, _ = measured(lambda call: 1 / 0)
    assert (len(found.samples_ns), found.stopped_by) == (0, "failure")
    assert warnings_of(found) == ()


def test_an_interrupt_keeps_what_was_measured() -> None:
    def duration(call: int) -> float:
        if call == 30:
            raise KeyboardInterrupt
        return MS

    found, _ = measured(duration, warmup=10, iterations=100)
    assert (len(found.samples_ns), found.stopped_by, found.failure) == (20, "interrupted", None)
    assert found.stop_values == {"samples": 20}


class Outputs:
    """Returns what it is given, call after call; the clock moves by a millisecond each."""

    def __init__(self, *outputs: object) -> None:
        self.clock, self.outputs, self.calls = FakeClock(), outputs, 0

    def __call__(self) -> object:
        self.clock.now_ns += MS
        self.calls += 1
        return self.outputs[min(self.calls, len(self.outputs)) - 1]


def test_nan_is_found_where_outputs_are_checked() -> None:
    bad = {"logits": [np.ones(3), np.array([1.0, math.nan])]}
    for settings, expected in (
        (Settings(check_outputs=True), "NaN in the output logits[1]"),
        (Settings(), None),
    ):
        call = Outputs(bad)
        found = measure(call, settings, clock=call.clock)
        assert (found.failure is None) == (expected is None)
        assert expected is None or expected in str(found.failure)
    later = Outputs(*[np.ones(2)] * 50, np.array([math.inf, 1.0]))
    found = measure(later, Settings(check_outputs=True, warmup=10, iterations=100), clock=later.clock)
    assert found.failure is not None
    assert "infinity" in str(found.failure)
    assert len(found.samples_ns) == 100


def test_the_collector_is_off_inside_and_as_it_was_outside() -> None:
    states = set()
    measure(lambda: states.add(gc.isenabled()), Settings(iterations=10, warmup=1))
    assert (states, gc.isenabled()) == ({False}, True)
    states.clear()
    gc.disable()
    try:
        measure(lambda: states.add(gc.isenabled()), Settings(iterations=10, warmup=1, collect_garbage=True))
        assert (states, gc.isenabled()) == ({True}, False)
    finally:
        gc.enable()


def test_the_timers_own_cost_is_measured_and_not_taken_off() -> None:
    clock = FakeClock()

    def reading() -> int:
        clock.now_ns += 30
        return clock.now_ns

    found = measure(lambda: None, Settings(iterations=10, warmup=1), clock=reading)
    assert found.timer_ns == 30
    assert set(found.samples_ns.tolist()) == {30}
    assert "timer" in {each.code for each in warnings_of(found)}


def test_samples_are_handed_on_as_they_come() -> None:
    seen: list[int] = []
    clock = FakeClock()
    system = SimulatedSystem(clock, lambda call: MS * (call + 1))
    found = measure(
        system,
        Settings(iterations=60, warmup=0),
        clock=clock,
        progress=lambda wall, enqueue, calls: seen.extend(wall),
    )
    assert seen == found.samples_ns.tolist() == [MS * (call + 1) for call in range(60)]


def test_a_timer_keeps_finished_calls() -> None:
    left = [3]

    def call() -> None:
        if not left[0]:
            raise RuntimeError
        left[0] -= 1

    timer = CallTimer(call)
    with pytest.raises(RuntimeError):
        timer.take(10)
    assert len(timer.wall_ns) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"iterations": 1.5},
        {"iterations": True},
        {"warmup": -1},
        {"duration_s": 0},
        {"duration_s": math.inf},
        {"duration_s": math.nan},
        {"quantile": 1},
        {"precision": 0},
        {"mode": "fast"},
        {"caches": "tepid"},
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(wrong: dict[str, Any]) -> None:
    with refused(BenchmarkError, "invalid_option", *wrong) as raised:
        Settings(**wrong)
    assert "\n" not in str(raised.value)


def test_throughput_has_no_cold_caches() -> None:
    with refused(BenchmarkError, "cold_throughput"):
        Settings(caches="cold", mode="throughput")
