# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: its call tree folded into one row a name."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.analyze.aggregate import WAITING, Folded, fold, part_of, rest_of
from gpuprof.analyze.call_tree import CallTree, on_gpu
from gpuprof.analyze.kernel_labels import kernel_labels, label_of
from gpuprof.analyze.layer_groups import layer_groups
from gpuprof.errors import RunError
from gpuprof.run.format import KINDS
from gpuprof.text.sanitize import escape_text, quoted_if_blank
from gpuprof.text.table import TABLE_WIDTH, Column, text_table
from gpuprof.text.units import format_count, format_duration, format_quantity, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

# The tables, and the kinds of node of each.
MEMBER_KINDS: dict[str, tuple[str, ...]] = {
    "layer": ("layer",),
    "operator": ("operator", "backward"),
    "span": ("span", "nvtx", "compile", "gc"),
    "kernel": ("kernel", "transfer"),
    "python": ("python",),
}
# The default is the first of these that has rows.
_DEFAULT_ORDER = ("layer", "operator", "span", "python", "kernel")
DEFAULT_TOP = 30

_NOTHING_RECORDED = {
    "layer": "no layer was recorded here: layers come from `gpuprof.profile(model)` and `gpuprof run`",
    "operator": "no operator was recorded here: `gpuprof doctor` shows whether PyTorch can announce them",
    "span": "no span was recorded here: mark one with `with gpuprof.span(name):`",
    "kernel": "no GPU work was recorded here: `gpuprof doctor` shows what a recording of it needs",
    "python": "no Python function was recorded here: `gpuprof run` samples them",
}


_ONE = "summary(process=...) or --process takes the id of one"
_CHOICE = "summary(process=...) or --process takes an id or all"


