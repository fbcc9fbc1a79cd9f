# SPDX-License-Identifier: Apache-2.0
"""Which experiment measures the fix of a draft, from the shapes, types and settings that the run recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.finding import RerunProblem, Rule, TimeRange
from gpuprof.analyze.findings.record import step_pattern
from gpuprof.analyze.rerun.experiment import Experiment, ExperimentKind
from gpuprof.analyze.whatif.intervals import Intervals

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import Draft
    from gpuprof.analyze.findings.record import ProgramRecord
    from gpuprof.analyze.rerun.experiment import Pairs
    from gpuprof.analyze.rerun.figures import PairFigures

_MOST_OPERATORS = 300  # distinct ones of a model's call
_OF_MODEL = """
    SELECT operator, overload, input_shapes, dtype, count(*) AS calls FROM work
    WHERE compiled IS NULL AND bytes > 0 AND dtype IS NOT NULL AND input_shapes <> ''
    GROUP BY ALL ORDER BY sum(bytes) DESC, operator, input_shapes LIMIT {most}
"""
_INPUTS = """
    SELECT operator, overload, input_shapes, dtype, count(*) AS calls FROM operator_inputs
    WHERE operator IN (SELECT unnest({names}::VARCHAR[])) AND dtype IS NOT NULL AND input_shapes <> ''
    GROUP BY ALL ORDER BY calls DESC, input_shapes LIMIT {most}
"""
ATTENTION = "aten::scaled_dot_product_attention"
# By which an operator is slower on subnormal numbers in the replica (softplus 2.1 on an AMD EPYC), and a
# recorded call slower than one on ordinary numbers. In a program, caches have other data.
_LEAST_FACTOR = 1.75
_LEAST_SLOWER = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment, and the gain of the run that follows from its figures; None if they refute the cause."""

    experiment: Experiment
    gain: Callable[[PairFigures, Pairs], TimeRange | None]


def plan(record: ProgramRecord, draft: Draft) -> Plan | RerunProblem:
    """Return the plan for a draft, or what is missing for it."""
    make = _PLANS.get(draft.rule)
    if make is None:
        return RerunProblem.NO_REPLICA
    if record.settings is None or record.settings.threads is None:
        return RerunProblem.SETTINGS
    return make(record, draft, record.settings.threads.intra_op)


def _optimizer(record: ProgramRecord, draft: Draft, threads: int) -> Plan | RerunProblem:
    settings = record.settings
    name, parameters, elements = (draft.values[key] for key in ("name", "parameters", "elements"))
    chosen = [
        each
        for each in (() if settings is None else settings.optimizers)
        if (each.name, each.parameters, each.elements) == (name, parameters, elements)
    ]
    if not chosen or chosen[0].shapes is None:
        return RerunProblem.SHAPES
    found = chosen[0]
    if set(found.devices) != {"cpu"}:
        return RerunProblem.DEVICE
    values = {
        "name": name,
        "shapes": [asdict(each) for each in found.shapes or ()],
        "options": dict(found.options),
        "before": {"foreach": False, **({"fused": False} if found.can_be_fused else {})},
        "after": {"fused": True} if found.can_be_fused else {"foreach": True},
    }
    calls = len(record.updates(step_pattern(name)))
    time_ns = float(draft.time.total_ns)

    def gain(figures: PairFigures, _pairs: Pairs) -> TimeRange:
        # The replica's caches contain more than those of the program: the difference of the replicas is too
        # small for large models, and the recorded time has the recorder's own in it.
        ends = [
            *(calls * each for each in (figures.difference.low_ns, figures.difference.high_ns)),
            *(time_ns - calls * each for each in (figures.after.low_ns, figures.after.high_ns)),
        ]
        return TimeRange(min(ends), min(max(ends), time_ns))

    return Plan(Experiment(ExperimentKind.OPTIMIZER, threads, values), gain)


