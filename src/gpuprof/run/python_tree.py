# SPDX-License-Identifier: Apache-2.0
"""The call tree with Python's frames in it: function, layer, operator, kernel in one tree.

What spans measured stays as it was. A node that is called from several places of the program becomes one
node for each; together they hold what it held. Frames have the sampled time that no span below them measured.
A thread's wait is a leaf of its own kind below the function that waits. Waits of idle threads are one leaf.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.format import KINDS
from gpuprof.run.stack_placement import (
    MOST_KEPT,
    NOTHING,
    FrameGroups,
    FrameGuesses,
    FrameKinds,
    Placement,
    SpanFrames,
    ThreadSpans,
    as_numbers,
    outer_places,
    places_by_thread,
)
from gpuprof.run.stacks import Frames, Stacks

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

UNCOUNTED = -1  # calls of a frame
# What must be known of the spans; `path_id` is the number of the tree's node.
SPAN_COLUMNS: tuple[str, ...] = ("span_id", "parent_id", "process_id", "thread_id", "path_id")
SPAN_COLUMNS += ("start_ns", "duration_ns", "own_ns")
_PYTHON, _WAITING, _LAYER = (KINDS.index(kind) for kind in ("python", "waiting", "layer"))
# What a new node has in place of a row of the old tree.
_FRAME, _WAIT = -1, -2
IDLE_THREADS = "idle threads"
UNKNOWN_WAIT = "(waiting)"  # of which the function that waits is not known
_NATIVE = tuple(KINDS.index(kind) for kind in ("operator", "backward", "compile", "gc"))
_LEAVES = tuple(KINDS.index(kind) for kind in ("kernel", "transfer"))


def with_python_frames(
    tree: Columns, names: list[str], numbers: npt.NDArray[Any], spans: Columns, stacks: Stacks
) -> tuple[Columns, list[str], npt.NDArray[np.int64]]:
    """Return the tree's columns and names with the frames of `stacks`, and the new `path_id` of each span.

    A node that was reached from several functions has several rows: the new numbers are places of rows.
    `numbers` are those of the tree's nodes, leaves aside, in their order. `spans` has the columns span_id,
    parent_id, process_id, thread_id, path_id (a number), start_ns, duration_ns, own_ns.
    """
    kept = np.flatnonzero(~np.isin(tree["kind"], _LEAVES))
    row_of_number = np.full(int(numbers.max(initial=0)) + 1, -1, dtype=np.int64)
    row_of_number[numbers] = kept
    order = np.lexsort((spans["span_id"], -spans["duration_ns"], spans["start_ns"]))
    sorted_spans = {name: column[order] for name, column in spans.items()}
    sorted_spans["row"] = row_of_number[sorted_spans["path_id"].astype(np.int64)]
    columns, all_names, path_ids = _Merge(tree, names, sorted_spans, stacks).merged()
    in_given_order = np.empty_like(path_ids)
    in_given_order[order] = path_ids
    return columns, all_names, in_given_order


def with_last_samples(decoded: dict[str, Any], stacks: Stacks) -> None:
    """Have a process that was never closed last until its main thread's last sample."""
    tree = decoded["tree"]
    for process in decoded["processes"]:
        process_id = process["process_id"]
        mains = [each for each in stacks.threads if each.process_id == each.thread_id == process_id]
        longer_ns = max((each.t_ns[-1] for each in mains if len(each)), default=0) - process["end_ns"]
        roots = np.flatnonzero((tree["parent"] < 0) & (tree["process_id"] == process_id))
        if not process["closed"] and longer_ns > 0 and len(roots) == 1:
            process["end_ns"] += longer_ns
            tree["own_ns"][roots] += longer_ns
            tree["total_ns"][roots] += longer_ns


