# SPDX-License-Identifier: Apache-2.0
"""A call tree seen by another weight than the time of its threads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.call_tree import CallTree

if TYPE_CHECKING:
    import numpy.typing as npt


def has_gpu_time(tree: CallTree) -> bool:
    """Tell whether anything was timed on a GPU."""
    return tree.gpu_ns is not None and bool(tree.gpu_ns.any())


def on_gpu(tree: CallTree) -> CallTree:
    """Return the tree with the GPU's time as its time: `own_ns` that of each kernel and transfer, or layer.

    `total_ns` is the sum over the subtree: the time of everything that was launched inside. A tree without
    GPU records has zeros everywhere.
    """
    own = np.zeros(len(tree), dtype=np.int64) if tree.gpu_ns is None else tree.gpu_ns
    return dataclasses.replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own))


def subtree_sums(parent: npt.NDArray[np.int32], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each node of a tree in pre-order the sum of `values` over its subtree."""
    sums = values.tolist()
    parents = parent.tolist()
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            sums[parents[node]] += sums[node]
    return np.array(sums, dtype=np.int64)
