# SPDX-License-Identifier: Apache-2.0
"""The requests of a run in columns, and which of them one execution served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuprof.errors import RunError

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

Ints = npt.NDArray[np.int64]
UNKNOWN = -1

_QUERY = """
    SELECT index, planned_ns, coalesce(sent_ns, end_ns) AS sent_ns, sent_ns IS NOT NULL AS was_sent, end_ns,
        status, coalesce(span_id, -1) AS span_id
    FROM requests WHERE end_ns IS NOT NULL ORDER BY index
"""


@dataclass(frozen=True, slots=True)
class Execution:
    """What served one request or a batch of them; `place` is a row, `rows` are all of its requests."""

    place: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class RequestRows:
    """Requests in the order of the plan; one that was never sent has `sent_ns` at its end.

    `span_id` is UNKNOWN for a request whose span is not recorded.
    """

    index: Ints
    planned_ns: Ints
    sent_ns: Ints
    was_sent: npt.NDArray[np.bool_]
    end_ns: Ints
    status: list[str]
    span_id: Ints

    def __len__(self) -> int:
        return len(self.index)

    @property
    def latency_ns(self) -> Ints:
        """From the planned arrival to the end."""
        return self.end_ns - self.planned_ns

    @property
    def queued_ns(self) -> Ints:
        """From the planned arrival to sending."""
        return self.sent_ns - self.planned_ns

    @property
    def service_ns(self) -> Ints:
        """From sending to the end."""
        return self.end_ns - self.sent_ns

    @cached_property
    def executions(self) -> list[Execution]:
        """What served the requests, by service time, the longest first; a batch is one."""
        by_span: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.was_sent).tolist():
            span_id = int(self.span_id[row])
            by_span.setdefault(-2 - row if span_id == UNKNOWN else span_id, []).append(row)
        service = self.service_ns
        found = [
            Execution(max(rows, key=lambda row: int(service[row])), tuple(rows)) for rows in by_span.values()
        ]
        return sorted(found, key=lambda each: (-int(service[each.place]), each.place))

    def longest_before(self, row: int) -> int | None:
        """Return the request that was served for longest while this one waited to be sent; None for none."""
        begin, end = int(self.planned_ns[row]), int(self.sent_ns[row])
        shared = np.minimum(self.end_ns, end) - np.maximum(self.sent_ns, begin)
        shared[~self.was_sent] = 0
        shared[row] = 0
        place = int(shared.argmax())
        return place if shared[place] > 0 else None


def read_rows(folder: RunFolder) -> RequestRows:
    """Read the requests of a run. Raises RunError where it has none, or is damaged."""
    columns = folder.columns(_QUERY)
    if not len(columns["index"]):
        raise RunError(
            "no_requests", f"{folder.path} has no requests", hint="record it with gpuprof load --profile"
        )
    numbers = {
        name: np.asarray(columns[name], np.int64)
        for name in ("index", "planned_ns", "sent_ns", "end_ns", "span_id")
    }
    return RequestRows(
        **numbers, was_sent=np.asarray(columns["was_sent"], np.bool_), status=columns["status"].tolist()
    )
