# SPDX-License-Identifier: Apache-2.0
"""Rules about operators: slower ones than in another layer, and too small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import ProgramRecord

# Their arithmetic decides how long they take, or can: not where their data is.
_ARITHMETIC = (
    "add", "add_", "addmm", "baddbmm", "bmm", "celu", "convolution", "cos", "div", "div_", "elu", "erf",
    "exp", "exp_", "gelu", "hardswish", "leaky_relu", "log", "log1p", "log_sigmoid_forward", "mish",
    "mkldnn_convolution", "mm", "mul", "mul_", "native_batch_norm", "native_layer_norm", "pow", "rsqrt",
    "sigmoid", "silu", "sin", "softplus", "sqrt", "sub", "tanh", "_log_softmax", "_softmax",
)  # fmt: skip
_SLOWER = 2.0
# Reading from memory instead of a cache takes less; a subnormal number takes some ten cycles of a core.
_LEAST_NS_PER_BYTE = 0.25
_FRESH = 2.0  # times the cost of fresh memory, which one layer gets and another one does not
# Operators that occur once in a layer, by layer.
_COUNTED = """
    SELECT layer, operator, any_value(input_shapes) AS shapes, any_value(dtype) AS dtype,
        any_value(bytes) AS bytes
    FROM work WHERE phase = 'forward' AND compiled IS NULL AND bytes > 0
        AND list_contains({operators}::VARCHAR[], operator)
    GROUP BY layer, operator HAVING count(*) = 1
"""
_NODES = """
    SELECT node_id, coalesce(parent_id, -1) AS parent, kind, name, coalesce(path_id, -1) AS path
    FROM call_tree WHERE process_id = {process} ORDER BY node_id
"""
_TIMES = """
    SELECT path_id AS path, median(duration_ns) AS median_ns, quantile_cont(duration_ns, 0.1) AS short_ns,
        min(duration_ns) AS least_ns, sum(duration_ns)::BIGINT AS total_ns, count(*) AS calls
    FROM spans WHERE process_id = {process} AND path_id IN (SELECT unnest({paths}::BIGINT[]))
        AND thread_id = {thread} GROUP BY path_id
"""
_SPANS_OF_PATHS = """
    SELECT span_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id = {thread}
        AND path_id IN (SELECT unnest({paths}::BIGINT[])) ORDER BY start_ns
