# SPDX-License-Identifier: Apache-2.0
"""A comparison document for a terminal: at most 100 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from gpuprof.bench.compare.document import (
    BatchFigures,
    ComparisonDocument,
    TrafficArm,
    TrafficFigures,
    TrafficRatio,
    VariantFigures,
)
from gpuprof.bench.messages import title
from gpuprof.bench.number_text import interval_text, time_text
from gpuprof.bench.report import summary
from gpuprof.bench.report.formatting import degraded_class
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.table import Column, text_table, wrapped
from gpuprof.text.units import counted, format_bytes, format_count, format_quantity

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
_SHOWN_FINDINGS = 6
_WORDS = ("variant", "verdict", "second over first")


def document_text(document: ComparisonDocument) -> str:
    """Return the headline, the table, what to do next, warnings and notes."""
    measurements = [(each, batch) for each in document.variants for batch in each.batches]
    findings = list(_findings(document))
    failures = {str(each.failure) for each in document.variants if each.failure is not None}
    steps = []
    for action, reason in map(summary.advice, document.recommendations):
        # A failure has been shown with its variant.
        steps.append(f"- {action}" if not reason or reason in failures else f"- {action}: {reason}")
    notes = [f"note: {each}" for each in document.notes]
    blocks = (
        wrapped(summary.headline(document)),
        _table(_columns(document), measurements) if measurements else "",
        _lines([*summary.variant_lines(document), *_targets(document)]),
        _lines(["findings about outputs:", *findings] if findings else []),
        _lines(["what to do next:", *steps] if steps else []),
        _lines([*_warnings(document), *notes]),
    )
    return "\n\n".join(filter(None, blocks))


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(wrapped, lines))


def _table(columns: Columns[T], items: Iterable[T]) -> str:
    heads = [Column(name, right=name not in _WORDS) for name in columns]
    return text_table(heads, [[read(item) for read in columns.values()] for item in items])


def _columns(document: ComparisonDocument) -> Columns[tuple[VariantFigures, BatchFigures]]:
    def verdict(at: tuple[VariantFigures, BatchFigures]) -> str:
        return "baseline" if at[0].name == document.baseline else str(at[1].verdict or "-")

    return {
        "variant": lambda at: at[0].name,
        "batch": lambda at: str(at[1].batch_size),
        "p50": lambda at: _time(at[1].median_s),
        "p99": lambda at: _time(at[1].p99_s),
        "samples/s": lambda at: format_quantity(at[1].throughput_per_s and at[1].throughput_per_s.value),
        "speed-up": lambda at: _ratio(at[1].speedup),
        "95% CI": lambda at: _interval(at[1].speedup),
        "verdict": verdict,
        "memory": lambda at: "-" if at[1].peak_memory is None else format_bytes(at[1].peak_memory[0]),
    }


def _time(found: Estimate | None) -> str:
    return time_text(None if found is None else found.value)


def _ratio(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.3f}"


def _interval(found: Estimate | None) -> str:
    return "-" if found is None else interval_text(found.low, found.high)


def _targets(document: ComparisonDocument) -> Iterator[str]:
    """Yield which variants meet the target at which batch sizes, and the user's metrics."""
    target = document.method.target
    for variant in document.variants if target is not None else ():
        met = [f"{batch.target} at batch size {batch.batch_size}" for batch in variant.batches]
        yield f"{target}: {variant.name}: {', '.join(met) or 'not measured'}"
    values: dict[str, list[str]] = {}
    for variant in document.variants:
        for metric in () if variant.accuracy is None else variant.accuracy.metrics:
            value = "unavailable" if metric.value is None else f"{metric.value:.4g}"
            values.setdefault(metric.name, []).append(f"{variant.name} {value}")
    for name, found in values.items():
        yield f"{name}: {', '.join(found)}"


def _findings(document: ComparisonDocument) -> Iterator[str]:
    """Yield the first findings about each variant's outputs; the report has all of them."""
    for variant in document.variants:
        if variant.accuracy is None:
            continue
        classes = map(degraded_class, variant.accuracy.degraded_classes)
        found = [
            *map(str, variant.accuracy.findings),
            *(f"lower accuracy of class {each}" for each in classes),
        ]
        yield from (f"- {variant.name}: {each}" for each in found[:_SHOWN_FINDINGS])
        if len(found) > _SHOWN_FINDINGS:
            yield f"- {variant.name}: {len(found) - _SHOWN_FINDINGS} more in the report"


def _warnings(document: ComparisonDocument) -> Iterator[str]:
    """Yield each kind of warning once, with its first evidence; the report has all of them."""
    for code, found in summary.located_warnings(document).items():
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"! {title(code)}: {found[0]}{more}"


# --- shared traffic ------------------------------------------------------------------------------

_ARMS: Columns[TrafficArm] = {
    "variant": lambda arm: arm.variant,
    "requests": lambda arm: format_count(arm.requests),
    "failed": lambda arm: format_count(arm.failed),
    "95% CI": lambda arm: _percent(arm.failed_share),
    "p50": lambda arm: _time(arm.p50_s),
    "p95": lambda arm: _time(arm.p95_s),
    "p99": lambda arm: _time(arm.p99_s),
}
_RATIOS: Columns[TrafficRatio] = {
    "second over first": lambda each: each.figure,
    "ratio": lambda each: _ratio(each.ratio),
    "95% CI": lambda each: _interval(each.ratio),
    "margin": lambda each: f"{each.margin:.1%}",
    "process runs": lambda each: str(each.launches),
    "verdict": lambda each: str(each.verdict),
}


def _percent(found: Estimate | None) -> str:
    return "-" if found is None or found.low is None else f"{found.low:.2%} to {found.high:.2%}"


def traffic_text(traffic: TrafficFigures) -> str:
    """Return both variants, their ratios, the advice with its reason, and notes."""
    first, second = traffic.variants
    split = " to ".join(f"{100 * fraction:.4g}" for fraction in traffic.split)
    count = sum(each.requests for each in traffic.arms)
    reasons = "; ".join(map(str, traffic.advice.because))
    runs = f"{counted(count, 'request')} in {counted(traffic.launches, 'process run')}"
    advice = [f"advice: {traffic.advice.text}", f"because {reasons}"]
    blocks = (
        wrapped(f"traffic {split} between {first} and {second}: {runs}"),
        _table(_ARMS, traffic.arms),
        _table(_RATIOS, traffic.figures),
        _lines([*advice, *(f"note: {note}" for note in traffic.notes)]),
    )
    return "\n\n".join(blocks)
