# SPDX-License-Identifier: Apache-2.0
"""A run cut into blocks of equally many repetitions, in the order of time: samples of its own times.

A program that is profiled mostly repeats something: steps, requests, epochs. The calls of one node are
never quite independent, since the machine is slower for some seconds and then faster. Blocks of several
repetitions are much less alike than calls, and every node has its share in every block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.calls import Calls

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

FEWEST = 8  # repetitions; an interval from fewer would mean nothing
MOST = 20  # blocks
_PROCESS = KINDS.index("process")


@dataclass(frozen=True, slots=True)
class Blocks:
    """One row a node, one column a block; each element estimates the node's time in the whole run.

    `is_regular` tells which nodes were called in every block: of the others nothing can be estimated.
    """

    total_ns: Floats
    own_ns: Floats
    is_regular: npt.NDArray[np.bool_]


def cut_into_blocks(tree: CallTree, timed: Calls, calls: Calls, repeated: Ints) -> Blocks | None:
    """Cut the times of `timed` by the calls of the nodes `repeated` in `calls`; None where these are too few.

    Both are the same for the times of the program's threads. Work on a GPU is cut by the calls around it.
    """
    begins = np.sort(calls.start_ns[np.isin(calls.node, repeated)])
    if len(begins) < FEWEST:
        return None
    count = min(MOST, len(begins))
    first = np.arange(count) * len(begins) // count
    share = np.diff(np.append(first, len(begins))) / len(begins)
    # What happens between two repetitions belongs to the one before; before the first, to the first.
    block = np.searchsorted(begins[first[1:]], timed.start_ns, side="right")
    cell = timed.node * count + block
    shape = (len(tree), count)

    def summed(values: Floats | Ints | None) -> Floats:
        sums = np.bincount(cell, values, minlength=len(tree) * count).astype(np.float64)
        return np.reshape(sums, shape)

    own, direct = summed(timed.own_ns), summed(timed.duration_ns)
    seen = summed(None)
    total = _inclusive(tree, own, direct, timed is calls)
    without_calls = (tree.calls == 0) | (tree.kind == _PROCESS) | (timed is not calls)
    regular = np.where(without_calls, (total > 0).all(axis=1), (seen > 0).all(axis=1))
    return Blocks(total / share, own / share, regular)


def _inclusive(tree: CallTree, own: Floats, direct: Floats, has_calls: bool) -> Floats:
    """Return times with those inside: of calls what was measured, of other nodes their children's sum."""
    total = direct.copy() if has_calls else own.copy()
    measured = ((tree.calls > 0) & (tree.kind != _PROCESS)).tolist()
    parents = tree.parent.tolist()
    for node in range(len(parents) - 1, -1, -1):
        above = parents[node]
        if above >= 0 and not (has_calls and measured[above]):
            total[above] += total[node]
    return np.asarray(total)


def repeated_node(trees: list[tuple[CallTree, Ints]], nodes: int) -> int | None:
    """Return the node of the union that the runs repeat: of those with enough calls, the one with most time.

    `trees` come with the places of their nodes in the union, which has `nodes`.
    """
    enough = np.ones(nodes, dtype=np.bool_)
    time = np.zeros(nodes)
    for tree, place in trees:
        calls = np.zeros(nodes, dtype=np.int64)
        np.add.at(calls, place, np.where(tree.kind == _PROCESS, 0, np.maximum(tree.calls, 0)))
        enough &= calls >= FEWEST
        np.add.at(time, place, tree.total_ns.astype(np.float64))
    if not enough.any():
        return None
    return int(np.where(enough, time, -1.0).argmax())
