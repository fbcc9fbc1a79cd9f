# SPDX-License-Identifier: Apache-2.0
"""Figures of streams of tokens: TTFT, TPOT, ITL, and goodput under objectives such as `ttft_p99<200ms`.

Times start at the plan, not at the send: waiting for a connection is waiting. A request that failed has no
time and is never good: in an objective it counts as later than any limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.results.target import LatencyTarget, parse_target
from gpuprof.errors import BenchmarkError
from gpuprof.load.figures import TargetJudgement, judge_seconds
from gpuprof.load.requests import RequestStatus, Rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.stats.arrays import Floats


class StreamMetric(str, Enum):
    """A time of one stream."""

    TTFT = "ttft"  # from the plan to the first token
    TPOT = "tpot"  # of each token after the first
    ITL = "itl"  # between a token and the next, as they arrive
    E2E = "e2e"  # from the plan to the end of the response


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Columns of the requests of a load: nanoseconds, statuses, tokens; `first_ns` may be 0."""

    planned_ns: npt.NDArray[np.int64]
    first_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    status: npt.NDArray[Any]
    tokens: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows) -> StreamTimes:
        """Return the times of rows of requests."""
        return cls(
            planned_ns=rows["planned_ns"],
            first_ns=rows["first_ns"],
            end_ns=rows["end_ns"],
            status=rows["status"],
            tokens=rows["units"].astype(np.int64),
        )

    @property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        """Which requests succeeded and returned a token."""
        ok: npt.NDArray[np.bool_] = (self.status == RequestStatus.OK) & (self.first_ns > 0)
        return ok

    def seconds(self, metric: StreamMetric) -> Floats:
        """Return a metric of each request: infinity where it failed, NaN where it has none.

        TPOT is (E2E - TTFT) / (n - 1), so a stream of one token has none; ITL is not of a request.
        """
        ok = self.is_ok
        if metric is StreamMetric.TPOT:
            span = (self.end_ns - self.first_ns).astype(float)
            values = np.divide(span, self.tokens - 1, out=np.full(len(ok), np.nan), where=self.tokens > 1)
        else:
            until = self.first_ns if metric is StreamMetric.TTFT else self.end_ns
            values = (until - self.planned_ns).astype(float)
        return np.where(ok, values / 1e9, np.inf)


@dataclass(frozen=True, slots=True)
class TokenIntervals:
    """Intervals between the tokens of streams, in seconds and in the order of the requests.

    Tokens that arrive together are 0 apart.

    is_counted: whether the server counted the tokens of every chunk; otherwise a chunk counts as one, and
    these are intervals between chunks. per_arrival: tokens for each different time of arrival.
    """

    seconds: Floats
    is_counted: bool
    per_arrival: float


def token_intervals(rows: npt.NDArray[Any], is_ok: npt.NDArray[np.bool_]) -> TokenIntervals:
    """Return the intervals in the streams that succeeded; rows are those of `token_times.read_tokens`."""
    rows = rows[is_ok[rows["request"]] & (rows["tokens"] > 0)]
    rows = rows[np.argsort(rows["request"], kind="stable")]
    is_next = rows["request"][1:] == rows["request"][:-1]
    gaps = np.diff(rows["time_ns"])
    # The first token of a chunk has the gap, the others of the chunk arrive with it.
    counts = rows["tokens"].astype(np.int64)
    seconds = np.zeros(int(counts.sum()))
    first = np.cumsum(counts) - counts
    seconds[first[:1]] = np.nan
    seconds[first[1:]] = np.where(is_next, gaps / 1e9, np.nan)
    seconds = seconds[~np.isnan(seconds)]
    arrivals = len(rows) - int(np.count_nonzero(is_next & (gaps == 0)))
    is_counted = bool(len(rows)) and bool(rows["counted"].all())
    return TokenIntervals(seconds, is_counted, float(counts.sum() / arrivals) if arrivals else 0.0)


