# SPDX-License-Identifier: Apache-2.0
"""The timeline as a page reads it: slices as columns of numbers.

Slices are stored row by row: a row is a level of a lane of a thread or a stream, and its slices follow one
another, so a page finds what a window shows by binary search. Each slice is of a *class*, its path of names:
what the flame graph shows as one cell. Classes link the two pictures and store each name once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.page import duration, label_pairs, packed_columns, readable, safe_json
from gpuprof.render.slice_classes import SliceClasses, classes_of
from gpuprof.render.slices import UNITS
from gpuprof.render.timeline import ROW, Slices
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.render.merged_slices import Merged

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[Any]]


def embedded_timeline(
    slices: Slices | str,
    tree: CallTree,
    place_of_node: Ints,
    labels: Mapping[str, str],
    hidden: Ints | None = None,
) -> tuple[str, str]:
    """Return what the page reads of the slices, see `packed_columns`.

    `tree` is the one that the page draws, `place_of_node` where each node of the run is in it (-1: nowhere).
    Slices that it does not show have a class, too. `hidden` has for each node the cell for many paths that it
    is in (-1: none).
    """
    if isinstance(slices, str):
        return safe_json({"left_out": readable(slices)}), ""
    hidden = np.full(len(place_of_node), -1, dtype=np.int64) if hidden is None else hidden

    def placed_by(places: Ints, key: str) -> Ints:
        node = slices.columns[key]
        return np.asarray(np.append(places, -1)[np.where(node < len(places), node, -1)])

    own = np.where(hidden >= 0, -1, place_of_node)
    placed = {"node": placed_by(own, "node"), "hidden": placed_by(hidden, "node")}
    placed["above"] = placed_by(place_of_node, "above")
    classes = classes_of({**slices.columns, **placed}, slices.names, tree)
    names = {name: number for number, name in enumerate(classes.names)}
    merged, parts = None, _packed(slices, classes)
    if slices.merged is not None:
        merged, more = _merged(slices.merged, names)
        parts += more
    packed, gzipped = packed_columns(b"".join(part for _, part in parts))
    head = {
        "left_out": None,
        "count": len(slices.columns["start_ns"]),
        "on_threads": slices.on_threads,
        "base": _base(slices),
        "classes": len(classes.name),
        "nodes": len(tree),
        "columns": {name: len(part) for name, part in parts},
        "names": [readable(name) for name in names],
        "labels": label_pairs(list(names), labels),
        "window": slices.window,
        "merged": merged,
        "note": _note(slices),
        "tracks": _rows_of(slices),
        "readings": [
            {
                "of": readable(each.device),
                "metric": each.metric,
                "unit": UNITS.get(each.metric, ""),
                "count": len(each.t_ns),
            }
            for each in slices.readings
        ],
        "gzip": gzipped,
    }
    return safe_json(head), packed


def _packed(slices: Slices, classes: SliceClasses) -> list[tuple[str, bytes]]:
    """Return the columns in the order they are written: wide types first, so that each is aligned.

    Numbers of slices go as planes, the lowest bytes of all, then the next ones: the upper planes are mostly
    equal bytes and compress to nothing. A start is stored as its distance from the end before it in its row,
    a launcher as the distance from the one before; these are signed, with the sign as the lowest bit.
    """
    columns = slices.columns
    times = [column for each in slices.readings for column in (each.t_ns, each.value)]
    numbers = (classes.name, classes.kind, classes.parent, classes.node, classes.of_node)
    launchers = columns["parent"][slices.on_threads :]
    return [
        ("readings", b"".join(column.astype("<f8").tobytes() for column in times)),
        ("classes", b"".join(column.astype("<i4").tobytes() for column in numbers)),
        ("class", planes(classes.of_slice)),
        ("gap", planes(zigzag(_gaps(columns, _base(slices))))),
        ("duration", planes(np.maximum(columns["duration_ns"], 0))),
        ("launcher", planes(zigzag(np.diff(launchers, prepend=0)))),
    ]


def planes(values: Ints) -> bytes:
    """Return the lowest bytes of all values, then the next ones, as many as the largest needs."""
    width = max(1, (int(values.max(initial=0)).bit_length() + 7) // 8)
    return b"".join((values >> (8 * byte) & 0xFF).astype(np.uint8).tobytes() for byte in range(width))


def zigzag(values: Ints) -> Ints:
    """Return signed values as unsigned ones, small where they are near 0."""
    return np.asarray(values << 1 ^ values >> 63)


def _base(slices: Slices) -> int:
    begins = slices.columns["start_ns"]
    return int(begins.min()) if len(begins) else 0


def _gaps(columns: Columns, base: int) -> Ints:
    start = columns["start_ns"] - base
    end = start + np.maximum(columns["duration_ns"], 0)
    before = np.concatenate(([0], end[:-1])) if len(end) else end
    before[_row_starts(columns)] = 0
    return np.asarray(start - before)


def _row_starts(columns: Columns) -> Ints:
    """Return the places of the first slice of each row."""
    if not len(columns["track"]):
        return np.empty(0, dtype=np.int64)
    changes = np.logical_or.reduce([np.diff(columns[key], prepend=-1) != 0 for key in ROW])
    return np.flatnonzero(changes)


def _rows_of(slices: Slices) -> list[dict[str, Any]]:
    """Describe each track, with lane, level, number of slices and of bands of its rows."""
    counts: dict[tuple[int, int, int], list[int]] = {}
    merged = slices.merged.bands if slices.merged is not None else None
    for place, columns in enumerate((slices.columns, merged)):
        if columns is None:
            continue
        starts = _row_starts(columns)
        sizes = np.diff(starts, append=len(columns["track"]))
        found = zip(*(columns[key][starts].tolist() for key in ROW), strict=True)
        for row, size in zip(found, sizes.tolist(), strict=True):
            counts.setdefault(row, [0, 0])[place] = size
    rows: list[list[list[int]]] = [[] for _ in slices.tracks]
    for (track, lane, level), both in sorted(counts.items()):
        rows[track].append([lane, level, *both])
    return [
        {
            "name": readable(track["name"]),
            "of": readable(track["of"]),
            "stream": track["stream"],
            "rows": of_track,
        }
        for track, of_track in zip(slices.tracks, rows, strict=True)
    ]


# ---- slices that are summed up -----------------------------------------------------------------


def _merged(merged: Merged, names: dict[str, int]) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """Return what a page reads of the sums. Names that it does not have yet are added to `names`."""
    bands, sums = merged.bands, merged.sums
    kinds = len(KINDS) + 1  # and that of many names
    keys = np.concatenate([each["name"] * kinds + each["kind"] for each in (bands, sums)])
    used, places = np.unique(keys, return_inverse=True)
    of_bands, of_sums = np.split(places.reshape(-1).astype(np.int64), [len(bands["name"])])
    texts = [merged.names[name] for name in (used // kinds).tolist()]
    first = _row_starts(bands)
    steps = np.diff(bands["stretch"], prepend=0)
    steps[first] = bands["stretch"][first]
    head = {
        "slices": merged.slices,
        "below": merged.below_ns,
        "begin": merged.begin_ns,
        "names": [names.setdefault(text, len(names)) for text in texts],
        "kinds": (used % kinds).tolist(),
        "bands": {"width": merged.band_ns, "count": len(of_bands)},
        "sums": {"width": merged.sum_ns, "count": len(of_sums)},
    }
    parts = {
        "band.step": steps,
        "band.slices": bands["slices"],
        "band.busy": bands["busy_ns"],
        "band.key": of_bands,
        "sum.step": np.diff(sums["stretch"], prepend=0),
        "sum.key": of_sums,
        "sum.slices": sums["slices"],
        "sum.total": sums["total_ns"],
        "sum.outermost": sums["outermost_ns"],
        "sum.own": zigzag(sums["own_ns"]),
    }
    return head, [(name, planes(column)) for name, column in parts.items()]


def _names_note(merged: Merged) -> str:
    if not merged.names_left_out:
        return ""
    return f"Of these, {merged.names_left_out:,} names with the least time are one row of the totals. "


def _note(slices: Slices) -> str:
    """Return what the timeline does not show one by one, and how to get it."""
    merged, shown = slices.merged, len(slices.columns["start_ns"])
    parts = []
    if slices.window is not None:
        low, high = (each / 1e9 for each in slices.window)
        parts.append(f"The timeline shows the calls between {low:g} s and {high:g} s.")
    if merged is not None:
        parts.append(
            f"The {shown:,} longest of {shown + merged.slices:,} calls are drawn one by one, the others, "
            f"shorter than {duration(merged.below_ns)}, as bands. Totals of a range include them. "
            f"{_names_note(merged)}"
            "To draw each call: gpuprof flamegraph RUN --range T1:T2 (seconds), or --full."
        )
    return " ".join(parts)
