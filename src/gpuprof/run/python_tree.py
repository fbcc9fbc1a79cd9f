# SPDX-License-Identifier: Apache-2.0
"""The call tree with Python's frames in it: function, layer, operator, kernel in one tree.

What spans measured stays as it was. A node that is called from several places of the program becomes one
node for each; together they hold what it held. Frames have the sampled time that no span below them measured.
A thread's wait is a leaf of its own kind below the function that waits. Waits of idle threads are one leaf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.run.format import KINDS
from gpuprof.run.frame_guesses import FrameGuesses, as_numbers
from gpuprof.run.frame_tree import FRAME, PYTHON, UNCOUNTED, WAIT, WAITING, FrameTree
from gpuprof.run.sampled_spans import LastEnds, SampledSpans, SpanChooser
from gpuprof.run.span_boundaries import NOTHING, ThreadSpans, opener_of
from gpuprof.run.stack_placement import Placement, SpanFrames, moments_of, shared
from gpuprof.run.stacks import Stacks, ThreadStacks
from gpuprof.run.stored_spans import StoredSpans

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

_LAYER = KINDS.index("layer")
_NATIVE = tuple(KINDS.index(kind) for kind in ("operator", "backward", "compile", "gc"))
_LEAVES = tuple(KINDS.index(kind) for kind in ("kernel", "transfer"))


def with_python_frames(
    tree: Columns,
    names: list[str],
    numbers: npt.NDArray[Any],
    spans: StoredSpans,
    stacks: Stacks,
    write_spans: Callable[[Columns], None],
) -> tuple[Columns, list[str]]:
    """Return the tree's columns and names with the frames of `stacks`; write the spans of each process.

    A node that was reached from several functions has several rows, each with a number of its own.
    `numbers` are those of the tree's nodes, leaves aside, in their order. `spans` has the columns parent_id,
    path_id (a number), start_ns, duration_ns, own_ns; written spans have the new numbers.
    """
    kept = np.flatnonzero(~np.isin(tree["kind"], _LEAVES))
    row_of_number = np.full(int(numbers.max(initial=0)) + 1, -1, dtype=np.int64)
    row_of_number[numbers] = kept
    return _Merge(tree, names, spans, row_of_number, stacks).merged(write_spans)


class _Merge:
    """A new node is a parent, and a row of the old tree or a frame; it is made before its children."""

    def __init__(
        self,
        tree: Columns,
        names: list[str],
        spans: StoredSpans,
        row_of_number: npt.NDArray[np.int64],
        stacks: Stacks,
    ) -> None:
        self._tree = tree
        self._names = names
        self._stacks = stacks
        self._spans = spans
        self._row_of_number = row_of_number
        self._up: list[int] = tree["parent"].tolist()
        self._openers = np.array([opener_of(names[name]) for name in tree["name"].tolist()], dtype=np.int8)
        self._is_free = ~np.isin(tree["kind"], (_LAYER, *_NATIVE))
        self._roots = {
            int(tree["process_id"][row]): int(row) for row in np.flatnonzero(tree["parent"] < 0)[::-1]
        }
        self._nodes = FrameTree(stacks, self._roots)
        # Of the spans that samples distinguish.
        self._rows: dict[int, int] = {}
        self._node_of: dict[int, int] = {}

    def merged(self, write_spans: Callable[[Columns], None]) -> tuple[Columns, list[str]]:
        placements = self._place()
        found = SpanFrames()
        for placement in placements.values():
            placement.add_to(found)
        self._make_nodes(found, set(placements), write_spans)
        self._share_out()
        for key, placement in placements.items():
            self._nodes.add_frame_times(*key, placement, self._node_of)
        calls = self._tree["calls"]
        self._nodes.sum_up({row for row in self._split_rows() if calls[row] == 0})
        return self._columns()

    # ---- the places of spans

    def _place(self) -> dict[tuple[int, int], Placement]:
        numbers = {key: number for number, key in enumerate(self._spans.threads)}
        return {
            key: Placement(
                thread, self._thread_spans(numbers.get(key), thread), self._nodes.kinds, self._nodes.groups
            )
            for thread in self._stacks.threads
            if (key := (thread.process_id, thread.thread_id))[0] in self._roots
        }

    def _thread_spans(self, number: int | None, stacks: ThreadStacks) -> ThreadSpans:
        """Return the spans of a thread that its samples distinguish."""
        if number is None:
            return ThreadSpans()
        t_ns, duration = (np.array(column, dtype=np.int64) for column in (stacks.t_ns, stacks.duration_ns))
        moments = np.fromiter(moments_of(stacks), dtype=np.int64, count=len(stacks))
        chooser = SpanChooser(moments, np.concatenate([t_ns - duration, t_ns]))
        free_ends = LastEnds(moments)
        parts: list[tuple[SampledSpans, npt.NDArray[np.int64]]] = []
        until = np.iinfo(np.int64).min
        for spans in self._spans.of_thread(number, ("start_ns", "path_id")):
            row = self._row_of_number[spans["path_id"]]
            # Where a thread's clock was set back, its spans keep their order.
            start = np.maximum(np.maximum.accumulate(spans["start_ns"]), until)
            until = start[-1]
            end = start + spans["duration_ns"]
            free_ends.add(end[self._is_free[row]])
            chosen = chooser.choose(start, end)
            parts.append((chosen._replace(places=spans["span_id"][chosen.places]), row[chosen.places]))
        keys, start, end = (
            np.concatenate(column) for column in zip(*(each for each, _ in parts), strict=True)
        )
        row = np.concatenate([row for _, row in parts])
        self._rows.update(zip(keys.tolist(), row.tolist(), strict=True))
        kinds = self._tree["kind"][row]
        return ThreadSpans(
            keys=as_numbers(keys),
            start_ns=as_numbers(start),
            end_ns=as_numbers(end),
            is_layer=as_numbers((kinds == _LAYER).astype(np.uint8)),
            is_native=as_numbers(np.isin(kinds, _NATIVE).astype(np.uint8)),
            families=as_numbers(row),
            openers=as_numbers(self._openers[row]),
            free_ends=as_numbers(free_ends.found),
        )

    # ---- nodes

    def _make_nodes(
        self, found: SpanFrames, sampled: set[tuple[int, int]], write_spans: Callable[[Columns], None]
    ) -> None:
        """Give all spans their nodes, and sum by node what they measured."""
        guesses = self._guesses(found)
        made = _native.SpanNodes(guesses.families, self._node_below, guesses.group)
        for key in self._spans.threads:
            samples = found.outer[key] if key in sampled else (None, None)
            made.add_thread(self._nodes.root(key[0]), *samples)
        met = np.array(sorted(found.above.items()), dtype=np.int64).reshape(-1, 2)
        made.add_met(met[:, 0], met[:, 1])
        keys = np.sort(np.array(list(self._rows), dtype=np.int64))
        for spans in self._spans.chunks():
            ids = spans["span_id"]
            node = made.make({**spans, "row": self._row_of_number[spans["path_id"]]})
            for rows in self._spans.rows_of({**spans, "path_id": node}):
                write_spans(rows)
            own = keys[slice(*np.searchsorted(keys, (ids[0], ids[-1] + 1)))]
            self._node_of.update(zip(own.tolist(), node[np.searchsorted(ids, own)].tolist(), strict=True))
        for name, column in made.sums().items():
            self._nodes.sums[name][: len(column)] = column.tolist()
        for each, number in made.threads():
            self._nodes.thread_ids[each].add(self._spans.threads[number][1])

    def _guesses(self, found: SpanFrames) -> FrameGuesses:
        families = np.array([self._family_of(row) for row in range(len(self._up))], dtype=np.int64)
        are_opened = (self._tree["calls"] > 0) & (self._openers != NOTHING)
        return FrameGuesses(
            self._nodes.groups, found, self._rows, families, set(families[are_opened].tolist())
        )

    def _family_of(self, row: int) -> int:
        """Return the group that gathers a row, as `backward` does: they are called from the same places."""
        calls = self._tree["calls"]
        while self._up[row] >= 0 and self._up[self._up[row]] >= 0 and calls[self._up[row]] == 0:
            row = self._up[row]
        return row

    def _node_below(self, base: int, group: int, row: int) -> int:
        """Return the node of a row below `base` and frames; where it is elsewhere, without frames."""
        chain = []
        while row >= 0 and row != self._nodes.row[base]:
            chain.append(row)
            row = self._up[row]
        node = base
        if row < 0:
            node = self._nodes.child(-1, chain.pop(), -1)
        else:
            for frame in self._nodes.groups.frames[group]:
                node = self._nodes.child(node, FRAME, frame)
        for below in reversed(chain):
            node = self._nodes.child(node, below, -1)
        return node

    # ---- what the old tree knew, among the new nodes

    def _share_out(self) -> None:
        nodes: defaultdict[int, list[int]] = defaultdict(list)
        for node, row in enumerate(self._nodes.row):
            nodes[row].append(node)
        is_leaf = np.isin(self._tree["kind"], _LEAVES).tolist()
        old = {name: self._tree[name].tolist() for name in self._nodes.sums}
        for row, up in enumerate(self._up):
            if row not in nodes:
                parents = nodes[up] if is_leaf[row] else nodes[up][:1]
                nodes[row] = [self._nodes.child(parent, row, -1) for parent in parents]
            self._share_row(nodes[row], {name: column[row] for name, column in old.items()}, is_leaf[row])

    def _share_row(self, nodes: list[int], old: dict[str, int], is_leaf: bool) -> None:
        calls = self._nodes.sums["calls"]
        # What ran on the GPU is known for the row as a whole; it is shared out by calls.
        weights = [calls[self._nodes.parent[node]] if is_leaf else calls[node] for node in nodes]
        for name, total in old.items():
            if name == "gpu_ns" and total < 0:
                shares = [total] * len(nodes)
            elif is_leaf or name == "gpu_ns":
                shares = shared(total, weights)
            else:
                shares = [self._nodes.sums[name][node] for node in nodes]
                shares[0] += total - sum(shares)
            for node, share in zip(nodes, shares, strict=True):
                self._nodes.sums[name][node] = share

    def _split_rows(self) -> set[int]:
        rows, counts = np.unique(np.array(self._nodes.row, dtype=np.int64), return_counts=True)
        return {int(row) for row, count in zip(rows, counts, strict=True) if count > 1 and row >= 0}

    # ---- the new tree

    def _columns(self) -> tuple[Columns, list[str]]:
        """Return the columns and names of the new tree."""
        order = np.array(self._nodes.preorder(), dtype=np.int64)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        rows = np.array(self._nodes.row, dtype=np.int64)[order]
        parents = np.array(self._nodes.parent, dtype=np.int64)[order]
        names, name = self._named(order, rows)
        is_frame = rows < 0  # or a wait
        sums = {key: np.array(column, dtype=np.int64)[order] for key, column in self._nodes.sums.items()}
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
        columns["number"] = np.where(is_call, order, -1)
        return columns, names

    def _kind_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        sampled = np.where(rows == WAIT, WAITING, PYTHON)
        return np.where(rows < 0, sampled, self._tree["kind"][np.maximum(rows, 0)]).astype(np.uint8)

    def _named(
        self, order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> tuple[list[str], npt.NDArray[np.int32]]:
        frames = np.array(self._nodes.frame, dtype=np.int64)[order]
        used = np.unique(frames[rows < 0])
        names = [*self._names, *(self._nodes.texts[frame] for frame in used.tolist())]
        of_row = self._tree["name"][np.maximum(rows, 0)]
        name = np.where(rows < 0, len(self._names) + np.searchsorted(used, frames), of_row)
        return names, name.astype(np.int32)

    def _thread_counts(
        self, order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        split = self._split_rows()
        return np.array(
            [
                max(1, len(self._nodes.thread_ids[node]))
                if row < 0 or row in split
                else self._tree["threads"][row]
                for node, row in zip(order.tolist(), rows.tolist(), strict=True)
            ],
            dtype=np.int32,
        )

    def _processes(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        process: list[int] = []
        for parent, row in zip(self._nodes.parent, self._nodes.row, strict=True):
            process.append(process[parent] if parent >= 0 else int(self._tree["process_id"][row]))
        return np.array(process, dtype=np.int64)[order]
