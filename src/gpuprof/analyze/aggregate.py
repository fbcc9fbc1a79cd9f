# SPDX-License-Identifier: Apache-2.0
"""Aggregates a call tree into groups: one for each name that a summary lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The nodes of the chosen processes, still in pre-order."""

    parent: Ints
    kind: npt.NDArray[np.uint8]
    name: Ints
    calls: Ints
    total_ns: Ints
    own_ns: Ints
    threads: Ints
    process_id: Ints
    names: list[str]
    gpu_ns: Ints | None


def part_of(tree: CallTree, processes: tuple[int, ...]) -> Part:
    """Return the nodes of the chosen processes."""
    kept = np.isin(tree.process_id, np.array(processes, dtype=np.int64))
    # Ids of the kept nodes among themselves; a process' parent, -1, stays -1.
    renumbered = np.append(np.cumsum(kept, dtype=np.int64) - 1, -1)
    return Part(
        parent=renumbered[tree.parent[kept]],
        kind=tree.kind[kept],
        name=tree.name[kept].astype(np.int64),
        calls=tree.calls[kept],
        total_ns=tree.total_ns[kept],
        own_ns=tree.own_ns[kept],
        threads=tree.threads[kept].astype(np.int64),
        process_id=tree.process_id[kept],
        names=tree.names,
        gpu_ns=None if tree.gpu_ns is None else tree.gpu_ns[kept],
    )


@dataclass(frozen=True, slots=True)
class Folded:
    """One element a group in every column; `names` as a reader shall see them."""

    names: list[str]
    columns: dict[str, Ints]
    rest_ns: dict[str, int]  # self time outside of every group, by where it passed


_LAYER, _PYTHON, _WAITING = (KINDS.index(kind) for kind in ("layer", "python", "waiting"))

WAITING = "waiting"
# Where a node's self time passed that is in no row of the table, if that is not its kind.
_REST = {"process": "untracked", "nvtx": "span"}


def rest_of(part: Part, holder: Ints) -> dict[str, int]:
    """Return the self time of the nodes outside of all groups, by their kind, the largest first."""
    labels: list[str] = []
    sums: dict[str, int] = {}
    columns = (part.parent.tolist(), part.kind.tolist(), part.own_ns.tolist(), holder.tolist())
    for up, kind, own_ns, held in zip(*columns, strict=True):
        is_backward = up >= 0 and labels[up] == "backward"
        labels.append("backward" if is_backward else _REST.get(KINDS[kind], KINDS[kind]))
        if held < 0 and own_ns:
            sums[labels[-1]] = sums.get(labels[-1], 0) + own_ns
    return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


def fold(part: Part, by: str, kinds: tuple[str, ...]) -> Folded | None:
    """Group the nodes of `kinds` by key and sum them; None where there are none."""
    found = _group(part, kinds)
    if found is None:
        return None
    members, group, outermost, count = found.members, found.group, found.outermost, len(found.keys)
    called = part.calls[members] > 0
    sums = {
        "calls": _sum_by(group, part.calls[members], count),
        "total_ns": _sum_by(group[outermost], part.total_ns[members][outermost], count),
        "every_ns": _sum_by(group[called], part.total_ns[members][called], count),
        "own_ns": _sum_held(found.holder, part.own_ns, count),
        "threads": _max_by(group, part.threads[members], count),
        "processes": _distinct_by(group, part.process_id[members], count),
        "kind": found.kind,
    }
    if part.gpu_ns is not None:
        inside = _subtree_sums(part.gpu_ns, found.ends)[members]
        sums["gpu_total_ns"] = _sum_by(group[outermost], inside[outermost], count)
        sums["gpu_own_ns"] = _sum_held(found.holder, part.gpu_ns, count)
    if by != "python" and not called.all():
        backward = np.flatnonzero(~called)
        backward = backward[_outermost(members[backward], group[backward], found.ends, count)]
        sums["backward_ns"] = _sum_by(group[backward], part.total_ns[members][backward], count)
        below = _below(part.parent, members[~called])
        sums["backward_own_ns"] = _sum_held(np.where(below, found.holder, -1), part.own_ns, count)
    return Folded(_names(part, found), sums, rest_of(part, found.holder))


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of nodes: which one has a node's self time, and which has its total; -1 for none."""

    names: list[str]
    kinds: list[str]
    holder: Ints
    total_of: Ints


