# SPDX-License-Identifier: Apache-2.0
"""Alerts over snapshots that are made here: planted faults raise theirs, quiet programs none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from live_snapshots import device, machine, process, snapshot

from gpuprof.live.alerts.conditions import condition_of
from gpuprof.live.alerts.engine import AlertEngine, AlertState, alerts_of
from gpuprof.live.alerts.figures import AlertSubject, SubjectKind, values_of
from gpuprof.live.alerts.rules import (
    BUILT_IN_RULES,
    AlertFigure,
    LeakRule,
    RegressionRule,
    SlowStepRule,
    StallRule,
    ThresholdRule,
    ThrottlingRule,
)
from gpuprof.live.snapshot import MissingReason, Snapshot, Unavailable

STEP_NS = 100_000_000
PROCESS = AlertSubject(SubjectKind.PROCESS, 7)
HOT = ThresholdRule(name="busy", figure=AlertFigure.MACHINE_CPU, above=0.9, for_s=3)


def of_cpu(*shares: float | Unavailable) -> list[Snapshot]:
    return [snapshot(at_s=at, machine=machine(cpu_share=each)) for at, each in enumerate(shares)]


def states(rule, snapshots) -> list[tuple[int, AlertState]]:
    """Return in which snapshots an alert fired or cleared."""
    engine = AlertEngine([rule])
    return [(at, alert.state) for at, each in enumerate(snapshots) for alert in engine.update(each)]


def test_an_alert_fires_once_until_it_clears_and_then_again() -> None:
    shares = [0.5, 0.95, 0.95, 0.95, 0.95, 0.95, 0.5, 0.5, 0.5, 0.5, 0.95, 0.95, 0.95, 0.95]
    firing, cleared = AlertState.FIRING, AlertState.CLEARED
    assert states(HOT, of_cpu(*shares)) == [(4, firing), (9, cleared), (13, firing)]


def test_a_condition_that_is_interrupted_starts_again() -> None:
    assert states(HOT, of_cpu(0.95, 0.95, 0.5, 0.95, 0.95, 0.5)) == []


def test_an_unavailable_figure_neither_fires_nor_clears() -> None:
    gap = Unavailable(MissingReason.NO_PROCFS)
    rule = replace(HOT, for_s=0)
    assert states(rule, of_cpu(gap, 0.95, gap, gap, 0.5)) == [
        (1, AlertState.FIRING),
        (4, AlertState.CLEARED),
    ]


def test_time_is_that_of_the_intervals_not_of_the_clock() -> None:
    snapshots = of_cpu(*[0.95] * 6)
    set_back = [replace(each, unix_ns=10**18 - at * 10**12) for at, each in enumerate(snapshots)]
    assert states(HOT, set_back) == states(HOT, snapshots) == [(3, AlertState.FIRING)]


def test_the_alerts_of_a_process_that_ended_clear() -> None:
    rule = ThresholdRule(name="big", figure=AlertFigure.PROCESS_RSS, above=1e9)
    ended = process(is_alive=False, rss_bytes=Unavailable(MissingReason.PROCESS_ENDED))
    engine = AlertEngine([rule])
    (fired,) = engine.update(snapshot())
    assert (fired.subject, fired.values["value"], fired.values["limit"]) == (PROCESS, 2e9, 1e9)
    assert engine.active == (fired,)
    (cleared,) = engine.update(snapshot(at_s=1, processes=(ended,)))
    assert (cleared.state, cleared.end_unix_ns) == (AlertState.CLEARED, 1_000_001 * 10**9)
    assert engine.active == ()


def test_one_look_needs_no_duration() -> None:
    assert AlertEngine([HOT], is_one_look=True).update(of_cpu(0.95)[0])
    assert not AlertEngine([HOT]).update(of_cpu(0.95)[0])


def test_a_limit_below_which_a_figure_must_not_fall() -> None:
    rule = ThresholdRule(name="idle", figure=AlertFigure.PROCESS_CPU, below=0.5)
    idle = snapshot(processes=(process(cpu_cores=0.1),))
    assert [each.code for each in alerts_of([rule], [snapshot(), idle])] == ["below"]


@pytest.mark.texts
@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (0.95, 0.9, "is 95.0%, above 90.0%"),
        (0.5, 0.0001, "is 50.00%, above 0.01%"),
        (0.9004, 0.9, "is 90.04%, above 90.00%"),
        (0.00001234, 1.2e-9, "is 0.001234%, above 1.2e-07%"),
    ],
)
def test_a_limit_of_a_fraction_has_the_digits_by_which_it_is_recognized(
    value: float, limit: float, text: str
) -> None:
    rule = ThresholdRule(name="busy", figure=AlertFigure.MACHINE_CPU, above=limit)
    (alert,) = AlertEngine([rule]).update(snapshot(machine=machine(cpu_share=value)))
    assert str(alert).endswith(text)


def test_every_figure_has_a_value_of_its_subject() -> None:
    whole = snapshot([1, 2, 6], devices=(device(),))
    found = {each: values_of(whole, each) for each in AlertFigure}
    for figure, values in found.items():
        kind = figure.value.partition(".")[0]
        assert all(key.kind.value == ("process" if kind == "step" else kind) for key in values)
        assert list(values.values()) != [None]
    assert found[AlertFigure.STEP_LONGEST] == {PROCESS: 6e-9}
    assert found[AlertFigure.STEP_MEDIAN] == {PROCESS: 2e-9}
    assert found[AlertFigure.MACHINE_MEMORY_SHARE] == {AlertSubject(SubjectKind.MACHINE): 0.25}


# ---- steps


def training(seed: int, *, steps: int = 1_000, noise: float = 0.05) -> np.ndarray:
    """Return the durations of steps whose noise is correlated and has a heavy tail."""
    generator = np.random.default_rng(seed)
    shocks = generator.standard_t(5, steps) * noise
    for index in range(1, steps):
        shocks[index] += 0.5 * shocks[index - 1]
    return (STEP_NS * np.exp(shocks)).astype(int)


def in_snapshots(durations: np.ndarray, each: int = 10) -> Iterator[Snapshot]:
    for at, begin in enumerate(range(0, len(durations), each)):
        yield snapshot(durations[begin : begin + each].tolist(), at_s=at)


@pytest.mark.parametrize("seed", range(20))
def test_a_quiet_program_raises_no_alert(seed: int) -> None:
    assert list(alerts_of(BUILT_IN_RULES, in_snapshots(training(seed)))) == []


def test_a_planted_slow_step_is_found_with_its_number() -> None:
    durations = training(0)
    durations[437] *= 8
    rule = SlowStepRule(name="slow", clear_s=20)
    fired, cleared = alerts_of([rule], in_snapshots(durations))
    assert (fired.subject, fired.values["step"], fired.values["slow"]) == (PROCESS, 437, 1)
    assert fired.values["duration_ns"] == durations[437]
    assert fired.values["median_ns"] == median(durations[:437].tolist())
    assert fired.begin_unix_ns == (1_000_000 + 43) * 10**9
    assert cleared.end_unix_ns == (1_000_000 + 64) * 10**9


def test_the_median_of_slow_steps_is_that_of_the_last_ones() -> None:
    # After the level has risen, its steps are no longer slow.
    rule = SlowStepRule(name="slow", steps=30, fewest=5, factor=2, clear_s=0)
    durations = np.array([100] * 50 + [300] * 100)
    found = list(alerts_of([rule], in_snapshots(durations, 1)))
    assert [(each.state, each.begin_unix_ns // 10**9 - 1_000_000) for each in found] == [
        (AlertState.FIRING, 50),
        (AlertState.CLEARED, 50),
    ]
    assert found[1].end_unix_ns == (1_000_000 + 65) * 10**9  # half of the last 30


def test_a_planted_regression_is_found_with_an_interval_that_has_the_truth() -> None:
    durations = training(1, steps=1_500).astype(float)
    durations[700:] *= 1.5
    rule = RegressionRule(name="slower", for_s=0)
    (fired,) = alerts_of([rule], in_snapshots(durations.astype(int)))
    assert fired.begin_unix_ns // 10**9 - 1_000_000 in range(70, 95)
    condition = condition_of(rule)
    *_, last = (condition.update(each, 0.0) for each in in_snapshots(durations.astype(int)))
    values = last[PROCESS].values
    assert values["low"] < 1.5 < values["high"]


def test_a_slower_program_within_the_margin_is_no_regression() -> None:
    durations = training(2, steps=1_500).astype(float)
    durations[700:] *= 1.1
    assert list(alerts_of([RegressionRule(name="slower")], in_snapshots(durations.astype(int)))) == []


def test_a_program_without_steps_for_long_is_stalled_until_the_next_one() -> None:
    rule = StallRule(name="stalled", for_s=5)
    snapshots = [snapshot([] if 3 < at < 12 else [STEP_NS], at_s=at) for at in range(15)]
    assert states(rule, snapshots) == [(9, AlertState.FIRING), (12, AlertState.CLEARED)]
    never = [snapshot(at_s=at) for at in range(20)]
    assert states(rule, never) == []


# ---- memory

WINDOW = LeakRule(name="leak", window_s=600, for_s=60)
MB = 1e6


def memory(kind: str, seed: int, seconds: int = 1_800) -> np.ndarray:
    """Return the resident memory of a program, each second."""
    generator = np.random.default_rng(seed)
    at = np.arange(seconds)
    noise = generator.normal(0, 5 * MB, seconds)
    series = {
        "constant": np.full(seconds, 2e9),
        "noise": 2e9 + noise,
        "random walk": 2e9 + np.cumsum(generator.normal(0, 2 * MB, seconds)),
        "saw tooth": 2e9 + (at % 90) * 5 * MB + noise,
        "warm-up that flattens": 2e9 + 1e9 * (1 - np.exp(-at / 150)) + noise,
        "steps of a cache": 2e9 + 200 * MB * (at // 700) + noise,
        "leak": 2e9 + 2 * MB * at + noise,
        "leak in jumps": 2e9 + 60 * MB * (at // 30) + noise,
    }
    return series[kind]


def leaks(kind: str, seed: int) -> int:
    snapshots = (
        snapshot(at_s=at, processes=(process(rss_bytes=int(each)),))
        for at, each in enumerate(memory(kind, seed))
    )
    return sum(alert.state is AlertState.FIRING for alert in alerts_of([WINDOW], snapshots))


@pytest.mark.parametrize("kind", ["leak", "leak in jumps"])
def test_a_planted_leak_raises_one_alert(kind: str) -> None:
    assert [leaks(kind, seed) for seed in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    "kind", ["constant", "noise", "saw tooth", "warm-up that flattens", "steps of a cache"]
)
def test_memory_that_does_not_leak_raises_none(kind: str) -> None:
    assert [leaks(kind, seed) for seed in range(3)] == [0, 0, 0]


def test_memory_that_walks_at_random_seldom_looks_like_a_leak() -> None:
    assert sum(leaks("random walk", seed) for seed in range(20)) <= 1


# ---- devices


def with_device(at: int, reasons: tuple[str, ...] | Unavailable) -> Snapshot:
    return snapshot(at_s=at, devices=(device(throttle_reasons=reasons),))


def test_a_device_that_lowers_its_clocks_for_heat_raises_an_alert_and_a_busy_one_none() -> None:
    rule = ThrottlingRule(name="throttled", for_s=2)
    heat = ("power cap", "software thermal slowdown")
    (fired,) = alerts_of([rule], [with_device(at, heat) for at in range(4)])
    assert fired.subject == AlertSubject(SubjectKind.DEVICE, 0)
    assert fired.values == {"reasons": ["software thermal slowdown"]}
    assert list(alerts_of([rule], [with_device(at, heat[:1]) for at in range(9)])) == []
    unknown = Unavailable(MissingReason.NO_READING)
    assert list(alerts_of([rule], [with_device(at, unknown) for at in range(9)])) == []
    assert list(alerts_of([rule], [snapshot(at_s=at) for at in range(9)])) == []


def test_a_process_id_that_is_used_again_has_no_history() -> None:
    rule = SlowStepRule(name="slow", fewest=20)
    fast = in_snapshots(np.full(100, 1_000_000), 10)
    gone = replace(next(in_snapshots(np.full(1, 1_000_000), 1)), processes=(), steps=())
    slow = in_snapshots(np.full(100, 50_000_000), 10)
    assert list(alerts_of([rule], [*fast, gone, *slow])) == []


def test_a_worse_slow_step_while_the_alert_fires_is_reported_again() -> None:
    durations = np.array([100] * 300) * 1_000_000
    durations[[100, 110, 120, 130]] = np.array([400, 450, 1_200, 500]) * 1_000_000
    rule = SlowStepRule(name="slow", clear_s=5)
    first, worse, cleared = alerts_of([rule], in_snapshots(durations))
    assert [each.values["step"] for each in (first, worse, cleared)] == [100, 120, 120]
    assert (first.state, worse.state) == (AlertState.FIRING, AlertState.FIRING)
    assert cleared.state is AlertState.CLEARED
    # It is the same alert: it began with the first step.
    assert worse.begin_unix_ns == first.begin_unix_ns == cleared.begin_unix_ns
    assert worse.worse_unix_ns == first.begin_unix_ns + 2 * 10**9
    assert first.to_dict()["worse_unix_ns"] is None


def test_a_figure_that_rises_while_its_alert_fires_is_reported_once() -> None:
    assert states(replace(HOT, for_s=0), of_cpu(0.91, 0.95, 0.99)) == [(0, AlertState.FIRING)]


def test_the_manual_has_the_times_of_the_built_in_rules() -> None:
    page = Path(__file__).parents[2] / "docs" / "commands" / "alert.md"
    table = page.read_text().partition("## Rules in a file")[0]
    times = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, _, *found = line.strip("| ").split(" | ")
            times |= dict.fromkeys(names.replace("`", "").split(", "), found)
    for rule in BUILT_IN_RULES:
        seconds = (rule.for_s, rule.quiet_s)
        expected = [f"{each / 60:.0f} min" if each > 60 else f"{each:.0f} s" for each in seconds]
        assert times[rule.name] == expected
