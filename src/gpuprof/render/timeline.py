# SPDX-License-Identifier: Apache-2.0
"""The timeline of the flame graph page: every slice of a run as columns, and the readings of devices.

Slices are stored row by row: a row is a level of a lane of a thread or a stream, and its slices follow one
another, so a page finds what a window shows by binary search. Each slice is of a *class*, its path of names:
what the flame graph shows as one cell. Classes link the two pictures and store each name once.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import RunError
from gpuprof.render.page import label_pairs, packed_columns, readable, safe_json
from gpuprof.render.slice_classes import SliceClasses, classes_of
from gpuprof.render.slices import CATEGORIES, UNITS, SliceSource, Track, TrackNames, count_stack_slices
from gpuprof.run.database import is_out_of_room
from gpuprof.run.folder import RunFolder
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[Any]]

MOST_SLICES = 4_000_000
MOST_READINGS = 10_000  # of a metric; of more, the largest of each stretch of time
METRICS = (
    "utilization_percent",
    "memory_used_bytes",
    "power_w",
    "sm_clock_hz",
    "memory_clock_hz",
    "temperature_c",
)
_ROW = ("track", "lane", "level")
# A category of a trace is a kind of call; copies and fills are both transfers.
_KIND_NAMES = {"gpu_memcpy": "transfer", "gpu_memset": "transfer", "python_function": "python"}
_KIND_OF_CATEGORY = np.array(
    [KINDS.index(_KIND_NAMES.get(name, name)) for name in CATEGORIES], dtype=np.int64
)
_NODES_OF_SPANS = """
    SELECT span_id AS id, node_id AS node FROM spans JOIN call_tree USING (path_id) ORDER BY span_id
