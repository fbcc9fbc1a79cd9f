# SPDX-License-Identifier: Apache-2.0
"""The flame graph of slow requests against those around the median, for one request of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpuprof.analyze.difference import compare
from gpuprof.analyze.requests.rows import Execution
from gpuprof.analyze.requests.sides import tail_sides
from gpuprof.analyze.requests.slowest import ProfiledRequests
from gpuprof.errors import RunError
from gpuprof.render.flame_page import on_shown
from gpuprof.render.flame_views import difference_view
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.render.page import page_notes, readable
from gpuprof.render.pruned_tree import PrunedSides
from gpuprof.render.shown_tree import placed_tree
from gpuprof.text.units import format_duration, format_share

TAIL_PAGE = "tail.html"


def tail_page(requests: ProfiledRequests, *, target: str = "") -> str:
    """Return the page. Raises RunError for a run with too few requests."""
    sides = tail_sides(requests)
    shown = placed_tree(sides.tree)
    page = PrunedSides(shown, shown.total_place)
    tail, median = ([on_shown(page, each) for each in side] for side in (sides.tail, sides.median))
    view = difference_view("cpu", compare(tail, median), repeated=None)
    facts = {**view.facts, "label": "Time of a request", "scalingLabel": "for one request"}
    facts |= {"before": "Median", "now": "Tail"}
    counts = [round(float(np.mean([each.calls.sum() for each in side]))) for side in (tail, median)]
    return flamegraph_page(
        shown,
        title=f"Slow requests of {target}" if target else "Slow requests",
        subtitle=f"tail: {_side(requests, requests.tail(), 'slowest')} · median: "
        f"{_side(requests, requests.median(), 'in the middle')}",
        notes=[*_notes(requests, sides.tail_executions, sides.median_executions), *_run_notes(requests)],
        views=[dataclasses.replace(view, facts=facts)],
        calls=counts[0],
        old_calls=counts[1],
    )


def write_tail_page(requests: ProfiledRequests, path: Path, *, target: str = "") -> None:
    """Write the page. Raises RunError."""
    page = tail_page(requests, target=target)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        path.unlink(missing_ok=True)  # a partial page looks complete until it is opened
        raise RunError(
            "cannot_write",
            f"cannot write {path}: {error.strerror}",
            hint="specify a file that can be written",
        ) from error


def _side(requests: ProfiledRequests, side: Sequence[Execution], words: str) -> str:
    service = requests.rows.service_ns[[each.place for each in side]]
    times = f"{format_duration(int(service.min()))} to {format_duration(int(service.max()))}"
    return f"{len(side):,} {words} of {len(requests.rows.executions):,} requests ({times})"


def _notes(requests: ProfiledRequests, tail: Sequence[Execution], median: Sequence[Execution]) -> list[str]:
    queued = requests.rows.queued_ns
    waits = [int(np.mean(queued[[each.place for each in side]])) for side in (tail, median)]
    notes = [
        "Times are means for one request, from sending to the end. Waiting before sending is not included: "
        f"{format_duration(waits[1])} around the median, {format_duration(waits[0])} in the tail.",
        "Requests are chosen by their service time. An interval shows how much the requests of a side vary.",
    ]
    drawn = [len(tail) < len(requests.tail()), len(median) < len(requests.median())]
    if any(drawn):
        notes.append(
            f"Of a side, up to {max(len(tail), len(median))} requests at even distances in time are used."
        )
    sizes = [len(each.rows) for each in (*tail, *median)]
    if max(sizes) > 1:
        notes.append(
            f"A request here is a batch, whose time all of its requests share; mean sizes: "
            f"{np.mean(sizes[len(tail) :]):.3g} around the median, "
            f"{np.mean(sizes[: len(tail)]):.3g} in the tail."
        )
    known = len(requests.known) / max(len(requests.rows.executions), 1)
    if known < 1:
        notes.append(f"The spans of {format_share(1 - known)} of the requests were not recorded.")
    return notes


def _run_notes(requests: ProfiledRequests) -> list[str]:
    return [readable(line) for line in page_notes(requests.folder.meta)]
