# SPDX-License-Identifier: Apache-2.0
"""The tail and the requests around the median as the two sides of a comparison, a sample for each request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof.analyze.call_tree import CallTree, subtree_sums
from gpuprof.analyze.difference import Sample
from gpuprof.analyze.requests.rows import Execution
from gpuprof.analyze.requests.slowest import ProfiledRequests
from gpuprof.errors import RunError
from gpuprof.run.format import KINDS

_SAMPLED = tuple(KINDS.index(kind) for kind in ("python", "waiting"))


@dataclass(frozen=True, slots=True)
class TailSides:
    """Both sides on the nodes of `tree`, whose times are means. Executions are those in the samples."""

    tree: CallTree
    tail: list[Sample]
    median: list[Sample]
    tail_executions: list[Execution]
    median_executions: list[Execution]


def tail_sides(requests: ProfiledRequests) -> TailSides:
    """Return the tail against the median. Raises RunError for too few requests."""
    if not requests.has_tail():
        raise RunError(
            "too_few_requests",
            f"{len(requests.known):,} profiled requests are too few to compare the tail with the median",
            hint="send at least 20",
        )
    sides = [requests.sampled(side) for side in (requests.tail(), requests.median())]
    times_tree = requests.tree([*sides[0], *sides[1]])
    tree, place = times_tree.as_call_tree()
    samples = [[_sample(requests, tree, place, each) for each in side] for side in sides]
    _share_sampled(tree, samples)
    both = [*samples[0], *samples[1]]
    used = np.any([each.exists for each in both], axis=0)
    tree, kept = _pruned(tree, used)
    tail, median = ([_moved(each, kept) for each in side] for side in samples)
    own = np.mean([each.own_ns for each in (*tail, *median)], axis=0)
    total = np.mean([each.total_ns for each in (*tail, *median)], axis=0)
    calls = np.mean([each.calls for each in (*tail, *median)], axis=0)
    tree = dataclasses.replace(
        tree,
        own_ns=own.astype(np.int64),
        total_ns=total.astype(np.int64),
        calls=np.ceil(calls).astype(np.int64),
    )
    return TailSides(tree, tail, median, *sides)


def _sample(requests: ProfiledRequests, tree: CallTree, place: Sequence[int], execution: Execution) -> Sample:
    own, calls = np.zeros(len(tree), np.int64), np.zeros(len(tree), np.int64)
    times = requests.times(execution)
    if times is not None:
        for node, own_ns in times.own_ns.items():
            own[place[node]] = own_ns
        for node, count in times.calls.items():
            calls[place[node]] = count
    total = subtree_sums(tree.parent, own)
    return Sample(
        total_ns=total.astype(np.float64),
        own_ns=own.astype(np.float64),
        calls=calls,
        exists=(subtree_sums(tree.parent, calls) > 0) | (total > 0),
        repetitions=1,
        whole_ns=float(own.sum()),
        blocks=None,
    )


def _share_sampled(tree: CallTree, sides: Sequence[Sequence[Sample]]) -> None:
    """Have sampled functions exist on both sides: without a sample a function may still have been called."""
    sampled = np.isin(tree.kind, _SAMPLED)
    seen = np.any([each.exists for side in sides for each in side], axis=0) & sampled
    for side in sides:
        for each in side:
            each.exists[seen] = True


def _pruned(tree: CallTree, used: npt.NDArray[np.bool_]) -> tuple[CallTree, npt.NDArray[np.int64]]:
    """Return the tree of the nodes that are used, with those above them, and which these are."""
    wanted = subtree_sums(tree.parent, used.astype(np.int64)) > 0
    kept = np.flatnonzero(wanted)
    new_place = np.cumsum(wanted) - 1
    parent = tree.parent[kept]
    columns = {
        name: getattr(tree, name)[kept]
        for name in ("kind", "name", "calls", "total_ns", "own_ns", "threads", "process_id")
    }
    moved = np.where(parent < 0, -1, new_place[parent]).astype(np.int32)
    return dataclasses.replace(tree, parent=moved, **columns), kept


def _moved(sample: Sample, kept: npt.NDArray[np.int64]) -> Sample:
    columns = {name: getattr(sample, name)[kept] for name in ("total_ns", "own_ns", "calls", "exists")}
    return dataclasses.replace(sample, **columns)
