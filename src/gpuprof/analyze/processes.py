# SPDX-License-Identifier: Apache-2.0
"""What each process of a run did: its calls, and its times on threads and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuprof.analyze.call_tree import CallTree


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """One process: `total_ns` of its threads added up, `gpu_ns` None where no GPU was recorded."""

    process_id: int
    name: str
    calls: int
    total_ns: int
    gpu_ns: int | None


def process_shares(tree: CallTree) -> list[ProcessShare]:
    """Return the processes in the order of the tree, each once."""
    roots = np.flatnonzero(tree.parent < 0).tolist()
    names = {int(tree.process_id[root]): tree.names[int(tree.name[root])] for root in reversed(roots)}
    shares = []
    for process_id in dict.fromkeys(tree.process_id[roots].tolist()):
        own = tree.process_id == process_id
        shares.append(
            ProcessShare(
                process_id=process_id,
                name=names[process_id],
                calls=int(tree.calls[own & (tree.parent >= 0)].sum()),
                total_ns=int(tree.own_ns[own].sum()),
                gpu_ns=None if tree.gpu_ns is None else int(tree.gpu_ns[own].sum()),
            )
        )
    return shares
