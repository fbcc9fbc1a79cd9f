# SPDX-License-Identifier: Apache-2.0
"""The single calls of the nodes of a call tree, in columns, and the run cut into blocks by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

_NVTX = KINDS.index("nvtx")

_SPANS = """
    SELECT span_id, coalesce(parent_id, -1) AS parent_id, thread_id, path_id, start_ns, duration_ns
    FROM spans WHERE path_id IS NOT NULL ORDER BY span_id
"""
# What ran on a GPU and the node of the tree that it is merged into: the leaf of its name, below the call
# that launched it.
_GPU_WORK = """
    WITH work AS (
        SELECT span_id, process_id, 'kernel' AS kind, name, coalesce(launch_ns, start_ns) AS start_ns,
               duration_ns
        FROM kernels
        UNION ALL
        SELECT span_id, process_id, 'transfer' AS kind,
               concat_ws(' ', kind, src, CASE WHEN kind = 'copy' THEN 'to' END, dst) AS name,
               coalesce(launch_ns, start_ns) AS start_ns, duration_ns
        FROM transfers)
    SELECT leaf.node_id AS node, work.start_ns, work.duration_ns
    FROM work LEFT JOIN spans ON spans.span_id = work.span_id
    JOIN call_tree AS above ON CASE WHEN work.span_id IS NULL
        THEN above.parent_id IS NULL AND above.process_id = work.process_id
        ELSE above.path_id = spans.path_id END
    JOIN call_tree AS leaf
        ON leaf.parent_id = above.node_id AND leaf.kind = work.kind AND leaf.name = work.name
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """One element a call; `node` is its place in the tree. `own_ns` is outside of its direct children."""

    node: Ints
    start_ns: Ints
    duration_ns: Ints
    own_ns: npt.NDArray[np.float64]
    is_main: npt.NDArray[np.bool_]  # whether the main thread of its process made it


def load_calls(folder: RunFolder, tree: CallTree) -> Calls | None:
    """Return the calls of the program's threads; None where the run does not record their paths."""
    place = _places(folder)
    if place is None:
        return None
    columns = folder.columns(_SPANS)
    columns = {name: np.asarray(column, dtype=np.int64) for name, column in columns.items()}
    path = columns.pop("path_id")
    node = np.append(place, -1)[np.where((path >= 0) & (path < len(place)), path, -1)]
    known = node >= 0
    if not known.all():  # copies of columns of ten million calls are not small
        columns = {name: column[known] for name, column in columns.items()}
        node = node[known]
    own = _self_times(tree, node, columns)
    is_main = columns["thread_id"] == tree.process_id[node]
    return Calls(node, columns["start_ns"], columns["duration_ns"], own, is_main)


def load_gpu_calls(folder: RunFolder) -> Calls | None:
    """Return what ran on GPUs, each at the time of its launch; None as for `load_calls`."""
    if _places(folder) is None:
        return None
    columns = folder.columns(_GPU_WORK)
    node, start, duration = (
        np.asarray(columns[name], dtype=np.int64) for name in ("node", "start_ns", "duration_ns")
    )
    return Calls(node, start, duration, duration.astype(np.float64), np.zeros(len(node), dtype=np.bool_))


def _places(folder: RunFolder) -> Ints | None:
    """Return the node of each path's number, -1 for none; None for a run that was written without."""
    for table in ("spans", "call_tree"):
        if table not in folder.tables or "path_id" not in folder.columns(f"FROM {table} LIMIT 0"):
            return None
    columns = folder.columns("SELECT node_id, path_id FROM call_tree WHERE path_id >= 0")
    path = np.asarray(columns["path_id"], dtype=np.int64)
    place = np.full(int(path.max(initial=-1)) + 1, -1, dtype=np.int64)
    place[path] = np.asarray(columns["node_id"], dtype=np.int64)
    return place


def _self_times(tree: CallTree, node: Ints, columns: dict[str, Ints]) -> npt.NDArray[np.float64]:
    """Return the time of each call outside its children, so that the sums equal those of the tree.

    Only the recorder knows which children of asynchronous calls took time of their parent.
    """
    parent = np.searchsorted(columns["span_id"], columns["parent_id"])
    parent = np.minimum(parent, max(0, len(node) - 1))
    inside = columns["span_id"][parent] == columns["parent_id"] if len(node) else np.zeros(0, dtype=bool)
    inside &= columns["thread_id"][parent] == columns["thread_id"]
    # A range that may end anywhere takes no time of anybody.
    floating = (tree.kind == _NVTX) & (tree.own_ns == 0) & (tree.total_ns > 0)
    inside &= ~floating[node]
    taken = np.bincount(parent[inside], columns["duration_ns"][inside], minlength=len(node))
    own = np.maximum(columns["duration_ns"] - taken, 0.0)
    sums = np.bincount(node, own, minlength=len(tree))
    scale = np.divide(tree.own_ns, sums, out=np.zeros(len(tree)), where=sums > 0)
    scaled: npt.NDArray[np.float64] = own * scale[node]
    return scaled


# ---- blocks ---------------------------------------------------------------------------------

# A program that is profiled mostly repeats something: steps, requests, epochs. The calls of one node are
# never quite independent, since the machine is slower for some seconds and then faster. Blocks of several
# repetitions are much less alike than calls, and every node has calls in every block.

FEWEST = 8  # repetitions; an interval from fewer would mean nothing
MOST = 20  # blocks
_PROCESS = KINDS.index("process")
# What the program does not repeat itself.
_NOT_REPEATED = [KINDS.index(kind) for kind in ("process", "gc", "compile")]


@dataclass(frozen=True, slots=True)
class Blocks:
    """One row a node, one column a block; each element estimates the node's time in the whole run.

    `is_regular` marks the nodes that were called in every block: the others have no estimate.
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
        np.add.at(calls, place, np.where(np.isin(tree.kind, _NOT_REPEATED), 0, np.maximum(tree.calls, 0)))
        enough &= calls >= FEWEST
        np.add.at(time, place, tree.total_ns.astype(np.float64))
    if not enough.any():
        return None
    return int(np.where(enough, time, -1.0).argmax())
