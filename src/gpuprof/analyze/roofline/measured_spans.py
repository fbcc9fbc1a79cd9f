# SPDX-License-Identifier: Apache-2.0
"""The recorded spans of a process as columns, placed as the counting pass sees them: by root call and layer.

A run holds millions of spans, so nothing here is done span by span: spans are placed level by level of their
tree, and every other step is one operation on whole columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.roofline.counted import COMPILED, plain_name
from gpuprof.analyze.roofline.device_activity import (
    DeviceActivity,
    Executions,
    changes,
    executions_of,
    load_activity,
    no_activity,
    sums_from,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]
    Codes = npt.NDArray[np.int32]
    Bools = npt.NDArray[np.bool_]

OUTSIDE = ""
# The kinds of spans that matter here; 0 is any other.
LAYER, OPERATOR, BACKWARD = 1, 2, 3
LayerKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """Spans ordered by `span_id`; `parent` is an index or -1, `name` an index into `names`."""

    span_id: Ints
    parent: Codes
    kind: npt.NDArray[np.int8]
    name: Codes
    start_ns: Ints
    duration_ns: Ints
    thread: Ints
    names: list[str]

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self.span_id)


_NAMED = """
    WITH own AS (SELECT * FROM spans WHERE process_id = {process_id}), named AS (
        SELECT name, row_number() OVER (ORDER BY name) - 1 AS code FROM (SELECT DISTINCT name FROM own))
"""
_NAMES = "SELECT name FROM named ORDER BY code"
_SPANS = """
    SELECT span_id, coalesce(parent_id, -1) AS parent_id, code::INTEGER AS name, start_ns, duration_ns,
           thread_id AS thread,
           CASE kind WHEN 'layer' THEN 1 WHEN 'operator' THEN 2 WHEN 'backward' THEN 3 ELSE 0 END::TINYINT
               AS kind
    FROM own JOIN named USING (name) ORDER BY span_id
