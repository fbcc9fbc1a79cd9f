# SPDX-License-Identifier: Apache-2.0
"""What the widths of a flame graph can show: wall time, time by device, bytes, FLOPs, launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from gpuprof import _native
from gpuprof.analyze.call_tree import CallTree, has_gpu_time, on_gpu, subtree_sums
from gpuprof.analyze.calls import Calls, load_calls
from gpuprof.analyze.phases import ranks_of
from gpuprof.analyze.tree_work import with_counted
from gpuprof.errors import RunError
from gpuprof.run.facts import work_status
from gpuprof.run.format import KINDS
from gpuprof.run.messages import missing_work_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]

WeightName = Literal["main", "cpu", "gpu", "wall", "bytes", "flops", "launches"]
WEIGHTS: tuple[WeightName, ...] = ("main", "cpu", "gpu", "wall", "bytes", "flops", "launches")
_KERNEL = KINDS.index("kernel")
_SAMPLED = (KINDS.index("python"), KINDS.index("waiting"))
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weight:
    """A tree whose `own_ns` and `total_ns` are what the widths show, in `unit`: ns, B, FLOP or launches."""

    name: WeightName
    tree: CallTree
    unit: str = "ns"
    notes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # whose wall times are added up; empty for the main process's


def weights_of(folder: RunFolder, tree: CallTree) -> list[Weight]:
    """Return all weights that a run has, in the order of WEIGHTS."""
    calls = _unless_damaged(lambda: load_calls(folder, tree))
    main = None if calls is None else on_main_threads(folder, tree, calls)
    ranks = tuple(rank for rank, _ in ranks_of(folder.meta))
    found = [] if main is None else [Weight("main", main, ranks=ranks)]
    found.append(Weight("cpu", tree))
    if has_gpu_time(tree):
        found.append(Weight("gpu", on_gpu(tree)))
    if calls is not None and len(calls.node):
        found.append(Weight("wall", on_wall(tree, calls, folder.meta)))
    if folder.meta.get("work"):
        for name, unit in (("bytes", "B"), ("flops", "FLOP")):
            counted, notes = with_counted(tree, folder, "bytes" if name == "bytes" else "flops")
            if counted.own_ns.any():
                found.append(Weight("bytes" if name == "bytes" else "flops", counted, unit, tuple(notes)))
    if (tree.kind == _KERNEL).any():
        found.append(Weight("launches", by_launches(tree), "launches"))
    return found


def _unless_damaged(read: Callable[[], T]) -> T | None:
    """Return what is read; None of a damaged table: the tree is complete without it."""
    import duckdb

    try:
        return read()
    except (duckdb.Error, RunError):
        return None


def by_launches(tree: CallTree) -> CallTree:
    """Return the tree with the number of kernels that were launched in each call."""
    own = np.where(tree.kind == _KERNEL, tree.calls, 0)
    return dataclasses.replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own))


def chosen_weight(found: list[Weight], asked: str | None, folder: RunFolder) -> int:
    """Return which weight to show first. Raises RunError where the run lacks the one that is asked."""
    names = [weight.name for weight in found]
    if asked is None:
        return names.index("gpu") if "gpu" in names else 0  # without it the main process, or all threads
    if asked not in WEIGHTS:
        raise RunError(
            "unknown_weight", f"cannot weigh by {asked!r}", hint=f"choose one of {', '.join(WEIGHTS)}"
        )
    if asked not in names:
        missing, hint = _why_missing(asked, folder)
        raise RunError("no_weight", f"{folder.path} {missing}", hint=hint)
    return names.index(asked)


def _why_missing(asked: str, folder: RunFolder) -> tuple[str, str]:
    """Return what the run lacks, and a hint."""
    if asked in ("gpu", "launches"):
        what = "GPU work" if asked == "gpu" else "kernels"
        return f"holds no {what}", "omit the weight, or use cpu"
    if asked == "main":
        return "has no times of the main thread of its program", "use cpu"
    if asked == "wall":
        return "has no times of single calls by path", "record it again, or use cpu"
    if not folder.meta.get("work"):
        status = work_status(folder.meta)
        missing = f"holds no counted work, so no {asked}"
        if status.is_on:
            return missing, "see gpuprof roofline, or use cpu"
        reason, hint = missing_work_text(status)
        return f"{missing}: {reason}", hint
    return f"holds no {asked} that are known for its calls", "see gpuprof roofline, or use cpu"


# ---- wall time of the main process: what its main thread did -------------------------------------


def on_main_threads(folder: RunFolder, tree: CallTree, calls: Calls) -> CallTree | None:
    """Return the tree with the time of the main thread of the process that was started.

    It adds up to the wall time of the process. Of processes that a launcher has numbered (ranks) each has its
    own. None where the run has nothing of a main thread. `calls` are those of all threads.
    """
    ranks = [process_id for _, process_id in ranks_of(folder.meta)]
    chosen = np.isin(tree.process_id, ranks or [folder.meta.get("process_id") or 0])
    frames = _unless_damaged(lambda: _main_frames(folder))
    if frames is None or not chosen.any():
        return None
    node, own_ns = calls.node[calls.is_main], calls.own_ns[calls.is_main]
    own = np.bincount(node, own_ns, minlength=len(tree)).round().astype(np.int64)
    called = np.bincount(node, minlength=len(tree)) > 0
    sampled = _of_main_thread(tree, called, frames)
    if not (chosen & (called | sampled)).any():
        return None
    own = np.where(chosen & (sampled | (tree.parent < 0)), tree.own_ns, np.where(chosen, own, 0))
    return dataclasses.replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own))


def _main_frames(folder: RunFolder) -> set[str]:
    """Return the outermost functions of main threads: threads begin in others.

    A stack that changed while it was read can have those of another thread: most of the time counts.
    """
    query = """
        SELECT frames[1] FROM stacks GROUP BY ALL
        HAVING 2 * sum(CASE WHEN thread_id = process_id THEN duration_ns ELSE 0 END) > sum(duration_ns)
    """
    return {name for (name,) in folder.sql(query).fetchall()}


def _of_main_thread(tree: CallTree, called: npt.NDArray[np.bool_], frames: set[str]) -> npt.NDArray[np.bool_]:
    """Mark sampled functions and waits of main threads: below such a call, or below an outermost function."""
    is_main = called.tolist()
    columns = (tree.parent.tolist(), tree.kind.tolist(), tree.name.tolist())
    sampled = np.isin(tree.kind, _SAMPLED)
    for node, (up, kind, name) in enumerate(zip(*columns, strict=True)):
        if kind in _SAMPLED and up >= 0:
            is_main[node] = tree.names[name] in frames if columns[0][up] < 0 else is_main[up]
    return sampled & np.array(is_main, dtype=np.bool_)


# ---- wall time of a path: it counts once, however many threads it passes for --------------------------


def on_wall(tree: CallTree, calls: Calls, meta: Mapping[str, Any]) -> CallTree:
    """Return the tree with wall-clock times.

    `total_ns` of a node is the time during which at least one call of its path was open, on whatever thread.
    `own_ns` is the part of it during which no call of its direct children was. A node without calls of its
    own, as the group of the backward pass, is open while any of its children is; a process from its begin to
    its end. Kernels and transfers have none.
    """
    node, start, end = calls.node, calls.start_ns, calls.start_ns + calls.duration_ns
    node, start, end = _with_groups(tree, node, start, end)
    node, start, end = _with_processes(tree, meta, node, start, end)
    total, own = _native.wall_times(tree.parent, node, start, end, np.argsort(start, kind="stable"))
    return dataclasses.replace(tree, total_ns=total, own_ns=own)


def _with_groups(tree: CallTree, node: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Add each call once more for every node without calls that is directly above it."""
    is_group = (tree.calls == 0) & (tree.parent >= 0)
    parts = [(node, start, end)]
    while len(parts[-1][0]):
        below, since, until = parts[-1]
        above = tree.parent[below].astype(np.int64)
        taken = (above >= 0) & is_group[above]
        parts.append((above[taken], since[taken], until[taken]))
    nodes, starts, ends = zip(*parts, strict=True)
    return np.concatenate(nodes), np.concatenate(starts), np.concatenate(ends)


def _with_processes(
    tree: CallTree, meta: Mapping[str, Any], node: Ints, start: Ints, end: Ints
) -> tuple[Ints, Ints, Ints]:
    known = {process.get("process_id"): process for process in meta.get("processes") or []}
    roots, starts, ends = [], [], []
    for root in np.flatnonzero(tree.parent < 0).tolist():
        process = known.get(int(tree.process_id[root]))
        inside = tree.process_id[node] == tree.process_id[root]
        if process is not None and isinstance(process.get("end_ns"), int):
            span = int(process.get("start_ns") or 0), int(process["end_ns"])
        elif inside.any():
            span = int(start[inside].min()), int(end[inside].max())
        else:
            continue
        roots.append(root)
        starts.append(span[0])
        ends.append(max(span))
    added = (np.array(column, dtype=np.int64) for column in (roots, starts, ends))
    columns = zip((node, start, end), added, strict=True)
    whole = [np.concatenate(pair) for pair in columns]
    return whole[0], whole[1], whole[2]
