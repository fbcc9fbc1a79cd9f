# SPDX-License-Identifier: Apache-2.0
"""Rules about more bytes than necessary: normalization in fp32, lookups of rows, padding.

All gains are upper bounds. Operators of a GPU are its kernels, on a CPU they are their calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.analyze.whatif.selection import Modification, Selection

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import ProgramRecord, StepTimes
    from gpuprof.analyze.whatif.intervals import Ints

# The optimizer's steps, and `zero_grad`, which releases gradients.
_LOADER = "enumerate(DataLoader)#%"
_KERNELS = """
    SELECT work.start_ns AS begin_ns, work.start_ns + work.duration_ns AS end_ns,
        coalesce(work.launch_ns, -1) AS launch_ns, {chosen}
    FROM kernels AS work LEFT JOIN spans USING (span_id)
    WHERE work.process_id = {process} ORDER BY work.start_ns, work.correlation_id
"""
# An operator inside another one of them counts with that.
_TIME_OF_OPERATORS = """
    SELECT sum(inner_.duration_ns)::BIGINT FROM spans AS inner_ LEFT JOIN spans AS outer_
        ON inner_.parent_id = outer_.span_id
    WHERE inner_.process_id = {process} AND inner_.kind = 'operator'
        AND list_contains({names}::VARCHAR[], inner_.name)
        AND NOT coalesce(list_contains({names}::VARCHAR[], outer_.name), false)
"""


@dataclass(frozen=True, slots=True)
class _Kernels:
    """All kernels of the process in the order of a selection, and which of them are chosen."""

    begin_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    is_chosen: Any

    def also(self, launched: Intervals) -> _Kernels:
        """Choose the kernels, too, that were launched in some time."""
        chosen = self.is_chosen | (launched.place(self.launch_ns) >= 0)
        return _Kernels(self.begin_ns, self.end_ns, self.launch_ns, chosen)

    @property
    def time(self) -> Intervals:
        return Intervals.union(self.begin_ns[self.is_chosen], self.end_ns[self.is_chosen])


def _kernels(record: ProgramRecord, column: str, values: Iterable[Any], kind: str) -> _Kernels | None:
    """Return the kernels with those of spans of which a column has one of the values; None without any."""
    chosen = f"coalesce(list_contains({{values}}::{kind}[], spans.{column}), false) AS is_chosen"
    query = _KERNELS.replace("{chosen}", chosen)
    columns = record.fetch(query, process=record.process_id, values=list(values))
    if not len(columns["begin_ns"]):
        return None
    begin, end, launched = (columns[name].astype(np.int64) for name in ("begin_ns", "end_ns", "launch_ns"))
    return _Kernels(begin, end, launched, np.asarray(columns["is_chosen"], dtype=bool))


def _high_end(record: ProgramRecord, kernels: _Kernels, remaining: float) -> float:
    """Return the most that a replay gains in which a part of the kernels' time remains."""
    change = (
        Modification("speed_up", "", 1 / remaining) if remaining else Modification("remove", "", math.inf)
    )
    _, gain, _ = record.replayed([Selection(change, 1, kernels=kernels.is_chosen)])
    return max(gain.high_ns, 0.0) or kernels.time.total_ns * (1 - remaining)


# ---- lookups -----------------------------------------------------------------------------------------------

_DENSE = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_LOOKUPS = (
    *("aten::embedding", "aten::_embedding_bag", "aten::index_select", "aten::index", "aten::gather"),
    *("aten::take", "aten::index_put_", "aten::_index_put_impl_", "aten::index_add_", "aten::scatter_add_"),
    *("aten::embedding_backward", "aten::_embedding_bag_backward", "aten::index_select_backward"),
    *("aten::embedding_sparse_backward", *_DENSE),
)
_LEAST_LOOKUPS = 0.1  # of the time in steps
_OF_GRADIENT = 0.5  # of the lookups, from which the gradient is their cause
_CALLS = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns, span_id,
        list_contains({dense}::VARCHAR[], name) AS is_dense
    FROM spans WHERE process_id = {process} AND kind = 'operator'
        AND name IN (SELECT unnest({names}::VARCHAR[])) ORDER BY start_ns