def _threads(record: ProgramRecord, draft: Draft, threads: int) -> Plan | RerunProblem:
    operators = _operators(record, _OF_MODEL, most=_MOST_OPERATORS)
    if not operators:
        return RerunProblem.SHAPES
    values = {"operators": operators, "fewer": int(draft.values["processors"])}
    experiment = Experiment(ExperimentKind.THREADS, threads, values)
    time_ns = float(draft.time.total_ns)

    def gain(figures: PairFigures, pairs: Pairs) -> TimeRange:
        covered_ns = float(_time_of(record, pairs.operators).total_ns)
        low, high = 1 - figures.ratio[1], 1 - figures.ratio[0]
        return TimeRange(min(covered_ns * low, time_ns * low), time_ns * high)

    return Plan(experiment, gain)


def _attention(record: ProgramRecord, draft: Draft, threads: int) -> Plan | RerunProblem:
    calls = _operators(record, _INPUTS, names=[ATTENTION], most=_MOST_OPERATORS)
    if not calls:
        return RerunProblem.SHAPES
    return Plan(Experiment(ExperimentKind.ATTENTION, threads, {"calls": calls}), _of_ratio(draft))


def _subnormals(record: ProgramRecord, draft: Draft, threads: int) -> Plan | RerunProblem:
    name = str(draft.values["operator"])
    operators = _operators(record, _OF_MODEL, most=_MOST_OPERATORS)
    inputs = _operators(record, _INPUTS, names=[name], most=2)
    named = [each for each in (*inputs, *operators) if each["operator"] == name]
    if not named:
        return RerunProblem.SHAPES
    if len({str(each["shapes"]) for each in named}) > 1:
        return RerunProblem.SEVERAL_SHAPES
    spans = record.spans(name.replace("_", r"\_"), "operator")
    durations = (spans.end_ns - spans.begin_ns).astype(np.float64)

    def gain(figures: PairFigures, pairs: Pairs) -> TimeRange | None:
        ordinary_ns = pairs.ordinary_ns
        if ordinary_ns is None or figures.before_ns < _LEAST_FACTOR * ordinary_ns:
            return None
        slow = durations > max((ordinary_ns + figures.before_ns) / 2, _LEAST_SLOWER * ordinary_ns)
        if slow.mean() < 0.5:
            return None  # most calls are as fast as on ordinary numbers
        time_ns = float(durations[slow].sum())
        return TimeRange(time_ns * (1 - figures.ratio[1]), time_ns * (1 - figures.ratio[0]))

    return Plan(Experiment(ExperimentKind.SUBNORMALS, threads, {"operator": named[0]}), gain)


def _of_ratio(draft: Draft) -> Callable[[PairFigures, Pairs], TimeRange]:
    time_ns = float(draft.time.total_ns)
    return lambda figures, _pairs: TimeRange(
        time_ns * (1 - figures.ratio[1]), time_ns * (1 - figures.ratio[0])
    )


def _time_of(record: ProgramRecord, names: tuple[str, ...]) -> Intervals:
    spans = [record.spans(each.replace("_", r"\_"), "operator") for each in names]
    if not spans:
        return Intervals.union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Intervals.union(
        np.concatenate([each.begin_ns for each in spans]), np.concatenate([each.end_ns for each in spans])
    )


def _operators(record: ProgramRecord, query: str, **values: Any) -> list[dict[str, Any]]:
    columns = record.fetch(query, **values)
    return [
        {
            "operator": operator,
            "overload": overload,
            "dtype": dtype,
            "count": int(calls),
            "shapes": [[int(size) for size in shape.split("x")] for shape in shapes.split(", ")],
        }
        for operator, overload, shapes, dtype, calls in zip(
            *(columns[name].tolist() for name in ("operator", "overload", "input_shapes", "dtype", "calls")),
            strict=True,
        )
        if "-" not in shapes
    ]


_PLANS = {
    Rule.OPTIMIZER: _optimizer,
    Rule.THREADS: _threads,
    Rule.ATTENTION: _attention,
    Rule.SUBNORMALS: _subnormals,
}
