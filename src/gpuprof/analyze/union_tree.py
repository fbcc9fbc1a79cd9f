# SPDX-License-Identifier: Apache-2.0
"""Several call trees as one: nodes with the same path of kinds and names are one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.call_tree import CallTree

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_Step = tuple[int, str]


def union_of(trees: Sequence[CallTree]) -> tuple[CallTree, list[Ints]]:
    """Return a tree that has every path of `trees`, and for each of them where its nodes are in it.

    The order of siblings is that of the first tree that has them. Processes are matched by their order, since
    their ids and names change from run to run. Calls, times and threads of the union are 0; its process ids
    are those of the first tree that has the process.
    """
    grown = _Grown()
    places = [grown.add(tree) for tree in trees]
    tree, order = grown.finish()
    return tree, [order[place] for place in places]


class _Grown:
    def __init__(self) -> None:
        self.parent: list[int] = []
        self.kind: list[int] = []
        self.name: list[int] = []
        self.process_id: list[int] = []
        self.names: dict[str, int] = {}
        self._found: dict[tuple[int, _Step], int] = {}

    def add(self, tree: CallTree) -> Ints:
        """Take in a tree; returns the number of each of its nodes."""
        numbers: list[int] = []
        processes = 0
        columns = (tree.parent, tree.kind, tree.name, tree.process_id)
        for parent, kind, name, process in zip(*(column.tolist() for column in columns), strict=True):
            text = tree.names[name]
            step = (kind, text) if parent >= 0 else (kind, str(processes))
            processes += parent < 0
            key = (numbers[parent] if parent >= 0 else -1, step)
            number = self._found.setdefault(key, len(self.parent))
            if number == len(self.parent):
                self.parent.append(key[0])
                self.kind.append(kind)
                self.name.append(self.names.setdefault(text, len(self.names)))
                self.process_id.append(process)
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def finish(self) -> tuple[CallTree, Ints]:
        """Return the tree in pre-order, and where each number stands in it."""
        children: list[list[int]] = [[] for _ in self.parent]
        roots: list[int] = []
        for number, parent in enumerate(self.parent):
            (children[parent] if parent >= 0 else roots).append(number)
        order, waiting = [], roots[::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(children[order[-1]])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        above = np.array(self.parent, dtype=np.int64)[order]
        nothing = np.zeros(len(order), dtype=np.int64)
        tree = CallTree(
            parent=np.where(above < 0, -1, place[above] if len(place) else above).astype(np.int32),
            kind=np.array(self.kind, dtype=np.uint8)[order],
            name=np.array(self.name, dtype=np.int32)[order],
            calls=nothing,
            total_ns=nothing,
            own_ns=nothing,
            threads=nothing.astype(np.int32),
            process_id=np.array(self.process_id, dtype=np.int64)[order],
            names=list(self.names),
        )
        return tree, place
