# SPDX-License-Identifier: Apache-2.0
"""What a change applies to: the time of matching spans and functions on threads, and the work on GPUs."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.errors import RunError
from gpuprof.run.call_sites import waited_in_each_ns
from gpuprof.run.facts import lacks_native_sampler
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

Action = Literal["remove", "speed_up"]
# Processes are no work that could be changed.
_SELECTABLE = tuple(kind for kind in KINDS if kind != "process")
# Their nodes come from samples and have no spans.
_SAMPLED = ("python", "waiting")
_MOST_COMPARED = 5_000  # names, with one that was not found

_NODES = """
    SELECT coalesce(parent_id - (SELECT min(node_id) FROM call_tree WHERE process_id = {process}), -1)
               AS parent, kind, name, coalesce(calls, 0) AS calls, coalesce(path_id, -1) AS path
    FROM call_tree WHERE process_id = {process} ORDER BY node_id
"""
_TIME_OF_PATHS = """
    SELECT thread_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND path_id IN (SELECT unnest({paths}::BIGINT[]))
    ORDER BY thread_id, start_ns
"""
# In the order of the rows in `GpuItems`.
_LAUNCHED = {
    "kernel": """
        SELECT work.name, coalesce(spans.path_id, -1) AS path
        FROM kernels AS work LEFT JOIN spans USING (span_id)
        WHERE work.process_id = {process} ORDER BY work.start_ns, work.correlation_id
    """,
    "transfer": """
        SELECT concat_ws(' ', work.kind, src, CASE WHEN work.kind = 'copy' THEN 'to' END, dst) AS name,
               coalesce(spans.path_id, -1) AS path
        FROM transfers AS work LEFT JOIN spans USING (span_id)
        WHERE work.process_id = {process} ORDER BY work.start_ns, work.correlation_id
    """,
}
_FUNCTIONS = "SELECT DISTINCT unnest(frames) AS frame FROM stacks WHERE process_id = {process}"
_TIME_OF_FUNCTIONS = """
    SELECT thread_id, t_ns - duration_ns AS begin_ns, t_ns AS end_ns FROM stacks
    WHERE process_id = {process} AND list_has_any(frames, {frames}) ORDER BY thread_id, t_ns
"""
_INNERMOST = """
    SELECT thread_id, t_ns - duration_ns AS begin_ns, t_ns AS end_ns, frames[-1] AS frame,
           duration_ns, coalesce(cpu_ns, -1) AS cpu_ns, coalesce(queued_ns, 0) AS queued_ns
    FROM stacks WHERE process_id = {process} AND len(frames) > 0 ORDER BY thread_id, t_ns
"""


@dataclass(frozen=True, slots=True)
class Modification:
    """`pattern` is a name with `*` for any text, and may begin with a kind: `operator:aten::mm`.

    `factor` is by how much the matching work becomes faster; infinity removes it.
    """

    action: Action
    pattern: str
    factor: float

    @property
    def remaining(self) -> float:
        """The part of the time that remains."""
        return 0.0 if self.action == "remove" else 1.0 / self.factor


@dataclass(frozen=True, slots=True)
class Selection:
    """Where a change applies: the time on threads, and the rows of `kernels` and `transfers`.

    `names` counts the matching names. `error_ns` is the standard error of the time on threads, which samples
    have and spans do not.
    """

    change: Modification
    names: int
    by_thread: dict[int, Intervals] = field(default_factory=dict)
    kernels: npt.NDArray[np.bool_] | None = None
    transfers: npt.NDArray[np.bool_] | None = None
    error_ns: float = 0.0

    def on_thread(self, thread_id: int) -> Intervals:
        """Return the matching time of a thread."""
        return self.by_thread.get(thread_id, NO_INTERVALS)


def select(folder: RunFolder, process_id: int, change: Modification) -> Selection:
    """Find what a change applies to in one process. Raises RunError if nothing of that name was recorded."""
    kind, matches = _matcher(change.pattern)
    if kind == "waiting":
        found = _select_waits(folder, process_id, change, matches)
    elif kind == "python":
        found = _select_functions(folder, process_id, change, matches)
    else:
        found = _select_nodes(folder, process_id, change, kind, matches)
        if kind is None and not found.names:
            found = _select_functions(folder, process_id, change, matches)
    if not found.names and kind == "python" and not folder.meta.get("stacks"):
        raise RunError(
            "no_stacks",
            f"{folder.path}: no Python stacks were recorded, which {change.pattern!r} needs",
            hint=(
                "record with `gpuprof run --python`, which uses pyinstrument"
                if lacks_native_sampler(folder.meta)
                else "record with `gpuprof run`, or in a program with gpuprof.profile(python=True)"
            ),
        )
    if not found.names:
        near = _near_names(folder, process_id, change.pattern.removeprefix(f"{kind}:"))
        lists = "gpuprof summary lists names and sources"
        raise RunError(
            "unknown_name",
            f"{folder.path}: no recorded name matches {change.pattern!r}",
            hint=f"did you mean {near[0]!r}? {lists}" if near else f"{lists}; * matches any text",
        )
    return found


def _near_names(folder: RunFolder, process_id: int, pattern: str) -> list[str]:
    """Return the recorded name that is most like a pattern, or nothing."""
    columns = folder.columns(_NODES, process=process_id)
    rows = zip(columns["kind"].tolist(), columns["name"].tolist(), strict=True)
    names = dict.fromkeys(name for kind, name in rows if _may_be_named(kind, None))
    return difflib.get_close_matches(pattern, list(names)[:_MOST_COMPARED], 1, cutoff=0.5)


def _matcher(pattern: str) -> tuple[str | None, Callable[[str], bool]]:
    """Return the kind that a pattern asks for, and the test of a name. An operator's name has colons, too."""
    kind, colon, name = pattern.partition(":")
    if not colon or kind not in _SELECTABLE or name.startswith(":"):
        kind, name = "", pattern
    # Brackets are frequent in names, so they are no character classes.
    expression = re.compile(fnmatch.translate(re.sub(r"([\[\]])", r"[\1]", name)))
    return kind or None, lambda text: expression.match(text) is not None