"""
# The first shape of a lookup is that of its table.
_TABLES = """
    SELECT DISTINCT layer, string_split(input_shapes, ', ')[1] AS shape FROM work
    WHERE operator = 'aten::embedding' AND phase = 'forward'
"""


def lookups(record: ProgramRecord) -> list[Draft] | Missing:
    """Find lookups of rows that are a large part of the steps, and dense gradients of embeddings.

    A gradient of the size of the whole table makes the optimizer update and release all of its rows: its
    time counts.
    """
    if record.steps is None:
        return Missing.STEPS
    if not record.is_on("operators"):
        return Missing.OPERATORS
    columns = record.fetch(_CALLS, process=record.process_id, names=list(_LOOKUPS), dense=list(_DENSE))
    begin, end = columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    loading = record.spans(_LOADER, "span").covered
    own = (record.in_model.place(begin) >= 0) & (loading.place(begin) < 0)
    is_dense = own & np.asarray(columns["is_dense"], dtype=bool)
    if not own.any():
        return []
    optimizing = record.updates().covered
    kernels = _kernels(record, "name", _LOOKUPS, "VARCHAR")
    if kernels is not None:
        time, dense = kernels.time, _kernels(record, "name", _DENSE, "VARCHAR")
        dense_ns = 0 if dense is None else dense.time.total_ns
    else:
        time = Intervals.union(begin[own], end[own])
        dense_ns = Intervals.union(begin[is_dense], end[is_dense]).total_ns
    share = _fraction_of_steps(record.steps, time)
    if share < _LEAST_LOOKUPS:
        return []
    has_dense_gradient = dense_ns >= _OF_GRADIENT * time.total_ns
    high = float(time.total_ns)
    if has_dense_gradient:
        time, high, share = _with_optimizer(record, record.steps, time, kernels, optimizing)
    elif kernels is not None:
        high = _high_end(record, kernels, 0.0)
    values = {"share": share, "has_dense_gradient": has_dense_gradient}
    places = Places(spans=tuple(columns["span_id"][is_dense if has_dense_gradient else own][:3].tolist()))
    gain = TimeRange(0.0, high)
    evidence = _evidence_of_lookups(record, has_dense_gradient=has_dense_gradient)
    return [Draft(Rule.LOOKUPS, values, time, GainKind.BOUND, gain, evidence, places)]


def _with_optimizer(
    record: ProgramRecord,
    steps: StepTimes,
    time: Intervals,
    kernels: _Kernels | None,
    optimizing: Intervals,
) -> tuple[Intervals, float, float]:
    """Return time, upper end of the gain and part of the steps with the optimizer's part for the tables."""
    of_tables = _part_of_tables(record)
    if kernels is not None:
        whole = kernels.also(optimizing)
        both, high = whole.time, _high_end(record, whole, 0.0)
    else:
        both = Intervals.union(
            np.concatenate([time.begin_ns, optimizing.begin_ns]),
            np.concatenate([time.end_ns, optimizing.end_ns]),
        )
        high = float(both.total_ns)
    rest = both.total_ns - time.total_ns
    counted = time.total_ns + of_tables * rest
    share = _fraction_of_steps(steps, both) * counted / max(both.total_ns, 1)
    return both, min(high, counted), share


def _part_of_tables(record: ProgramRecord) -> float:
    """Return the part of the optimizers' parameters that are tables; 1 if it is unknown."""
    optimizers = () if record.settings is None else record.settings.optimizers
    whole = sum(each.elements for each in optimizers)
    if not record.has_work or not whole:
        return 1.0
    shapes = record.fetch(_TABLES)["shape"].tolist()
    return min(1.0, sum(_elements(str(shape)) for shape in shapes) / whole) or 1.0


def _elements(shape: str) -> int:
    """Return the elements of a shape as `4x8`; 0 if it has a part without a size."""
    parts = shape.split("x")
    return math.prod(map(int, parts)) if all(part.isdecimal() for part in parts) else 0