"""


@dataclass(frozen=True, slots=True)
class Readings:
    """One metric of one device over time."""

    device: str
    metric: str
    t_ns: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slices:
    """All slices of a run, in the order of rows and there of time; what ran on GPUs comes last."""

    tracks: list[dict[str, Any]]  # name, process, and whether it is a stream
    names: list[str]
    # track, lane, level, name, kind, process, id, on_gpu, start_ns, duration_ns, parent: the place of the
    # span around it or of the one that launched it (-1: none), and node: the run's node that counts it
    # (-1: unknown)
    columns: Columns
    on_threads: int  # slices before this one ran on threads
    readings: list[Readings]


# ---- reading -----------------------------------------------------------------------------------


def slice_count(run: RunFolder, scratch: Path) -> int:
    """Return how many slices the run's timeline has; of more than a page holds, how many at least.

    What is sorted on the way is written to the folder `scratch`.
    """
    counts = (
        f"SELECT count(*) FROM {table}"  # noqa: S608 - names of tables
        for table in ("spans", "kernels", "transfers")
        if table in run.tables
    )
    measured = sum(int(run.sql(query).fetchall()[0][0]) for query in counts)
    return measured + count_stack_slices(run, scratch, most=MOST_SLICES - measured)


def read_timeline(run: RunFolder, folder: Path) -> Slices | str:
    """Return the run's slices, or the reason why a page has none.

    What is sorted on the way is written to `folder`. Raises OSError where it cannot be.
    """
    import duckdb

    try:
        with tempfile.TemporaryDirectory(prefix=".gpuprof-timeline-", dir=folder) as scratch:
            count = slice_count(run, Path(scratch))
            if count > MOST_SLICES:
                return (
                    f"This run has at least {count:,} slices; a page holds the timeline of {MOST_SLICES:,} "
                    "at most. For all of them: gpuprof export RUN -o trace.pftrace, to be opened in "
                    "ui.perfetto.dev."
                )
            source = SliceSource(run, Path(scratch))
            try:
                return _read(source, _nodes_of_spans(run))
            finally:
                source.close()
    except duckdb.Error as error:
        # What is sorted on the way may find no room where the page still does.
        failed = "written" if is_out_of_room(error) else "read"
        return f"The timeline could not be {failed}: {run.failure_of(error)}"
    except RunError as error:
        return f"The timeline could not be read: {error}"


def _nodes_of_spans(run: RunFolder) -> tuple[Ints, Ints]:
    """Return spans by their number, and the node of each; none for a run without them."""
    none = np.empty(0, dtype=np.int64)
    for table in ("spans", "call_tree"):
        if table not in run.tables or "path_id" not in run.sql(f"FROM {table}").columns:
            return none, none
    found = run.sql(_NODES_OF_SPANS).fetchnumpy()
    return np.asarray(found["id"], dtype=np.int64), np.asarray(found["node"], dtype=np.int64)


def _read(source: SliceSource, nodes_of_spans: tuple[Ints, Ints]) -> Slices:
    threads = _joined(list(source.cpu()), ("id", "parent"))
    streams = _joined(list(source.gpu()), ("launcher",))
    on_threads = len(threads["track"])
    by_id = np.argsort(threads["id"], kind="stable")
    columns = {
        key: np.concatenate([threads[key], streams[key]])
        for key in (*_ROW, "name", "start_ns", "duration_ns")
    }
    category = np.concatenate([threads["category"], streams["category"]])
    columns["kind"] = _KIND_OF_CATEGORY[category]
    columns["process"] = np.array([track.process_id for track in source.tracks], dtype=np.int64)[
        columns["track"]
    ]
    columns["id"] = np.concatenate([threads["id"], np.zeros(len(streams["track"]), dtype=np.int64)])
    columns["on_gpu"] = np.arange(len(category)) >= on_threads
    above = np.concatenate([threads["parent"], streams["launcher"]])
    columns["parent"] = _places(threads["id"], by_id, above)
    spans, nodes = nodes_of_spans
    place = _places(spans, np.arange(len(spans)), threads["id"])
    of_streams = np.full(len(streams["track"]), -1, dtype=np.int64)
    columns["node"] = np.concatenate([np.append(nodes, -1)[place], of_streams])
    return Slices(
        tracks=_described(source),
        names=source.names,
        columns=_by_rows(columns),
        on_threads=on_threads,
        readings=list(_readings(source)),
    )


def _joined(batches: list[Columns], more: tuple[str, ...]) -> Columns:
    keys = (*_ROW, "name_id", "category", "start_ns", "duration_ns", *more)
    joined = {
        key: np.concatenate([np.empty(0, dtype=np.int64), *(batch[key] for batch in batches)]).astype(
            np.int64
        )
        for key in keys
    }
    joined["name"] = joined.pop("name_id")
    return joined


def _places(ids: Ints, by_id: Ints, wanted: Ints) -> Ints:
    """Return where in `ids` each of `wanted` is, -1 for what is nowhere."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)
    found = by_id[at]
    return np.where(ids[found] == wanted, found, -1)


def _by_rows(columns: Columns) -> Columns:
    order = np.lexsort((columns["start_ns"], columns["level"], columns["lane"], columns["track"]))
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    place[-1] = -1
    return {
        key: place[column[order]] if key == "parent" else np.asarray(column[order])
        for key, column in columns.items()
    }


def _described(source: SliceSource) -> list[dict[str, Any]]:
    names = TrackNames(source.meta)
    of_threads = {(track.process_id, track.thread_id) for track in source.tracks if not track.is_stream}
    threads = Counter(process_id for process_id, _ in of_threads)

    def describe(track: Track) -> dict[str, Any]:
        if track.is_stream:
            return {"name": names.stream(track), "of": names.device(track.device), "stream": True}
        process = f"{names.process(track.process_id)} {track.process_id}"
        # Most threads of a process have its name.
        name = names.thread(track, with_id=threads[track.process_id] > 1)
        return {"name": name, "of": process, "stream": False}

    return [describe(track) for track in source.tracks]