"""
_MEDIAN = """
    SELECT median(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND path_id = {path}
"""
# The self time of small operators, and a short one of layers, is that of the framework, whatever the size of
# the batch. Layers that take longer compute something that is no operator.
_LEAST_SMALL = 0.5  # of the time in the model
# Layers, the backward pass, and what they call: the optimizer and the loader are not in the model.
_MODEL = """
    WITH RECURSIVE model AS (
        SELECT node_id, kind, calls, own_ns FROM call_tree
        WHERE process_id = {process} AND kind IN ('layer', 'backward')
        UNION SELECT called.node_id, called.kind, called.calls, called.own_ns FROM call_tree AS called
        JOIN model ON called.parent_id = model.node_id WHERE process_id = {process})
"""
_SMALL = """
    SELECT sum(own_ns)::BIGINT FROM model WHERE calls > 0
        AND own_ns < calls * CASE kind WHEN 'layer' THEN 100000 WHEN 'operator' THEN 10000
            WHEN 'backward' THEN 10000 ELSE 0 END
"""
_ALL = "SELECT sum(own_ns)::BIGINT FROM model WHERE calls > 0 AND kind IN ('layer', 'operator', 'backward')"
_TIME_OF_SMALL = "".join([_MODEL, _SMALL])
_TIME_IN_MODEL = "".join([_MODEL, _ALL])
_A_KERNEL = "SELECT 1 AS one FROM kernels WHERE process_id = {process} LIMIT 1"


@dataclass(frozen=True, slots=True)
class _TimedOperator:
    layer: str
    operator: str
    path: int
    median_ns: float
    short_ns: float  # a tenth of the calls take less, or none if threads waited for processors
    total_ns: float
    calls: int
    bytes: int


def slow_operators(record: ProgramRecord) -> list[Draft] | Missing:
    """Find operators that take at least twice as long in a layer as in another one, with the same shapes.

    Subnormal numbers are such a cause. The gain if all are as fast as the fastest one is an upper end.
    """
    if not record.is_on("operators"):
        return Missing.OPERATORS
    if not record.has_work:
        return Missing.WORK
    drafts = []
    for group in _groups(record).values():
        fast = min(group, key=lambda each: each.median_ns)
        slow = [each for each in group if _is_slow(record, each, fast.median_ns)]
        if slow:
            drafts.append(_subnormal_draft(record, slow, fast))
    return drafts


def _is_slow(record: ProgramRecord, each: _TimedOperator, fast_ns: float) -> bool:
    # Subnormal numbers are slow in all calls.
    extra_ns = (each.short_ns - fast_ns) * record.operator_threads
    least = max(_LEAST_NS_PER_BYTE, _FRESH * record.fresh_memory_ns_per_byte)
    return each.short_ns >= _SLOWER * fast_ns and extra_ns >= least * each.bytes


def _groups(record: ProgramRecord) -> dict[tuple[str, str, str], list[_TimedOperator]]:
    """Return the operators of layers by operator, input shapes and type."""
    counted = record.fetch(_COUNTED, operators=[f"aten::{name}" for name in _ARITHMETIC])
    columns = (counted[name].tolist() for name in ("layer", "operator", "shapes", "dtype", "bytes"))
    known = {(layer, operator): rest for layer, operator, *rest in zip(*columns, strict=True)}
    paths = _paths(record, set(known))
    times = record.fetch(
        _TIMES,
        process=record.process_id,
        thread=record.main_thread,
        paths=sorted(paths.values()),
    )
    # Threads that wait for a processor can do so at the same place of nearly all steps.
    short = "least_ns" if record.lacks_processors else "short_ns"
    values = (times[name].tolist() for name in ("path", "median_ns", short, "total_ns", "calls"))
    by_path = {int(path): rest for path, *rest in zip(*values, strict=True)}
    groups: dict[tuple[str, str, str], list[_TimedOperator]] = {}
    for (layer, operator), (shapes, dtype, size) in known.items():
        path = paths.get((layer, operator))
        if path is not None and path in by_path:
            median_ns, short_ns, total_ns, calls = by_path[path]
            found = _TimedOperator(layer, operator, path, median_ns, short_ns, total_ns, calls, size)
            groups.setdefault((operator, str(shapes), str(dtype)), []).append(found)
    return groups


def _paths(record: ProgramRecord, known: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the paths of operators by their layer and name; those that have several are left out."""
    columns = record.fetch(_NODES, process=record.process_id)
    rows = zip(
        *(columns[name].tolist() for name in ("node_id", "parent", "kind", "name", "path")), strict=True
    )
    layers: dict[int, str | None] = {}
    found: dict[tuple[str, str], list[int]] = {}
    for node, parent, kind, name, path in rows:
        # Nodes are in pre-order. The backward pass has none of the layers.
        layers[node] = name if kind == "layer" else None if kind == "backward" else layers.get(parent)
        layer = layers[node]
        if kind == "operator" and layer is not None and (layer, name) in known:
            found.setdefault((layer, name), []).append(int(path))
    return {key: paths[0] for key, paths in found.items() if len(paths) == 1}


def _subnormal_draft(record: ProgramRecord, slow: list[_TimedOperator], fast: _TimedOperator) -> Draft:
    of = {"process": record.process_id, "thread": record.main_thread}
    columns = record.fetch(_SPANS_OF_PATHS, **of, paths=[each.path for each in slow])
    time = record.intervals(columns)
    high = sum(max(each.total_ns - each.calls * fast.median_ns, 0.0) for each in slow)
    slowest = max(slow, key=lambda each: each.median_ns)
    evidence = (
        record.figure("slow_operator", "ns", _MEDIAN, **of, path=slowest.path),
        record.figure("fast_operator", "ns", _MEDIAN, **of, path=fast.path),
    )
    values = {
        "operator": slowest.operator,
        "layer": slowest.layer,
        "layers": len(slow),
        "fast_layer": fast.layer,
        "factor": slowest.median_ns / fast.median_ns if fast.median_ns else None,
    }
    places = Places(spans=tuple(columns["span_id"][:3].tolist()))
    return Draft(Rule.SLOW_OPERATORS, values, time, GainKind.BOUND, TimeRange(0.0, high), evidence, places)


def small_batch(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a model whose operators are so small that most of its time does not depend on the batch.

    A batch of twice the size has half of this time for each sample: an upper end.
    """
    if record.steps is None:
        return Missing.STEPS
    if not record.is_on("operators"):
        return Missing.OPERATORS
    if len(record.fetch(_A_KERNEL, process=record.process_id)["one"]):
        # Times of operators on the host are those of launches: the rule about launches has that.
        return []
    small = record.figure("small_operator_time", "ns", _TIME_OF_SMALL, process=record.process_id)
    whole = record.figure("model_time", "ns", _TIME_IN_MODEL, process=record.process_id)
    if not small.value or not whole.value or small.value < _LEAST_SMALL * whole.value:
        return []
    time = record.in_layers
    share = small.value / whole.value
    gain = TimeRange(0.0, time.total_ns * share / 2)
    loaders = () if record.settings is None else record.settings.loaders
    values = {"share": share, "batch_size": loaders[0].batch_size if len(loaders) == 1 else None}
    return [Draft(Rule.SMALL_BATCH, values, time, GainKind.BOUND, gain, (small, whole))]
