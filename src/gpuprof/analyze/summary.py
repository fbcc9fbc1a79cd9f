# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: its call tree folded into one row a name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.analyze.call_tree import KINDS, CallTree
from gpuprof.analyze.text_table import (
    Column,
    format_count,
    format_duration,
    format_share,
    text_table,
)
from gpuprof.errors import RunError

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

# What a person asks for, and the kinds of node that answer it.
MEMBER_KINDS: dict[str, tuple[str, ...]] = {
    "layer": ("layer",),
    "operator": ("operator", "backward"),
    "span": ("span", "nvtx", "compile"),
    "kernel": (),
}
DEFAULT_TOP = 30
TABLE_WIDTH = 100

_NOTHING_RECORDED = {
    "layer": "no layer was recorded here: layers come from `gpuprof.profile(model)` and `gpuprof run`",
    "operator": "no operator was recorded here: `gpuprof doctor` tells whether PyTorch can announce them",
    "span": "no span was recorded here: mark one with `with gpuprof.span(name):`",
    "kernel": "this run holds no kernel records: this version does not collect them",
}


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One name of the table.

    `calls` counts every call, recursive ones too. `total_ns` is the time inside the name, where of
    calls nested in one another only the outermost counts. `own_ns` is the part of it outside every
    nested row of the same table: a layer's own time holds its operators but not its child layers,
    an operator's own time leaves out the operators that it calls. `share` is `own_ns` over the
    summary's `covered_ns`, None where that is zero. `mean_ns` is the mean duration of one call,
    recursive calls included. Times of several threads add up. Where calls overlap on their own
    thread (asynchronous code) or run on other threads than their parent, `own_ns` can exceed
    `total_ns`. `threads` is the largest number of threads that met in one path of calls: at least
    so many made these calls. `processes` counts the processes that did.
    """

    name: str
    kind: str
    calls: int
    total_ns: int
    own_ns: int
    mean_ns: float | None
    share: float | None
    threads: int
    processes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A table of where the time went, by layer, operator or span; `print` shows it.

    `rows` are ordered by own time, the largest first. `total_ns` is everything recorded in the
    `processes` that were summarised, `covered_ns` the part of it inside any row: it is the sum of
    the rows' `own_ns`. `notes` say what a reader must know about the numbers.
    """

    by: str
    rows: tuple[SummaryRow, ...]
    total_ns: int
    covered_ns: int
    processes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, top: int | None = DEFAULT_TOP, width: int = TABLE_WIDTH) -> str:
        """Return the table of the `top` rows (None: all) and the notes, as plain text."""
        shown = self.rows[:top]
        lines = [self._table(shown, width)] if shown else []
        if len(shown) < len(self.rows):
            lines.append(self._left_out(self.rows[len(shown) :]))
        if self.rows:
            lines += ["", self._coverage()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return plain values for JSON, with the `top` rows (None: all); times are nanoseconds."""
        return {
            "by": self.by,
            "total_ns": self.total_ns,
            "covered_ns": self.covered_ns,
            "processes": list(self.processes),
            "row_count": len(self.rows),
            "rows": [asdict(row) for row in self.rows[:top]],
            "notes": list(self.notes),
        }

    def _table(self, rows: tuple[SummaryRow, ...], width: int) -> str:
        columns, cells = _columns(self.by, rows)
        return text_table(columns, list(zip(*cells, strict=True)), width)

    def _left_out(self, rows: tuple[SummaryRow, ...]) -> str:
        own_ns = sum(row.own_ns for row in rows)
        share = own_ns / self.covered_ns if self.covered_ns else None
        return f"... and {len(rows):,} more with {format_share(share)} of the own time"

    def _coverage(self) -> str:
        share = self.covered_ns / self.total_ns if self.total_ns else None
        return (
            f"{self.by}s cover {format_duration(self.covered_ns)} of the "
            f"{format_duration(self.total_ns)} recorded ({format_share(share)}), threads added up"
        )


def _columns(by: str, rows: tuple[SummaryRow, ...]) -> tuple[list[Column], list[list[str]]]:
    """Return the columns worth showing: one that says the same in every row is left out."""
    every = [
        (Column(by, right=False), [row.name for row in rows], True),
        (Column("kind", right=False), [row.kind for row in rows], any(row.kind != by for row in rows)),
        (Column("calls"), [format_count(row.calls) for row in rows], True),
        (Column("total"), [format_duration(row.total_ns) for row in rows], True),
        (Column("own"), [format_duration(row.own_ns) for row in rows], True),
        (Column("own %"), [format_share(row.share) for row in rows], True),
        (Column("mean"), [format_duration(row.mean_ns) for row in rows], True),
        (Column("threads"), [format_count(row.threads) for row in rows], any(r.threads > 1 for r in rows)),
        (Column("procs"), [format_count(row.processes) for row in rows], any(r.processes > 1 for r in rows)),
    ]
    worth = [(column, cells) for column, cells, shown in every if shown]
    return [column for column, _ in worth], [cells for _, cells in worth]


def summarize(tree: CallTree, by: str, process: int | Literal["all"] | None = None) -> Summary:
    """Fold `tree` into one row a name, for `by` in "layer", "operator", "span" or "kernel".

    Rows gather the nodes of the asked kind by name. Time is attributed to the nearest enclosing
    node of the kind, so the rows' own times add up to the covered time. The operator table also
    lists the autograd engine's evaluations (kind "backward"), the span table NVTX ranges and
    compilations. Layers keep the root that they ran under (the outermost layer of the path, named
    by its class) apart: where several roots have layers, a row reads `Root/name`.

    `process` is a process id or "all"; the default is the tree's first process, and a note names
    the others. Raises RunError for an unknown `by` or `process`.
    """
    if by not in MEMBER_KINDS:
        raise RunError(f"cannot summarize by {by!r}: choose one of {', '.join(MEMBER_KINDS)}")
    chosen, notes = _choose_processes(tree, process)
    part = _part_of(tree, chosen)
    rows = _fold(part, by) if MEMBER_KINDS[by] else ()
    if not rows:
        notes = (_NOTHING_RECORDED[by], *notes)
    return Summary(
        by=by,
        rows=rows,
        total_ns=int(part.own_ns.sum()),
        covered_ns=sum(row.own_ns for row in rows),
        processes=chosen,
        notes=notes,
    )


def _choose_processes(
    tree: CallTree, process: int | Literal["all"] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    roots = tree.process_id[tree.parent < 0].tolist()
    recorded = tuple(dict.fromkeys(int(pid) for pid in roots))
    if process == "all":
        return recorded, ()
    if process is not None:
        if process not in recorded:
            known = ", ".join(map(str, recorded[:8])) or "none"
            raise RunError(f"process {process} is not in this run: it recorded {known}, or say all")
        return (process,), ()
    others = recorded[1:]
    if not others:
        return recorded, ()
    listed = ", ".join(map(str, others[:4])) + (", ..." if len(others) > 4 else "")
    count = "1 other process was" if len(others) == 1 else f"{len(others)} other processes were"
    mend = "summary(process=...) or --process takes an id or all"
    return recorded[:1], (f"{count} recorded ({listed}): {mend}",)


@dataclass(frozen=True, slots=True)
class _Part:
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


def _part_of(tree: CallTree, processes: tuple[int, ...]) -> _Part:
    kept = np.isin(tree.process_id, np.array(processes, dtype=np.int64))
    # Ids of the kept nodes among themselves; a process' parent, -1, stays -1.
    renumbered = np.append(np.cumsum(kept, dtype=np.int64) - 1, -1)
    return _Part(
        parent=renumbered[tree.parent[kept]],
        kind=tree.kind[kept],
        name=tree.name[kept].astype(np.int64),
        calls=tree.calls[kept],
        total_ns=tree.total_ns[kept],
        own_ns=tree.own_ns[kept],
        threads=tree.threads[kept].astype(np.int64),
        process_id=tree.process_id[kept],
        names=tree.names,
    )


def _fold(part: _Part, by: str) -> tuple[SummaryRow, ...]:
    """Group the nodes of the table's kinds by key, sum them, and order the rows."""
    is_member = np.isin(part.kind, [KINDS.index(kind) for kind in MEMBER_KINDS[by]])
    # A node without calls only groups others, as the one above the backward pass does.
    is_member &= part.calls > 0
    members = np.flatnonzero(is_member)
    if not len(members):
        return ()
    ends = _subtree_ends(part.parent)
    keys, group = _keys(part, members, ends, by)
    outermost = _outermost(members, group, ends, len(keys))
    own_ns = _own_by_group(part, is_member, members, group, len(keys))
    kind = np.zeros(len(keys), dtype=np.int64)
    kind[group] = part.kind[members]
    sums = {
        "calls": _sum_by(group, part.calls[members], len(keys)),
        "total_ns": _sum_by(group[outermost], part.total_ns[members][outermost], len(keys)),
        "every_ns": _sum_by(group, part.total_ns[members], len(keys)),
        "own_ns": own_ns,
        "threads": _max_by(group, part.threads[members], len(keys)),
        "processes": _distinct_by(group, part.process_id[members], len(keys)),
        "kind": kind,
    }
    return _rows(_display_names(part.names, keys, by), sums)


def _keys(part: _Part, members: Ints, ends: list[int], by: str) -> tuple[Ints, Ints]:
    """Return the table's keys, each context * len(names) + name, and each member's index into them.

    The context is a layer's root or an operator's kind. Equal texts with ids of their own are one
    name, except for layers: there the recorder tells models apart by them.
    """
    if by == "layer":
        context, name = _layer_roots(part, members, ends), part.name[members]
    else:
        first = {text: number for number, text in reversed(list(enumerate(part.names)))}
        canonical = np.array([first[text] for text in part.names], dtype=np.int64)
        context, name = part.kind[members].astype(np.int64), canonical[part.name[members]]
    keys, group = np.unique(context * len(part.names) + name, return_inverse=True)
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


def _layer_roots(part: _Part, members: Ints, ends: list[int]) -> Ints:
    """Return for each layer the name of the outermost layer of its path."""
    roots, until, root = [], 0, -1
    for node, name in zip(members.tolist(), part.name[members].tolist(), strict=True):
        if node >= until:
            until, root = ends[node], name
        roots.append(root)
    return np.array(roots, dtype=np.int64)


def _outermost(members: Ints, group: Ints, ends: list[int], groups: int) -> npt.NDArray[np.bool_]:
    """Tell for each member whether no ancestor of it is in the same group."""
    until = [0] * groups
    outermost = []
    for node, key in zip(members.tolist(), group.tolist(), strict=True):
        outside = node >= until[key]
        outermost.append(outside)
        if outside:
            until[key] = ends[node]
    return np.array(outermost, dtype=np.bool_)


def _own_by_group(
    part: _Part, is_member: npt.NDArray[np.bool_], members: Ints, group: Ints, groups: int
) -> Ints:
    """Give each node's own time to the group of the nearest member at or above it."""
    group_of = np.full(len(part.parent), -1, dtype=np.int64)
    group_of[members] = group
    nearest = group_of.tolist()
    for node, (up, member) in enumerate(zip(part.parent.tolist(), is_member.tolist(), strict=True)):
        if not member and up >= 0:
            nearest[node] = nearest[up]
    holder = np.array(nearest, dtype=np.int64)
    covered = holder >= 0
    return _sum_by(holder[covered], part.own_ns[covered], groups)


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


def _display_names(names: list[str], keys: Ints, by: str) -> list[str]:
    plain = [names[key % len(names)] for key in keys.tolist()]
    if by != "layer":
        return plain
    roots = [names[key // len(names)] for key in keys.tolist()]
    shown = [_under_root(root, name) for root, name in zip(roots, plain, strict=True)]
    # Roots without layers of their own, such as a loss beside the model, make no name ambiguous.
    prefixing = {root for root, name, text in zip(roots, plain, shown, strict=True) if text != name}
    return plain if len(prefixing) < 2 and len(set(plain)) == len(plain) else shown


def _under_root(root: str, name: str) -> str:
    # A layer that is called directly, outside its model, is its own root: its path says so already.
    return name if name == root or name.startswith(root + ".") else f"{root}/{name}"


def _rows(names: list[str], sums: dict[str, Ints]) -> tuple[SummaryRow, ...]:
    columns = {column: values.tolist() for column, values in sums.items()}
    covered_ns = sum(columns["own_ns"])
    rows = [
        SummaryRow(
            name=name,
            kind=KINDS[columns["kind"][index]],
            calls=columns["calls"][index],
            total_ns=columns["total_ns"][index],
            own_ns=columns["own_ns"][index],
            mean_ns=_ratio(columns["every_ns"][index], columns["calls"][index]),
            share=_ratio(columns["own_ns"][index], covered_ns),
            threads=columns["threads"][index],
            processes=columns["processes"][index],
        )
        for index, name in enumerate(names)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.own_ns, row.name, row.kind)))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