def _fraction_of_steps(steps: StepTimes, time: Intervals) -> float:
    whole = int((steps.end_ns - steps.begin_ns).sum())
    return float(time.covered_ns(steps.begin_ns, steps.end_ns).sum()) / max(whole, 1)


def _evidence_of_lookups(record: ProgramRecord, *, has_dense_gradient: bool) -> tuple[EvidenceFigure, ...]:
    codes = {"lookup_time": _LOOKUPS} | ({"dense_gradient_time": _DENSE} if has_dense_gradient else {})
    return tuple(
        record.figure(code, "ns", _TIME_OF_OPERATORS, process=record.process_id, names=list(names))
        for code, names in codes.items()
    )


# ---- normalization -----------------------------------------------------------------------------------------

_LOW_PRECISION = ("bfloat16", "float16")
_FULL_PRECISION = "float32"
_LEAST_LOW = 0.5  # of the FLOPs
_COUNTED = """
    SELECT root, layer, dtype, coalesce(flops, 0) AS flops, coalesce(bytes, 0) AS bytes, input_shapes
    FROM work WHERE phase = 'forward' AND compiled IS NULL AND dtype IS NOT NULL
    ORDER BY root, layer, ordinal
"""
_NODES = """
    SELECT node_id, coalesce(parent_id, -1) AS parent, kind, name, coalesce(path_id, -1) AS path,
        coalesce(calls, 0) AS calls
    FROM call_tree WHERE process_id = {process} ORDER BY node_id
"""
_TIMES = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns, span_id FROM spans
    WHERE process_id = {process} AND path_id IN (SELECT unnest({paths}::BIGINT[])) ORDER BY start_ns
"""
_TIME_OF_PATHS = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND path_id IN (SELECT unnest({paths}::BIGINT[]))
"""


@dataclass(slots=True)
class _Norm:
    """The counted work of a normalization layer: bytes of all operators, of those in fp32, and elements."""

    kind: str
    bytes: int = 0
    fp32_bytes: int = 0
    elements: int = 0


def fp32_norms(record: ProgramRecord) -> list[Draft] | Missing:
    """Find normalization layers that calculate in fp32 in a model whose products are in a smaller type.

    The least that remains are the bytes of the input and the output in the smaller type.
    """
    types = record.folder.meta.get("layer_types")
    if not record.has_work:
        return Missing.WORK
    if types is None:
        return Missing.OLDER_RUN
    dtype, norms = _norms(record, types)
    if dtype is None or not norms:
        return []
    outer, paths = _paths_below(record, set(norms))
    columns = record.fetch(_TIMES, process=record.process_id, paths=sorted(outer))
    remaining = min(1.0, sum(4 * each.elements for each in norms.values()) / _bytes(norms))
    kernels = _kernels(record, "path_id", sorted(paths), "BIGINT")
    if kernels is None:
        time = record.intervals(columns)
        high = time.total_ns * (1 - remaining)
    else:
        time, high = kernels.time, _high_end(record, kernels, remaining)
    if not time.total_ns:
        return []
    kinds = sorted({each.kind for each in norms.values()})
    values = {"type": ", ".join(kinds), "layers": len(norms), "dtype": dtype, "remaining": remaining}
    evidence = record.figure(
        "norm_time", "ns", _TIME_OF_PATHS, process=record.process_id, paths=sorted(outer)
    )
    places = Places(spans=tuple(columns["span_id"][:3].tolist()))
    gain = TimeRange(0.0, high)
    return [Draft(Rule.FP32_NORMS, values, time, GainKind.BOUND, gain, (evidence,), places)]


def _bytes(norms: Mapping[str, _Norm]) -> int:
    return max(sum(each.bytes for each in norms.values()), 1)


