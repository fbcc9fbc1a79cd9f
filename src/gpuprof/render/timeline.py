# SPDX-License-Identifier: Apache-2.0
"""The slices that the timeline of the flame graph page shows, and the readings of devices."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import RunError
from gpuprof.render.merged_slices import BUDGET, KIND_OF_CATEGORY, Choice, Merged, choose, merge
from gpuprof.render.slices import SliceSource, Track, TrackNames
from gpuprof.run.database import is_out_of_room
from gpuprof.run.folder import RunFolder

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[Any]]

MOST_SLICES = 4_000_000  # of a run of an earlier version, whose slices cannot be summed up
MOST_READINGS = 10_000  # of a metric; of more, the largest of each stretch of time
METRICS = (
    "utilization_percent",
    "memory_used_bytes",
    "power_w",
    "sm_clock_hz",
    "memory_clock_hz",
    "temperature_c",
)
ROW = ("track", "lane", "level")


@dataclass(frozen=True, slots=True)
class Readings:
    """One metric of one device over time."""

    device: str
    metric: str
    t_ns: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a run, in the order of rows and there of time; what ran on GPUs comes last."""

    tracks: list[dict[str, Any]]  # name, process, and whether it is a stream
    names: list[str]
    # track, lane, level, name, kind, process, id, on_gpu, start_ns, duration_ns, parent: the place of the
    # span around it or of the one that launched it (-1: none), node: the run's node that counts it, and
    # above: that of what launched it (-1: unknown)
    columns: Columns
    on_threads: int  # slices before this one ran on threads
    readings: list[Readings]
    merged: Merged | None = None  # sums of those that are not in the columns
    window: tuple[int, int] | None = None  # ns; other slices are left out


# ---- reading -----------------------------------------------------------------------------------


def read_timeline(
    run: RunFolder,
    folder: Path,
    tree: CallTree,
    *,
    window: tuple[int, int] | None = None,
    is_full: bool = False,
) -> Slices | str:
    """Return the run's slices, or the reason why a page has none.

    Of a run with more than a page shows quickly, short slices are summed up, unless it `is_full`. With a
    `window` (begin and end in ns), only slices that meet it are there. What is sorted on the way is written
    to `folder`. `tree` is that of the run. Raises OSError where the folder cannot be written.
    """
    import duckdb

    try:
        with tempfile.TemporaryDirectory(prefix=".gpuprof-timeline-", dir=folder) as scratch:
            source = SliceSource(run, Path(scratch), waits=True)
            try:
                return _read(source, _nodes_of_paths(run), tree, window, is_full=is_full)
            finally:
                source.close()
    except duckdb.Error as error:
        # What is sorted on the way may find no room where the page still does.
        failed = "written" if is_out_of_room(error) else "read"
        reason, hint = run.failure_of(error)
        return f"The timeline could not be {failed}: {reason}; hint: {hint}"
    except RunError as error:
        return f"The timeline could not be read: {error}"


def _nodes_of_paths(run: RunFolder) -> Ints:
    """Return the node of each path by its number, -1 for none."""
    for table in ("spans", "call_tree"):
        if table not in run.tables or "path_id" not in run.sql(f"FROM {table}").columns:
            return np.empty(0, dtype=np.int64)
    found = run.sql("SELECT path_id, node_id FROM call_tree WHERE path_id >= 0").fetchnumpy()
    path = np.asarray(found["path_id"], dtype=np.int64)
    nodes = np.full(int(path.max(initial=-1)) + 1, -1, dtype=np.int64)
    nodes[path] = np.asarray(found["node_id"], dtype=np.int64)
    return nodes


def _read(
    source: SliceSource,
    node_of_path: Ints,
    tree: CallTree,
    window: tuple[int, int] | None,
    *,
    is_full: bool,
) -> Slices | str:
    choice = choose(source, window, is_full=is_full or not source.has_paths, budget=BUDGET)
    if choice.shown > MOST_SLICES and not (is_full or source.has_paths):
        return (
            f"This run of an earlier version has {choice.shown:,} slices; a page holds the timeline of "
            f"{MOST_SLICES:,} at most. For all of them: gpuprof flamegraph RUN --full, or gpuprof export RUN "
            "-o trace.pftrace, to be opened in ui.perfetto.dev."
        )
    merged = None
    if choice.shown < choice.slices:
        merged = merge(source, choice, tree, node_of_path)
    columns, on_threads = _columns(source, choice, node_of_path)
    return Slices(
        tracks=_described(source),
        names=source.names,
        columns=columns,
        on_threads=on_threads,
        readings=list(_readings(source)),
        merged=merged,
        window=window,
    )


def _columns(source: SliceSource, choice: Choice, node_of_path: Ints) -> tuple[Columns, int]:
    """Return the slices that are shown one by one, by rows, and how many of them ran on threads."""
    chosen = f"duration_ns >= {choice.least_ns:d} AND {choice.inside}" if choice.least_ns else choice.inside
    keys = f"{', '.join(ROW)}, name_id, category, start_ns, duration_ns"
    path = "path" if source.has_paths else "-1 AS path"
    threads = _numbers(
        source.ask(f"SELECT {keys}, id, parent, {path} FROM scratch.placed_cpu WHERE {chosen} ORDER BY rowid")  # noqa: S608
    )
    streams = _numbers(
        source.ask(
            f"SELECT {keys}, launcher AS parent, coalesce(cpu.path, -1) AS path "  # noqa: S608
            f"FROM (FROM scratch.placed_gpu WHERE {chosen}) AS gpu LEFT JOIN "
            f"(SELECT id, {path} FROM scratch.cpu) AS cpu ON cpu.id = gpu.launcher ORDER BY gpu.place"
        )
    )
    on_threads = len(threads["track"])
    by_id = np.argsort(threads["id"], kind="stable")
    streams["id"] = np.zeros(len(streams["track"]), dtype=np.int64)
    columns = {key: np.concatenate([threads[key], streams[key]]) for key in threads}
    columns["name"] = columns.pop("name_id")
    columns["kind"] = KIND_OF_CATEGORY[columns.pop("category")]
    processes = np.array([track.process_id for track in source.tracks], dtype=np.int64)
    columns["process"] = processes[columns["track"]] if len(processes) else columns["track"]
    columns["on_gpu"] = np.arange(len(columns["track"])) >= on_threads
    columns["parent"] = _places(threads["id"], by_id, columns["parent"])
    path_of = columns.pop("path")
    node = np.append(node_of_path, -1)[np.where(path_of < len(node_of_path), path_of, -1)]
    columns["node"] = np.where(columns["on_gpu"], -1, node)
    columns["above"] = np.where(columns["on_gpu"], node, -1)
    return _by_rows(columns), on_threads


def _numbers(columns: Columns) -> Columns:
    return {key: np.asarray(column, dtype=np.int64) for key, column in columns.items()}


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
