# SPDX-License-Identifier: Apache-2.0
"""Hanging what the GPU did below the calls of the call tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.record.facts import Note, NoteCode, note
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt


def with_leaves(
    tree: dict[str, Any],
    names: list[str],
    leaves: list[dict[str, Any]] | None,
    layer_times: list[dict[str, Any]],
) -> tuple[dict[str, Any], list[str]]:
    """Return the tree's columns with `gpu_ns` and the leaves, and the names with theirs.

    `leaves` are columns node, kind, name, calls, gpu_ns, `layer_times` node and gpu_ns. None for `leaves`:
    no GPU was recorded, and `gpu_ns` is -1, which means unknown, in every row. The order stays
    pre-order: leaves come first below their node.
    """
    count = len(tree["parent"])
    plain = {**tree, "number": tree["number"].astype(np.int64)}
    if leaves is None:
        return {**plain, "gpu_ns": np.full(count, -1, dtype=np.int64)}, names
    added = {key: np.concatenate([part[key] for part in leaves]) for key in leaves[0]} if leaves else {}
    place_of_number = np.full(int(tree["number"].max(initial=0)) + 1, -1, dtype=np.int64)
    place_of_number[tree["number"]] = np.arange(count)
    parent = place_of_number[added["node"].astype(np.int64)]
    all_names, name = _extended(names, added["name"])
    leaf = _leaf_columns(plain, added, parent, name)
    columns = {key: np.concatenate([column, leaf[key]]) for key, column in plain.items()}
    of_layers = np.zeros(count, dtype=np.int64)
    for part in layer_times:
        np.add.at(of_layers, place_of_number[part["node"].astype(np.int64)], part["gpu_ns"].astype(np.int64))
    columns["gpu_ns"] = np.concatenate([of_layers, added["gpu_ns"].astype(np.int64)])
    return _in_preorder(columns, count, parent), all_names


def notes_on(leaves: list[dict[str, Any]], *, has_calls: bool = False) -> list[Note]:
    """Return what a reader of the leaves should know; they are as in `with_leaves`.

    Each has besides the number of a `foreign_graph`, -1 for none, how many `records` it represents, and how
    many of these are `unlaunched`. `has_calls`: launches come from records of calls, which have no nodes of
    graphs.
    """
    numbers = sorted({int(number) for part in leaves for number in part["foreign_graph"] if number >= 0})
    unlaunched, records = (sum(int(part[key].sum()) for part in leaves) for key in ("unlaunched", "records"))
    notes = []
    if numbers:
        code = NoteCode.UNSEEN_GRAPHS if has_calls else NoteCode.FOREIGN_GRAPHS
        notes.append(note(code, graphs=numbers))
    if unlaunched:
        notes.append(note(NoteCode.UNLAUNCHED, count=unlaunched, records=records))
    return notes


def _extended(names: list[str], texts: npt.NDArray[Any]) -> tuple[list[str], npt.NDArray[np.int32]]:
    places: dict[str, int] = {}
    for place, text in enumerate(names):
        places.setdefault(text, place)
    extended = list(names)
    for text in texts:
        if text not in places:
            places[text] = len(extended)
            extended.append(text)
    return extended, np.array([places[text] for text in texts], dtype=np.int32)


def _leaf_columns(
    tree: dict[str, Any], added: dict[str, Any], parent: npt.NDArray[np.int64], name: npt.NDArray[np.int32]
) -> dict[str, Any]:
    zeros = np.zeros(len(parent), dtype=np.int64)
    return {
        "number": np.full(len(parent), -1, dtype=np.int64),  # no call of a thread
        "parent": parent.astype(np.int32),
        "kind": np.array([KINDS.index(kind) for kind in added["kind"]], dtype=np.uint8),
        "name": name,
        "calls": added["calls"].astype(np.int64),
        "total_ns": zeros,
        "own_ns": zeros,
        "threads": np.ones(len(parent), dtype=np.int32),
        "process_id": tree["process_id"][parent],
    }


def _in_preorder(columns: dict[str, Any], count: int, parent: npt.NDArray[np.int64]) -> dict[str, Any]:
    # A leaf takes the place right after its parent; equal keys keep their order.
    keys = np.concatenate([np.arange(count, dtype=np.float64), parent + 0.5])
    order = np.argsort(keys, kind="stable")
    new_place = np.empty(len(order), dtype=np.int64)
    new_place[order] = np.arange(len(order))
    ordered = {key: column[order] for key, column in columns.items()}
    parents = ordered["parent"]
    ordered["parent"] = np.where(parents < 0, -1, new_place[np.maximum(parents, 0)]).astype(np.int32)
    return ordered