def grouped(part: Part, kinds: tuple[str, ...]) -> Grouping | None:
    """Group the nodes of `kinds` as `fold` does; None where there are none."""
    found = _group(part, kinds)
    if found is None:
        return None
    total_of = np.full(len(part.parent), -1, dtype=np.int64)
    total_of[found.members[found.outermost]] = found.group[found.outermost]
    return Grouping(
        _names(part, found), [KINDS[code] for code in found.kind.tolist()], found.holder, total_of
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Nodes by key: `group` and `outermost` have one element a member, `kind` one a group."""

    members: Ints
    ends: list[int]
    keys: Ints
    group: Ints
    outermost: npt.NDArray[np.bool_]
    holder: Ints
    kind: Ints


def _group(part: Part, kinds: tuple[str, ...]) -> _Groups | None:
    is_member = _members(part, kinds)
    members = np.flatnonzero(is_member)
    if not len(members):
        return None
    ends = _subtree_ends(part.parent)
    keys, group = _keys(part, members)
    outermost = _outermost(members, group, ends, len(keys))
    kind = np.zeros(len(keys), dtype=np.int64)
    kind[group] = part.kind[members]
    holder = _holders(part, is_member, members, group)
    if "python" in kinds:
        # A function that waits uses no time; any other call lasts until its wait has ended.
        holder[part.kind == _WAITING] = -1
    return _Groups(members, ends, keys, group, outermost, holder, kind)


def _names(part: Part, found: _Groups) -> list[str]:
    return [part.names[key % len(part.names)] for key in found.keys.tolist()]


def _members(part: Part, kinds: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    is_member = np.isin(part.kind, [KINDS.index(kind) for kind in kinds])
    # A node without calls only groups others, as the one above the backward pass does. A layer without calls
    # represents, in the backward pass, the one that was called forward.
    # The calls of a sampled function are not known.
    is_member &= (part.calls > 0) | (part.kind == _LAYER) | (part.kind == _PYTHON)
    return is_member


def _below(parent: Ints, tops: Ints) -> npt.NDArray[np.bool_]:
    """Return for each node whether it is one of `tops` or below one."""
    found = np.zeros(len(parent), dtype=np.bool_)
    found[tops] = True
    inside = found.tolist()
    for node, up in enumerate(parent.tolist()):
        inside[node] = inside[node] or (up >= 0 and inside[up])
    return np.array(inside, dtype=np.bool_)


def _subtree_sums(values: Ints, ends: list[int]) -> Ints:
    before = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=before[1:])
    sums: Ints = before[np.array(ends, dtype=np.int64)] - before[:-1]
    return sums


def _keys(part: Part, members: Ints) -> tuple[Ints, Ints]:
    """Return the table's keys, each kind * len(names) + name, and each member's index into them.

    Equal texts with ids of their own are one name.
    """
    first = {text: number for number, text in reversed(list(enumerate(part.names)))}
    canonical = np.array([first[text] for text in part.names], dtype=np.int64)
    kind = part.kind[members].astype(np.int64)
    keys, group = np.unique(kind * len(part.names) + canonical[part.name[members]], return_inverse=True)
    return keys, group.reshape(-1)


def _subtree_ends(parent: Ints) -> list[int]:
    """Return for each node the index after its last descendant; pre-order makes subtrees ranges."""
    parents = parent.tolist()
    ends = list(range(1, len(parents) + 1))
    for node in range(len(parents) - 1, -1, -1):
        up = parents[node]
        if up >= 0 and ends[up] < ends[node]:
            ends[up] = ends[node]
    return ends


def _outermost(members: Ints, group: Ints, ends: list[int], groups: int) -> npt.NDArray[np.bool_]:
    """Return for each member whether no ancestor of it is in the same group."""
    until = [0] * groups
    outermost = []
    for node, key in zip(members.tolist(), group.tolist(), strict=True):
        outside = node >= until[key]
        outermost.append(outside)
        if outside:
            until[key] = ends[node]
    return np.array(outermost, dtype=np.bool_)


def _holders(part: Part, is_member: npt.NDArray[np.bool_], members: Ints, group: Ints) -> Ints:
    """Return for each node the group of the nearest member at or above it, -1 for none."""
    group_of = np.full(len(part.parent), -1, dtype=np.int64)
    group_of[members] = group
    nearest = group_of.tolist()
    for node, (up, member) in enumerate(zip(part.parent.tolist(), is_member.tolist(), strict=True)):
        if not member and up >= 0:
            nearest[node] = nearest[up]
    return np.array(nearest, dtype=np.int64)


def _sum_held(holder: Ints, values: Ints, groups: int) -> Ints:
    held = holder >= 0
    return _sum_by(holder[held], values[held], groups)


def _sum_by(group: Ints, values: Ints, groups: int) -> Ints:
    sums = np.zeros(groups, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def _max_by(group: Ints, values: Ints, groups: int) -> Ints:
    largest = np.zeros(groups, dtype=np.int64)
    np.maximum.at(largest, group, values)
    return largest


def _distinct_by(group: Ints, values: Ints, groups: int) -> Ints:
    pairs = np.unique(np.stack((group, values)), axis=1)
    return np.bincount(pairs[0], minlength=groups).astype(np.int64)