_REST = {
    "span": "spans",
    "layer": "layers",
    "operator": "operators",
    "compile": "compilation",
    "gc": "garbage collection",
    "python": "Python functions",
}


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One name of the table.

    `calls` counts every call, recursive ones too. `total_ns` is the time inside the name, where of
    calls nested in one another only the outermost counts. `own_ns` is the part of it outside every
    nested row of the same table: a layer's self time holds its operators but not its child layers,
    an operator's self time leaves out the operators that it calls. `share` is `own_ns` over the
    summary's `covered_ns`, None where that is zero. `mean_ns` is the mean duration of one call,
    recursive calls included. Times of several threads add up. Where calls overlap on their own
    thread (asynchronous code) or run on other threads than their parent, `own_ns` can exceed
    `total_ns`. `threads` is the largest number of threads that met in one path of calls: at least
    so many made these calls. `processes` counts the processes that did.

    The times of a layer hold its backward pass: what the autograd engine evaluated of the nodes that the
    layer's calls had made. `backward_ns` is that part of `total_ns`; it is None where nothing was
    differentiated or it is not known which layer asked for it. `calls` and `mean_ns` are of calls alone.

    `gpu_total_ns` is the time of the kernels and transfers that were launched inside the name (where
    streams overlap it can exceed the time that passed), `gpu_own_ns` the part of it outside every nested
    row, `gpu_share` that over the GPU time of the summary. They are None where no GPU was recorded. In the
    table by kernel every time is GPU time. Where layers were timed by CUDA events, `gpu_total_ns` is the time
    between a layer's two events, with that of layers inside it on other streams.

    In the table by layer of a run with counted work, `flops` and `bytes` are those of the layer's own forward
    operators in all its calls, and the rates are over its self time without the backward pass
    (`backward_own_ns`). They are None where they are not known, or where the calls of the model take times so
    different that they cannot all do the work that was counted.

    `group` is that of repeated layers (`gpuprof.analyze.layer_groups`), None for all others. `members` is the
    number of rows in a row of a group, see `folded`.

    `name` is the full one. Of a kernel, `label` is the function and what distinguishes it from the others of
    the table (`gpuprof.analyze.kernel_labels`), of a collection what it is; it is None for everything else.
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
    gpu_total_ns: int | None = None
    gpu_own_ns: int | None = None
    gpu_share: float | None = None
    backward_ns: int | None = None
    backward_own_ns: int | None = None
    flops: int | None = None
    bytes: int | None = None
    label: str | None = None
    group: str | None = None
    members: int = 1

    @property
    def shown_name(self) -> str:
        """What a table shows: the label of a kernel, the size of a group, else the name."""
        name = self.name if self.label is None else self.label
        return name if self.members == 1 else f"{name} x{self.members}"

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs over the forward self time."""
        return None if self.flops is None else _ratio_of(self.flops * 1e9, self._forward_own_ns)

    @property
    def bytes_per_s(self) -> float | None:
        """Ideal bytes over the forward self time."""
        return None if self.bytes is None else _ratio_of(self.bytes * 1e9, self._forward_own_ns)

    @property
    def _forward_own_ns(self) -> int:
        return self.own_ns - (self.backward_own_ns or 0)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rates = {
            "intensity": self.intensity,
            "flops_per_s": self.flops_per_s,
            "bytes_per_s": self.bytes_per_s,
        }
        values = {**asdict(self), **rates}
        del values["members"]  # one of each row of `Summary.rows`
        return values


def folded(rows: Sequence[SummaryRow]) -> tuple[SummaryRow, ...]:
    """Return the rows with one for each group of repeated layers, which adds up those of its members.

    The mean is that of all calls. What is not known of a member is not known of its group.
    """
    groups: dict[str, list[SummaryRow]] = {}
    for row in rows:
        if row.group is not None:
            groups.setdefault(row.group, []).append(row)
    alone = [row for row in rows if row.group is None or len(groups[row.group]) == 1]
    return _sorted([*alone, *(_of_group(name, each) for name, each in groups.items() if len(each) > 1)])


def _of_group(name: str, members: Sequence[SummaryRow]) -> SummaryRow:
    calls = sum(row.calls for row in members)
    sums = {
        each: _sum_of_known(getattr(row, each) for row in members)
        for each in ("share", "gpu_total_ns", "gpu_own_ns", "gpu_share", "backward_ns", "backward_own_ns")
    }
    return replace(
        members[0],
        name=name,
        calls=calls,
        total_ns=sum(row.total_ns for row in members),
        own_ns=sum(row.own_ns for row in members),
        mean_ns=_ratio_of(sum((row.mean_ns or 0) * row.calls for row in members), calls),
        threads=max(row.threads for row in members),
        processes=max(row.processes for row in members),
        flops=_sum_of_all(row.flops for row in members),
        bytes=_sum_of_all(row.bytes for row in members),
        members=len(members),
        **sums,
    )


def _sum_of_known(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_of_all(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


@dataclass(frozen=True, slots=True)
class Summary:
    """A table of where the time went, by layer, operator or span; `print` shows it.

    `rows` are ordered by self time, that on the GPU first where one was recorded. `total_ns` is
    everything recorded in the `processes` that were summarized, `covered_ns` the part of it inside
    any row: it is the sum of the rows' `own_ns`. `rest_ns` has the difference of the two by where it passed.
    `waiting_ns` is the time in which threads waited outside the rows; `total_ns` does not contain it.
    `notes` are what a reader must know about the numbers. `elsewhere` names the processes that have rows
    where these have none.
    """

    by: str
    rows: tuple[SummaryRow, ...]
    total_ns: int
    covered_ns: int
    processes: tuple[int, ...]
    notes: tuple[str, ...] = ()
    gpu_total_ns: int | None = None
    rest_ns: dict[str, int] = field(default_factory=dict)
    elsewhere: str | None = None
    waiting_ns: int = 0

    def __str__(self) -> str:
        return self.to_text()

    def to_text(
        self,
        top: int | None = DEFAULT_TOP,
        width: int = TABLE_WIDTH,
        *,
        full_names: bool = False,
        flat: bool = False,
    ) -> str:
        """Return the table of the `top` rows (None: all) and the notes, as plain text.

        Kernels have their labels; with `full_names`, names are complete and the table is as wide as they are.
        Repeated layers are one row; with `flat`, each layer has its own.
        """
        rows = self.rows if flat else folded(self.rows)
        shown = rows[:top]
        if full_names:
            shown = tuple(replace(row, label=None) for row in shown)
            width += max((len(row.name) for row in shown), default=0)
        lines = [self._table(shown, width)] if shown else []
        if len(shown) < len(rows):
            lines.append(self._left_out(rows[len(shown) :]))
        if self.rows:
            lines += ["", self._coverage()]
        lines += [f"note: {escape_text(note)}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return plain values for JSON, with the `top` rows (None: all); times are nanoseconds."""
        return {
            "by": self.by,
            "total_ns": self.total_ns,
            "covered_ns": self.covered_ns,
            "gpu_total_ns": self.gpu_total_ns,
            "rest_ns": self.rest_ns,
            "waiting_ns": self.waiting_ns,
            "processes": list(self.processes),
            "row_count": len(self.rows),
            "rows": [row.as_dict() for row in self.rows[:top]],
            "notes": list(self.notes),
        }

    def _table(self, rows: tuple[SummaryRow, ...], width: int) -> str:
        columns, cells = _columns(self.by, rows)
        return text_table(columns, list(zip(*cells, strict=True)), width)

    def _left_out(self, rows: tuple[SummaryRow, ...]) -> str:
        own_ns = sum(row.own_ns for row in rows)
        share = own_ns / self.covered_ns if self.covered_ns else None
        return f"... and {len(rows):,} more with {format_share(share)} of the self time"

    def _coverage(self) -> str:
        share = self.covered_ns / self.total_ns if self.total_ns else None
        if self.by == "kernel":
            return f"{format_duration(self.total_ns)} on GPUs (sum over all streams)"
        what = "Python functions" if self.by == "python" else f"{self.by}s"
        line = (
            f"{what} cover {format_duration(self.covered_ns)} ({format_share(share)}) of "
            f"{format_duration(self.total_ns)} (sum over all threads and tasks)"
        )
        if self.rest_ns and self.total_ns:
            parts = [
                f"{_REST.get(where, where)} {format_duration(ns)} ({format_share(ns / self.total_ns)})"
                for where, ns in self.rest_ns.items()
            ]
            line += "\n" + textwrap.fill("the rest: " + ", ".join(parts), TABLE_WIDTH, subsequent_indent="  ")
        if self.waiting_ns:
            line += f"\nin addition, threads waited {format_duration(self.waiting_ns)} outside of {what}"
        if self.gpu_total_ns is None:
            return line
        held_ns = sum(row.gpu_own_ns or 0 for row in self.rows)
        return (
            f"{line}\n{self.by}s cover {format_duration(held_ns)} of the "
            f"{format_duration(self.gpu_total_ns)} on GPUs (sum over all streams)"
        )


