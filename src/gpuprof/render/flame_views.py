# SPDX-License-Identifier: Apache-2.0
"""What a flame graph page can switch between: weights, colors, and the ways to compare two sides."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.difference import Difference, Scaling, TimeChange
from gpuprof.analyze.roofline.labels import Bound
from gpuprof.analyze.tree_work import NOT_CLASSIFIED
from gpuprof.render.page import readable
from gpuprof.render.shown_tree import Shown

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.metrics import Weight, WeightName

    Array = npt.NDArray[Any]

# Of each weight: its name in a list, the heading of its sum, and what a sentence calls it.
_WORDS: dict[WeightName, tuple[str, str, str]] = {
    "main": ("Main process, wall time", "Wall time", "wall time"),
    "cpu": ("Thread time", "Thread time", "time"),
    "gpu": ("GPU time", "GPU time", "GPU time"),
    "wall": ("Wall-clock time", "Wall-clock time", "wall-clock time"),
    "bytes": ("Bytes", "Bytes", "bytes"),
    "flops": ("FLOPs", "FLOPs", "FLOPs"),
    "launches": ("Kernel launches", "Kernel launches", "launches"),
}
_SCALINGS: dict[Scaling, str] = {
    "none": "as measured",
    "calls": "same number of {repeated}",
    "total": "same total",
}
_BOUNDS = (*Bound, NOT_CLASSIFIED)
# So much white makes text readable on the color of any bottleneck.
_WHITE_IN_BOUNDS = 0.4
_MOST_TYPES = 7
_OTHER_TYPES, _NO_LAYER = "other layers", "in no layer"


@dataclass(frozen=True, slots=True)
class View:
    """One way to weigh the cells: `columns` are in the page under the view's key."""

    key: str
    facts: dict[str, str]
    columns: dict[str, Array]
    own: Array
    total: Array


@dataclass(frozen=True, slots=True)
class Coloring:
    """One way to color the cells: a category for each node, with its color.

    A color is a variable of the style sheets, and the fraction of white that is mixed into it.
    """

    key: str
    label: str
    categories: list[str]
    colors: list[tuple[str, float]]
    code: Array


def weight_views(shown: Shown, weights: Sequence[Weight]) -> list[View]:
    """Return a view for each weight."""
    views = []
    for weight in weights:
        own = shown.own(np.maximum(weight.tree.own_ns, 0)).astype(np.float64)
        total = shown.total(weight.tree.total_ns, own).astype(np.float64)
        label, measure, noun = _WORDS[weight.name]
        if weight.ranks:
            label, measure = _of_ranks(weight.ranks)
        facts = {"label": label, "measure": measure, "time": noun, "unit": weight.unit}
        facts["note"] = readable("; ".join(weight.notes))
        columns = {"own": own.astype("<f8"), "inside": (total - own).astype("<f8")}
        views.append(View(weight.name, facts, columns, own, total))
    return views


def _of_ranks(ranks: Sequence[int]) -> tuple[str, str]:
    """Return the name in a list and the heading of the sum of wall times of ranks."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}, wall time", f"Wall time, rank {ranks[0]}"
    return "Ranks, wall time", f"Wall time, {len(ranks)} ranks added up"


def first_of(shown: Shown, view: View) -> CallTree:
    """Return the tree with the times of a view."""
    own, total = (np.round(column).astype(np.int64) for column in (view.own, view.total))
    return dataclasses.replace(shown.tree, own_ns=own, total_ns=total)


def difference_view(weight: WeightName, found: Difference, *, repeated: str | None) -> View:
    """Return the view of a comparison of the nodes that are shown. Widths are the mean of both sides."""
    columns: dict[str, Array] = {}
    for name, change in (("total", found.total), ("own", found.own)):
        columns |= {f"{name}.{key}": column for key, column in _change_columns(change).items()}
    columns["calls.old"] = found.calls_old.astype("<f4")
    columns["calls.new"] = found.calls_new.astype("<f4")
    label, measure, noun = _WORDS[weight]
    scaling = _SCALINGS[found.scaling].format(repeated=f"“{readable(repeated or '')}”")
    facts = {"label": label, "measure": measure, "time": noun, "unit": "ns", "note": ""}
    facts |= {"weight": weight, "scaling": found.scaling, "scalingLabel": scaling}
    own = (found.own.old_ns + found.own.new_ns) / 2
    total = (found.total.old_ns + found.total.new_ns) / 2
    return View(f"{weight}-{found.scaling}", facts, columns, own, np.maximum(total, own))


def hidden_change_columns(weight: WeightName, found: Difference) -> dict[str, Array]:
    """Return the columns of a comparison by name, of names that have no cells."""
    key = f"{weight}-{found.scaling}"
    columns = {f"{key}.own.{name}": column for name, column in _change_columns(found.own).items()}
    columns[f"{key}.calls.old"] = found.calls_old.astype("<f4")
    columns[f"{key}.calls.new"] = found.calls_new.astype("<f4")
    return columns


def _change_columns(change: TimeChange) -> dict[str, Array]:
    return {
        "old": change.old_ns.astype("<f4"),
        "new": change.new_ns.astype("<f4"),
        "low": change.low_ns.astype("<f4"),
        "high": change.high_ns.astype("<f4"),
        "state": change.state.astype("u1"),
    }


def type_coloring(shown: Shown, types: Sequence[str | None]) -> Coloring:
    """Color by the class of the layer around each node; those with most time have their own colors."""
    time: Counter[str] = Counter()
    labels = [types[source] for source in shown.source.tolist()]
    for label, own in zip(labels, shown.tree.own_ns.tolist(), strict=True):
        if label is not None:
            time[label] += max(0, own)
    names = [name for name, _ in time.most_common(_MOST_TYPES)]
    code = {name: number for number, name in enumerate(names)}
    codes = [len(names) + 1 if label is None else code.get(label, len(names)) for label in labels]
    categories = [*(readable(name) for name in names), _OTHER_TYPES, _NO_LAYER]
    colors = [*((f"category-{number}", 0.0) for number in range(len(names) + 1)), ("category-none", 0.0)]
    return Coloring("type", "Class of layer", categories, colors, np.array(codes, dtype="u1"))


def bound_coloring(shown: Shown, labels: Sequence[str]) -> Coloring:
    """Color by the bottleneck of each layer and operator."""
    code = {name: number for number, name in enumerate(_BOUNDS)}
    codes = [code.get(labels[source], code[Bound.UNKNOWN]) for source in shown.source.tolist()]
    colors = [(f"bound-{bound.replace(' ', '-')}", _WHITE_IN_BOUNDS) for bound in Bound]
    colors.append(("not-classified", 0.0))
    return Coloring("bound", "Bottleneck", list(_BOUNDS), colors, np.array(codes, dtype="u1"))
