# SPDX-License-Identifier: Apache-2.0
"""The call tree: every recorded interval, merged by its path of names."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CallTree:
    """Merged calls in columns; all arrays have one element a node.

    Nodes stand in pre-order: a parent before its children, each subtree contiguous. A node whose
    `parent` is -1 is a process, its name says which. `total_ns` sums the durations of the merged
    calls; `own_ns` is what is left of it outside the direct children on the same thread. The sum of
    `own_ns` over a subtree is the width that a flame graph draws: it equals `total_ns` unless calls
    overlap (asynchronous code).
    """

    parent: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]  # index into KINDS
    name: npt.NDArray[np.int32]  # index into `names`
    calls: npt.NDArray[np.int64]
    total_ns: npt.NDArray[np.int64]
    own_ns: npt.NDArray[np.int64]
    threads: npt.NDArray[np.int32]  # distinct threads that made the calls
    process_id: npt.NDArray[np.int64]
    names: list[str]
    # Time on the GPU of kernels and transfers, which are leaves, or by CUDA events of layers; 0 in other
    # nodes. None: not recorded.
    gpu_ns: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.parent)


def has_gpu_time(tree: CallTree) -> bool:
    """Return whether anything was timed on a GPU."""
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
