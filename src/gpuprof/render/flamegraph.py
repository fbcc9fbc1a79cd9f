# SPDX-License-Identifier: Apache-2.0
"""The flame graph page: one call tree as one HTML file that works offline.

The page carries the tree as columns and draws it on a canvas. Names in a run are text that
anyone may have chosen, so they reach the page only as escaped JSON or escaped HTML, and the content
security policy lets nothing run but the page's own script, which it names by its hash.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuprof.analyze.difference import STATES
from gpuprof.analyze.kernel_labels import collection_label, kernel_labels
from gpuprof.analyze.layer_groups import layer_groups
from gpuprof.render.findings import FindingCards
from gpuprof.render.flame_views import Coloring, View, first_of
from gpuprof.render.page import (
    amount,
    asset,
    escaped,
    filled,
    label_pairs,
    notes_list,
    packed_columns,
    page_script,
    page_style,
    policy,
    readable,
    safe_json,
)
from gpuprof.render.phases import phases_html, step_html
from gpuprof.render.pruned_tree import Hidden
from gpuprof.render.shown_tree import BACKWARD_PREFIX, Shown, placed_tree
from gpuprof.render.step_cards import StepCards
from gpuprof.render.timeline import Slices
from gpuprof.render.timeline_columns import embedded_timeline
from gpuprof.render.tree_shape import OTHER
from gpuprof.run.format import KINDS
from gpuprof.text.sanitize import quoted_if_blank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.phases import Phases

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[np.generic]]

_STATIC_ROWS = 50
NO_CARDS = FindingCards()
_KERNEL, _LAYER, _WAITING, _COLLECTION = (KINDS.index(kind) for kind in ("kernel", "layer", "waiting", "gc"))
_PATH_LIMIT = 8  # names of a path that are shown; a stack may be 20,000 deep


def flamegraph_page(
    tree: CallTree | Shown,
    *,
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
    views: Sequence[View] = (),
    first: int = 0,
    colorings: Sequence[Coloring] = (),
    calls: int | None = None,
    old_calls: int | None = None,
    measure: str = "Total time",
    slices: Slices | str | None = None,
    phases: Phases | None = None,
    classes: Mapping[str, str] | None = None,
    cards: FindingCards = NO_CARDS,
    steps: StepCards | None = None,
    hidden: Hidden | None = None,
    whole: CallTree | None = None,
    is_flat: bool = False,
) -> str:
    """Return a self-contained HTML page that shows `tree` as a flame graph and as a table.

    `notes` are warnings about the run ("3 events were dropped"); each is shown as a line above the picture.
    `views` and `colorings` are what the page can switch between, on the nodes of `tree`; the view with the
    number `first` is shown first. For a tree without views the widths are its times, and `measure` names what
    these are, as the heading of their sum. `calls` is the number of calls of the run, where the tree does not
    have it, `old_calls` that of the older side of a comparison. `slices` are what the timeline shows, or why
    there is none. `phases` are the wall time of the run. `classes` are those of layers by name: repeated ones
    are one row of the table, and one cell unless the page begins `is_flat`. `cards` are the findings of the
    run, `steps` what has most self time in its steps. `hidden` are the paths that `tree` does not have one by
    one, `whole` the tree with all of them and the times of the first view. Write the text as UTF-8.
    """
    if not isinstance(tree, Shown):
        calls = call_count(tree)  # of the run: the picture shows some pairs of calls as one
        tree = placed_tree(tree)
        views = [_plain_view(tree.tree, measure)]
    shown, calls, view = tree, calls or 0, views[first]
    tree = first_of(shown, view)
    whole = tree if whole is None else whole
    labels = _labels(whole, slices)
    used = _used_names(tree, hidden)
    facts: dict[str, Any] = {"groups": _layer_groups(whole, used, classes or {})}
    facts |= {"kinds": _kinds(hidden, slices), "steps": None if steps is None else steps.facts(used)}
    facts |= {"first": first, "calls": calls, "flat": is_flat}
    facts |= {"oldCalls": old_calls, "states": list(STATES), "findings": cards.targets}
    head, columns = _embedded(tree, views, colorings, facts, labels, used, hidden)
    unit = view.facts["unit"]
    parts = {
        **_heading(view, title=title, subtitle=subtitle, total=amount(_total_ns(tree), unit)),
        **_timeline(slices, tree, shown.total_place, labels, hidden),
        "phases": phases_html(phases),
        "step": step_html(phases),
        "notes": notes_list(notes),
        "findings": cards.html,
        "calls": f"{calls:,}" if old_calls is None else f"{old_calls:,} → {calls:,}",
        "flame_note": _flame_note(whole, hidden, is_difference=old_calls is not None),
        "static": _static_table(whole, calls, unit, labels),
    }
    return _filled_page({**parts, "head": head, "columns": columns})


def _heading(view: View, **texts: str) -> dict[str, str]:
    shown = {**texts, **{name: view.facts[name] for name in ("measure", "time")}}
    return {name: escaped(text) for name, text in shown.items()}


def _kinds(hidden: Hidden | None, slices: Slices | str | None) -> list[str]:
    """Return the kinds of a page's cells; the last one is that of summed-up names, if there are any."""
    merged = slices.merged if isinstance(slices, Slices) else None
    has_others = hidden is not None or (merged is not None and merged.names_left_out > 0)
    return [*KINDS, OTHER] if has_others else list(KINDS)


