# SPDX-License-Identifier: Apache-2.0
"""Rules whose causes only a re-run can show: their drafts are upper bounds, and no findings without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.findings.optimizer import time_of_updates
from gpuprof.analyze.findings.record import step_pattern

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import NamedSpans, ProgramRecord

# Of less time, a re-run is no use.
_LEAST_PART = 0.01
_MOST_OPERATORS = 3
_REPLAYED = ("Adam", "AdamW")  # their rule needs no re-run
_MATH = "aten::_scaled_dot_product_attention_math"
_TIME = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name = {name}
"""
# Operators that calculate with each number on its own, or with exponentials.
_MAY_BE_SLOW = (
    *("aten::exp", "aten::softplus", "aten::sigmoid", "aten::tanh", "aten::silu", "aten::gelu"),
    *("aten::elu", "aten::log1p", "aten::logsumexp", "aten::_softmax", "aten::_log_softmax"),
    *("aten::mul", "aten::mul_", "aten::add", "aten::add_", "aten::div", "aten::addcmul", "aten::pow"),
)
_TOTALS = """
    SELECT name FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND kind = 'operator'
        AND name IN (SELECT unnest({names}::VARCHAR[]))
    GROUP BY name HAVING sum(duration_ns) >= {least} ORDER BY sum(duration_ns) DESC, name LIMIT {most}
"""


def other_optimizers(record: ProgramRecord) -> list[Draft] | Missing:
    """Find loops over parameters of optimizers whose fused or multi-tensor step the replay cannot predict."""
    if record.settings is None:
        return Missing.SETTINGS
    drafts: list[Draft] = []
    for each in record.settings.optimizers:
        if each.name in _REPLAYED or each.fused or each.foreach or set(each.devices) != {"cpu"}:
            continue
        pattern = step_pattern(each.name)
        spans = record.updates(pattern)
        if len(spans):
            values = {
                "name": each.name,
                "parameters": each.parameters,
                "elements": each.elements,
                "option": "fused" if each.can_be_fused else "foreach",
            }
            drafts += _draft(record, Rule.OPTIMIZER, values, spans, time_of_updates(record, pattern))
    return drafts


def attention(record: ProgramRecord) -> list[Draft] | Missing:
    """Find attention that PyTorch calculates by its chain of operators."""
    if not record.is_on("operators"):
        return Missing.OPERATORS
    spans = _on_main(record, _MATH, "operator")
    values = {"calls": len(spans)}
    return list(_draft(record, Rule.ATTENTION, values, spans, _time(record, "attention_time", _MATH)))


def subnormals(record: ProgramRecord) -> list[Draft] | Missing:
    """Find operators whose time is significant, and that are slow on numbers below the normal range."""
    if not record.is_on("operators"):
        return Missing.OPERATORS
    names = record.fetch(
        _TOTALS,
        process=record.process_id,
        thread=record.main_thread,
        names=_MAY_BE_SLOW,
        least=round(_LEAST_PART * record.wall_ns),
        most=_MOST_OPERATORS,
    )["name"].tolist()
    return [
        draft
        for name in names
        for draft in _draft(
            record,
            Rule.SUBNORMALS,
            {"operator": name},
            _on_main(record, name, "operator"),
            _time(record, "operator_time", name),
        )
    ]


def _draft(
    record: ProgramRecord, rule: Rule, values: Mapping[str, Any], spans: NamedSpans, figure: EvidenceFigure
) -> Iterator[Draft]:
    time = spans.covered
    if time.total_ns < max(_LEAST_PART * record.wall_ns, 1):
        return
    gain = TimeRange(0.0, float(time.total_ns))
    yield Draft(rule, values, time, GainKind.BOUND, gain, (figure,), Places(spans=spans.typical()))


def _on_main(record: ProgramRecord, name: str, kind: str) -> NamedSpans:
    return record.spans(name.replace("_", r"\_"), kind).on_thread(record.main_thread)


def _time(record: ProgramRecord, code: str, name: str) -> EvidenceFigure:
    return record.figure(code, "ns", _TIME, process=record.process_id, thread=record.main_thread, name=name)


CANDIDATES: dict[Rule, Callable[[ProgramRecord], list[Draft] | Missing]] = {
    Rule.OPTIMIZER: other_optimizers,
    Rule.ATTENTION: attention,
    Rule.SUBNORMALS: subnormals,
}
