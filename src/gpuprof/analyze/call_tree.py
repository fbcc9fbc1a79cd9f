# SPDX-License-Identifier: Apache-2.0
"""The call tree: every recorded interval, merged by its path of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
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