def _select_nodes(
    folder: RunFolder, process_id: int, change: Modification, kind: str | None, matches: Callable[[str], bool]
) -> Selection:
    """Select spans, layers, operators and GPU work by the nodes of the call tree."""
    columns = folder.columns(_NODES, process=process_id)
    parents, kinds = columns["parent"].tolist(), columns["kind"].tolist()
    texts = columns["name"].tolist()
    known = {text: matches(text) for text in set(texts)}
    inside, names = [False] * len(parents), set()
    for node, parent in enumerate(parents):
        is_match = known[texts[node]] and _may_be_named(kinds[node], kind)
        inside[node] = is_match or (parent >= 0 and inside[parent])
        if is_match:
            names.add((kinds[node], texts[node]))
    paths = np.asarray(columns["path"], dtype=np.int64)
    # A node without calls of its own, such as a layer in the backward pass, consists of those below.
    selected = np.unique(paths[np.array(inside, dtype=bool) & (paths >= 0)])
    columns = folder.columns(_TIME_OF_PATHS, process=process_id, paths=selected.tolist())
    return Selection(
        change,
        len(names),
        by_thread=_by_thread(columns),
        kernels=_gpu_rows(folder, process_id, "kernel", selected, kind, matches),
        transfers=_gpu_rows(folder, process_id, "transfer", selected, kind, matches),
    )


def _may_be_named(kind: str, wanted: str | None) -> bool:
    return kind != "process" and kind not in _SAMPLED and wanted in (None, kind)


def _gpu_rows(
    folder: RunFolder,
    process_id: int,
    own_kind: str,
    paths: npt.NDArray[np.int64],
    kind: str | None,
    matches: Callable[[str], bool],
) -> npt.NDArray[np.bool_] | None:
    """Return which rows were launched by a selected path, or have a matching name; None without rows."""
    columns = folder.columns(_LAUNCHED[own_kind], process=process_id)
    if not len(columns["path"]):
        return None
    selected = np.isin(np.asarray(columns["path"], dtype=np.int64), paths)
    if kind in (None, own_kind):
        texts, place = np.unique(np.asarray(columns["name"], dtype=str), return_inverse=True)
        selected |= np.array([matches(text) for text in texts.tolist()], dtype=bool)[place]
    return selected


def _select_functions(
    folder: RunFolder, process_id: int, change: Modification, matches: Callable[[str], bool]
) -> Selection:
    """Select Python functions by the sampled stacks that contain them."""
    wanted = _matching(folder.columns(_FUNCTIONS, process=process_id)["frame"].tolist(), matches)
    if not wanted:
        return Selection(change, 0)
    columns = folder.columns(_TIME_OF_FUNCTIONS, process=process_id, frames=wanted)
    return _of_samples(folder, change, len(wanted), columns)


def _select_waits(
    folder: RunFolder, process_id: int, change: Modification, matches: Callable[[str], bool]
) -> Selection:
    """Select waits by their innermost function."""
    columns = folder.columns(_INNERMOST, process=process_id)
    waits = waited_in_each_ns(*(columns[name] for name in ("duration_ns", "cpu_ns", "queued_ns"))) > 0
    wanted = _matching(np.unique(columns["frame"][waits]).tolist(), matches)
    chosen = waits & np.isin(columns["frame"], wanted)
    return _of_samples(folder, change, len(wanted), {name: each[chosen] for name, each in columns.items()})


def _matching(frames: list[str], matches: Callable[[str], bool]) -> list[str]:
    return [frame for frame in frames if matches(frame) or matches(frame.partition(" (")[0])]


def _of_samples(folder: RunFolder, change: Modification, names: int, columns: dict[str, Any]) -> Selection:
    by_thread = _by_thread(columns)
    # Each end of a stretch of samples is somewhere in one interval: its variance is a twelfth of the square.
    interval_ns = float((folder.meta.get("stacks") or {}).get("interval_ns") or 0)
    ends = 2 * sum(len(each) for each in by_thread.values())
    return Selection(change, names, by_thread=by_thread, error_ns=interval_ns * (ends / 12) ** 0.5)


def _by_thread(columns: dict[str, Any]) -> dict[int, Intervals]:
    found = {}
    for thread_id in np.unique(columns["thread_id"]).tolist():
        own = columns["thread_id"] == thread_id
        found[int(thread_id)] = Intervals.union(columns["begin_ns"][own], columns["end_ns"][own])
    return found