def _columns(by: str, rows: tuple[SummaryRow, ...]) -> tuple[list[Column], list[list[str]]]:
    """Return the columns worth showing: one that is equal in every row is left out."""
    with_work = any(row.flops is not None for row in rows)
    with_gpu = by != "kernel" and any(row.gpu_own_ns for row in rows)
    with_backward = any(row.backward_ns for row in rows)
    mean = "forward mean" if with_backward else "mean"
    every = [
        (Column(by, right=False), [quoted_if_blank(row.shown_name) for row in rows], True),
        (Column("kind", right=False), [row.kind for row in rows], any(row.kind != by for row in rows)),
        (Column("calls"), [format_count(row.calls) for row in rows], any(row.calls for row in rows)),
        # Nothing is nested in a kernel.
        (Column("total"), [format_duration(row.total_ns) for row in rows], by != "kernel"),
        (Column("backward"), [format_duration(row.backward_ns) for row in rows], with_backward),
        (Column("self"), [format_duration(row.own_ns) for row in rows], True),
        (Column("self %"), [format_share(row.share) for row in rows], True),
        (Column(mean), [format_duration(row.mean_ns) for row in rows], any(row.calls for row in rows)),
        (Column("gpu"), [format_duration(row.gpu_total_ns) for row in rows], with_gpu),
        (Column("gpu self"), [format_duration(row.gpu_own_ns) for row in rows], with_gpu),
        (Column("gpu %"), [format_share(row.gpu_share) for row in rows], with_gpu),
        (Column("FLOPs"), [format_quantity(row.flops) for row in rows], with_work),
        (Column("FLOP/B"), [format_quantity(row.intensity) for row in rows], with_work),
        (Column("FLOP/s"), [format_quantity(row.flops_per_s) for row in rows], with_work),
        (Column("threads"), [format_count(row.threads) for row in rows], any(r.threads > 1 for r in rows)),
        (Column("procs"), [format_count(row.processes) for row in rows], any(r.processes > 1 for r in rows)),
    ]
    worth = [(column, cells) for column, cells, shown in every if shown]
    return [column for column, _ in worth], [cells for _, cells in worth]