def _readings(source: SliceSource) -> list[Readings]:
    names = TrackNames(source.meta)
    found = []
    for device, metric, rows in source.readings():
        if metric not in METRICS:
            continue
        t_ns, value = (np.ma.filled(rows[key].astype(np.float64), np.nan) for key in ("t_ns", "value"))
        known = np.isfinite(t_ns) & np.isfinite(value)
        t_ns, value = thinned(t_ns[known], value[known])
        if len(t_ns):
            found.append(Readings(names.device(device), metric, t_ns, value))
    return sorted(found, key=lambda each: (each.device, METRICS.index(each.metric)))


def thinned(
    t_ns: npt.NDArray[np.float64], value: npt.NDArray[np.float64], most: int = MOST_READINGS
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Keep the largest reading of each stretch, at its time, where there are more than `most`."""
    if len(t_ns) <= most:
        return t_ns, value
    stretch = np.arange(len(t_ns)) * most // len(t_ns)
    order = np.lexsort((-value, stretch))
    kept = order[np.searchsorted(stretch[order], np.arange(most))]
    return t_ns[kept], value[kept]


# ---- writing -------------------------------------------------------------------------------------


def embedded_timeline(
    slices: Slices | str, tree: CallTree, place_of_node: Ints, labels: Mapping[str, str]
) -> tuple[str, str]:
    """Return what the page reads of the slices, see `packed_columns`.

    `tree` is the one that the page draws, `place_of_node` where each node of the run is in it (-1: nowhere).
    Slices that it does not show have a class, too.
    """
    if isinstance(slices, str):
        return safe_json({"left_out": readable(slices)}), ""
    node = slices.columns["node"]
    known = node < len(place_of_node)
    places = np.append(place_of_node, -1)[np.where(known, node, -1)]
    classes = classes_of({**slices.columns, "node": places}, slices.names, tree)
    parts = _packed(slices, classes)
    packed, gzipped = packed_columns(b"".join(part for _, part in parts))
    first = slices.columns["start_ns"]
    head = {
        "left_out": None,
        "count": len(first),
        "on_threads": slices.on_threads,
        "base": int(first.min()) if len(first) else 0,
        "classes": len(classes.name),
        "nodes": len(tree),
        "columns": {name: len(part) for name, part in parts},
        "names": [readable(name) for name in classes.names],
        "labels": label_pairs(classes.names, labels),
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
        ("gap", planes(zigzag(_gaps(columns)))),
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


def _gaps(columns: Columns) -> Ints:
    start = columns["start_ns"] - columns["start_ns"].min(initial=np.iinfo(np.int64).max)
    end = start + np.maximum(columns["duration_ns"], 0)
    before = np.concatenate(([0], end[:-1])) if len(end) else end
    before[_row_starts(columns)] = 0
    return np.asarray(start - before)


def _row_starts(columns: Columns) -> Ints:
    """Return the places of the first slice of each row."""
    if not len(columns["track"]):
        return np.empty(0, dtype=np.int64)
    changes = np.logical_or.reduce([np.diff(columns[key], prepend=-1) != 0 for key in _ROW])
    return np.flatnonzero(changes)


def _rows_of(slices: Slices) -> list[dict[str, Any]]:
    """Describe each track, with lane, level and number of slices of its rows."""
    starts = _row_starts(slices.columns)
    counts = np.diff(starts, append=len(slices.columns["track"]))
    rows: list[list[list[int]]] = [[] for _ in slices.tracks]
    keys = (slices.columns[key][starts].tolist() for key in _ROW)
    for track, lane, level, count in zip(*keys, counts.tolist(), strict=True):
        rows[track].append([lane, level, count])
    return [
        {
            "name": readable(track["name"]),
            "of": readable(track["of"]),
            "stream": track["stream"],
            "rows": found,
        }
        for track, found in zip(slices.tracks, rows, strict=True)
    ]
