# SPDX-License-Identifier: Apache-2.0
"""A comparison document for a terminal: at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.bench.compare.document import (
    BatchFigures,
    ComparisonDocument,
    TrafficFigures,
    VariantFigures,
)
from gpuprof.bench.messages import message, title
from gpuprof.bench.number_text import interval_text, time_text
from gpuprof.bench.report import summary
from gpuprof.bench.report.formatting import degraded_class
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.table import Column, text_table, wrapped
from gpuprof.text.units import format_bytes, format_count, format_quantity

_SHOWN_FINDINGS = 6
_COLUMNS = (
    Column("variant", right=False),
    Column("batch"),
    Column("p50"),
    Column("p99"),
    Column("samples/s"),
    Column("speed-up"),
    Column("95% CI"),
    Column("verdict", right=False),
    Column("memory"),
)


def document_text(document: ComparisonDocument) -> str:
    """Return the headline, the table, what to do next, warnings and notes."""
    rows = [_cells(each, batch, document) for each in document.variants for batch in each.batches]
    lines = [wrapped(summary.headline(document))]
    if rows:
        lines += ["", text_table(_COLUMNS, rows)]
    lines += ["", *map(wrapped, summary.variant_lines(document)), *map(wrapped, _targets(document))]
    findings = list(_findings(document))
    lines += ["", "findings about outputs:", *findings] if findings else []
    advice = (summary.advice(each) for each in document.recommendations)
    steps = [wrapped(f"- {action}: {reason}") for action, reason in advice]
    lines += ["", "what to do next:", *steps] if steps else []
    notes = (f"note: {message(each)}" for each in document.notes)
    warnings = [wrapped(line) for line in (*_warnings(document), *notes)]
    return "\n".join([*lines, "", *warnings]).rstrip() if warnings else "\n".join(lines)


def _cells(variant: VariantFigures, batch: BatchFigures, document: ComparisonDocument) -> tuple[str, ...]:
    verdict = "baseline" if variant.name == document.baseline else str(batch.verdict or "-")
    memory = batch.device_peak_bytes or batch.host_peak_bytes
    return (
        variant.name,
        str(batch.batch_size),
        _time(batch.median_s),
        _time(batch.p99_s),
        "-" if batch.throughput_per_s is None else format_quantity(batch.throughput_per_s.value),
        "-" if batch.speedup is None else f"{batch.speedup.value:.3f}",
        _interval(batch.speedup),
        verdict,
        "-" if memory is None else format_bytes(memory),
    )


def _time(found: Estimate | None) -> str:
    return time_text(None if found is None else found.value)


def _interval(found: Estimate | None) -> str:
    if found is None or found.low is None or found.high is None:
        return "-"
    return f"{found.low:.3f}-{found.high:.3f}"


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
        accuracy = variant.accuracy
        classes = (f"lower accuracy of class {degraded_class(each)}" for each in accuracy.degraded_classes)
        found = [*map(message, accuracy.findings), *classes]
        yield from (wrapped(f"- {variant.name}: {each}") for each in found[:_SHOWN_FINDINGS])
        if len(found) > _SHOWN_FINDINGS:
            yield wrapped(f"- {variant.name}: {len(found) - _SHOWN_FINDINGS} more in the report")


def _warnings(document: ComparisonDocument) -> Iterator[str]:
    """Yield each kind of warning once, with its first evidence; the report has all of them."""
    for code, found in summary.located_warnings(document).items():
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"! {title(code)}: {found[0]}{more}"


# --- shared traffic ------------------------------------------------------------------------------


def traffic_text(traffic: TrafficFigures) -> str:
    """Return both variants, their ratios, the advice with its reason, and notes."""
    first, second = traffic.variants
    split = " to ".join(f"{100 * fraction:.4g}" for fraction in traffic.split)
    count = sum(each.requests for each in traffic.arms)
    head = (
        f"traffic {split} between {first} and {second}: {count:,} requests in {traffic.launches} process runs"
    )
    reasons = "; ".join(map(message, traffic.advice.because))
    lines = [
        wrapped(head),
        "",
        _arms_table(traffic),
        "",
        _ratios_table(traffic),
        "",
        wrapped(f"advice: {message(traffic.advice.text)}"),
        wrapped(f"  because {reasons}", indent="    "),
        *(wrapped(f"note: {message(note)}") for note in traffic.notes),
    ]
    return "\n".join(lines)


def _arms_table(traffic: TrafficFigures) -> str:
    titles = ("requests", "failed", "95% CI", "p50", "p95", "p99")
    rows = []
    for each in traffic.arms:
        share = each.failed_share
        ends = "-" if share is None or share.low is None else f"{share.low:.2%} to {share.high:.2%}"
        counts = (format_count(each.requests), format_count(each.failed))
        rows.append((each.variant, *counts, ends, *map(_time, (each.p50_s, each.p95_s, each.p99_s))))
    return text_table([Column("variant", right=False), *map(Column, titles)], rows)


def _ratios_table(traffic: TrafficFigures) -> str:
    columns = [
        Column("second over first", right=False),
        *map(Column, ("ratio", "95% CI", "margin", "process runs")),
        Column("verdict", right=False),
    ]
    rows = []
    for each in traffic.figures:
        ratio = each.ratio
        value, ends = (
            ("-", "-") if ratio is None else (f"{ratio.value:.3f}", interval_text(ratio.low, ratio.high))
        )
        rows.append((each.figure, value, ends, f"{each.margin:.1%}", str(each.launches), str(each.verdict)))
    return text_table(columns, rows)