def _filled_page(parts: dict[str, str]) -> str:
    script = page_script("flamegraph.js")
    style = page_style("kit/page.css", "kit/bounds.css", "timeline/timeline.css", "findings/findings.css")
    code = {"policy": policy(script, style), "style": style, "script": script}
    return filled(asset("flamegraph.html"), {**code, **parts})


def _flame_note(whole: CallTree, hidden: Hidden | None, *, is_difference: bool) -> str:
    """Return as HTML what has no cell, and how to get it."""
    if hidden is None:
        return ""
    paths = int(hidden.paths.sum())
    text = (
        f"The flame graph has a cell for {len(whole) - paths:,} of {len(whole):,} paths. The other "
        f"{paths:,}, with the least time, are summed up in cells “other” below their caller; lists and "
        "search include them."
    )
    if hidden.left_out:
        text += f" The {hidden.left_out:,} names with the least time are one row."
    if not is_difference:
        text += " To draw each path: gpuprof flamegraph RUN --full."
    return f'<p class="left-out" data-view="flame">{escaped(text)}</p>'


# ---- the tree as data ------------------------------------------------------------------------


def _plain_view(tree: CallTree, measure: str) -> View:
    own, total = tree.own_ns.astype(np.float64), tree.total_ns.astype(np.float64)
    time = "time" if measure == "Total time" else measure
    facts = {"label": "Time", "measure": measure, "time": time, "unit": "ns", "note": ""}
    columns = {"own": own.astype("<f8"), "inside": (total - own).astype("<f8")}
    return View("time", facts, columns, own, total)


def _columns(
    tree: CallTree,
    views: Sequence[View],
    colorings: Sequence[Coloring],
    used_names: Ints,
    hidden: Hidden | None,
) -> Columns:
    """Return the columns in the order they are written: wide types first, so that each is aligned.

    Two are written as differences, which mostly are zeros or small and so compress well: `inside`
    is the time in children, `up` the distance to the parent (0: none).
    """
    parent = tree.parent.astype(np.int32)
    index = np.arange(len(tree), dtype=np.int32)
    columns: Columns = {
        "calls": tree.calls.astype("<f8"),
        "up": np.where(parent < 0, 0, index - parent).astype("<i4"),
        "name": np.searchsorted(used_names, tree.name).astype("<i4"),
        "threads": tree.threads.astype("<i4"),
        "kind": tree.kind.astype("u1"),
        **{f"color.{each.key}": each.code for each in colorings},
    }
    if hidden is not None:
        columns["paths"] = hidden.paths.astype("<i4")
    for view in views:
        columns |= {f"{view.key}.{name}": column for name, column in view.columns.items()}
    return _widest_first(columns)


