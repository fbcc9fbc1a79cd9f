# SPDX-License-Identifier: Apache-2.0
"""The metrics that the widths of a flame graph can show: time by device, bytes, FLOPs, launches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.analyze.call_tree import CallTree, has_gpu_time, on_gpu, subtree_sums
from gpuprof.analyze.calls import Calls, load_calls
from gpuprof.analyze.tree_work import with_counted
from gpuprof.analyze.wall import on_wall
from gpuprof.errors import RunError
from gpuprof.run.facts import work_status
from gpuprof.run.format import KINDS
from gpuprof.text.facts import missing_work_text

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

WeightName = Literal["cpu", "gpu", "wall", "bytes", "flops", "launches"]
WEIGHTS: tuple[WeightName, ...] = ("cpu", "gpu", "wall", "bytes", "flops", "launches")
_KERNEL = KINDS.index("kernel")


@dataclass(frozen=True, slots=True)
class Weight:
    """A tree whose `own_ns` and `total_ns` are what the widths show, in `unit`: ns, B, FLOP or launches."""

    name: WeightName
    tree: CallTree
    unit: str = "ns"
    notes: tuple[str, ...] = ()


def weights_of(folder: RunFolder, tree: CallTree) -> list[Weight]:
    """Return all weights that a run has, in the order of WEIGHTS."""
    found = [Weight("cpu", tree)]
    if has_gpu_time(tree):
        found.append(Weight("gpu", on_gpu(tree)))
    calls = _calls_of(folder, tree)
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


def _calls_of(folder: RunFolder, tree: CallTree) -> Calls | None:
    import duckdb

    try:
        return load_calls(folder, tree)
    except (duckdb.Error, RunError):
        return None  # a damaged table of calls: the tree is whole, and the page says what it lacks


def by_launches(tree: CallTree) -> CallTree:
    """Return the tree with the number of kernels that were launched in each call."""
    own = np.where(tree.kind == _KERNEL, tree.calls, 0)
    return dataclasses.replace(tree, own_ns=own, total_ns=subtree_sums(tree.parent, own))


def chosen_weight(found: list[Weight], asked: str | None, folder: RunFolder) -> int:
    """Return which weight to show first. Raises RunError where the run lacks the one that is asked."""
    names = [weight.name for weight in found]
    if asked is None:
        return names.index("gpu") if "gpu" in names else 0
    if asked not in WEIGHTS:
        raise RunError(f"cannot weigh by {asked!r}: choose one of {', '.join(WEIGHTS)}")
    if asked not in names:
        raise RunError(f"{folder.path} {_why_missing(asked, folder)}")
    return names.index(asked)


def _why_missing(asked: str, folder: RunFolder) -> str:
    if asked in ("gpu", "launches"):
        what = "GPU work" if asked == "gpu" else "kernels"
        return f"holds no {what}: leave the weight out, or take cpu"
    if asked == "wall":
        return "does not tell the times of single calls by path: record it again, or take cpu"
    if not folder.meta.get("work"):
        status = work_status(folder.meta)
        why = ": see gpuprof roofline" if status.is_on else f": {missing_work_text(status.to_plain())}"
        return f"holds no counted work, so no {asked}{why}"
    return f"holds no {asked} that are known for its calls: see gpuprof roofline, or take cpu"
