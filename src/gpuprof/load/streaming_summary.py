# SPDX-License-Identifier: Apache-2.0
"""What a load of streams showed: a typed summary, and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.load.figures import TargetJudgement, quantile
from gpuprof.load.requests import RequestStatus
from gpuprof.load.result import judgement_text
from gpuprof.load.streaming_metrics import (
    Goodput,
    StreamMetric,
    StreamObjective,
    StreamTimes,
    TokenIntervals,
    goodput,
    longest_intervals_s,
    token_intervals,
)
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import counted, format_duration, format_share

if TYPE_CHECKING:
    from gpuprof.load.targets.client_process import ServerLoad
    from gpuprof.stats.arrays import Floats

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Quantiles of a metric in seconds, in the order of QUANTILES.

    Requests that failed are later than all others: a quantile among them is None, unavailable. So is one of
    too few requests.
    """

    metric: StreamMetric
    count: int
    quantiles: tuple[float | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        values = {f"p{q * 100:g}_s": value for q, value in zip(QUANTILES, self.quantiles, strict=True)}
        return {"count": self.count, **values}


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """Figures of a load of streams. by_usage, by_chunks: streams whose tokens the server or we counted."""

    requests: int
    failures: dict[RequestStatus, int]
    tokens: int
    duration_s: float
    figures: tuple[StreamFigures, ...]
    intervals: TokenIntervals
    by_usage: int
    by_chunks: int
    goodput: Goodput
    judgements: tuple[tuple[StreamObjective, TargetJudgement], ...]

    @property
    def verdict(self) -> TargetVerdict | None:
        """Return the verdict of all objectives, None without any."""
        found = {judgement.verdict for _, judgement in self.judgements}
        order = (TargetVerdict.MISSED, TargetVerdict.INCONCLUSIVE, TargetVerdict.MET)
        return next((each for each in order if each in found), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "requests": self.requests,
            "failures": {status.name.lower(): count for status, count in self.failures.items()},
            "output_tokens": self.tokens,
            "duration_s": self.duration_s,
            **{figures.metric.value: figures.to_dict() for figures in self.figures},
            "itl_between": "tokens" if self.intervals.is_counted else "chunks",
            "tokens_per_arrival": self.intervals.per_arrival,
            "streams_counted_by_usage": self.by_usage,
            "streams_counted_by_chunks": self.by_chunks,
            "goodput": {
                "good": self.goodput.good,
                "fraction": self.goodput.fraction,
                "per_second": self.goodput.per_second,
            },
            "objectives": [
                {"objective": each.text, "verdict": found.verdict.value} for each, found in self.judgements
            ],
        }

    def __str__(self) -> str:
        rows = [
            [METRIC_TITLES[each.metric], str(each.count), *(_time(value) for value in each.quantiles)]
            for each in self.figures
        ]
        titles = [Column("", right=False), Column("n"), *(Column(f"p{q * 100:g}") for q in QUANTILES)]
        return "\n".join([text_table(titles, rows), *self.lines, *self.verdict_texts])

    @property
    def verdict_texts(self) -> list[str]:
        """Return a line for each objective."""
        return [judgement_text(objective.text, found) for objective, found in self.judgements]

    @property
    def lines(self) -> list[str]:
        """Return tokens and goodput, and what to know of how tokens were counted."""
        rate = f"{self.tokens / self.duration_s:,.0f}" if self.duration_s > 0 else "-"
        lines = [
            f"{counted(self.requests, 'request')}, {counted(self.tokens, 'token')} ({rate}/s), goodput "
            f"{self.goodput.per_second:.3g} requests/s ({format_share(self.goodput.fraction)})"
        ]
        if self.by_chunks:
            lines.append(
                f"warning: {counted(self.by_chunks, 'stream')} without usage: chunks are counted as tokens"
            )
        if not self.intervals.is_counted and len(self.intervals.seconds):
            lines.append("warning: ITL is between chunks: the server does not count the tokens of each chunk")
        return lines


METRIC_TITLES = {
    StreamMetric.TTFT: "time to first token",
    StreamMetric.TPOT: "time per output token",
    StreamMetric.ITL: "inter-token latency",
    StreamMetric.E2E: "end to end",
}


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds * 1e9)


def summarize_streams(load: ServerLoad, objectives: Sequence[StreamObjective] = ()) -> StreamSummary:
    """Return the summary of a load on a server of streams."""
    rows = load.driven.rows
    times = StreamTimes.of(rows)
    tokens = load.tokens[load.tokens["request"] < len(rows)]
    intervals = token_intervals(tokens, times.is_ok)
    duration_s = (load.driven.end_ns - load.driven.start_ns) / 1e9
    seconds = {metric: times.seconds(metric) for metric in StreamMetric}
    seconds[StreamMetric.ITL] = intervals.seconds
    statuses, counts = np.unique(rows["status"], return_counts=True)
    return StreamSummary(
        requests=len(rows),
        failures={
            RequestStatus(int(status)): int(count)
            for status, count in zip(statuses, counts, strict=True)
            if status != RequestStatus.OK
        },
        tokens=int(times.tokens[times.is_ok].sum()),
        duration_s=duration_s,
        figures=tuple(_figures(metric, values) for metric, values in seconds.items()),
        intervals=intervals,
        by_usage=load.summary.streams_by_usage,
        by_chunks=load.summary.streams_by_chunks,
        goodput=goodput(times, objectives, duration_s, longest_intervals_s(tokens, len(rows))),
        judgements=tuple((each, each.judge(seconds[each.metric])) for each in objectives),
    )


def _figures(metric: StreamMetric, seconds: Floats) -> StreamFigures:
    values = np.sort(seconds[~np.isnan(seconds)])
    found = [quantile(values, each) for each in QUANTILES]
    finite = tuple(each if math.isfinite(each) else None for each in found)
    return StreamFigures(metric, len(values), finite)
