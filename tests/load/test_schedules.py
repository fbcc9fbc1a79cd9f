# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load.result import LoadSettings
from gpuprof.load.run import checked
from gpuprof.load.schedules import (
    AllAtOnce,
    ArrivalSchedule,
    BurstSchedule,
    DiurnalSchedule,
    RampSchedule,
    RateSchedule,
    TraceSchedule,
    parse_mix,
    parse_pattern,
    parse_time,
)

stats = pytest.importorskip("scipy.stats")
SECOND_NS = 1_000_000_000


def plan(schedule: ArrivalSchedule, seed: int = 5) -> np.ndarray:
    return schedule.arrivals_ns(np.random.default_rng(seed))


@pytest.mark.parametrize(("shape", "gaps"), [(1.0, stats.expon()), (0.5, stats.gamma(0.5, scale=2))])
def test_gaps_have_the_distribution_of_their_shape(shape: float, gaps: object) -> None:
    arrivals = plan(RateSchedule(1000, 20, shape))
    assert len(arrivals) == 20_000
    found = np.diff(arrivals) / 1e6  # the mean gap is 1 ms
    assert stats.kstest(found, gaps.cdf).statistic < 1.63 / math.sqrt(len(found))  # the 1% point


def test_a_poisson_plan_has_the_rate_that_was_asked_for() -> None:
    # 983 of 1,000 would be a rate of its own.
    assert [len(plan(RateSchedule(100, 10), seed)) for seed in range(5)] == [1000] * 5


def test_counts_of_a_poisson_plan_are_independent_between_windows() -> None:
    counts = np.histogram(plan(RateSchedule(1000, 100)), 1000, (0, 100 * SECOND_NS))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.1


