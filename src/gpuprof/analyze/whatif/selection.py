# SPDX-License-Identifier: Apache-2.0
"""What a change applies to: the time of matching spans and functions on threads, and the work on GPUs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.errors import RunError
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

Action = Literal["remove", "speed_up"]
# Processes are no work that could be changed.
_SELECTABLE = tuple(kind for kind in KINDS if kind != "process")


@dataclass(frozen=True, slots=True)
class Change:
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
    """Where a change applies. `by_thread` has time on threads, `kernels` and `transfers` are rows of the tables.

    `names` counts the matching names. `error_ns` is the standard error of the time on threads, which samples
    have and spans do not.
    """

    change: Change
    names: int
    by_thread: dict[int, Intervals] = field(default_factory=dict)
    kernels: npt.NDArray[np.bool_] | None = None
    transfers: npt.NDArray[np.bool_] | None = None
    error_ns: float = 0.0

    def on_thread(self, thread_id: int) -> Intervals:
        """Return the matching time of a thread."""
        return self.by_thread.get(thread_id, NO_INTERVALS)


def select(folder: RunFolder, process_id: int, change: Change) -> Selection:
    """Find what a change applies to in one process. Raises RunError if nothing of that name was recorded."""
    kind, matches = _matcher(change.pattern)
    if kind == "python":
        found = _select_functions(folder, process_id, change, matches)
    else:
        found = _select_nodes(folder, process_id, change, kind, matches)
        if kind is None and not found.names:
            found = _select_functions(folder, process_id, change, matches)
    if not found.names:
        raise RunError(
            f"{folder.path}: no recorded name matches {change.pattern!r}",
            hint="gpuprof summary lists the names; * matches any text, as in 'layers.*.mlp'",
        )
    return found


def _matcher(pattern: str) -> tuple[str | None, Callable[[str], bool]]:
    """Return the kind that a pattern asks for, and the test of a name. An operator's name has colons, too."""
    kind, colon, name = pattern.partition(":")
    if not colon or kind not in _SELECTABLE or name.startswith(":"):
        kind, name = "", pattern
    # Brackets are frequent in names, so they are no character classes.
    expression = re.compile(fnmatch.translate(re.sub(r"([\[\]])", r"[\1]", name)))
    return kind or None, lambda text: expression.match(text) is not None


def _select_nodes(
    folder: RunFolder, process_id: int, change: Change, kind: str | None, matches: Callable[[str], bool]
) -> Selection:
    """Select spans, layers, operators and GPU work by the nodes of the call tree."""
    columns = _fetch(
        folder,
        "SELECT coalesce(parent_id, -1) AS parent, kind, name, coalesce(calls, 0) AS calls, "
        f"coalesce(path_id, -1) AS path FROM call_tree WHERE process_id = {process_id} ORDER BY node_id",
    )
    first = _fetch(folder, f"SELECT min(node_id) AS node FROM call_tree WHERE process_id = {process_id}")[
        "node"
    ]
    parents = (columns["parent"] - (int(first[0]) if len(columns["parent"]) else 0)).tolist()
    known: dict[str, bool] = {}
    inside = [False] * len(parents)
    taken, names = [], set()
    for node, parent in enumerate(parents):
        name, node_kind = str(columns["name"][node]), str(columns["kind"][node])
        is_match = (
            node_kind in ("process", "python") or (kind is not None and node_kind != kind)
        ) is False and known.setdefault(name, matches(name))
        above = parent >= 0 and inside[parent]
        inside[node] = above or is_match
        if is_match:
            names.add((node_kind, name))
        # The calls of the outermost matching node cover those below. One that has no calls of its own, such as
        # a layer in the backward pass, consists of those below.
        if inside[node] and columns["path"][node] >= 0 and columns["calls"][node] > 0:
            taken.append(int(columns["path"][node]))
    paths = np.asarray(columns["path"], dtype=np.int64)
    selected = np.unique(paths[np.array(inside, dtype=bool) & (paths >= 0)])
    return Selection(
        change,
        len(names),
        by_thread=_time_of_paths(folder, process_id, taken),
        kernels=_gpu_rows(folder, process_id, "kernels", selected, kind, matches),
        transfers=_gpu_rows(folder, process_id, "transfers", selected, kind, matches),
    )


def _time_of_paths(folder: RunFolder, process_id: int, paths: list[int]) -> dict[int, Intervals]:
    if not paths:
        return {}
    columns = _fetch(
        folder,
        f"SELECT thread_id, start_ns, duration_ns FROM spans WHERE process_id = {process_id} "
        f"AND path_id IN (SELECT unnest({paths})) ORDER BY thread_id, start_ns",
    )
    begin, end = columns["start_ns"], columns["start_ns"] + columns["duration_ns"]
    return _by_thread(columns["thread_id"], begin, end)


def _gpu_rows(
    folder: RunFolder,
    process_id: int,
    table: str,
    paths: npt.NDArray[np.int64],
    kind: str | None,
    matches: Callable[[str], bool],
) -> npt.NDArray[np.bool_] | None:
    """Return which rows were launched by a selected path, or have a matching name; None without rows."""
    named = table == "kernels"
    columns = _fetch(
        folder,
        f"SELECT {'work.name' if named else 'work.kind'} AS name, coalesce(spans.path_id, -1) AS path "
        f"FROM {table} AS work LEFT JOIN spans USING (span_id) "
        f"WHERE work.process_id = {process_id} ORDER BY work.start_ns, work.correlation_id",
    )
    if not len(columns["path"]):
        return None
    selected = np.isin(np.asarray(columns["path"], dtype=np.int64), paths)
    if kind in (None, "kernel" if named else "transfer"):
        texts, place = np.unique(np.asarray(columns["name"], dtype=str), return_inverse=True)
        selected |= np.array([matches(text) for text in texts.tolist()], dtype=bool)[place]
    return selected


def _select_functions(
    folder: RunFolder, process_id: int, change: Change, matches: Callable[[str], bool]
) -> Selection:
    """Select Python functions by the sampled stacks that contain them."""
    frames = _fetch(
        folder, f"SELECT DISTINCT unnest(frames) AS frame FROM stacks WHERE process_id = {process_id}"
    )
    wanted = [text for text in map(str, frames["frame"]) if matches(text) or matches(text.partition(" (")[0])]
    if not wanted:
        return Selection(change, 0)
    texts = ", ".join("'" + text.replace("'", "''") + "'" for text in wanted)
    columns = _fetch(
        folder,
        f"SELECT thread_id, t_ns, duration_ns FROM stacks WHERE process_id = {process_id} "
        f"AND list_has_any(frames, [{texts}]) ORDER BY thread_id, t_ns",
    )
    by_thread = _by_thread(columns["thread_id"], columns["t_ns"] - columns["duration_ns"], columns["t_ns"])
    # Each end of a stretch of samples is somewhere within one interval: its variance is a twelfth of the square.
    typical = float(np.median(columns["duration_ns"])) if len(columns["t_ns"]) else 0.0
    ends = 2 * sum(len(each) for each in by_thread.values())
    return Selection(change, len(wanted), by_thread=by_thread, error_ns=typical * (ends / 12) ** 0.5)


def _by_thread(thread: Any, begin: Any, end: Any) -> dict[int, Intervals]:
    found = {}
    for thread_id in np.unique(thread).tolist():
        own = thread == thread_id
        found[int(thread_id)] = Intervals.union(begin[own], end[own])
    return found


def _fetch(folder: RunFolder, query: str) -> dict[str, Any]:
    with folder.reading():
        return dict(folder.sql(query).fetchnumpy())