def _widest_first(columns: Columns) -> Columns:
    return dict(sorted(columns.items(), key=lambda entry: -entry[1].dtype.itemsize))


def _used_names(tree: CallTree, hidden: Hidden | None) -> Ints:
    """Return the names that the page has, by their numbers."""
    more = np.empty(0, dtype=np.int64) if hidden is None else hidden.by_name["name"].astype(np.int64)
    return np.unique(np.concatenate([tree.name.astype(np.int64), more]))


def _embedded(
    tree: CallTree,
    views: Sequence[View],
    colorings: Sequence[Coloring],
    facts: dict[str, Any],
    labels: Mapping[str, str],
    used: Ints,
    hidden: Hidden | None,
) -> tuple[str, str]:
    """Return what the page reads of the tree, see `packed_columns`."""
    columns = _columns(tree, views, colorings, used, hidden)
    by_name: Columns = {}
    if hidden is not None:
        by_name = dict(hidden.by_name)
        by_name["name"] = np.searchsorted(used, by_name["name"]).astype("<i4")
        by_name = _widest_first(by_name)
    names = [tree.names[number] for number in used.tolist()]
    raw = b"".join(column.tobytes() for column in columns.values())
    raw += bytes(-len(raw) % 8)
    packed, gzipped = packed_columns(raw + b"".join(column.tobytes() for column in by_name.values()))
    head = {
        "count": len(tree),
        "columns": [[name, column.dtype.name] for name, column in columns.items()],
        "hidden": {
            "at": len(raw),
            "count": len(by_name["name"]) if by_name else 0,
            "columns": [[name, column.dtype.name] for name, column in by_name.items()],
        },
        "gzip": gzipped,
        "names": [readable(name) for name in names],
        "labels": label_pairs(names, labels),
        "views": [{"key": view.key, **view.facts} for view in views],
        "colorings": [
            {
                "key": each.key,
                "label": each.label,
                "categories": each.categories,
                "colors": each.colors,
            }
            for each in colorings
        ],
        **facts,
    }
    return safe_json(head), packed


def _timeline(
    slices: Slices | str | None,
    tree: CallTree,
    place: Ints,
    labels: Mapping[str, str],
    hidden: Hidden | None,
) -> dict[str, str]:
    if slices is None:
        return {"timeline_head": "null", "timeline_columns": ""}
    head, columns = embedded_timeline(
        slices, tree, place, labels, None if hidden is None else hidden.cell_of_node
    )
    return {"timeline_head": head, "timeline_columns": columns}


