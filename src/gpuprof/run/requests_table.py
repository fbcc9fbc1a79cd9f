# SPDX-License-Identifier: Apache-2.0
"""The requests of `gpuprof load --profile` in a run: the table `requests`.

Nothing is recorded for a request but a span of one of two names and the thread that served it. Which span is
whose follows from the times: a thread serves its requests in the order in which they were sent.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.damage import Damage, DamageCode

if TYPE_CHECKING:
    import duckdb

Ints = npt.NDArray[np.int64]

REQUEST_SPAN, BATCH_SPAN = "request", "batch"
STEP_SPAN = "running"  # one turn of a request's task in the event loop
SERVED_FILE = "requests.npz"
TIMES = ("planned_ns", "sent_ns", "first_ns", "end_ns")
_COLUMNS = ("index", *TIMES, "status", "units", "thread_id")
_NOTHING = -1

_ROOTS_QUERY = f"""
    SELECT span_id, thread_id, start_ns FROM read_parquet($parts, hive_partitioning = false)
    WHERE parent_id IS NULL AND kind = 'span' AND name IN ('{REQUEST_SPAN}', '{BATCH_SPAN}')
        AND process_id = $process_id
    ORDER BY start_ns
"""  # noqa: S608 (constants of our own)
_UNKNOWN_TIME = -(1 << 62)
REQUESTS_QUERY = f"""
    SELECT index, planned_ns, nullif(sent_ns, {_UNKNOWN_TIME}) AS sent_ns,
        nullif(first_ns, {_UNKNOWN_TIME}) AS first_ns, nullif(end_ns, {_UNKNOWN_TIME}) AS end_ns,
        status_name AS status, units, process_id, nullif(thread_id, 0) AS thread_id,
        nullif(span_id, -1) AS span_id
    FROM batch JOIN statuses ON batch.status = statuses.code ORDER BY index
"""  # noqa: S608
# What the clock of the spans may differ from that of the requests.
_CLOCK_ERROR_NS = 50_000


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests in columns, in the order of the plan. Times are of the monotonic clock, 0 for none.

    `thread_id` is 0 for a request that no thread began. `statuses` are the names of status codes.
    """

    index: Ints
    planned_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    end_ns: Ints
    status: Ints
    units: Ints
    thread_id: Ints
    statuses: dict[int, str]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def names_of_statuses(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of the table `statuses`."""
        names = np.array(list(self.statuses.values()), dtype=object)
        return {"code": np.array(list(self.statuses), np.int64), "status_name": names}

    def save(self, segments: Path) -> None:
        """Write them next to the other files of a recording. Raises OSError."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        codes = np.array(list(self.statuses), np.int64)
        np.savez(segments / SERVED_FILE, **columns, codes=codes, names=np.array(list(self.statuses.values())))

    @classmethod
    def read(cls, segments: Path) -> tuple[ServedRequests | None, list[Damage]]:
        """Read what `save` wrote: None where nothing was. A damaged file is damage, not an error."""
        path = segments / SERVED_FILE
        if not path.exists():
            return None, []
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                columns = {name: np.asarray(file[name], np.int64) for name in _COLUMNS}
                statuses = dict(zip(file["codes"].tolist(), map(str, file["names"].tolist()), strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None, [_unreadable(path)]
        if len({len(column) for column in columns.values()}) > 1:
            return None, [_unreadable(path)]
        return cls(**columns, statuses=statuses), []


def _unreadable(path: Path) -> Damage:
    return Damage(DamageCode.UNREADABLE, path.name, values={"error": "no requests"})


def spans_of(served: ServedRequests, spans: dict[str, Ints]) -> Ints:
    """Return the span of each request, -1 for none: it was not begun, or its span is lost.

    `spans` are the outermost spans of requests and batches by their begin: `span_id`, `thread_id`, `start_ns`
    on the clock of the requests. The requests of a batch were sent at one moment.
    """
    found = np.full(len(served), _NOTHING, np.int64)
    began = (served.thread_id != 0) & (served.sent_ns > 0)
    for thread_id in np.unique(served.thread_id[began]).tolist():
        mine = np.flatnonzero(began & (served.thread_id == thread_id))
        moments, batch = np.unique(served.sent_ns[mine], return_inverse=True)
        ends = np.zeros(len(moments), np.int64)
        np.maximum.at(ends, batch, served.end_ns[mine])
        chosen = spans["thread_id"] == thread_id
        matched = _in_turn(
            moments.tolist(),
            ends.tolist(),
            *(spans[name][chosen].tolist() for name in ("span_id", "start_ns")),
        )
        found[mine] = np.array(matched, np.int64)[batch]
    return found


def _in_turn(sent: list[int], ends: list[int], span_ids: list[int], starts: list[int]) -> list[int]:
    """Match what one thread served, in the order of sending, with its spans: each begins within a request."""
    found = [_NOTHING] * len(sent)
    place = 0
    for span_id, start in zip(span_ids, starts, strict=True):
        while place < len(sent) and ends[place] + _CLOCK_ERROR_NS < start:
            place += 1
        if place < len(sent) and sent[place] - _CLOCK_ERROR_NS <= start:
            found[place] = span_id
            place += 1
    return found


def requests_of(
    connection: duckdb.DuckDBPyConnection,
    served: ServedRequests,
    spans: Path,
    process_id: int,
    origin_ns: int,
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the columns of REQUESTS_QUERY's `batch`. `spans` is that table's folder."""
    values = {"parts": str(spans / "**" / "*.parquet"), "process_id": process_id}
    if spans.is_dir():
        read = connection.execute(_ROOTS_QUERY, values).fetchnumpy()
    else:
        read = dict.fromkeys(("span_id", "thread_id", "start_ns"), np.empty(0, np.int64))
    roots = {name: np.asarray(column, np.int64) for name, column in read.items()}
    roots["start_ns"] = roots["start_ns"] + origin_ns
    columns = {name: getattr(served, name) for name in _COLUMNS}
    for name in TIMES:
        times = columns[name]
        columns[name] = np.where(times > 0, times - origin_ns, _UNKNOWN_TIME)
    columns["span_id"] = spans_of(served, roots)
    columns["process_id"] = np.full(len(served), process_id, np.int64)
    return columns