def _norms(
    record: ProgramRecord, types: Mapping[str, Mapping[str, str]]
) -> tuple[str | None, dict[str, _Norm]]:
    """Return the small type of most FLOPs, None without one, and the normalization layers in fp32 by name."""
    columns = record.fetch(_COUNTED)
    names = ("root", "layer", "dtype", "flops", "bytes", "input_shapes")
    flops: dict[str, int] = {}
    norms: dict[str, _Norm] = {}
    for root, layer, dtype, count, size, shapes in zip(
        *(columns[name].tolist() for name in names), strict=True
    ):
        flops[dtype] = flops.get(dtype, 0) + count
        kind = (types.get(root) or {}).get(layer) or ""
        if "norm" in kind.lower():
            norm = norms.setdefault(layer, _Norm(kind))
            norm.elements = norm.elements or _elements(str(shapes).split(", ", maxsplit=1)[0])
            norm.bytes += size
            norm.fp32_bytes += size if dtype == _FULL_PRECISION else 0
    small = max(_LOW_PRECISION, key=lambda each: flops.get(each, 0))
    if flops.get(small, 0) < max(_LEAST_LOW * sum(flops.values()), 1):
        return None, {}
    return small, {name: each for name, each in norms.items() if 2 * each.fp32_bytes > each.bytes}


def _paths_below(record: ProgramRecord, layers: set[str]) -> tuple[set[int], set[int]]:
    """Return the paths of the outermost calls of layers, in both passes, and those of all calls in them.

    In the backward pass, a layer is a node without calls around those of the autograd engine.
    """
    columns = record.fetch(_NODES, process=record.process_id)
    rows = (columns[name].tolist() for name in ("node_id", "parent", "kind", "name", "path", "calls"))
    inside: dict[int, bool] = {}  # of a layer: whether a call is around it
    outer, paths = set(), set()
    for node, parent, kind, name, path, calls in zip(*rows, strict=True):
        is_own = parent in inside or (kind == "layer" and name in layers)
        if not is_own:
            continue
        is_in_call = inside.get(parent, False)
        inside[node] = is_in_call or calls > 0
        if calls > 0 and path >= 0:
            paths.add(path)
            if not is_in_call:
                outer.add(path)
    return outer, paths


# ---- padding -----------------------------------------------------------------------------------------------

_LEAST_PADDING = 0.1  # of the tokens
# Their work grows with the square of the length.
_SQUARE = (
    *("aten::scaled_dot_product_attention", "aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::softmax"),
    *("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_attention_math"),
)
_OF_MODEL = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND kind = 'layer' AND name IN (SELECT unnest({roots}::VARCHAR[]))
"""


def padding(record: ProgramRecord) -> list[Draft] | Missing:
    """Find batches whose sequences are filled up to one length, by the first call of each model.

    Without padding, the work of most operators is smaller by that part, that of attention by more: to the
    square of the length. What remains of a call is unknown, so this is an upper end.
    """
    if record.steps is None:
        return Missing.STEPS
    if not record.has_work:
        return Missing.WORK
    known = record.folder.meta["work"].get("padding")
    if known is None:
        return Missing.OLDER_RUN
    with_mask = [each for each in known if each.get("argument") is not None and each.get("tokens")]
    if not with_mask:
        return Missing.MASKS if known else []
    most = max(with_mask, key=lambda each: each["padded"] / each["tokens"])
    share = most["padded"] / most["tokens"]
    if share < _LEAST_PADDING:
        return []
    time = record.in_model
    time = time.without(record.updates().covered).without(record.spans(_LOADER, "span").covered)
    square = Intervals.union(*_times_of(record, _SQUARE))
    both = square.without(square.without(time))
    gain = TimeRange(0.0, share * time.total_ns + (share - share**2) * both.total_ns)
    values = {
        "share": share,
        "argument": most["argument"],
        "root": most["root"],
        "trimmed_share": 1 - most["kept_by_trimming"] / most["tokens"],
    }
    roots = [each["root"] for each in with_mask]
    evidence = record.figure("forward_time", "ns", _OF_MODEL, process=record.process_id, roots=roots)
    return [Draft(Rule.PADDING, values, time, GainKind.BOUND, gain, (evidence,))]


def _times_of(record: ProgramRecord, names: Iterable[str]) -> tuple[Ints, Ints]:
    columns = record.fetch(_CALLS, process=record.process_id, names=list(names), dense=[])
    return columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
