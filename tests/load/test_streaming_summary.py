# SPDX-License-Identifier: Apache-2.0
"""The summary of a load of streams, from rows made by hand."""

from __future__ import annotations

import json

import numpy as np

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.load.driver import DrivenLoad
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.streaming_metrics import StreamMetric, parse_stream_objectives
from gpuprof.load.streaming_summary import StreamSummary, summarize_streams
from gpuprof.load.targets.client_process import ClientSummary, ServerLoad
from gpuprof.load.targets.token_times import TOKENS

MS = 1_000_000
START = 10**12


def load_of(count: int, failed: int, *, is_counted: bool = False) -> ServerLoad:
    """Each request has 3 tokens, the first after 100 ms and the others 10 ms apart; the last ones failed."""
    rows = np.zeros(count, REQUEST)
    rows["planned_ns"] = rows["sent_ns"] = START + np.arange(count) * 10 * MS
    rows["first_ns"] = rows["planned_ns"] + 100 * MS
    rows["end_ns"] = rows["planned_ns"] + 120 * MS
    rows["status"], rows["units"] = RequestStatus.OK, 3
    if failed:
        rows["status"][-failed:], rows["units"][-failed:] = RequestStatus.OVERLOADED, 0
    times = np.add.outer(rows["first_ns"], np.arange(3) * 10 * MS)
    tokens = np.zeros(3 * count, TOKENS)
    tokens["request"], tokens["tokens"] = np.repeat(np.arange(count), 3), 1
    tokens["time_ns"], tokens["counted"] = times.ravel(), is_counted
    driven = DrivenLoad(rows, START, START + 2000 * MS, rows["sent_ns"])
    return ServerLoad(driven, tokens, ClientSummary(streams_by_chunks=count - failed))


def quantiles(summary: StreamSummary, metric: StreamMetric) -> list[float | None]:
    [found] = [each for each in summary.figures if each.metric is metric]
    return [None if value is None else round(value, 6) for value in found.quantiles]


def test_figures_of_streams() -> None:
    summary = summarize_streams(load_of(400, 20), parse_stream_objectives(["ttft_p90<200ms,tpot<5ms"]))
    # 20 of 400 failed, so that p99 is among the failures.
    assert quantiles(summary, StreamMetric.TTFT) == [0.1, 0.1, None]
    assert quantiles(summary, StreamMetric.TPOT) == [0.01, 0.01, None]
    assert quantiles(summary, StreamMetric.ITL) == [0.01, 0.01, 0.01]
    assert (summary.requests, summary.tokens, summary.goodput.good) == (400, 1140, 0)
    assert summary.failures == {RequestStatus.OVERLOADED: 20}
    assert [found.verdict for _, found in summary.judgements] == [
        TargetVerdict.INCONCLUSIVE,
        TargetVerdict.MISSED,
    ]
    assert summary.verdict is TargetVerdict.MISSED
    assert summarize_streams(load_of(100, 0)).verdict is None


def test_too_few_streams_have_no_tail() -> None:
    summary = summarize_streams(load_of(75, 0))
    assert quantiles(summary, StreamMetric.TTFT) == [0.1, 0.1, None]
    assert quantiles(summary, StreamMetric.ITL) == [0.01, 0.01, 0.01]


def test_json_and_text_have_the_same_figures() -> None:
    summary = summarize_streams(load_of(100, 5), parse_stream_objectives(["ttft_p90<200ms"]))
    plain = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert plain["ttft"] == {"count": 100, "p50_s": 0.1, "p90_s": 0.1, "p99_s": None}
    assert (plain["itl_between"], plain["failures"]) == ("chunks", {"overloaded": 5})
    assert plain["goodput"]["per_second"] == 95 / 2
    text = str(summary)
    assert "overloaded" not in text  # the figures of all requests above have the failures
    assert "100 ms" in text
    assert summarize_streams(load_of(9, 0, is_counted=True)).to_dict()["itl_between"] == "tokens"


def test_a_load_that_failed_has_a_summary() -> None:
    summary = summarize_streams(load_of(3, 3), parse_stream_objectives(["ttft<1s"]))
    assert quantiles(summary, StreamMetric.E2E) == [None, None, None]
    assert (summary.tokens, summary.goodput.good) == (0, 0)
    assert json.dumps(summary.to_dict(), allow_nan=False)
    assert str(summary)
    empty = summarize_streams(load_of(0, 0))
    assert (empty.requests, empty.verdict) == (0, None)
    assert str(empty)