"""


def load_spans(folder: RunFolder, process_id: int) -> SpanColumns:
    """Read the spans of a process."""
    named = _NAMED.format(process_id=int(process_id))
    names = [name for (name,) in folder.sql(named + _NAMES).fetchall()]
    found = {key: np.ma.getdata(values) for key, values in folder.sql(named + _SPANS).fetchnumpy().items()}
    parent = parent_indices(found["span_id"], found.pop("parent_id"))
    return SpanColumns(**found, parent=parent, names=names)


def parent_indices(span_id: Ints, parent_id: Ints) -> Codes:
    """Return the index of each span's parent in the ordered `span_id`; -1 where no earlier span is it."""
    at = _indices_of(span_id, parent_id)
    return np.where(at < np.arange(len(at)), at, -1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The names that the counting pass has work for: (root, operator) forward, operators backward."""

    forward: Collection[tuple[str, str]]
    backward: Collection[str]


@dataclass(frozen=True, slots=True)
class SpanPlaces:
    """Where each span is: indices of spans and names, -1 for none.

    `root_call` is the outermost layer around a span (or itself), `layer` the name of the nearest one.
    Candidates are the outermost spans that the counting pass has a name for. `owner` is the span whose row
    has the GPU work: the candidate around it, or the outermost operator. `outermost` is the outermost
    operator strictly around a span. `is_taken` are candidates and what is inside of them.
    """

    root_call: Codes
    layer: Codes
    owner: Codes
    outermost: Codes
    in_backward: Bools
    is_taken: Bools
    is_candidate: Bools


@dataclass(frozen=True, slots=True)
class GpuWork:
    """What ran on GPUs, by the spans that launched it: `launcher` and `owner` are indices of spans or -1.

    `execution_of` is the execution of each kernel, copy and fill. `on_gpu` marks the owners, `inner_on_gpu`
    the outermost operators around candidates of which any had GPU work. `device_ns` is all time by device.
    """

    activity: DeviceActivity
    launcher: Ints
    owner: Ints
    executions: Executions
    execution_of: Ints
    on_gpu: Bools
    inner_on_gpu: Bools
    device_ns: dict[str, int]


@dataclass(frozen=True)
class MeasuredSpans:
    """Everything that was timed, ready to be joined with what was counted.

    `calls` are the calls of roots as indices of spans. `uncounted` are the outermost operators that are
    neither candidates nor inside of one, `inner_ns` the time in candidates inside of each span.
    `layer_own_ns` has a layer's self time in each call of its root, `layer_rest_ns` by (root, layer, device)
    the GPU time that is in no row. `total_ns` is the time in recorded calls.
    """

    columns: SpanColumns
    places: SpanPlaces
    calls: Ints
    uncounted: Ints
    inner_ns: Ints
    total_ns: int
    layer_own_ns: dict[LayerKey, Ints]
    gpu: GpuWork
    layer_rest_ns: dict[tuple[str, str, str], Ints]

    def root_of(self, span: int) -> str:
        """Return the name of the outermost layer around a span, "" for none."""
        call = int(self.places.root_call[span])
        return OUTSIDE if call < 0 else self.columns.names[self.columns.name[call]]

    def layer_of(self, span: int) -> str:
        """Return the name of the nearest layer around a span, "" for none."""
        layer = int(self.places.layer[span])
        return OUTSIDE if layer < 0 else self.columns.names[layer]

    def passes(self) -> Counter[str]:
        """Return how often each root was called."""
        return Counter(self.columns.names[name] for name in self.columns.name[self.calls].tolist())

    def whole_ns(self, device: str | None) -> int:
        """Return all the time of a GPU; of other devices the time in recorded calls."""
        return self.gpu.device_ns.get(device or "", self.total_ns)


def load_measured_spans(folder: RunFolder, process_id: int, wanted: Wanted) -> MeasuredSpans:
    """Read the spans and the GPU work of a process."""
    return measured_spans(load_spans(folder, process_id), wanted, load_activity(folder, process_id))


def measured_spans(
    columns: SpanColumns, wanted: Wanted, activity: DeviceActivity | None = None
) -> MeasuredSpans:
    """Place spans and GPU work."""
    places = _placed(columns, wanted)
    is_layer, is_operator = columns.kind == LAYER, columns.kind == OPERATOR
    of_layer = np.flatnonzero(is_layer & ~places.in_backward)
    candidates = np.flatnonzero(places.is_candidate)
    inner_ns = np.zeros(len(columns), np.int64)
    around = places.outermost[candidates]
    np.add.at(inner_ns, around[around >= 0], columns.duration_ns[candidates[around >= 0]])
    gpu = _gpu_work(columns, places, activity or no_activity())
    return MeasuredSpans(
        columns=columns,
        places=places,
        calls=of_layer[places.root_call[of_layer] == of_layer],
        uncounted=np.flatnonzero(is_operator & (places.outermost < 0) & ~places.is_taken),
        inner_ns=inner_ns,
        total_ns=int(columns.duration_ns[columns.parent < 0].sum()),
        layer_own_ns=_layer_own_ns(columns, places, of_layer),
        gpu=gpu,
        layer_rest_ns=_layer_rest_ns(columns, places, gpu),
    )


# ---- placing ---------------------------------------------------------------------------------


def levels_of(parent: Codes) -> Iterator[Ints]:
    """Yield the spans of each level of the tree, the outermost first."""
    order = np.argsort(parent, kind="stable")
    # The children of span n are in order[offsets[n + 1] : offsets[n + 2]].
    offsets = np.zeros(len(parent) + 2, np.int64)
    np.cumsum(np.bincount(parent + 1, minlength=len(parent) + 1), out=offsets[1:])
    level = order[: offsets[1]]
    while len(level):
        yield level
        counts = offsets[level + 2] - offsets[level + 1]
        ends = np.cumsum(counts)
        level = order[np.repeat(offsets[level + 1] - ends + counts, counts) + np.arange(ends[-1])]


def _placed(columns: SpanColumns, wanted: Wanted) -> SpanPlaces:
    """Hand the place of each span on to those inside of it. The last element is that of no span."""
    count = len(columns)
    root_call, layer, owner, outermost, inner_outermost = (np.full(count + 1, -1, np.int32) for _ in range(5))
    in_backward, is_taken, is_candidate = (np.zeros(count + 1, np.bool_) for _ in range(3))
    tables = _WantedNames(columns.names, wanted)
    for level in levels_of(columns.parent):
        above, kind, name = columns.parent[level], columns.kind[level], columns.name[level]
        is_layer, is_operator = kind == LAYER, kind == OPERATOR
        root = np.where(is_layer & (root_call[above] < 0), level, root_call[above])
        backward = in_backward[above] | (kind == BACKWARD)
        found = ~is_taken[above] & tables.has(
            np.where(root < 0, -1, columns.name[root]), name, kind, backward
        )
        around = inner_outermost[above]
        is_owner = found | (is_operator & (around < 0) & ~is_taken[above])
        root_call[level] = root
        layer[level] = np.where(is_layer, name, layer[above])
        in_backward[level] = backward
        is_candidate[level] = found
        is_taken[level] = is_taken[above] | found
        owner[level] = np.where(is_owner, level, owner[above])
        outermost[level] = around
        inner_outermost[level] = np.where(is_operator & (around < 0), level, around)
    return SpanPlaces(
        root_call[:-1],
        layer[:-1],
        owner[:-1],
        outermost[:-1],
        in_backward[:-1],
        is_taken[:-1],
        is_candidate[:-1],
    )


class _WantedNames:
    """Tables of names by root: which operators and compiled layers the counting pass has work for."""

    def __init__(self, names: list[str], wanted: Wanted) -> None:
        roots = sorted({root for root, _ in wanted.forward})
        number = {root: at for at, root in enumerate(roots)}
        # The last row is that of other roots and of none; the last root is that of no span.
        self._row_of = np.array([*(number.get(name, len(roots)) for name in names), len(roots)])
        plain = [plain_name(name) for name in names]
        self._forward = np.zeros((len(roots) + 1, len(names)), np.bool_)
        self._compiled = np.zeros((len(roots) + 1, len(names)), np.bool_)
        for row, root in enumerate(roots):
            self._forward[row] = [(root, name) in wanted.forward for name in plain]
            self._compiled[row] = [(root, f"{COMPILED}{name}") in wanted.forward for name in names]
        self._backward = np.array([name in wanted.backward for name in plain], np.bool_)

    def has(self, root: Codes, name: Codes, kind: npt.NDArray[np.int8], backward: Bools) -> Bools:
        """Return which spans are wanted, by the name of their root (-1 for none), their own, and the pass."""
        row = self._row_of[root]
        operators = np.where(backward, self._backward[name], self._forward[row, name])
        found: Bools = ((kind == OPERATOR) & operators) | ((kind == LAYER) & self._compiled[row, name])
        return found


# ---- sums by layer and call ------------------------------------------------------------------


def _layer_own_ns(columns: SpanColumns, places: SpanPlaces, of_layer: Ints) -> dict[LayerKey, Ints]:
    """Return the time of layers without that of the layers inside of them, by call of the root."""
    duration_ns, above = columns.duration_ns[of_layer], columns.parent[of_layer]
    inside = taken_or_none(places.root_call, above) >= 0
    sums = _sums_by_call(
        columns,
        np.concatenate((columns.name[of_layer], places.layer[above[inside]])),
        np.concatenate((places.root_call[of_layer], places.root_call[of_layer[inside]])),
        np.concatenate((duration_ns, -duration_ns[inside])),
    )
    return dict(sums)


def _layer_rest_ns(
    columns: SpanColumns, places: SpanPlaces, gpu: GpuWork
) -> dict[tuple[str, str, str], Ints]:
    """Return the GPU time in forward passes that no counted operator has, by call of the root."""
    activity, launcher, owner = gpu.activity, gpu.launcher, gpu.owner
    if not len(columns):
        return {}
    rest = (launcher >= 0) & ~((owner >= 0) & places.is_candidate[owner])
    rest &= ~places.in_backward[launcher] & (places.root_call[launcher] >= 0)
    found = {}
    for device, name in enumerate(activity.devices):
        which = np.flatnonzero(rest & (activity.device == device))
        spans = launcher[which]
        sums = _sums_by_call(
            columns, places.layer[spans], places.root_call[spans], activity.duration_ns[which]
        )
        found.update({(*key, name): values for key, values in sums})
    return found


def _sums_by_call(
    columns: SpanColumns, layer: Codes, call: Codes, values: Ints
) -> Iterator[tuple[LayerKey, Ints]]:
    """Yield for each (root, layer) the sums of `values`, one for each call of the root that has any."""
    root = columns.name[call]
    order = np.lexsort((call, layer, root))
    keys = [column[order] for column in (root, layer, call)]
    starts = np.flatnonzero(changes(keys))
    sums = sums_from(values[order], starts)
    root, layer = keys[0][starts], keys[1][starts]
    firsts = np.flatnonzero(changes([root, layer]))
    for part, at in zip(np.split(sums, firsts[1:]), firsts.tolist(), strict=False):
        yield (columns.names[root[at]], columns.names[layer[at]]), part


# ---- GPUs ------------------------------------------------------------------------------------


def _gpu_work(columns: SpanColumns, places: SpanPlaces, activity: DeviceActivity) -> GpuWork:
    """Give what ran on GPUs to the spans that own it."""
    launcher = _indices_of(columns.span_id, activity.span_id)
    owner = taken_or_none(places.owner, launcher)
    executions, execution_of = executions_of(activity, owner)
    on_gpu, inner = (np.zeros(len(columns), np.bool_) for _ in range(2))
    on_gpu[executions.owner] = True
    # An owner inside of an operator is a candidate: other owners are outermost operators themselves.
    around = places.outermost[on_gpu]
    inner[around[around >= 0]] = True
    times = np.bincount(activity.device, weights=activity.duration_ns, minlength=len(activity.devices))
    device_ns = {name: int(time_ns) for name, time_ns in zip(activity.devices, times, strict=True)}
    return GpuWork(activity, launcher, owner, executions, execution_of, on_gpu, inner, device_ns)


def _indices_of(span_id: Ints, wanted: Ints) -> Ints:
    """Return the indices of spans by their numbers; -1 for those that are not there."""
    if not len(span_id):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(span_id, wanted), len(span_id) - 1)
    return np.where(span_id[at] == wanted, at, -1)


def taken_or_none(values: npt.NDArray[Any], index: npt.NDArray[Any]) -> Ints:
    """Return `values[index]`, and -1 where the index is -1."""
    if not len(values):
        return np.full(len(index), -1, np.int64)
    return np.where(index < 0, -1, values[index])
