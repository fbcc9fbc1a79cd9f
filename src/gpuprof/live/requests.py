# SPDX-License-Identifier: Apache-2.0
"""Follows a running load test by the figures that it publishes."""

from __future__ import annotations

from pathlib import Path

from gpuprof.live.snapshot import LiveRequestFigures, MissingReason, Unavailable
from gpuprof.load.published import PublishedFile, PublishedLoad

_NOT_UPDATED = Unavailable(MissingReason.NOT_UPDATED)
_FIRST = Unavailable(MissingReason.FIRST_INTERVAL)


class RequestFollower:
    """Reads the figures of one load test. Raises OSError where its file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = PublishedFile(path)
        self._last: PublishedLoad | None = self._file.read()
        self.is_over = False

    @property
    def process_id(self) -> int | None:
        """The process that runs the test, if it has published anything."""
        return None if self._last is None else self._last.process_id

    def take(self) -> LiveRequestFigures | Unavailable:
        """Return the figures since the last time."""
        now = self._file.read() or self._last
        if now is None:
            return _NOT_UPDATED
        former, self._last = self._last, now
        self.is_over = now.is_over
        return _figures(now, former)


def _figures(now: PublishedLoad, former: PublishedLoad | None) -> LiveRequestFigures:
    missing = _FIRST if former is None else _NOT_UPDATED
    elapsed_ns = 0 if former is None else now.t_ns - former.t_ns
    before = {} if former is None else dict(former.buckets)
    counts = {bound: count - before.get(bound, 0) for bound, count in now.buckets}

    def rate(one: int, other: int) -> float | Unavailable:
        return (one - other) * 1e9 / elapsed_ns if elapsed_ns > 0 else missing

    return LiveRequestFigures(
        process_id=now.process_id,
        target=now.target,
        scenario=now.scenario,
        is_over=now.is_over,
        planned=now.planned,
        due=now.due,
        sent=now.sent,
        ended=now.ended,
        failed=now.failed,
        queued=max(now.due - now.ended - now.in_service, 0),
        in_service=now.in_service,
        latency_sum_ns=now.latency_sum_ns,
        latency_buckets=tuple(now.buckets),
        arrivals_per_s=rate(now.due, 0 if former is None else former.due),
        ended_per_s=rate(now.ended, 0 if former is None else former.ended),
        p50_ns=_quantile(counts, 0.5, missing),
        p90_ns=_quantile(counts, 0.9, missing),
        p99_ns=_quantile(counts, 0.99, missing),
    )


def _quantile(counts: dict[int, int], share: float, missing: Unavailable) -> int | Unavailable:
    """Return the bound below which this fraction of the requests is."""
    total = sum(counts.values())
    reached = 0
    for bound, count in sorted(counts.items()):
        reached += count
        if total and reached >= share * total:
            return bound
    return missing