class _Merge:
    """A new node is a parent, and a row of the old tree or a frame; it is made before its children."""

    def __init__(self, tree: Columns, names: list[str], spans: Columns, stacks: Stacks) -> None:
        self._tree = tree
        self._names = names
        self._stacks = stacks
        # Numbers of Python's own without a copy of the columns.
        self._spans: dict[str, Sequence[int]] = {
            name: as_numbers(column.astype(np.int64, copy=False)) for name, column in spans.items()
        }
        self._rows = self._spans["row"]
        self._up: list[int] = tree["parent"].tolist()
        self._roots = {
            int(tree["process_id"][row]): int(row) for row in np.flatnonzero(tree["parent"] < 0)[::-1]
        }
        self._groups = FrameGroups([()], {(): 0})
        self._kinds = FrameKinds.of(stacks.texts)
        self._texts = [*stacks.texts, UNKNOWN_WAIT, IDLE_THREADS]
        self._unknown_wait, self._idle_threads = len(stacks.texts), len(stacks.texts) + 1
        self._parent: list[int] = []
        self._row: list[int] = []
        self._frame: list[int] = []
        self._children: dict[tuple[int, int, int], int] = {}
        self._node_of_span = array("q")
        self._sums: dict[str, list[int]] = {name: [] for name in ("calls", "total_ns", "own_ns", "gpu_ns")}
        self._thread_ids: defaultdict[int, set[int]] = defaultdict(set)

    def merged(self) -> tuple[Columns, list[str], npt.NDArray[np.int64]]:
        for row in sorted(self._roots.values()):
            self._child(-1, row, -1)
        placements = self._place()
        found = SpanFrames.of(len(self._rows))
        for placement in placements.values():
            placement.add_to(found)
        self._make_nodes(found, set(placements))
        self._share_out()
        for (process_id, thread_id), placement in placements.items():
            self._add_frame_times(process_id, thread_id, placement)
        self._sum_up()
        return self._columns()

    # ---- the places of spans

    def _place(self) -> dict[tuple[int, int], Placement]:
        places = places_by_thread(self._spans)
        return {
            key: Placement(thread, self._thread_spans(places.get(key, [])), self._kinds, self._groups)
            for thread in self._stacks.threads
            if (key := (thread.process_id, thread.thread_id))[0] in self._roots
        }

    def _thread_spans(self, places: Any) -> ThreadSpans:
        chosen = np.array(places, dtype=np.int64)
        names = ("start_ns", "duration_ns", "row")
        start, duration, row = (np.asarray(self._spans[name])[chosen] for name in names)
        kinds = self._tree["kind"][row]
        return ThreadSpans(
            keys=as_numbers(chosen),
            start_ns=as_numbers(start),
            end_ns=as_numbers(start + duration),
            is_layer=as_numbers((kinds == _LAYER).astype(np.uint8)),
            is_native=as_numbers(np.isin(kinds, _NATIVE).astype(np.uint8)),
        )

    def _make_nodes(self, found: SpanFrames, sampled: set[tuple[int, int]]) -> None:
        families = np.array([self._family_of(row) for row in range(len(self._up))], dtype=np.int64)
        guesses = FrameGuesses(self._groups, found, families[np.asarray(self._rows)])
        outer = outer_places(self._spans)
        made: dict[tuple[int, int, int], int] = {}
        sums, spans = self._sums, self._spans
        threads = zip(spans["process_id"], spans["thread_id"], strict=True)
        for place, (row, up, thread) in enumerate(zip(self._rows, outer, threads, strict=True)):
            group = guesses.above(place) if thread in sampled else 0
            base = self._node_of_span[up] if 0 <= up < place else self._root(thread[0])
            key = (base, group, row)
            node = made.get(key)
            if node is None:
                node = made[key] = self._node_below(base, self._groups.frames[group], row)
            self._node_of_span.append(node)
            sums["calls"][node] += 1
            sums["total_ns"][node] += spans["duration_ns"][place]
            sums["own_ns"][node] += spans["own_ns"][place]
            self._thread_ids[node].add(thread[1])

    def _family_of(self, row: int) -> int:
        """Return the group that gathers a row, as `backward` does: they are called from the same places."""
        calls = self._tree["calls"]
        while self._up[row] >= 0 and self._up[self._up[row]] >= 0 and calls[self._up[row]] == 0:
            row = self._up[row]
        return row

    def _root(self, process_id: int) -> int:
        return self._child(-1, self._roots[process_id], -1)

    def _node_below(self, base: int, frames: Frames, row: int) -> int:
        """Return the node of a row below `base` and frames; where it is elsewhere, without frames."""
        chain = []
        while row >= 0 and row != self._row[base]:
            chain.append(row)
            row = self._up[row]
        node = base
        if row < 0:
            node = self._child(-1, chain.pop(), -1)
        else:
            for frame in frames:
                node = self._child(node, _FRAME, frame)
        for below in reversed(chain):
            node = self._child(node, below, -1)
        return node

    def _child(self, parent: int, row: int, frame: int) -> int:
        key = (parent, row, frame)
        node = self._children.get(key)
        if node is None:
            node = self._children[key] = len(self._parent)
            self._parent.append(parent)
            self._row.append(row)
            self._frame.append(frame)
            for column in self._sums.values():
                column.append(0)
        return node

    # ---- what the old tree knew, among the new nodes

    def _share_out(self) -> None:
        nodes: defaultdict[int, list[int]] = defaultdict(list)
        for node, row in enumerate(self._row):
            nodes[row].append(node)
        is_leaf = np.isin(self._tree["kind"], _LEAVES).tolist()
        old = {name: self._tree[name].tolist() for name in self._sums}
        for row, up in enumerate(self._up):
            if row not in nodes:
                parents = nodes[up] if is_leaf[row] else nodes[up][:1]
                nodes[row] = [self._child(parent, row, -1) for parent in parents]
            self._share_row(nodes[row], {name: column[row] for name, column in old.items()}, is_leaf[row])

    def _share_row(self, nodes: list[int], old: dict[str, int], is_leaf: bool) -> None:
        calls = self._sums["calls"]
        # What ran on the GPU is known for the row as a whole; it is shared out by calls.
        weights = [calls[self._parent[node]] if is_leaf else calls[node] for node in nodes]
        for name, total in old.items():
            if name == "gpu_ns" and total < 0:
                shares = [total] * len(nodes)
            elif is_leaf or name == "gpu_ns":
                shares = shared(total, weights)
            else:
                shares = [self._sums[name][node] for node in nodes]
                shares[0] += total - sum(shares)
            for node, share in zip(nodes, shares, strict=True):
                self._sums[name][node] = share

    # ---- the time of frames

    def _add_frame_times(self, process_id: int, thread_id: int, placement: Placement) -> None:
        root = self._root(process_id)
        is_main = thread_id == process_id
        idle = None
        if not is_main and placement.is_idle():
            idle = self._wait_below(root, self._idle_threads, thread_id)
        own, frames = self._sums["own_ns"], self._groups.frames
        innermost: dict[tuple[int, int, bool], tuple[int, int]] = {}
        for sample in placement.samples():
            for key, group, time_ns, waited in sample.by_span():
                if not frames[group]:
                    continue
                holder = root if key == NOTHING else self._node_of_span[key]
                if key != NOTHING or is_main:
                    # The process has the untracked time of its main thread, and no other's.
                    time_ns = min(time_ns, max(own[holder], 0))
                    if not time_ns:
                        continue
                    own[holder] -= time_ns
                nodes = innermost.get((holder, group, waited > 0))
                if nodes is None:
                    if len(innermost) >= MOST_KEPT:
                        innermost.clear()
                    nodes = self._sampled_nodes(holder, frames[group], thread_id, idle, waits=waited > 0)
                    innermost[holder, group, waited > 0] = nodes
                waited = min(waited, time_ns)
                own[nodes[0]] += time_ns - waited
                own[nodes[1]] += waited

    def _sampled_nodes(
        self, holder: int, frames: Frames, thread_id: int, idle: int | None, *, waits: bool
    ) -> tuple[int, int]:
        """Return the nodes of a sample's time: of that in which the thread ran, and of its wait."""
        if not waits:
            node = self._frames_below(holder, frames, thread_id)
            return node, node
        is_named = frames[-1] in self._kinds.builtins
        node = self._frames_below(holder, frames[:-1] if is_named else frames, thread_id)
        if idle is not None:
            return node, idle
        return node, self._wait_below(node, frames[-1] if is_named else self._unknown_wait, thread_id)

    def _wait_below(self, node: int, text: int, thread_id: int) -> int:
        wait = self._child(node, _WAIT, text)
        self._thread_ids[wait].add(thread_id)
        return wait

    def _frames_below(self, node: int, frames: Frames, thread_id: int) -> int:
        for frame in frames:
            node = self._child(node, _FRAME, frame)
            self._thread_ids[node].add(thread_id)
        return node

    def _sum_up(self) -> None:
        """Sum what has no duration of its own: frames, processes, and groups that were split."""
        total, own = self._sums["total_ns"], self._sums["own_ns"]
        inside = [0] * len(self._parent)
        split = self._split_rows()
        for node in range(len(self._parent) - 1, -1, -1):
            row, parent = self._row[node], self._parent[node]
            is_group = row in split and self._tree["calls"][row] == 0
            if row < 0 or parent < 0 or is_group:
                total[node] = own[node] + inside[node]
            if parent >= 0:
                inside[parent] += total[node]
                if self._row[parent] < 0:
                    self._thread_ids[parent] |= self._thread_ids[node]

    def _split_rows(self) -> set[int]:
        rows, counts = np.unique(np.array(self._row, dtype=np.int64), return_counts=True)
        return {int(row) for row, count in zip(rows, counts, strict=True) if count > 1 and row >= 0}

    # ---- the new tree

    def _columns(self) -> tuple[Columns, list[str], npt.NDArray[np.int64]]:
        order = self._preorder()
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        rows = np.array(self._row, dtype=np.int64)[order]
        parents = np.array(self._parent, dtype=np.int64)[order]
        names, name = self._named(order, rows)
        is_frame = rows < 0  # or a wait
        sums = {key: np.array(column, dtype=np.int64)[order] for key, column in self._sums.items()}
        known_gpu = bool((self._tree["gpu_ns"] >= 0).all())
        columns: Columns = {
            "parent": np.where(parents < 0, -1, place[parents]).astype(np.int32),
            "kind": self._kind_of(rows),
            "name": name,
            "calls": np.where(is_frame, UNCOUNTED, sums["calls"]),
            "total_ns": sums["total_ns"],
            "own_ns": sums["own_ns"],
            "threads": self._thread_counts(order, rows),
            "process_id": self._processes(order),
            "gpu_ns": sums["gpu_ns"] if known_gpu else np.full(len(order), -1, dtype=np.int64),
        }
        is_call = ~is_frame & ~np.isin(columns["kind"], _LEAVES)
        columns["number"] = np.where(is_call, np.arange(len(order)), -1)
        return columns, names, place[np.array(self._node_of_span, dtype=np.int64)]

    def _kind_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        sampled = np.where(rows == _WAIT, _WAITING, _PYTHON)
        return np.where(rows < 0, sampled, self._tree["kind"][np.maximum(rows, 0)]).astype(np.uint8)

    def _preorder(self) -> npt.NDArray[np.int64]:
        children: defaultdict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(self._parent):
            children[parent].append(node)
        order: list[int] = []
        waiting = children[-1][::-1]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += children[node][::-1]
        return np.array(order, dtype=np.int64)

    def _named(
        self, order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> tuple[list[str], npt.NDArray[np.int32]]:
        frames = np.array(self._frame, dtype=np.int64)[order]
        used = np.unique(frames[rows < 0])
        names = [*self._names, *(self._texts[frame] for frame in used.tolist())]
        of_row = self._tree["name"][np.maximum(rows, 0)]
        name = np.where(rows < 0, len(self._names) + np.searchsorted(used, frames), of_row)
        return names, name.astype(np.int32)

    def _thread_counts(
        self, order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        split = self._split_rows()
        return np.array(
            [
                max(1, len(self._thread_ids[node])) if row < 0 or row in split else self._tree["threads"][row]
                for node, row in zip(order.tolist(), rows.tolist(), strict=True)
            ],
            dtype=np.int32,
        )

    def _processes(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        process: list[int] = []
        for parent, row in zip(self._parent, self._row, strict=True):
            process.append(process[parent] if parent >= 0 else int(self._tree["process_id"][row]))
        return np.array(process, dtype=np.int64)[order]


def shared(total: int, weights: list[int]) -> list[int]:
    """Divide a number in proportion to `weights`; the parts add up to it."""
    whole = sum(weights)
    if whole <= 0:
        return [total, *[0] * (len(weights) - 1)]
    parts = [total * weight // whole for weight in weights]
    parts[0] += total - sum(parts)
    return parts