def _layer_groups(tree: CallTree, used: Ints, classes: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return the places of the names of repeated layers on the page, each with its group."""
    layers = {tree.names[number] for number in np.unique(tree.name[tree.kind == _LAYER]).tolist()}
    groups = layer_groups(layers, classes)
    # The last name may be that of cells of the page alone.
    names = enumerate(tree.names[number] for number in used.tolist() if number < len(tree.names))
    return [(place, readable(groups[name])) for place, name in names if name in groups]


def _labels(tree: CallTree, slices: Slices | str | None) -> dict[str, str]:
    """Return the label of each name of a kernel or collection that the page shows."""
    collections = {name: collection_label(name) for name in _names_of(_COLLECTION, tree, slices)}
    return collections | kernel_labels(_names_of(_KERNEL, tree, slices))


def _names_of(kind: int, tree: CallTree, slices: Slices | str | None) -> list[str]:
    """Return the names of all calls of a kind in both pictures."""
    names = [tree.names[number] for number in np.unique(tree.name[tree.kind == kind]).tolist()]
    if isinstance(slices, Slices):
        used = np.unique(slices.columns["name"][slices.columns["kind"] == kind])
        names += [slices.names[number] for number in used.tolist()]
    return names


# ---- the parts that need no script -----------------------------------------------------------


def _total_ns(tree: CallTree) -> int:
    return int(np.maximum(tree.own_ns, 0).sum())


def call_count(tree: CallTree) -> int:
    """Return how many calls a run holds."""
    return int(tree.calls[tree.kind != KINDS.index("process")].sum())


def _static_table(tree: CallTree, calls: int, unit: str, labels: Mapping[str, str]) -> str:
    """Write the largest self times as HTML, for a reader without JavaScript."""
    if calls == 0 and _total_ns(tree) == 0:
        return "<p>This run contains no calls.</p>"
    total = _total_ns(tree) or 1
    rows = []
    largest = [each for each in _largest(tree) if tree.kind[each.node] != _WAITING]
    for node, name, own, calls in largest[:_STATIC_ROWS]:
        title, shown = "", name
        if tree.kind[node] in (_KERNEL, _COLLECTION):
            shown = quoted_if_blank(readable(labels[tree.names[int(tree.name[node])]]))
            title = f' title="{html.escape(name)}"'
        cells = (
            f'<th scope="row"{title}>{html.escape(shown)}</th><td>{KINDS[tree.kind[node]]}</td>'
            f"<td>{amount(own, unit)}</td><td>{100 * own / total:.1f}%</td>"
            f"<td>{f'{calls:,}' if calls else '–'}</td><td>{html.escape(_path(tree, node))}</td>"
        )
        rows.append(f"<tr>{cells}</tr>")
    measure = "Self time" if unit == "ns" else "Self"
    titles = ("Name", "Kind", measure, "Percent", "Calls", "Path of the hottest")
    head = "".join(f'<th scope="col">{name}</th>' for name in titles)
    return (
        "<p>The picture needs JavaScript. These calls have the most self time:</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"{_left_out(largest, total)}"
    )


def _left_out(largest: Sequence[_Hottest], total: int) -> str:
    left = largest[_STATIC_ROWS:]
    if not left:
        return ""
    share = 100 * sum(each.own for each in left) / total
    return f"<p>{len(left):,} more have {share:.1f}% of the self time.</p>"


class _Hottest(NamedTuple):
    node: int
    name: str
    own: int
    calls: int


def _largest(tree: CallTree) -> list[_Hottest]:
    """Return the pairs of name and kind with the hottest node of each, the most self time first."""
    key = tree.name.astype(np.int64) * len(KINDS) + tree.kind
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    own = np.zeros(len(first), dtype=np.int64)
    calls = np.zeros(len(first), dtype=np.int64)
    np.add.at(own, group, np.maximum(tree.own_ns, 0))
    np.add.at(calls, group, tree.calls)
    by_heat = np.lexsort((-tree.own_ns, group))
    hottest = by_heat[np.searchsorted(group[by_heat], np.arange(len(first)))]
    found = []
    for group in np.argsort(-own, kind="stable").tolist():
        node = int(hottest[group])
        found.append(_Hottest(node, _label(tree, node), int(own[group]), int(calls[group])))
    return found


def _label(tree: CallTree, node: int) -> str:
    name = tree.names[int(tree.name[node])]
    if KINDS[tree.kind[node]] == "backward":
        name = name.removeprefix(BACKWARD_PREFIX)
    return quoted_if_blank(readable(name))


def _path(tree: CallTree, node: int) -> str:
    names: list[str] = []
    node = int(tree.parent[node])
    while node >= 0 and len(names) < _PATH_LIMIT:
        names.append(_label(tree, node))
        node = int(tree.parent[node])
    if node >= 0:
        names.append("…")
    return " › ".join(reversed(names))