def longest_intervals_s(rows: npt.NDArray[Any], requests: int) -> Floats:
    """Return the longest interval between tokens of each request in seconds, NaN where it has none.

    rows are those of `token_times.read_tokens`, of requests below `requests`.
    """
    rows = rows[rows["tokens"] > 0]
    rows = rows[np.argsort(rows["request"], kind="stable")]
    is_next = rows["request"][1:] == rows["request"][:-1]
    longest = np.full(requests, np.nan)
    # fmax ignores the NaN of a request that has no interval yet.
    np.fmax.at(longest, rows["request"][1:][is_next], np.diff(rows["time_ns"])[is_next] / 1e9)
    return longest


# --- objectives ------------------------------------------------------------------------------------

_METRIC = re.compile(r"\s*(?:(ttft|tpot|itl|e2e)(?:_(?!\s*<)|\s*(?=<)))?(.*)", re.DOTALL)
_EVERY = "p99"


@dataclass(frozen=True, slots=True)
class StreamObjective:
    """A limit of a metric: for a figure of all requests, and for each request in the goodput."""

    metric: StreamMetric
    target: LatencyTarget

    @property
    def text(self) -> str:
        """Return it as it is written."""
        return f"{self.metric.value}_{self.target.figure}<{self.target.limit_s * 1e3:g}ms"

    def judge(self, seconds: Floats) -> TargetJudgement:
        """Judge whether the figure is reliably on one side of the limit.

        `seconds` are in the order of the requests, those of ITL in the order of the requests they belong to;
        NaN is none. Values of one load are correlated, and judged as its latencies (`judge_seconds`).
        """
        return judge_seconds(seconds[~np.isnan(seconds)], self.target)


def parse_stream_objectives(texts: Sequence[str]) -> list[StreamObjective]:
    """Read `ttft_p99<200ms`, `tpot<50ms` (p99), `e2e_mean<2s`, `p99<2s` (E2E), several with commas."""
    return [_parse(word) for text in texts for word in text.split(",")]


def _parse(text: str) -> StreamObjective:
    match = _METRIC.fullmatch(text)
    metric, rest = (match[1], match[2]) if match else (None, text)
    if metric is not None and rest.lstrip().startswith("<"):
        rest = _EVERY + rest
    try:
        target = parse_target(rest)
    except BenchmarkError as error:
        raise BenchmarkError(
            "invalid_target",
            f"--slo {text!r} is no objective",
            hint="write ttft, tpot, itl or e2e, a quantile and a time, as in 'ttft_p99<200ms'",
        ) from error
    return StreamObjective(StreamMetric(metric or "e2e"), target)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective: number, fraction of all that were planned, rate."""

    good: int
    fraction: float
    per_second: float


def goodput(
    times: StreamTimes,
    objectives: Sequence[StreamObjective],
    duration_s: float,
    longest_itl_s: Floats,
) -> Goodput:
    """Return what was good (Zhong et al., DistServe, arXiv 2401.09670).

    A request is good if it succeeded and each of its times is below the limit, whatever the quantile of
    the objective. A stream of one token has no TPOT and no ITL, and is not judged by
    them. The ITL of a request is its longest interval, `longest_intervals_s`.
    """
    good = good_requests(times, objectives, longest_itl_s)
    count = int(np.count_nonzero(good))
    return Goodput(
        count, count / len(good) if len(good) else 0.0, count / duration_s if duration_s > 0 else 0.0
    )


def good_requests(
    times: StreamTimes, objectives: Sequence[StreamObjective], longest_itl_s: Floats
) -> npt.NDArray[np.bool_]:
    """Return which requests are good, as of `goodput`."""
    good = times.is_ok
    for objective in objectives:
        is_itl = objective.metric is StreamMetric.ITL
        seconds = longest_itl_s if is_itl else times.seconds(objective.metric)
        good = good & (np.isnan(seconds) | (seconds < objective.target.limit_s))
    return good
