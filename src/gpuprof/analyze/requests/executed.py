# SPDX-License-Identifier: Apache-2.0
"""The spans and samples of some executions, as the run has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.call_sites import waited_ns

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

Ints = npt.NDArray[np.int64]

_SPANS = """
    SELECT chosen.owner, spans.span_id, coalesce(spans.parent_id, -1) AS parent_id, spans.process_id,
        spans.thread_id, spans.kind, spans.name, spans.start_ns, spans.duration_ns
    FROM spans JOIN chosen USING (span_id)
    ORDER BY chosen.owner, spans.start_ns, spans.duration_ns DESC, spans.span_id
"""
_SAMPLES = """
    SELECT windows.owner, stacks.t_ns, stacks.duration_ns, stacks.frames,
        coalesce(stacks.cpu_ns, -1) AS cpu_ns, coalesce(stacks.queued_ns, -1) AS queued_ns
    FROM stacks JOIN windows USING (process_id, thread_id)
    WHERE stacks.t_ns > windows.begin_ns AND stacks.t_ns - stacks.duration_ns < windows.end_ns
    ORDER BY windows.owner, stacks.t_ns
"""


@dataclass(frozen=True, slots=True)
class OwnedSpan:
    """A span that ran for an execution."""

    span_id: int
    parent_id: int
    process_id: int
    thread_id: int
    kind: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class OwnedSample:
    """A stack sample of the execution's thread, outermost frame first; it may begin before the execution."""

    t_ns: int
    duration_ns: int
    waited_ns: int
    frames: tuple[str, ...]


@dataclass(slots=True)
class Executed:
    """The spans of an execution by their begin, outer ones first, and the samples of its thread.

    The first span is its own, which all others are inside of or were started by.
    """

    spans: list[OwnedSpan] = field(default_factory=list)
    samples: list[OwnedSample] = field(default_factory=list)


def read_executed(folder: RunFolder, span_ids: Sequence[int]) -> dict[int, Executed]:
    """Return what ran for the executions with these spans, by the spans. Raises RunError."""
    found: dict[int, Executed] = {}
    chosen = _owned(folder, np.unique(np.asarray(span_ids, np.int64)))
    with folder.reading(), folder.connect() as connection:
        connection.register("chosen", chosen)
        for owner, *facts in _rows(connection.execute(_SPANS).fetchnumpy()):
            *known, start_ns, duration_ns = facts
            span = OwnedSpan(*(*known, start_ns, start_ns + duration_ns))
            found.setdefault(owner, Executed()).spans.append(span)
        for owner, each in found.items():
            # The root is first even where the clock has one tick for several begins.
            each.spans.sort(key=lambda span: span.span_id != owner)
        connection.register("windows", _windows(found))
        for owner, t_ns, duration_ns, frames, cpu_ns, queued_ns in _rows(
            connection.execute(_SAMPLES).fetchnumpy()
        ):
            waited = waited_ns(duration_ns, cpu_ns, queued_ns)
            found[owner].samples.append(OwnedSample(t_ns, duration_ns, waited, tuple(frames)))
    return found


def _rows(columns: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns.values()), strict=True)


def _windows(found: dict[int, Executed]) -> dict[str, Ints]:
    roots = [each.spans[0] for each in found.values()]
    return {
        "owner": np.array(list(found), np.int64),
        "process_id": np.array([each.process_id for each in roots], np.int64),
        "thread_id": np.array([each.thread_id for each in roots], np.int64),
        "begin_ns": np.array([each.start_ns for each in roots], np.int64),
        "end_ns": np.array([each.end_ns for each in roots], np.int64),
    }


def _owned(folder: RunFolder, roots: Ints) -> dict[str, Ints]:
    """Return the spans that are below `roots`, these included, each with its root."""
    columns = folder.columns(
        "SELECT span_id, coalesce(parent_id, -1) AS parent_id FROM spans ORDER BY span_id"
    )
    span_id, parent_id = (np.asarray(columns[name], np.int64) for name in ("span_id", "parent_id"))
    if not len(span_id):
        return {"span_id": span_id, "owner": span_id}
    places = np.arange(len(span_id))
    up = np.minimum(np.searchsorted(span_id, parent_id), len(span_id) - 1)
    is_top = np.isin(span_id, roots) | (span_id[up] != parent_id)
    up = np.where(is_top, places, up)
    # Each pass doubles the distance.
    while not np.array_equal(further := up[up], up):
        up = further
    owned = np.isin(span_id[up], roots)
    return {"span_id": span_id[owned], "owner": span_id[up][owned]}
