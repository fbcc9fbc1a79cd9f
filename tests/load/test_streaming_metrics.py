# SPDX-License-Identifier: Apache-2.0
"""Figures of streams against ones computed by hand, and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queues import random_queue

from gpuprof.bench.results.target import parse_target
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.load.streaming_metrics import (
    StreamMetric,
    StreamObjective,
    StreamTimes,
    goodput,
    longest_intervals_s,
    parse_stream_objectives,
    token_intervals,
)
from gpuprof.load.targets.token_times import TOKENS
from gpuprof.stats.proportions import exact_share

MS = 1_000_000


def times_of(*rows: tuple[int, int, int, int, int]) -> StreamTimes:
    """Rows of planned, first and end in milliseconds, status, tokens."""
    columns = np.array(rows, dtype=np.int64).T
    return StreamTimes(columns[0] * MS, columns[1] * MS, columns[2] * MS, columns[3], columns[4])


TIMES = times_of(
    (10, 60, 160, 1, 11), (20, 320, 340, 1, 2), (30, 90, 90, 1, 1), (40, 100, 900, 16, 5), (50, 0, 60, 24, 0)
)
NO_ITL = np.full(5, np.nan)


def test_times_start_at_the_plan_and_failures_are_later_than_all() -> None:
    inf = np.inf
    assert TIMES.seconds(StreamMetric.TTFT).tolist() == [0.05, 0.3, 0.06, inf, inf]
    assert TIMES.seconds(StreamMetric.E2E).tolist() == [0.15, 0.32, 0.06, inf, inf]
    tpot = TIMES.seconds(StreamMetric.TPOT)
    assert tpot[:2].tolist() == [0.01, 0.02]
    assert np.isnan(tpot[2])
    assert tpot[3:].tolist() == [inf, inf]


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    # One TTFT of 300 ms, one TPOT that does not exist, two failures.
    found = goodput(TIMES, parse_stream_objectives(["ttft_p99<200ms,tpot<50ms"]), 2.0, NO_ITL)
    assert (found.good, found.fraction, found.per_second) == (2, 0.4, 1.0)
    assert goodput(TIMES, [], 2.0, NO_ITL).good == 3
    assert goodput(TIMES, parse_stream_objectives(["tpot<15ms"]), 2.0, NO_ITL).good == 2


def test_no_requests_are_no_goodput() -> None:
    none = np.zeros(0, dtype=np.int64)
    found = goodput(StreamTimes(none, none, none, none, none), [], 0.0, np.zeros(0))
    assert (found.good, found.fraction, found.per_second) == (0, 0.0, 0.0)


def rows_of(*rows: tuple[int, int, int, int]) -> np.ndarray:
    return np.array(list(rows), dtype=TOKENS)


def test_intervals_are_within_a_stream_and_tokens_that_arrive_together_are_none_apart() -> None:
    rows = rows_of((0, 1, 0, 0), (1, 1, 0, 5), (0, 1, 0, 10), (1, 1, 0, 30), (0, 1, 0, 10), (2, 1, 0, 40))
    found = token_intervals(rows, np.array([True, True, False]))
    assert sorted((found.seconds * 1e9).round().tolist()) == [0, 10, 25]
    assert not found.is_counted
    assert found.per_arrival == 5 / 4
    counted = token_intervals(rows_of((0, 3, 1, 0), (0, 2, 1, 10), (0, 0, 1, 15)), np.array([True]))
    assert sorted((counted.seconds * 1e9).round().tolist()) == [0, 0, 0, 10]
    assert counted.is_counted


def test_goodput_counts_the_longest_interval_of_each_request() -> None:
    # Request 0 has gaps of 10 and 80 ms, request 1 of 30 ms, request 2 a single token; the others failed.
    tokens = rows_of(
        (0, 1, 0, 60 * MS), (1, 1, 0, 310 * MS), (0, 1, 0, 70 * MS), (0, 1, 0, 150 * MS),
        (1, 1, 0, 340 * MS), (2, 1, 0, 90 * MS),
    )  # fmt: skip
    longest = longest_intervals_s(tokens, 5)
    assert longest[:2].tolist() == [0.08, 0.03]
    assert np.isnan(longest[2:]).all()
    for limit, good in (("itl_p99<50ms", 2), ("itl<100ms", 3), ("itl<20ms", 1)):
        assert goodput(TIMES, parse_stream_objectives([limit]), 2.0, longest).good == good


def test_no_tokens_have_no_intervals() -> None:
    found = token_intervals(rows_of(), np.array([True]))
    assert (len(found.seconds), found.is_counted, found.per_arrival) == (0, False, 0.0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000)), min_size=1, max_size=30))
def test_the_mean_interval_is_the_time_per_output_token(chunks: list[tuple[int, int]]) -> None:
    arrivals = np.cumsum([gap for _, gap in chunks])
    rows = rows_of(*((0, count, 1, int(at)) for (count, _), at in zip(chunks, arrivals, strict=True)))
    found = token_intervals(rows, np.array([True]))
    tokens = sum(count for count, _ in chunks)
    assert len(found.seconds) == tokens - 1
    assert found.seconds.sum() * 1e9 == pytest.approx(arrivals[-1] - arrivals[0])


@pytest.mark.parametrize(
    ("text", "metric", "figure", "limit_s"),
    [
        ("ttft_p99<200ms", StreamMetric.TTFT, "p99", 0.2),
        ("tpot<50ms", StreamMetric.TPOT, "p99", 0.05),
        ("itl_p99.9 < 1s", StreamMetric.ITL, "p99.9", 1.0),
        ("e2e_mean<=2s", StreamMetric.E2E, "mean", 2.0),
        ("p50<3s", StreamMetric.E2E, "p50", 3.0),
    ],
)
def test_objectives(text: str, metric: StreamMetric, figure: str, limit_s: float) -> None:
    [found] = parse_stream_objectives([text])
    assert (found.metric, found.target.figure) == (metric, figure)
    assert found.target.limit_s == pytest.approx(limit_s)
    [again] = parse_stream_objectives([found.text])
    assert (again.metric, again.target.figure) == (metric, figure)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft_p99", "ttft_p99<", "xyz_p99<1ms", "ttft_p0<1ms", "ttft_p99<-1ms", "ttft_<1s"]
)
def test_what_is_no_objective(text: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        parse_stream_objectives([text])
    assert caught.value.code == "invalid_target"


def test_verdicts_count_failures_and_need_enough_requests() -> None:
    [objective] = parse_stream_objectives(["ttft_p99<200ms"])
    fast = np.full(1000, 0.1)
    assert objective.judge(fast).verdict is TargetVerdict.MET
    assert objective.judge(fast[:100]).verdict is TargetVerdict.INCONCLUSIVE
    failed = np.where(np.arange(1000) % 33 == 0, np.inf, 0.1)
    assert objective.judge(failed).verdict is TargetVerdict.MISSED
    # As many that failed together are one event.
    assert objective.judge(np.sort(failed)).verdict is TargetVerdict.INCONCLUSIVE
    assert objective.judge(np.full(10, np.nan)).verdict is TargetVerdict.INCONCLUSIVE
    [mean] = parse_stream_objectives(["ttft_mean<200ms"])
    assert (mean.judge(fast).verdict, mean.judge(failed).verdict) == (TargetVerdict.MET, TargetVerdict.MISSED)


def test_objectives_of_correlated_streams_cover() -> None:
    """The time to the first token of a server at 80% load: that of an M/M/1 queue, whose p99 is known."""
    limit_s = -math.log(0.01) / (1 - 0.8) * 1e-3
    objective = StreamObjective(StreamMetric.TTFT, parse_target(f"p99<{limit_s:.6f}s"))
    by_batches, independent = [], []
    for seed in range(30):
        rows = random_queue(0.8, 5_000, seed)
        rows["first_ns"], rows["units"] = rows["end_ns"], 5
        seconds = StreamTimes.of(rows).seconds(StreamMetric.TTFT)
        by_batches.append(objective.judge(seconds).verdict)
        low, high = exact_share(int((seconds >= limit_s).sum()), len(seconds))
        independent.append(low <= 0.01 <= high)
    assert by_batches.count(TargetVerdict.INCONCLUSIVE) >= 27
    # What the interval of independent requests would hold.
    assert sum(independent) <= 15


def test_intervals_are_in_the_order_of_the_requests() -> None:
    rows = rows_of((1, 1, 1, 5), (0, 2, 1, 0), (0, 2, 1, 10), (1, 1, 1, 8))
    found = token_intervals(rows, np.array([True, True]))
    assert found.seconds.tolist() == pytest.approx([0, 10e-9, 0, 3e-9])
