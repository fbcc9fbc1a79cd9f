# SPDX-License-Identifier: Apache-2.0
"""The slowest requests, and what each spent its service time on, next to the requests around the median."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from gpuprof.analyze.requests.executed import read_executed
from gpuprof.analyze.requests.rows import UNKNOWN, Execution, RequestRows, read_rows
from gpuprof.analyze.requests.slow_request import Cause, SlowRequest, TailWait, TimePart
from gpuprof.analyze.requests.text import requests_text
from gpuprof.analyze.requests.times import ExecutionTimes, TimesTree
from gpuprof.errors import RunError
from gpuprof.run.requests_table import BATCH_SPAN, REQUEST_SPAN, STEP_SPAN
from gpuprof.stats.quantiles import order_statistic

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

Order: TypeAlias = Literal["service", "latency"]
TAIL_QUANTILE = 0.99
_TAIL_OF = 100  # executions, of which one is in the tail
MEDIAN_RANGE = (0.4, 0.6)
_LEAST_TAIL, _LEAST = 5, 20  # executions in the tail, and in all for a comparison of tail and median
_MOST_OF_SIDE = 200


_PART_OF_KIND = {
    "layer": TimePart.LAYERS,
    "operator": TimePart.OPERATORS,
    "backward": TimePart.OPERATORS,
    "waiting": TimePart.WAITING,
    "gc": TimePart.GC,
    "compile": TimePart.COMPILATION,
}

_NAMED_PLACES = ("python", "layer", "span")
_OWN_SPANS = (REQUEST_SPAN, BATCH_SPAN, STEP_SPAN)
_LEAST_EXCESS = 0.05  # of the service time: a smaller one is no cause
_Sums: TypeAlias = dict[tuple[str, str, str], float]


class ProfiledRequests:
    """The requests of a run that `gpuprof load --profile` recorded. Raises RunError where it has none."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rows: RequestRows = read_rows(folder)
        self._tree = TimesTree()

    def __len__(self) -> int:
        return len(self.rows)

    # ---- which requests

    @property
    def known(self) -> list[Execution]:
        """Executions whose spans were recorded, the slowest first."""
        span_id = self.rows.span_id
        return [each for each in self.rows.executions if span_id[each.place] != UNKNOWN]

    def has_tail(self) -> bool:
        """Whether there are enough requests for a comparison of the tail with the median."""
        return len(self.known) >= _LEAST

    def tail(self) -> list[Execution]:
        """Return the slowest 1% of the executions by service time, the slowest first, and at least five."""
        known = self.known
        count = max(math.ceil(len(known) / _TAIL_OF), min(_LEAST_TAIL, len(known) // 10), 1)
        return known[:count]

    def median(self) -> list[Execution]:
        """Return the executions from p40 to p60 of the service time."""
        known = self.known[::-1]
        low, high = (math.floor(share * len(known)) for share in MEDIAN_RANGE)
        return known[low : max(high, low + 1)]

    def sampled(self, side: Sequence[Execution]) -> list[Execution]:
        """Return at most 200 of a side, at even distances in the time of sending."""
        by_time = sorted(side, key=lambda each: int(self.rows.sent_ns[each.place]))
        if len(by_time) <= _MOST_OF_SIDE:
            return by_time
        chosen = np.linspace(0, len(by_time) - 1, _MOST_OF_SIDE).round().astype(int)
        return [by_time[place] for place in chosen.tolist()]

    # ---- their times

    def tree(self, executions: Sequence[Execution]) -> TimesTree:
        """Return the call tree with the times of these executions, by their spans. Raises RunError."""
        wanted = [int(self.rows.span_id[each.place]) for each in executions]
        missing = [each for each in wanted if each != UNKNOWN and each not in self._tree.of]
        if missing:
            found = read_executed(self.folder, missing)
            for span_id in missing:
                if span_id in found:
                    self._tree.add(span_id, found[span_id])
        return self._tree

    def times(self, execution: Execution) -> ExecutionTimes | None:
        """Return the times of an execution; None where they were not recorded. Raises RunError."""
        span_id = int(self.rows.span_id[execution.place])
        return None if span_id == UNKNOWN else self.tree([execution]).of.get(span_id)

    def slowest(self, count: int = 10, by: Order = "service") -> list[SlowRequest]:
        """Return the slowest requests, a batch as the one of its requests with the longest latency.

        `by` is the service time, which the target needs, or the latency, which has the wait before sending
        too. Raises RunError.
        """
        if by not in ("service", "latency"):
            raise RunError(
                "unknown_order", f"requests cannot be sorted by {by!r}", hint="use service or latency"
            )
        measured = self.rows.service_ns if by == "service" else self.rows.latency_ns
        order = sorted(self.rows.executions, key=lambda each: -int(measured[list(each.rows)].max()))[:count]
        typical = self._typical()
        self.tree(order)
        return [self._slow(each, typical) for each in order]

    def _typical(self) -> _Sums:
        """Return the mean self times of the requests around the median, by name and place."""
        side = self.sampled(self.median())
        self.tree(side)
        sums: _Sums = defaultdict(float)
        for each in side:
            for key, own_ns in self._by_place(self.times(each)).items():
                sums[key] += own_ns / len(side)
        return sums

    def _by_place(self, times: ExecutionTimes | None) -> _Sums:
        """Return self times by kind, name and the function or layer around it."""
        sums: _Sums = defaultdict(float)
        for node, own_ns in ({} if times is None else times.own_ns).items():
            sums[self._tree.kind[node], self._tree.name[node], self._inside(node)] += own_ns
        return sums

    def _inside(self, node: int) -> str:
        tree = self._tree
        above = tree.parent[node]
        while above >= 0 and (tree.kind[above] not in _NAMED_PLACES or tree.name[above] in _OWN_SPANS):
            above = tree.parent[above]
        return tree.name[above] if above >= 0 else ""

    def _slow(self, execution: Execution, typical: _Sums) -> SlowRequest:
        rows = self.rows
        row = max(execution.rows, key=lambda each: int(rows.latency_ns[each]))
        waited_for = rows.longest_before(row)
        times = self.times(execution)
        span_id = int(rows.span_id[row])
        service_ns = int(rows.service_ns[row])
        return SlowRequest(
            index=int(rows.index[row]),
            status=rows.status[row],
            planned_ns=int(rows.planned_ns[row]),
            latency_ns=int(rows.latency_ns[row]),
            queued_ns=int(rows.queued_ns[row]),
            service_ns=service_ns,
            batch_size=len(execution.rows),
            span_id=None if span_id == UNKNOWN else span_id,
            waited_for=None if waited_for is None else int(rows.index[waited_for]),
            parts_ns=None if times is None else self._parts(times, service_ns),
            cause=None if times is None else self._cause(times, typical),
        )

    def _parts(self, times: ExecutionTimes, service_ns: int) -> dict[TimePart, int]:
        parts = dict.fromkeys(TimePart, 0)
        tree = self._tree
        for node, own_ns in times.own_ns.items():
            parts[_PART_OF_KIND.get(tree.kind[node], TimePart.PYTHON)] += own_ns
        parts[TimePart.OUTSIDE] = service_ns - times.duration_ns
        parts[TimePart.PARALLEL] = times.parallel_ns
        return parts

    def _cause(self, times: ExecutionTimes, typical: _Sums) -> Cause | None:
        own = self._by_place(times)
        if not own:
            return None
        key = max(own, key=lambda each: own[each] - typical.get(each, 0.0))
        found = Cause(*key, round(own[key]), round(typical.get(key, 0.0)))
        return found if found.excess_ns > _LEAST_EXCESS * times.duration_ns else None

    def tail_wait(self) -> TailWait | None:
        """Return how much of the latency of the tail is a wait before sending; None without requests."""
        rows = self.rows
        if not len(rows):
            return None
        # The order statistic that the table of latencies shows as p99.
        limit = order_statistic(np.sort(rows.latency_ns), TAIL_QUANTILE)
        is_maximum = bool(limit == rows.latency_ns.max())
        tail = rows.latency_ns >= limit if is_maximum else rows.latency_ns > limit
        whole = int(rows.latency_ns[tail].sum())
        return TailWait(
            int(tail.sum()),
            int(limit),
            float(rows.queued_ns[tail].sum()) / max(whole, 1),
            is_maximum=is_maximum,
        )

    def __str__(self) -> str:
        return requests_text(self.slowest(), len(self), self.tail_wait())
