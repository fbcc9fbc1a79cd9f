# SPDX-License-Identifier: Apache-2.0
"""Which cell of the flame graph each slice is counted in.

Slices of one path of names and kinds are one *class*. The tree has a node for it, or none where the weight
leaves it out, or several: which layer of the backward pass an evaluation belongs to is in the tree
alone, so nodes of the same name below one backward pass share a class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.shown_tree import BACKWARD_PREFIX
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Ints = npt.NDArray[np.int64]

_PROCESS, _LAYER, _OPERATOR, _BACKWARD = (
    KINDS.index(kind) for kind in ("process", "layer", "operator", "backward")
)


@dataclass(frozen=True, slots=True)
class SliceClasses:
    """One element a class in `name`, `kind`, `parent` and `node`; -1 means none."""

    names: list[str]
    name: Ints
    kind: Ints
    parent: Ints
    node: Ints  # the first node of the tree that counts it
    of_node: Ints  # the class of each node of the tree
    of_slice: Ints


@dataclass(slots=True)
class _Builder:
    """Gives each path a number, the parent before its children."""

    kinds: int = len(KINDS) + 1  # and that of cells for many paths
    known: dict[tuple[int, int], int] = field(default_factory=dict)
    name: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)  # the class that its children are below, mostly itself

    def add(self, parent: int, key: int, node: int) -> int:
        number = len(self.name)
        self.known[(parent, key)] = number
        self.name.append(key // self.kinds)
        self.kind.append(key % self.kinds)
        self.parent.append(parent)
        self.node.append(node)
        self.inside.append(number)
        return number


def classes_of(columns: dict[str, npt.NDArray[Any]], names: list[str], tree: CallTree) -> SliceClasses:
    """Return the class of each slice and of each node.

    A slice's `parent` is the place of another one, its `node` the place of its node in `tree` (-1: unknown),
    `above` that of its parent where that is no slice of these, `hidden` that of the cell for many paths.
    Where the node is known, so is the path: Python's functions are in the tree between spans that are nested.
    """
    texts: dict[str, int] = {}
    of_tree = [texts.setdefault(name, len(texts)) for name in tree.names]
    of_slices = np.array([texts.setdefault(name, len(texts)) for name in names], dtype=np.int64)
    builder = _Builder()
    of_node, roots = _classes_of_nodes(builder, tree, of_tree)
    told, above = (np.append(of_node, -1)[columns[key]].astype(np.int64) for key in ("node", "above"))
    of_slice = _classes_of_slices(builder, columns, of_slices, roots, texts, told, above)
    used = np.unique(np.array(builder.name, dtype=np.int64))
    all_names = list(texts)
    return SliceClasses(
        names=[all_names[name] for name in used.tolist()],
        name=np.searchsorted(used, np.array(builder.name, dtype=np.int64)),
        kind=np.array(builder.kind, dtype=np.int64),
        parent=np.array(builder.parent, dtype=np.int64),
        node=np.array(builder.node, dtype=np.int64),
        of_node=np.array(of_node, dtype=np.int64),
        of_slice=of_slice,
    )


def _classes_of_nodes(
    builder: _Builder, tree: CallTree, texts: list[int]
) -> tuple[list[int], dict[int, int]]:
    """Return the class of each node, and of each process; nodes without calls only group others."""
    of_node: list[int] = []
    inside: list[int] = []  # the class that a node's children are below
    roots: dict[int, int] = {}
    columns = (tree.parent.tolist(), tree.name.tolist(), tree.kind.tolist(), tree.calls.tolist())
    processes = tree.process_id.tolist()
    for node, (up, name, kind, calls) in enumerate(zip(*columns, strict=True)):
        if calls == 0 and up >= 0 and kind in (_PROCESS, _LAYER, _BACKWARD):
            of_node.append(-1)
            inside.append(inside[up])
            continue
        parent = -1 if up < 0 else inside[up]
        key = texts[name] * builder.kinds + kind
        # Processes of one name are not one.
        found = None if up < 0 else builder.known.get((parent, key))
        number = builder.add(parent, key, node) if found is None else found
        if up < 0:
            roots.setdefault(processes[node], number)
        of_node.append(number)
        inside.append(number)
    return of_node, roots


def _classes_of_slices(
    builder: _Builder,
    columns: dict[str, npt.NDArray[Any]],
    texts: Ints,
    roots: dict[int, int],
    names: dict[str, int],
    told: Ints,
    above_told: Ints,
) -> Ints:
    engine = _engine_names(names)
    keys = texts[columns["name"]] * builder.kinds + columns["kind"] if len(texts) else columns["kind"]
    # Parents before what is inside them, threads before what they launched.
    unknown = np.flatnonzero(told < 0)
    order = unknown[
        np.lexsort((columns["id"][unknown], columns["start_ns"][unknown], columns["on_gpu"][unknown]))
    ]
    of_slice: list[int] = told.tolist()
    more = (columns[key][order] for key in ("process", "parent", "hidden"))
    lists = [each.tolist() for each in (order, keys[order], above_told[order], *more)]
    known = builder.known
    for place, key, above_parent, process, parent, cell in zip(*lists, strict=True):
        above = of_slice[parent] if parent >= 0 else above_parent
        above = roots.get(process, -1) if above < 0 else builder.inside[above]
        number = known.get((above, key))
        of_slice[place] = _new_class(builder, above, key, engine, cell) if number is None else number
    return np.array(of_slice, dtype=np.int64)


def _engine_names(names: dict[str, int]) -> dict[int, int]:
    """Return for the name of each node that the engine evaluates that of the engine's span."""
    return {
        names[text.removeprefix(BACKWARD_PREFIX)]: number
        for text, number in names.items()
        if text.startswith(BACKWARD_PREFIX) and text.removeprefix(BACKWARD_PREFIX) in names
    }


def _new_class(builder: _Builder, above: int, key: int, engine: dict[int, int], cell: int) -> int:
    """Add a path that the tree does not show, or shows in `cell` or that of the engine's span around it."""
    name, kind = divmod(key, builder.kinds)
    is_twin = (
        above >= 0
        and kind == _OPERATOR
        and builder.kind[above] == _BACKWARD
        and builder.name[above] == engine.get(name, -1)
    )
    number = builder.add(above, key, builder.node[above] if is_twin else cell)
    if is_twin:
        builder.inside[number] = above  # as shown_tree.py has it
    return number
