# SPDX-License-Identifier: Apache-2.0
"""The flame graph of a run, and of the difference between runs, with all that the page can switch between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.call_tree import has_gpu_time
from gpuprof.analyze.compared_runs import (
    ComparedRuns,
    ComparedSide,
    TimeWeight,
    comparison_notes,
    load_compared,
    method_text,
    single_run_note,
    wall_change,
)
from gpuprof.analyze.difference import Difference, Sample, Scaling, can_scale_by_calls, compare
from gpuprof.analyze.layer_groups import classes_of_layers
from gpuprof.analyze.metrics import WEIGHTS, Weight, chosen_weight, weights_of
from gpuprof.analyze.phases import read_phases
from gpuprof.analyze.roofline.build import build_roofline
from gpuprof.analyze.step_times import read_step_times
from gpuprof.analyze.tree_work import bounds, layer_types
from gpuprof.errors import RunError
from gpuprof.render.findings import finding_cards
from gpuprof.render.flame_views import (
    Coloring,
    View,
    bound_coloring,
    difference_view,
    first_of,
    hidden_change_columns,
    type_coloring,
    weight_views,
)
from gpuprof.render.flamegraph import call_count, flamegraph_page
from gpuprof.render.page import page_notes, page_subtitle, page_title
from gpuprof.render.phases import steps_text
from gpuprof.render.pruned_tree import Hidden, Pruned, PrunedSides, pruned, pruned_sides
from gpuprof.render.shown_tree import Shown, placed_tree
from gpuprof.render.step_cards import StepCards, step_cards
from gpuprof.run.folder import RunFolder

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.phases import Phases
    from gpuprof.render.timeline import Slices

    Ints = npt.NDArray[np.int64]

LoadedRun = tuple[RunFolder, "CallTree"]


def run_page(
    folder: RunFolder,
    tree: CallTree,
    weight: str | None = None,
    slices: Slices | str | None = None,
    *,
    is_full: bool = False,
    is_flat: bool = False,
) -> str:
    """Return the page of one run, with the timeline of its `slices`.

    One that `is_full` has all paths, one that `is_flat` begins with repeated layers one by one.

    Raises RunError where it lacks the weight that is asked for.
    """
    weights = weights_of(folder, tree)
    first = chosen_weight(weights, weight, folder)
    whole = placed_tree(tree)
    views, colorings = weight_views(whole, weights), _colorings(whole, folder, tree)
    page = Pruned(whole, views, colorings) if is_full else pruned(whole, views, colorings)
    phases = read_phases(folder)
    return flamegraph_page(
        page.shown,
        title=page_title(folder.path, folder.meta),
        subtitle=page_subtitle(folder.meta),
        notes=page_notes(folder.meta),
        views=page.views,
        first=first,
        colorings=page.colorings,
        hidden=page.hidden,
        whole=first_of(whole, views[first]),
        calls=call_count(tree),
        slices=slices,
        phases=phases,
        steps=_steps(folder, tree, weights, whole, phases),
        classes=classes_of_layers(folder.meta),
        cards=finding_cards(folder, page.shown),
        is_flat=is_flat,
    )


def _steps(
    folder: RunFolder, tree: CallTree, weights: Sequence[Weight], whole: Shown, phases: Phases | None
) -> StepCards | None:
    """Return what the cards count of a run with steps; None for another."""
    if phases is None or (phases.steps is None and not phases.ranks):
        return None
    try:
        with folder.reading():
            times = read_step_times(folder, tree, weights)
    except RunError:
        return None  # of a damaged table: the tree is complete without it
    return None if times is None else step_cards(whole, times, steps_text(phases))


def _colorings(shown: Shown, folder: RunFolder, tree: CallTree) -> list[Coloring]:
    found = []
    types = layer_types(tree, folder.meta)
    if types is not None:
        found.append(type_coloring(shown, types))
    if folder.meta.get("work"):
        try:
            found.append(bound_coloring(shown, bounds(tree, build_roofline(folder))))
        except RunError:
            return found  # no ceilings, or nothing was counted: `gpuprof roofline` reports the reason
    return found


def difference_page(new: Sequence[LoadedRun], old: Sequence[LoadedRun], weight: str | None = None) -> str:
    """Return the page of the difference. Raises RunError where the runs lack the weight that is asked for."""
    weights = _time_weights([tree for _, tree in (*new, *old)], weight)
    compared = {each: load_compared(new, old, each) for each in weights}
    repeated = compared[weights[0]].repeated_name
    whole = placed_tree(_mean_tree(compared[weights[0]]))
    page = pruned_sides(whole, [side for each in compared.items() for side in _side_views(whole, *each)])
    views: list[View] = []
    by_name = {} if page.hidden is None else dict(page.hidden.by_name)
    for each, runs in compared.items():
        differences = _differences(page, runs)
        views += [difference_view(each, found, repeated=repeated) for found in differences]
        if page.hidden is not None and page.row_of_node is not None:
            for found in _differences_by_name(page.hidden, page.row_of_node, runs):
                by_name |= hidden_change_columns(each, found)
    hidden = None if page.hidden is None else dataclasses.replace(page.hidden, by_name=by_name)
    # The GPU's time first, where there is any, as on the page of one run.
    chosen = weights.index("cpu") if weight == "cpu" else len(weights) - 1
    first = len(views) // len(weights) * chosen
    sides = [ComparedSide.of([folder for folder, _ in side]) for side in (new, old)]
    wall = wall_change(*sides)
    facts = [f"new: {_names(new)}", f"old: {_names(old)}", *([] if wall is None else [str(wall)])]
    return flamegraph_page(
        page.shown,
        hidden=hidden,
        whole=whole.tree,
        title=f"{_names(new)} against {_names(old)}",
        subtitle=" · ".join([*facts, f"judged by {method_text(new, old, repeated)}"]),
        notes=[*comparison_notes(*sides), *single_run_note(new, old), *_all_notes([*new, *old])],
        views=views,
        first=first,
        calls=_mean_calls(new),
        old_calls=_mean_calls(old),
    )


def _time_weights(trees: list[CallTree], asked: str | None) -> list[TimeWeight]:
    found: list[TimeWeight] = ["cpu", "gpu"] if all(map(has_gpu_time, trees)) else ["cpu"]
    if asked is None or asked in found:
        return found
    if asked not in WEIGHTS:
        raise RunError(
            "unknown_weight", f"cannot weigh by {asked!r}", hint=f"choose one of {', '.join(WEIGHTS)}"
        )
    if asked == "gpu":
        raise RunError("no_weight", "not all runs contain GPU work", hint="omit --weight, or use cpu")
    raise RunError(
        "not_comparable_weight",
        f"runs are compared by cpu or gpu time, not by {asked}",
        hint="omit --weight",
    )


def _side_views(shown: Shown, weight: TimeWeight, runs: ComparedRuns) -> list[View]:
    """Return a view of each side: the mean of its runs."""
    views = []
    for side, samples in (("old", runs.old), ("new", runs.new)):
        own = shown.own(np.mean([run.own_ns for run in samples], axis=0))
        views.append(View(f"{weight}-{side}", {}, {}, own, own))
    return views


def _differences(page: PrunedSides, runs: ComparedRuns) -> list[Difference]:
    """Compare the nodes that the page draws, at each scale of the two sides."""
    new, old = ([on_shown(page, run) for run in side] for side in (runs.new, runs.old))
    return [compare(new, old, scaling) for scaling in _scalings(runs)]


def _differences_by_name(hidden: Hidden, row_of_node: Ints, runs: ComparedRuns) -> list[Difference]:
    """Compare the self times of the names that the page has no cells of, at each scale."""
    rows = len(hidden.by_name["name"])
    nowhere = np.full(len(row_of_node), -1, dtype=np.int64)

    def by_name(run: Sample) -> Sample:
        return dataclasses.replace(
            run.gathered(row_of_node, nowhere, rows), calls=_sums(run.calls, row_of_node, rows)
        )

    new, old = ([by_name(run) for run in side] for side in (runs.new, runs.old))
    return [compare(new, old, scaling) for scaling in _scalings(runs)]


def _scalings(runs: ComparedRuns) -> list[Scaling]:
    scalings: list[Scaling] = ["none", "calls", "total"]
    if not can_scale_by_calls(runs.new, runs.old):
        scalings.remove("calls")
    return scalings


def _sums(values: Ints, place: Ints, rows: int) -> Ints:
    known = place >= 0
    return np.bincount(place[known], values[known], minlength=rows).astype(np.int64)


def on_shown(page: PrunedSides, run: Sample) -> Sample:
    """Return a sample of the run's nodes as one of those that the page draws."""
    shown = page.shown
    moved = run.gathered(shown.own_place, shown.total_place, len(shown.tree))
    # What a page adds, such as untracked time, is all its own.
    added = np.ones(len(shown.tree), dtype=np.bool_)
    added[shown.total_place[shown.total_place >= 0]] = False
    return dataclasses.replace(
        moved,
        total_ns=np.where(added, moved.own_ns, moved.total_ns),
        calls=_sums(run.calls, page.call_place, len(shown.tree)),
    )