def first_with_rows(summarized: Callable[[str], Summary]) -> Summary:
    """Return the table by layer, or where that has no rows the next kind's that has, with a note."""
    by_layer = found = summarized(_DEFAULT_ORDER[0])
    for kind in _DEFAULT_ORDER[1:]:
        if _has_calls_of_program(found):
            break
        found = summarized(kind)
    if not _has_calls_of_program(found) or found is by_layer:
        return by_layer
    reason = by_layer.elsewhere or "no layer was recorded here"
    note = f"{reason}, so this is the table by {found.by}"
    return replace(found, notes=(note, *found.notes))


def _has_calls_of_program(table: Summary) -> bool:
    """Whether a table has more than collections, which every Python program has."""
    return any(row.kind != "gc" for row in table.rows)


def summarize(
    tree: CallTree,
    by: str,
    process: int | Literal["all"] | None = None,
    *,
    default: tuple[int, ...] = (),
    why_empty: str | None = None,
) -> Summary:
    """Fold `tree` into one row a name, for `by` in "layer", "operator", "span", "kernel" or "python".

    Rows gather the nodes of the asked kind by name. Time is attributed to the nearest enclosing
    node of the kind, so the rows' self times add up to the covered time. The operator table also
    lists the autograd engine's evaluations (kind "backward"), the span table NVTX ranges,
    compilations and collections of Python's garbage collector. Layers keep the root that they ran
    under (the outermost layer of the path, named by its class) apart: where several roots have
    layers, a row reads `Root/name`.

    `process` is a process id or "all"; without it, the processes `default`, else the tree's first, and a
    note names the others. `why_empty` is the reason to give where there are no rows. Raises RunError for an
    unknown `by` or `process`.
    """
    if by not in MEMBER_KINDS:
        raise RunError(
            "unknown_grouping", f"cannot summarize by {by!r}", hint=f"choose one of {', '.join(MEMBER_KINDS)}"
        )
    chosen, notes = _choose_processes(tree, process, default)
    part = part_of(on_gpu(tree) if by == "kernel" else tree, chosen)
    folded = fold(part, by, MEMBER_KINDS[by])
    gpu_total_ns = None if part.gpu_ns is None else int(part.gpu_ns.sum())
    rows = () if folded is None else _rows(folded, gpu_total_ns)
    rest_ns = dict(folded.rest_ns) if folded else rest_of(part, np.full(len(part.parent), -1))
    waiting_ns = rest_ns.pop(WAITING, 0)
    elsewhere = None if rows else _elsewhere(tree, by, chosen)
    if not rows:
        row = "Python function" if by == "python" else by
        reason = f"no {row} was recorded here: {why_empty}" if why_empty else _NOTHING_RECORDED[by]
        notes = (f"{elsewhere}: {_CHOICE}",) if elsewhere else (reason, *notes)
    return Summary(
        by=by,
        rows=rows,
        total_ns=int(part.own_ns.sum()) - waiting_ns,
        covered_ns=sum(row.own_ns for row in rows),
        processes=chosen,
        notes=notes,
        gpu_total_ns=gpu_total_ns,
        rest_ns={} if folded is None else rest_ns,
        elsewhere=elsewhere,
        waiting_ns=waiting_ns,
    )


