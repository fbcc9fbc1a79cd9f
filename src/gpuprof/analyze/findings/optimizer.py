# SPDX-License-Identifier: Apache-2.0
"""Rules about optimizers: a loop over the parameters, and gradients that are set to zero."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.findings.record import step_pattern
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.analyze.whatif.selection import Modification, Selection

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import NamedSpans, ProgramRecord
    from gpuprof.run.folder import Value
    from gpuprof.run.program_settings import OptimizerSettings

# The fused step of Adam reads parameter, gradient and both moments, and writes all but the gradient. As many
# bytes move in two of the loop's operators, and the third has most of its arithmetic. Measured for 4 sizes
# with 1 and 2 threads, the fused step takes 0.9 to 1.5 times the first two, and at most all three.
_SAME_BYTES = ("aten::lerp_", "aten::addcdiv_")
_AND_ARITHMETIC = (*_SAME_BYTES, "aten::sqrt")
_FASTEST = 0.8
_FUSED_AS = {"Adam", "AdamW"}
_TIME_OF_UPDATES = "SELECT sum(updated_ns - update_ns)::BIGINT FROM updates"
_ZERO_GRAD = r"Optimizer.zero\_grad#%"
_ZERO, _ADD = r"aten::%zero\_", r"aten::add\_"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_TIME_OF_ZEROING = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND starts_with(name, 'Optimizer.zero_grad#')
"""
_TIME_OF_ACCUMULATION = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND kind = 'operator' AND name = 'torch::autograd::AccumulateGrad'
"""
_COUNT_OF_UPDATES = "SELECT count(*) FROM updates"
_COUNT_OF_OPERATORS = """
    SELECT count(*) FROM spans JOIN updates ON parent_id = updates.span_id
    WHERE spans.kind = 'operator' AND spans.start_ns >= update_ns
"""


def time_of_updates(record: ProgramRecord, pattern: str) -> EvidenceFigure:
    """Return the time in the updates of an optimizer, as `Optimizer.step#SGD.step` by its SQL pattern."""
    return record.figure_of_updates("optimizer_time", "ns", _TIME_OF_UPDATES, pattern)


def optimizer(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a loop over parameters that a fused implementation replaces."""
    if record.settings is None:
        return Missing.SETTINGS
    if not record.is_on("operators"):
        return Missing.OPERATORS
    drafts = []
    for settings in record.settings.optimizers:
        if _is_loop(settings):
            pattern = step_pattern(settings.name)
            spans = record.updates(pattern)
            loop = record.spans(_SAME_BYTES[-1].replace("_", r"\_"), "operator")
            if len(spans) and (spans.covered.place(loop.begin_ns) >= 0).any():
                drafts.append(_draft(record, settings, spans, pattern))
    return drafts


def zeroing(record: ProgramRecord) -> list[Draft] | Missing:
    """Find gradients that are set to zero instead of being released.

    The low end of the gain is without the operators that do it. Without gradients, the backward pass does not
    add to them either: the high end is without these additions.
    """
    if not record.is_on("operators"):
        return Missing.OPERATORS
    calls = record.spans(_ZERO_GRAD, "span").on_thread(record.main_thread)
    zeroed = _inside(record.spans(_ZERO, "operator"), calls.covered)
    if not len(zeroed):
        return []
    engine = record.spans(_ACCUMULATE, "operator")
    added = _inside(record.spans(_ADD, "operator"), engine.covered)
    kind, low, explained = record.without(zeroed)
    both = Intervals.union(
        np.concatenate([zeroed.begin_ns, added.begin_ns]), np.concatenate([zeroed.end_ns, added.end_ns])
    )
    _, high, _ = record.without(both)
    of: dict[str, Value] = {"process": record.process_id}
    evidence = (
        record.figure("zeroing_time", "ns", _TIME_OF_ZEROING, **of, thread=record.main_thread),
        record.figure("accumulation_time", "ns", _TIME_OF_ACCUMULATION, **of),
    )
    gain = TimeRange(low.low_ns, max(low.high_ns, high.high_ns))
    return [Draft(Rule.ZEROING, {}, both, kind, gain, evidence, Places(spans=calls.typical()), explained)]


def _inside(spans: NamedSpans, time: Intervals) -> Intervals:
    inside = time.place(spans.begin_ns) >= 0
    return Intervals.union(spans.begin_ns[inside], spans.end_ns[inside])


def _is_loop(settings: OptimizerSettings) -> bool:
    """Whether it can be fused and is not. On a CPU, PyTorch's default is the loop."""
    on_cpu = set(settings.devices) == {"cpu"}
    return (
        settings.name in _FUSED_AS
        and settings.can_be_fused
        and not settings.fused
        and not settings.foreach
        and on_cpu
    )


def _draft(record: ProgramRecord, settings: OptimizerSettings, spans: NamedSpans, pattern: str) -> Draft:
    low, high = (
        _gain(record, spans, kept, remaining)
        for kept, remaining in ((_AND_ARITHMETIC, 1.0), (_SAME_BYTES, _FASTEST))
    )
    is_replayed = GainKind.REPLAYED in (low[0], high[0])
    gain = TimeRange(low[1].low_ns, high[1].high_ns) if is_replayed else TimeRange(0.0, high[1].high_ns)
    evidence = (
        time_of_updates(record, pattern),
        record.figure_of_updates("optimizer_steps", "count", _COUNT_OF_UPDATES, pattern),
        record.figure_of_updates("optimizer_operators", "count", _COUNT_OF_OPERATORS, pattern),
    )
    values = {"name": settings.name, "parameters": settings.parameters, "elements": settings.elements}
    places = Places(spans=spans.typical())
    return Draft(Rule.OPTIMIZER, values, spans.covered, low[0], gain, evidence, places, low[2])


def _gain(
    record: ProgramRecord, spans: NamedSpans, kept: tuple[str, ...], remaining: float
) -> tuple[GainKind, TimeRange, float]:
    """Replay with nothing in the optimizer's step but some operators, or a part of them."""
    whole = spans.covered
    operators = [record.spans(name.replace("_", r"\_"), "operator") for name in kept]
    own = [each.on_thread(record.main_thread) for each in operators]
    begin = np.concatenate([each.begin_ns for each in own])
    end = np.concatenate([each.end_ns for each in own])
    inside = whole.place(begin) >= 0
    rest = Intervals.union(begin[inside], end[inside])
    selections = [_selection(record, whole.without(rest), Modification("remove", "", math.inf))]
    if remaining < 1:
        selections.append(_selection(record, rest, Modification("speed_up", "", 1 / remaining)))
    return record.replayed(selections)


def _selection(record: ProgramRecord, time: Intervals, change: Modification) -> Selection:
    return Selection(change, 1, by_thread={record.main_thread: time})
