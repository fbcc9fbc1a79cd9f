# SPDX-License-Identifier: Apache-2.0
"""A traffic split: verdicts and advice for simulated arms of known ratios, refusals, real process runs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench.compare.plan import Variant, parse_split
from gpuprof.bench.compare.traffic import (
    CONTROL,
    TrafficSettings,
    copied,
    measure_traffic,
    request_order,
)
from gpuprof.bench.compare.traffic_result import ArmRequests, FailureCounts, TrafficResult, TrafficRun
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.serialization import decode, encode, to_plain
from gpuprof.bench.workers import schedule
from gpuprof.bench.workers.events import Found, State
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"
NAMES = ("original", "quantized")


def requests_of(times_ms: np.ndarray, failed: int = 0, compared: int | None = None) -> ArmRequests:
    wall_ns = np.rint(times_ms * 1e6).astype(np.int64).tolist()
    return ArmRequests(wall_ns, compared, failed, "ValueError: no" if failed else None)


def simulated(
    generator: np.random.Generator,
    ratio: float = 1.0,
    *,
    split: tuple[float, float] = (0.9, 0.1),
    runs: int = 10,
    requests: int = 1_000,
    tail: float = 0.02,
    between: float = 0.003,
    failing: tuple[float, float] = (0.0, 0.0),
    **settings: Any,
) -> TrafficResult:
    """Launches that vary by 5% in common and by `between` in their ratio; requests with a skewed tail.

    What the larger variant gets beyond its control finds warmer caches, and takes a tenth less.
    """
    made = []
    for number in range(1, runs + 1):
        common = 10 * generator.lognormal(0, 0.05)
        own = ratio * generator.lognormal(0, between)
        arms = []
        for share, factor, rate in zip(split, (1.0, own), failing, strict=True):
            count = round(share * requests)
            failed = int(generator.binomial(count, rate))
            times = common * factor * generator.lognormal(0, tail, count - failed)
            # The control's requests; the others of the larger variant find warmer caches.
            compared = min(round(min(split) * requests), len(times))
            times[: len(times) - compared] *= 0.9
            arms.append(requests_of(times, failed, compared))
        made.append(TrafficRun(number, (arms[0], arms[1])))
    return TrafficResult(NAMES, TrafficSettings(split, **settings), tuple(made))


def verdict(traffic: TrafficResult, figure: str = "p50") -> str:
    return next(str(each.verdict) for each in traffic.figures if each.figure == figure)


# --- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "expected"), [(1.05, "slower"), (0.95, "faster")])
def test_a_known_ratio_is_detected(ratio: float, expected: str) -> None:
    generator = np.random.default_rng(70)
    found = [simulated(generator, ratio) for _ in range(20)]
    assert [verdict(each) for each in found].count(expected) >= 19
    ratios = [each.figures[0].ratio for each in found]
    values = [each.value for each in ratios if each is not None]
    assert np.median(values) == pytest.approx(ratio, rel=0.005)


def test_equal_arms_are_hardly_ever_called_different() -> None:
    generator = np.random.default_rng(71)
    found = [simulated(generator) for _ in range(100)]
    different = [each for each in found if {"slower", "faster"} & {f.verdict for f in each.figures}]
    assert len(different) <= 5
    assert sum(verdict(each) == "same" for each in found) >= 80


def test_without_a_margin_equal_arms_differ_in_one_of_twenty() -> None:
    """Skewed tails, 95 to 5: neither warmer caches nor more samples of the larger arm count for it."""
    generator = np.random.default_rng(72)
    for name in ("p50", "p95"):
        different = 0
        for _ in range(100):
            logs = [
                each.log_ratio({"p50": 0.5, "p95": 0.95}[name])
                for each in simulated(generator, split=(0.95, 0.05), requests=1_400, tail=0.5).runs
            ]
            values = np.array([each for each in logs if each is not None])
            assert len(values) == 10
            t = values.mean() / (values.std(ddof=1) / math.sqrt(10))
            different += abs(t) > 2.262
        # 5 of 100 are expected; more than 11 have a probability below 1 in 100.
        assert different <= 11


def test_quantiles_of_few_requests_have_too_few_samples() -> None:
    traffic = simulated(np.random.default_rng(73), requests=300)
    told = {each["figure"]: each for each in traffic.to_dict()["figures"]}
    assert told["p50"]["ratio"] is not None
    assert (told["p95"]["ratio"], told["p95"]["verdict"]) == (None, "insufficient")
    assert told["p99"]["launches"] == 0
    (too_few,) = [each for each in traffic.notes if each.code == "too_few_requests"]
    assert too_few.values["needed"] == {"p95": 59, "p99": 299}
    whole = simulated(np.random.default_rng(73), requests=3_000)
    assert all(each.ratio is not None for each in whole.figures)


# --- failures ------------------------------------------------------------------------------------


def test_the_interval_of_a_difference_of_failures() -> None:
    found = FailureCounts((0, 900), (0, 100)).difference
    assert dataclasses.astuple(found) == pytest.approx((-0.0040904, 0.0, 0.0362167), abs=1e-6)
    worse = FailureCounts((1, 9_000), (30, 1_000)).difference
    assert worse is not None
    assert 0.015 < worse.low < worse.value < worse.high < 0.05
    assert FailureCounts((0, 0), (0, 5)).difference is None


def test_the_interval_of_a_difference_covers_it() -> None:
    generator = np.random.default_rng(74)
    covered = 0
    for _ in range(100):
        a, b = int(generator.binomial(900, 0.02)), int(generator.binomial(100, 0.05))
        found = FailureCounts((a, 900), (b, 100)).difference
        assert found is not None
        covered += found.low <= 0.03 <= found.high
    assert covered >= 92


# --- advice --------------------------------------------------------------------------------------


def advised(ratio: float = 1.0, **how: Any) -> tuple[str, dict[str, Mapping[str, Any]], int | None]:
    """Return the action, the values of the advice and its reasons by their codes, and more process runs."""
    found = simulated(np.random.default_rng(75), ratio, **how).advice
    return (
        found.action,
        {each.code: each.values for each in (found.text, *found.because)},
        found.more_launches,
    )


def test_a_slower_variant_is_rolled_back() -> None:
    action, facts, more = advised(1.2)
    assert (action, more) == ("roll back", None)
    assert facts["roll_back"] == {"first": "original"}
    slower = facts["traffic_slower"]
    assert slower["variant"] == "quantized"
    assert slower["ratio"]["value"] == pytest.approx(1.2, abs=0.01)


def test_a_variant_that_fails_more_often_is_rolled_back_however_fast() -> None:
    action, facts, _ = advised(0.5, failing=(0.001, 0.08))
    assert action == "roll back"
    assert facts["fails_more_often"]["second"] == "quantized"


@pytest.mark.parametrize("ratio", [1.0, 0.7])
def test_a_variant_that_is_no_slower_gets_all(ratio: float) -> None:
    action, facts, more = advised(ratio, requests=2_000)
    assert (action, more) == ("roll out", None)
    assert facts.keys() == {"roll_out", "traffic_same"}


def test_an_inconclusive_test_has_the_number_of_further_process_runs() -> None:
    action, facts, more = advised(1.0, runs=4, between=0.01, split=(0.5, 0.5))
    assert action == "keep"
    assert more is not None
    # By hand: ((1.96 + 0.84) * 0.01 / ln(1.01))^2 + 1 = 9, of which 4 are made; the deviation is an estimate.
    assert 1 <= more <= 30
    assert facts["keep_split"]["more_runs"] == more
    assert facts["traffic_inconclusive"]["margin"] == pytest.approx(0.01)


def test_too_few_requests_leave_failures_open() -> None:
    action, facts, more = advised(0.9, requests=300)
    assert action == "keep"
    assert facts["may_fail_more_often"]["margin"] == pytest.approx(0.01)
    # 368 requests without a failure rule out 1%; there were 30 a process run, 10 times.
    assert more == 3


def test_one_process_run_is_no_ground_for_anything() -> None:
    action, facts, more = advised(1.0, runs=1)
    assert (action, more) == ("keep", 3)
    assert "needs_medians" in facts
    hopeless = advised(1.0, between=0.6, tail_margin=0.5)
    assert "keep_split_inconclusive" in hopeless[1]
    assert hopeless[2] is None


def test_advice_follows_as_often_as_the_intervals_promise() -> None:
    generator = np.random.default_rng(76)
    slow = [simulated(generator, 1.01, requests=600, split=(0.5, 0.5)).advice.action for _ in range(40)]
    # At the margin itself: a slower variant gets all traffic in 2.5 of 100 cases.
    assert slow.count("roll out") <= 4


# --- text and JSON -------------------------------------------------------------------------------


def test_the_text_fits_and_the_json_is_plain() -> None:
    traffic = simulated(np.random.default_rng(77), 1.2, failing=(0.01, 0.02))
    long = dataclasses.replace(traffic, names=("original " * 12, "quantized " * 12))
    for each in (traffic, long):
        text = str(each)
        assert max(map(len, text.splitlines())) <= 100
        assert "traffic 90 to 10 between" in text
        assert "advice: " in text
    told = json.loads(json.dumps(traffic.to_dict(), allow_nan=False))
    assert [each["variant"] for each in told["arms"]] == list(NAMES)
    assert sum(each["requests"] for each in told["arms"]) == 10_000
    assert told["arms"][1]["failed_share"]["low"] > 0
    assert told["arms"][1]["first_failure"] == "ValueError: no"
    assert told["arms"][0]["p50_s"]["value"] == pytest.approx(0.01, rel=0.1)
    assert told["advice"]["action"] == "roll back"
    assert len(told["launch_ratios"]) == 10


# --- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["90,10", " 90 , 10 ", "90/10", "90%:10%"])
def test_splits_are_read(text: str) -> None:
    assert parse_split(text) == pytest.approx((0.9, 0.1))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("90,20", "invalid_split"),
        ("0.9,0.1", "invalid_split"),
        ("100,0", "invalid_split"),
        ("110,-10", "invalid_split"),
        ("50", "invalid_split"),
        ("50,30,20", "invalid_split"),
        ("most,some", "invalid_split"),
        ("nan,nan", "invalid_split"),
        ("", "invalid_split"),
    ],
)
def test_wrong_splits_are_one_line(text: str, line: str) -> None:
    with refused(BenchmarkError, line):
        parse_split(text)


@pytest.mark.parametrize(
    "wrong",
    [{"launches": 0}, {"requests": 0}, {"duration_s": 0.0}, {"time_limit_s": math.nan}, {"batch_size": 0}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BenchmarkError):
        TrafficSettings((0.9, 0.1), **wrong)
    with refused(BenchmarkError, "invalid_split"):
        TrafficSettings((0.9, 0.2))


def test_requests_are_shared_at_random_and_the_same_again() -> None:
    settings = TrafficSettings((0.9, 0.1), requests=10_000)
    order = request_order(settings, 1)
    assert [order.count(each) / len(order) for each in range(3)] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert order == request_order(decode(encode(settings), TrafficSettings), 1)
    assert order != request_order(settings, 2)


@pytest.mark.parametrize(
    ("split", "larger", "fractions"),
    [((0.5, 0.5), None, [0.5, 0.5, 0]), ((0.3, 0.7), 1, [0.3, 0.4, 0.3]), ((0.7, 0.3), 0, [0.4, 0.3, 0.3])],
)
def test_the_larger_variant_has_a_control_with_the_smaller_ones_share(
    split: tuple[float, float], larger: int | None, fractions: list[float]
) -> None:
    assert copied(split) == larger
    order = request_order(TrafficSettings(split, requests=20_000), 1)
    assert [order.count(each) / len(order) for each in range(3)] == pytest.approx(fractions, abs=0.02)


# --- process runs ------------------------------------------------------------------------------------


def variants(*factories: str, shapes: Sequence[tuple[int, ...]] = ((16,), (16,))) -> tuple[Variant, Variant]:
    first, second = (
        Variant(name, SystemSpec(f"{MODELS}:{factory}", input_shape=shape))
        for name, factory, shape in zip(NAMES, factories, shapes, strict=True)
    )
    return first, second


SMALL = TrafficSettings((0.6, 0.4), launches=2, requests=200, warmup=2, time_limit_s=60)


def test_real_process_runs_serve_both_variants() -> None:
    seen: list[tuple[int, State]] = []
    traffic = measure_traffic(
        *variants("doubled", "flaky"),
        SMALL,
        watch=lambda each: seen.append((each.number, each.event.state)),
    )
    assert [each.number for each in traffic.runs] == [1, 2]
    assert traffic.failures == ()
    for number, run in enumerate(traffic.runs, 1):
        order = request_order(SMALL, number)
        controls = order.count(CONTROL)
        assert [arm.count for arm in run.arms] == [order.count(0) + controls, order.count(1)]
        assert (run.arms[0].failed, run.arms[0].compared) == (0, controls)
        assert len(run.arms[0].compared_seconds) == controls
        # Every fifth call of it fails, of all that it gets.
        assert run.arms[1].failed == pytest.approx(order.count(1) / 5, abs=1.1)
    assert {(2, State.SERVING), (2, State.FOUND)} <= set(seen)
    told = traffic.to_dict()["arms"][1]
    assert "ValueError: overloaded at bench_models.py:" in told["first_failure"]
    assert traffic.advice.action == "roll back"


@pytest.mark.parametrize(
    ("factories", "shapes", "line"),
    [
        (("doubled", "raising"), ((16,), (16,)), "failed"),
        (("dying", "doubled"), ((16,), (16,)), "failed"),
        (
            ("doubled", "doubled"),
            ((16,), (8,)),
            "failed",
        ),
        (("not_a_number", "doubled"), ((16,), (16,)), "failed"),
    ],
)
def test_variants_that_cannot_share_traffic_are_one_line(
    factories: tuple[str, str], shapes: Sequence[tuple[int, ...]], line: str
) -> None:
    with refused(BenchmarkError, line) as raised:
        measure_traffic(*variants(*factories, shapes=shapes), SMALL)
    assert "\n" not in str(raised.value)


def test_two_variants_have_two_names() -> None:
    first, _ = variants("doubled", "doubled")
    with refused(BenchmarkError, "same_name"):
        measure_traffic(first, first, SMALL)


def played(monkeypatch: pytest.MonkeyPatch, *runs: Exception | KeyboardInterrupt | None) -> None:
    """Replace process runs: each hands over its requests, then ends as given."""
    left = list(runs)

    def run(job: Any, *, time_limit_s: float, on_event: Any) -> None:
        arm = to_plain(requests_of(np.linspace(9, 11, 50)))
        end = left.pop(0)
        if not isinstance(end, BenchmarkError):
            on_event(Found(value=[arm, arm]))
        if end is not None:
            raise end

    monkeypatch.setattr(schedule, "run_process", run)


def test_a_later_process_run_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, None, BenchmarkError("it died"), None)
    found = measure_traffic(*variants("doubled", "doubled"), TrafficSettings((0.9, 0.1), launches=3))
    assert [each.number for each in found.runs] == [1, 3]
    (failed,) = [each for each in found.notes if each.code == "failed_traffic_runs"]
    assert failed.values == {"failed": 1, "first": "it died"}
    played(monkeypatch, BenchmarkError("failed", "it died", hint="run it again"))
    with refused(BenchmarkError, "failed"):
        measure_traffic(*variants("doubled", "doubled"), SMALL)


def test_ctrl_c_keeps_the_process_runs_and_the_requests_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, None, KeyboardInterrupt())
    found = measure_traffic(*variants("doubled", "doubled"), TrafficSettings((0.9, 0.1)))
    assert (len(found.runs), found.interrupted) == (2, True)
    assert "traffic_interrupted" in [each.code for each in found.notes]