def added_up_note(table: Summary) -> str | None:
    """Return a note of the processes in a table of all; None where there is one."""
    if len(table.processes) < 2:
        return None
    return f"times of {len(table.processes)} processes added up ({_listed(table.processes)}): {_ONE}"


def _choose_processes(
    tree: CallTree, process: int | Literal["all"] | None, default: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    recorded = _distinct(tree.process_id[tree.parent < 0])
    if process == "all":
        return recorded, ()
    if process is not None:
        if process not in recorded:
            known = ", ".join(map(str, recorded[:8])) or "none"
            raise RunError(
                "unknown_process",
                f"process {process} is not in this run: it recorded {known}",
                hint="choose one, or all",
            )
        return (process,), ()
    chosen = tuple(each for each in recorded if each in default) or recorded[:1]
    others = tuple(each for each in recorded if each not in chosen)
    if not others:
        return chosen, ()
    count = "1 other process was" if len(others) == 1 else f"{len(others)} other processes were"
    return chosen, (f"{count} recorded ({_listed(others)}): {_CHOICE}",)


def _elsewhere(tree: CallTree, by: str, chosen: tuple[int, ...]) -> str | None:
    """Return a note of the processes with rows that the chosen one lacks; None where no other has any."""
    members = np.isin(tree.kind, [KINDS.index(kind) for kind in MEMBER_KINDS[by]])
    others = _distinct(tree.process_id[members & ~np.isin(tree.process_id, chosen)])
    if not others:
        return None
    what = "GPU work" if by == "kernel" else "Python function" if by == "python" else by
    count = "another" if len(others) == 1 else f"{len(others)} others"
    return f"no {what} was recorded in process {chosen[0]}, but in {count} ({_listed(others)})"


def _distinct(process_ids: npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(process_ids.tolist()))


def _listed(processes: tuple[int, ...]) -> str:
    return ", ".join(map(str, processes[:4])) + (", ..." if len(processes) > 4 else "")


def _rows(folded: Folded, gpu_total_ns: int | None) -> tuple[SummaryRow, ...]:
    columns = {column: values.tolist() for column, values in folded.columns.items()}
    covered_ns = sum(columns["own_ns"])
    unknown = [None] * len(folded.names)
    gpu_own = columns.get("gpu_own_ns", unknown)
    gpu_total = columns.get("gpu_total_ns", unknown)
    backward = columns.get("backward_ns", unknown)
    kinds = [KINDS[code] for code in columns["kind"]]
    labels = kernel_labels(name for name, kind in zip(folded.names, kinds, strict=True) if kind == "kernel")
    rows = [
        SummaryRow(
            name=name,
            kind=kinds[index],
            label=label_of(name, kinds[index], labels),
            calls=columns["calls"][index],
            total_ns=columns["total_ns"][index],
            own_ns=columns["own_ns"][index],
            mean_ns=_ratio(columns["every_ns"][index], columns["calls"][index]),
            share=_ratio(columns["own_ns"][index], covered_ns),
            threads=columns["threads"][index],
            processes=columns["processes"][index],
            gpu_total_ns=gpu_total[index],
            gpu_own_ns=gpu_own[index],
            gpu_share=None if gpu_total_ns is None else _ratio(gpu_own[index], gpu_total_ns),
            backward_ns=backward[index],
            backward_own_ns=columns.get("backward_own_ns", unknown)[index],
        )
        for index, name in enumerate(folded.names)
    ]
    return _sorted(rows)


def _sorted(rows: Iterable[SummaryRow]) -> tuple[SummaryRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-(row.gpu_own_ns or 0), -row.own_ns, row.name, row.kind)))


def with_groups(table: Summary, classes: Mapping[str, str]) -> Summary:
    """Return the table by layer with the groups of repeated layers; `classes` are those of layers by name."""
    groups = layer_groups((row.name for row in table.rows), classes)
    return replace(table, rows=tuple(replace(row, group=groups.get(row.name)) for row in table.rows))


def _ratio_of(part: float, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
