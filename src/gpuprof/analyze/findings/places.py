# SPDX-License-Identifier: Apache-2.0
"""Where a finding is: nodes of the call tree, and a stretch of time that shows it best."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import Draft, Places
    from gpuprof.analyze.findings.record import ProgramRecord

_MOST_NODES = 3
# Those of the node with the most time first.
_SPANS = """
    SELECT node_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    JOIN call_tree USING (process_id, path_id) WHERE span_id IN (SELECT unnest({spans}::BIGINT[]))
    ORDER BY total_ns DESC, node_id, span_id
"""
_FUNCTION = """
    SELECT node_id FROM call_tree WHERE process_id = {process} AND kind = 'python' AND name = {function}
    ORDER BY total_ns DESC, node_id
"""


def located(record: ProgramRecord, draft: Draft) -> Places:
    """Return the places of a draft with nodes of the call tree and a stretch of its time.

    They are those of its spans; without spans, the nodes of its function and the longest stretch.
    """
    places = draft.places
    if "call_tree" not in record.folder.tables:
        return dataclasses.replace(places, range_ns=_longest(record, draft))
    if places.spans and "path_id" in record.fetch("FROM call_tree LIMIT 0"):
        found = record.fetch(_SPANS, spans=list(places.spans))
        if len(found["node_id"]):
            first = int(found["begin_ns"][0]), int(found["end_ns"][0])
            return dataclasses.replace(places, nodes=_distinct(found["node_id"]), range_ns=first)
    nodes: tuple[int, ...] = ()
    if places.function is not None:
        columns = record.fetch(_FUNCTION, process=record.process_id, function=places.function)
        nodes = _distinct(columns["node_id"])
    return dataclasses.replace(places, nodes=nodes, range_ns=_longest(record, draft))


def _distinct(nodes: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(nodes.tolist()))[:_MOST_NODES]


def _longest(record: ProgramRecord, draft: Draft) -> tuple[int, int] | None:
    """Return begin and end of the longest stretch, of those in warm steps if there are any."""
    begin, end = draft.time.begin_ns, draft.time.end_ns
    if not len(begin):
        return None
    if record.steps is not None:
        warm = record.steps.warm.place(begin) >= 0
        if warm.any():
            begin, end = begin[warm], end[warm]
    longest = int(np.argmax(end - begin))
    return int(begin[longest]), int(end[longest])
