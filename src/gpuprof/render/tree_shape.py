# SPDX-License-Identifier: Apache-2.0
"""What follows from the order of a call tree's nodes: where subtrees end, and which calls are outermost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Ints = npt.NDArray[np.int64]

# A kind of the page alone: of cells for many paths, and of rows for many names.
OTHER = "other"
OTHER_KIND = len(KINDS)


def name_keys(tree: CallTree) -> Ints:
    """Return a number for each node, which nodes of one name and kind share."""
    return np.asarray(tree.name.astype(np.int64) * len(KINDS) + tree.kind)


def subtree_ends(parent: npt.NDArray[np.int32]) -> Ints:
    """Return for each node of a tree in pre-order the place after its last descendant."""
    parents = parent.tolist()
    ends = list(range(1, len(parents) + 1))
    for node in range(len(parents) - 1, -1, -1):
        above = parents[node]
        if above >= 0 and ends[node] > ends[above]:
            ends[above] = ends[node]
    return np.array(ends, dtype=np.int64)


def outermost(keys: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Mark the nodes that have no node of the same key around them."""
    if not len(keys):
        return np.zeros(0, dtype=np.bool_)
    order = np.argsort(keys, kind="stable")  # in each key in pre-order
    _, rank = np.unique(keys[order], return_inverse=True)
    reach = np.maximum.accumulate(ends[order] + rank.reshape(-1) * (len(keys) + 1))
    before = np.concatenate(([0], reach[:-1])) - rank.reshape(-1) * (len(keys) + 1)
    found = np.empty(len(keys), dtype=np.bool_)
    found[order] = order >= before
    return found