def test_constant_gaps_are_even() -> None:
    assert plan(RateSchedule(4, 2, shape=None)).tolist() == [each * SECOND_NS // 4 for each in range(8)]


def test_bursts_have_their_factor_and_nothing_else_changes() -> None:
    arrivals = plan(BurstSchedule(100, 95, factor=5, length_s=2, every_s=30)) / 1e9
    # 4 bursts of 2 s at 500/s, and 87 s at 100/s
    assert len(arrivals) == 4 * 2 * 500 + 87 * 100
    in_burst = arrivals % 30 < 2
    assert in_burst.sum() == pytest.approx(4000, abs=4 * math.sqrt(4000))


def test_a_burst_that_the_end_cuts_is_counted_as_far_as_it_goes() -> None:
    assert len(plan(BurstSchedule(10, 31, factor=3, length_s=2, every_s=30))) == 2 * 30 + 28 * 10 + 1 * 30


def test_a_ramp_follows_the_integral_of_its_rate() -> None:
    arrivals = plan(RampSchedule(10, 60, last_rate=500)) / 1e9
    assert len(arrivals) == 60 * (10 + 500) / 2
    for at_s in (10, 30, 50):
        expected = 10 * at_s + (490 / 60) * at_s**2 / 2
        assert (arrivals < at_s).sum() == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_a_day_has_its_peak_at_noon() -> None:
    arrivals = plan(DiurnalSchedule(100, 200, day_s=100)) / 1e9
    assert len(arrivals) == 20_000
    hours = np.histogram(arrivals % 100, 10, (0, 100))[0]
    middle = (np.arange(10) + 0.5) / 10
    width = np.sin(np.pi / 10) / (np.pi / 10)  # of the mean of a cosine over a tenth of its period
    expected = 2000 * (1 - 0.5 * width * np.cos(2 * np.pi * middle))
    assert np.abs(hours - expected).max() < 4 * math.sqrt(expected.max())


def test_a_seed_decides_the_plan() -> None:
    for schedule in (RateSchedule(100, 5), RampSchedule(10, 5, last_rate=90)):
        assert plan(schedule, 1).tolist() == plan(schedule, 1).tolist()
        assert plan(schedule, 1).tolist() != plan(schedule, 2).tolist()


@given(
    rate=st.floats(0.5, 500),
    duration_s=st.floats(2.5, 20),
    shape=st.sampled_from([None, 0.2, 1.0, 5.0]),
    seed=st.integers(0, 2**32),
)
def test_plans_are_in_order_and_within_the_duration(
    rate: float, duration_s: float, shape: float | None, seed: int
) -> None:
    for schedule in (
        RateSchedule(rate, duration_s, shape),
        BurstSchedule(rate, duration_s, shape, factor=3, length_s=1, every_s=2),
        RampSchedule(rate, duration_s, shape, last_rate=2 * rate),
        DiurnalSchedule(rate, duration_s, shape, day_s=1),
    ):
        arrivals = plan(schedule, seed)
        assert (np.diff(arrivals) >= 0).all()
        assert arrivals[0] >= 0
        assert arrivals[-1] <= duration_s * 1e9 + 1


def test_all_at_once() -> None:
    assert plan(AllAtOnce(3)).tolist() == [0, 0, 0]


def test_a_trace_begins_with_its_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 12.5, "x": 1}\n\n{"timestamp": 11.5}\n13\n')
    assert plan(TraceSchedule(path)).tolist() == [0, SECOND_NS, SECOND_NS * 3 // 2]
    assert plan(TraceSchedule(path, speed=2)).tolist() == [0, SECOND_NS // 2, SECOND_NS * 3 // 4]


@pytest.mark.parametrize(
    "line",
    ['{"x": 1}', "soon", "NaN", '{"time": "x"}', "[1]", '{"time": 1e999}', "null", "true", '{"ts": false}'],
)
def test_a_line_without_a_time_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace"
    path.write_text(f"1.5\n{line}\n")
    with refused(BenchmarkError, "invalid_trace", "trace:2"):
        plan(TraceSchedule(path))


def test_a_trace_without_arrivals_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with refused(BenchmarkError, "empty_plan", "empty"):
        plan(TraceSchedule(tmp_path / "empty"))
    with refused(BenchmarkError, "cannot_read"):
        plan(TraceSchedule(tmp_path / "missing"))


@pytest.mark.parametrize("value", [0, -5, math.nan, math.inf])
def test_rates_and_durations_that_plan_nothing_are_refused(value: float) -> None:
    for make in (
        lambda: RateSchedule(value, 1),
        lambda: RateSchedule(1, value),
        lambda: RateSchedule(1, 1, value),
        lambda: RampSchedule(1, 1, last_rate=value),
        lambda: BurstSchedule(1, 1, factor=value),
        lambda: DiurnalSchedule(1, 1, day_s=value),
    ):
        with refused(BenchmarkError, "invalid_schedule"):
            make()


def test_a_plan_without_arrivals_or_with_too_many_is_refused() -> None:
    with refused(BenchmarkError, "empty_plan"):
        plan(RateSchedule(0.1, 1))
    for rate, duration_s in ((1e9, 1.0), (1e308, 10.0), (1e-20, 1e20)):
        with refused(BenchmarkError, "invalid_schedule"):
            plan(RateSchedule(rate, duration_s))
    with refused(BenchmarkError, "invalid_schedule"):
        plan(BurstSchedule(0.001, 1e9, length_s=0.001, every_s=0.002))


def test_a_trace_in_another_unit_than_seconds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("1764060953000000000\n1764060963000000000\n")
    with refused(BenchmarkError, "invalid_trace"):
        plan(TraceSchedule(tmp_path / "trace"))


def test_patterns_are_read() -> None:
    read = {
        text: parse_pattern(text, rate=20, duration_s=60)
        for text in (
            "constant", "poisson", "gamma:0.5", "burst:5x,2s,every=30s", "ramp:10-500", "diurnal:24h@1h",
        )
    }  # fmt: skip
    assert list(read.values()) == [
        RateSchedule(20, 60, None),
        RateSchedule(20, 60),
        RateSchedule(20, 60, 0.5),
        BurstSchedule(20, 60, factor=5, length_s=2, every_s=30),
        RampSchedule(10, 60, last_rate=500),
        DiurnalSchedule(20, 60, day_s=3600),
    ]


def test_a_path_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("1\n")
    assert parse_pattern(str(tmp_path / "t.jsonl"), rate=None, duration_s=None) == TraceSchedule(
        tmp_path / "t.jsonl"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sawtooth", "unknown_pattern"),
        ("burst:x", "unknown_pattern"),
        ("ramp:10", "unknown_pattern"),
        ("ramp:0-5", "invalid_schedule"),
        ("burst:5x,2s,every=1s", "invalid_schedule"),
        ("gamma:0", "invalid_schedule"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(text: str, code: str) -> None:
    with refused(BenchmarkError, code):
        parse_pattern(text, rate=20, duration_s=60)


def test_a_pattern_needs_its_rate_and_duration() -> None:
    for rate, duration_s in ((None, 60), (20, None)):
        with refused(BenchmarkError, "invalid_schedule"):
            parse_pattern("poisson", rate=rate, duration_s=duration_s)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("10m", 600), ("2", 2), ("1.5h", 5400)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1y", "nan", "inf"])
def test_times_that_mean_nothing_are_refused(text: str) -> None:
    with refused(BenchmarkError, "invalid_time"):
        parse_time(text)


def test_a_mix_draws_by_its_weights() -> None:
    mix = parse_mix("batch=1:80,8:20")
    drawn = mix.draw(10_000, np.random.default_rng(3))
    assert mix.name == "batch"
    assert set(drawn.tolist()) == {1, 8}
    assert (drawn == 8).mean() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    "text", ["", "batch", "batch=1", "batch=0:1", "batch=1:0", "batch=1:2,1:3", "batch=1:-1"]
)
def test_mixes_that_mean_nothing_are_refused(text: str) -> None:
    with refused(BenchmarkError, "invalid_mix"):
        parse_mix(text)


@pytest.mark.parametrize(
    "settings",
    [
        LoadSettings("f", "trace", "trace.jsonl", rate=5.0),
        LoadSettings("f", "trace", "trace.jsonl", duration_s=5.0),
        LoadSettings("f", "ramp", "ramp:10-20", rate=5.0),
    ],
)
def test_what_a_trace_or_a_ramp_would_ignore_is_refused(settings: LoadSettings) -> None:
    with refused(BenchmarkError, "invalid_load"):
        checked(settings)
