# SPDX-License-Identifier: Apache-2.0
"""The call tree: every recorded interval, merged by its path of names; and what each process did in it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import RunError
from gpuprof.run.database import reason_of
from gpuprof.run.folder import RunFolder
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class CallTree:
    """Merged calls in columns; all arrays have one element a node.

    Nodes are in pre-order: a parent before its children, each subtree contiguous. A node whose
    `parent` is -1 is a process, which its name identifies. `total_ns` sums the durations of the merged
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


# ---- from the table of a run ----------------------------------------------------------------


def load_tree(run: RunFolder) -> CallTree:
    """Read the merged call tree. Raises RunError when the run lacks it or it is damaged."""
    import duckdb

    if "call_tree" not in run.tables:
        raise RunError(
            "no_call_tree",
            f"{run.path} has no call_tree table",
            hint="record it again, or query its tables with run.sql",
        )
    try:
        columns = run.sql(
            "SELECT coalesce(parent_id, -1) AS parent, kind, name, coalesce(calls, 0) AS calls, "
            "total_ns, own_ns, threads, process_id, gpu_ns FROM call_tree ORDER BY node_id"
        ).fetchnumpy()
    except duckdb.Error as error:
        raise RunError(
            "damaged",
            f"the table call_tree of {run.path} is damaged ({reason_of(error)})",
            hint="restore it from a copy",
        ) from None
    places: dict[str, int] = {}
    name = np.array([places.setdefault(text, len(places)) for text in columns["name"]], dtype=np.int32)
    codes = {kind: code for code, kind in enumerate(KINDS)}
    tree = CallTree(
        parent=columns["parent"].astype(np.int32),
        kind=np.array([codes.get(kind, 1) for kind in columns["kind"]], dtype=np.uint8),
        name=name,
        calls=columns["calls"].astype(np.int64),
        total_ns=columns["total_ns"].astype(np.int64),
        own_ns=columns["own_ns"].astype(np.int64),
        threads=columns["threads"].astype(np.int32),
        process_id=columns["process_id"].astype(np.int64),
        names=list(places),
        gpu_ns=_known(columns["gpu_ns"]),
    )
    return with_unique_layers(tree, run.meta.get("layer_types") or {})


def with_unique_layers(tree: CallTree, layer_types: Mapping[str, Mapping[str, str]]) -> CallTree:
    """Return the tree with `Root/path` for each path of several roots, by the outermost layer around it.

    Runs of earlier versions have equal names in several models, and so can the programs that joined a run.
    """
    counts = Counter(path for root, types in layer_types.items() for path in types if path != root)
    shared = {path for path, count in counts.items() if count > 1}
    if not shared:
        return tree
    places = {text: place for place, text in enumerate(tree.names)}
    name = tree.name.copy()
    roots: list[str] = []
    layer = KINDS.index("layer")
    columns = (tree.parent.tolist(), tree.kind.tolist(), tree.name.tolist())
    for node, (parent, kind, place) in enumerate(zip(*columns, strict=True)):
        text = tree.names[place]
        root = roots[parent] if parent >= 0 else ""
        roots.append(root or (text if kind == layer else ""))
        if kind == layer and text in shared and text in layer_types.get(root, ()):
            name[node] = places.setdefault(f"{root}/{text}", len(places))
    return dataclasses.replace(tree, name=name, names=list(places))


def _known(column: npt.NDArray[np.int64] | np.ma.MaskedArray[Any, Any]) -> npt.NDArray[np.int64] | None:
    """Return the column, or None where the run does not know it."""
    if np.ma.getmaskarray(column).any():
        return None
    return np.asarray(column, dtype=np.int64)


# ---- processes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """One process: `total_ns` of its threads added up, `gpu_ns` None where no GPU was recorded."""

    process_id: int
    name: str
    calls: int
    total_ns: int
    gpu_ns: int | None


def processes_of(tree: CallTree) -> list[ProcessShare]:
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