def _mean_tree(runs: ComparedRuns) -> CallTree:
    """Return the union with the calls of the new side, of the old one where the new has none."""
    new, old = (np.mean([run.calls for run in side], axis=0) for side in (runs.new, runs.old))
    own = np.mean([run.own_ns for run in (*runs.new, *runs.old)], axis=0)
    total = np.mean([run.total_ns for run in (*runs.new, *runs.old)], axis=0)
    return dataclasses.replace(
        runs.tree,
        calls=np.where(new > 0, new, old).round().astype(np.int64),
        own_ns=own.astype(np.int64),
        total_ns=total.astype(np.int64),
    )


def _mean_calls(runs: Sequence[LoadedRun]) -> int:
    # Of the runs' own trees, as on the page of each: the picture shows some pairs of calls as one.
    return round(sum(call_count(tree) for _, tree in runs) / len(runs))


def _names(runs: Sequence[LoadedRun]) -> str:
    return ", ".join(Path(folder.path).stem for folder, _ in runs)


def _all_notes(runs: Sequence[LoadedRun]) -> list[str]:
    notes: dict[str, Any] = {}
    for folder, _ in runs:
        for line in page_notes(folder.meta):
            notes.setdefault(line, []).append(Path(folder.path).stem)
    count = len(runs)
    return [line if len(names) == count else f"{', '.join(names)}: {line}" for line, names in notes.items()]
