# SPDX-License-Identifier: Apache-2.0
"""The result of a load on a server: that of a load, what its client counted, and the figures of streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.load.requests import write_rows
from gpuprof.load.result import LoadResult, undecided
from gpuprof.load.streaming_metrics import StreamMetric, StreamObjective
from gpuprof.load.streaming_summary import StreamSummary, summarize_streams
from gpuprof.load.targets.client_process import ServerLoad
from gpuprof.load.warnings import LoadWarning, load_warning

TOKENS_FILE = "tokens.parquet"


@dataclass(frozen=True)
class ServerResult(LoadResult):
    """A load on a server. `objectives` are those of streams; they decide the verdict if there are any."""

    load: ServerLoad
    is_stream: bool = False
    objectives: tuple[StreamObjective, ...] = ()

    @cached_property
    def streams(self) -> StreamSummary | None:
        """Figures of the streams, None where responses are none."""
        return summarize_streams(self.load, self.objectives) if self.is_stream else None

    @property
    def verdict(self) -> TargetVerdict | None:
        """Whether the objectives or the latency target are met; None without any."""
        return super().verdict if self.streams is None else self.streams.verdict

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        """What a reader must know to judge the figures."""
        count = self.load.summary.unrequested
        more = (load_warning("unrequested_responses", responses=count),) if count else ()
        return (*super().warnings, *more, *self._undecided())

    def _undecided(self) -> Iterator[LoadWarning]:
        for objective, found in () if self.streams is None else self.streams.judgements:
            share = objective.target.share
            if share is not None and objective.metric != StreamMetric.ITL:
                yield from undecided(objective.text, share, found, len(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the rows."""
        summary = self.load.summary
        client = {
            "http_codes": {str(code): count for code, count in sorted(summary.codes.items())},
            "responses_without_request": summary.unrequested,
            "cpu_s": summary.cpu_s,
        }
        found = {**super().to_dict(), "client": client}
        return found if self.streams is None else {**found, "streams": self.streams.to_dict()}

    def save(self, folder: Path | str) -> Path:
        """Write `result.json`, `requests.parquet` and, for streams, `tokens.parquet`. Raises RunError."""
        path = super().save(folder)
        if self.is_stream:
            write_rows(self.load.tokens, path / TOKENS_FILE)
        return path

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.load.summary.codes:
            codes = (f"{code} x {count:,}" for code, count in sorted(self.load.summary.codes.items()))
            lines.append(f"HTTP status codes of failures: {', '.join(codes)}")
        if self.streams is not None:
            lines += ["", str(self.streams)]
        return "\n".join(lines)


def client_ceiling_per_s(load: ServerLoad) -> float | None:
    """Return the requests per second at which the client's event loop would need all of a core."""
    ended = int(np.count_nonzero(load.driven.rows["end_ns"]))
    return ended / load.summary.loop_cpu_s if load.summary.loop_cpu_s > 0 and ended else None
