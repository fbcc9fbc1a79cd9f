# SPDX-License-Identifier: Apache-2.0
"""Tables of quality, layers, failures, shared traffic, and of how everything was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuprof.bench.report import formatting
from gpuprof.bench.report.model import (
    Accuracy,
    Batch,
    Layer,
    Plain,
    Report,
    Variant,
    each_of,
    interval_of,
    mapping,
    number,
    text,
    word,
)
from gpuprof.bench.report.tables import (
    BASELINE,
    MISSING,
    Cell,
    Row,
    Table,
    between,
    figure,
    judged,
    named,
    plain_table,
    without_empty_columns,
)

_SHARES = {
    "accuracy": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1",
    "agreement_top1": "Top-1 agreement",
    "agreement_top5": "Top-5 agreement",
}
_NUMBERS = {"cosine": "Cosine", "relative_error": "Relative error", "max_absolute_error": "Largest error"}
_MOST_ENVIRONMENT = 60


def quality_table(report: Report) -> Table:
    """Return what each variant answers, beside the baseline."""
    heads = (
        "Variant",
        *_SHARES.values(),
        "Change",
        "Verdict",
        *_NUMBERS.values(),
        "Tolerance",
        "NaN",
        "Infinite",
    )
    rows = [
        Row(
            (named(each), *_quality_cells(each.accuracy, each.name == report.baseline)),
            each.name,
            each.name == report.choice,
        )
        for each in report.variants
        if each.status != "failed" or each.accuracy is not None
    ]
    caption = "What the variants answer. The change is against the baseline, in percentage points (pp)."
    table = Table(caption, heads, tuple(rows))
    told = [each.accuracy for each in report.variants if each.accuracy is not None]
    # Columns of noughts take the room of what matters; a line says so instead.
    finite = not any(each.nan or each.infinity for each in told)
    return without_empty_columns(_without_last(table, 2) if finite else table)


def _without_last(table: Table, columns: int) -> Table:
    rows = tuple(Row(row.cells[:-columns], row.variant, row.is_choice) for row in table.rows)
    return Table(table.caption, table.heads[:-columns], rows, table.word_columns)


def _quality_cells(accuracy: Accuracy | None, is_baseline: bool) -> Iterator[Cell]:
    if accuracy is None:
        yield from [MISSING] * (len(_SHARES) + len(_NUMBERS) + 5)
        return
    yield from (figure(accuracy.figures[name], formatting.share) for name in _SHARES)
    if is_baseline and accuracy.change is None:
        yield from (BASELINE, BASELINE)
    else:
        yield between(accuracy.change, formatting.points)
        yield Cell("same") if accuracy.verdict == "same" else judged(accuracy.verdict)
    yield from (figure(accuracy.figures[name], formatting.number) for name in _NUMBERS)
    yield judged(accuracy.tolerance)
    for count in (accuracy.nan, accuracy.infinity):
        yield Cell(f"{count:,}", value=count, tone="bad" if count else "")


def metric_table(report: Report) -> Table | None:
    """Return the user's own figures; None where there are none."""
    rows = []
    for variant in report.variants:
        for metric in variant.accuracy.metrics if variant.accuracy is not None else ():
            cells = [
                Cell(metric.name),
                figure(metric.value, formatting.number),
                figure(metric.baseline, formatting.number),
            ]
            cells.append(Cell(metric.better or "not told"))
            rows.append(Row((named(variant), *cells), variant.name))
    heads = ("Variant", "Metric", "Value", "Baseline", "Better")
    return Table("Metrics of your own.", heads, tuple(rows), word_columns=2) if rows else None


def quality_lines(report: Report) -> list[str]:
    """Return what was found in answers, and why there are no figures where there are none."""
    lines = []
    for variant in report.variants:
        accuracy = variant.accuracy
        if accuracy is None:
            if variant.status != "failed":
                lines.append(f"{variant.name}: {formatting.UNAVAILABLE} ({why_no_accuracy(variant)})")
            continue
        name = f"{variant.name} (failed)" if variant.status == "failed" else variant.name
        lines += [f"{name}: {line}" for line in accuracy.findings]
        if accuracy.degraded:
            lines.append(f"{name}: classes that got worse: {'; '.join(accuracy.degraded)}")
    told = [each.accuracy for each in report.variants if each.accuracy is not None]
    if told and not any(each.nan or each.infinity for each in told):
        lines.append("no variant answers with NaN or infinity")
    return lines


def why_no_accuracy(variant: Variant) -> str:
    """Return why nothing is known of a variant's answers."""
    return variant.accuracy_unavailable or "no data set was given"


def layer_table(report: Report) -> Table | None:
    """Return the top layers of each variant with what binds them."""
    rows = [
        Row(
            (
                Cell(variant.name), Cell(layer.name), Cell(layer.kind) if layer.kind else MISSING,
                figure(layer.share, formatting.share), figure(layer.self_s, formatting.time),
                _bound(layer),
                Cell(layer.evidence) if layer.evidence else MISSING,
            ),
            variant.name,
        )
        for variant in report.variants
        for layer in variant.layers or ()
    ]  # fmt: skip
    heads = ("Variant", "Layer", "Class", "Own share of a call", "Own time in a call", "Bound", "Evidence")
    caption = "The layers with the most time of their own in a recorded call, and what binds them."
    return without_empty_columns(Table(caption, heads, tuple(rows), word_columns=2)) if rows else None


def _bound(layer: Layer) -> Cell:
    if layer.bound is None:
        return MISSING
    note = "" if layer.bound_share is None else f"{formatting.share(layer.bound_share)} of the roof"
    return Cell(layer.bound, note)


def failure_table(report: Report) -> Table | None:
    """Return the variants that failed, wholly or in part, with the reason."""
    rows = [
        Row((Cell(each.name), Cell(each.technique), Cell(_how_far(each)), Cell(_reason(each))), each.name)
        for each in report.variants
        if each.status != "measured" or each.failure is not None
    ]
    caption = "Variants that could not be measured, or not wholly."
    return Table(caption, ("Variant", "Technique", "State", "Reason"), tuple(rows), 4) if rows else None


def _how_far(variant: Variant) -> str:
    if not variant.batches:
        return "failed: nothing was measured"
    sizes = tuple(each.batch_size for each in variant.batches)
    return f"{variant.status}: {formatting.in_batches(sizes)} measured"


def _reason(variant: Variant) -> str:
    return variant.failure or "no reason was told"


# --- method --------------------------------------------------------------------------------------


def quantile_table(report: Report) -> Table:
    """Return the quantiles of every measurement."""
    target = text(report.method.get("target"))
    heads = ("Variant", "Batch", "p50", "p90", "p95", "p99", "Mean", f"Target {target or ''}")
    caption = "Quantiles of every measurement with their intervals."
    return _of_batches(report, caption, heads, _quantiles)


def _quantiles(batch: Batch) -> Iterator[Cell]:
    for name, found in batch.quantiles.items():
        short = Cell(formatting.missing_quantile(batch, name), tone="missing")
        yield short if found is None else between(found, formatting.time)
    yield figure(batch.mean_s, formatting.time)
    yield judged(batch.target)


def validity_table(report: Report) -> Table:
    """Return what each figure rests on, and what speaks against it."""
    heads = (
        "Variant", "Batch", "Launches", "Samples", "Deviation", "Shortest", "Longest", "Spread",
        "Energy a sample", "Flags",
    )  # fmt: skip
    caption = "What every measurement rests on. Spread is the middle half of the samples over their median."
    return _of_batches(report, caption, heads, _validity)


def _of_batches(
    report: Report, caption: str, heads: tuple[str, ...], cells_of: Callable[[Batch], Iterator[Cell]]
) -> Table:
    rows = []
    for variant in report.variants:
        for batch in variant.batches:
            first = (Cell(variant.name), Cell(str(batch.batch_size), value=batch.batch_size))
            rows.append(Row((*first, *cells_of(batch)), variant.name, variant.name == report.choice))
    return without_empty_columns(Table(caption, heads, tuple(rows)))


def _validity(batch: Batch) -> Iterator[Cell]:
    yield Cell(f"{batch.launches:,}", value=batch.launches)
    yield Cell(f"{batch.samples:,}", value=batch.samples)
    yield from (figure(value, formatting.time) for value in (batch.std_s, batch.min_s, batch.max_s))
    yield figure(batch.spread, formatting.spread)
    yield figure(batch.energy_per_sample_j, lambda value: f"{formatting.number(value)} J")
    yield Cell(", ".join(dict.fromkeys(name for name, _ in batch.flags)) or "none")


def start_table(report: Report) -> Table | None:
    """Return what it takes until a variant answers, and its size."""
    heads = ("Variant", "Start to first answer", "Compiling", "Model size", "Parameters", "Device", "Run")
    rows = [
        Row(
            (
                Cell(each.name),
                figure(each.startup_s, formatting.time), figure(each.compile_s, formatting.time),
                figure(each.model_bytes, formatting.size), figure(each.parameters, formatting.count),
                Cell(each.device) if each.device else MISSING, Cell(each.run) if each.run else MISSING,
            ),
            each.name,
        )
        for each in report.measured
    ]  # fmt: skip
    table = without_empty_columns(Table("What a variant takes before it answers.", heads, tuple(rows)))
    return table if rows and len(table.heads) > 1 else None


def method_table(report: Report) -> Table:
    """Return how it was measured, and where."""
    method = report.method
    told = {
        "launches of each variant": method.get("launches"),
        "launches made": method.get("launches_done"),
        "of these from an earlier time": method.get("launches_kept") or None,
        "order": method.get("order"),
        "confidence of intervals": method.get("confidence"),
        "practical margin of times": method.get("margin"),
        "practical margin of accuracy": method.get("accuracy_margin"),
        "batch sizes": method.get("batch_sizes"),
        "inputs of the timing": method.get("data"),
        "answers compared on": method.get("dataset"),
        "target": method.get("target"),
        "device": method.get("device"),
        "seed": method.get("seed"),
        "measuring took": method.get("measured_s"),
        f"price of an hour ({report.currency})": method.get("price_per_hour"),
    }
    # What was not asked for is nothing that could not be had.
    told = {name: value for name, value in told.items() if value is not None}
    told |= {"baseline": report.baseline, "measured at": report.timestamp, "git revision": report.git_commit}
    rows = [
        (Cell(name), plain_cell(value, "_s" if name == "measuring took" else ""))
        for name, value in told.items()
    ]
    return plain_table("How it was measured.", ("What", "Value"), rows, word_columns=2)


def environment_table(report: Report) -> Table | None:
    """Return the machine and the versions; None where the document holds none."""
    rows = []
    for name, value in report.environment.items():
        if isinstance(value, Mapping):
            rows += [(Cell(f"{name}: {key}"), plain_cell(each)) for key, each in value.items()]
        else:
            rows.append((Cell(str(name).removesuffix("_bytes").replace("_", " ")), plain_cell(value, name)))
    shown = rows[:_MOST_ENVIRONMENT]
    return (
        plain_table("Environment and versions.", ("What", "Value"), shown, word_columns=2) if rows else None
    )


def plain_cell(value: object, name: str = "") -> Cell:
    """Return any plain value as a cell; the unit stands at the end of its name."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return _plain_number(value, name)
    if isinstance(value, list | tuple):
        return Cell(", ".join(str(each) for each in value) or "none")
    return Cell(str(value))


def _plain_number(value: float, name: str) -> Cell:
    if name.endswith("_bytes"):
        return Cell(formatting.size(value), value=value)
    if name.endswith("_s"):
        return Cell(formatting.time(value), value=value)
    return Cell(f"{value:,}" if isinstance(value, int) else formatting.number(value), value=value)


_DEEPEST = 4
# What stands in the tables and sentences, and each launch's figures, which the JSON holds.
_TOLD = ("arms", "figures", "advice", "notes", "headline", "launch_ratios", "variants", "split")


def traffic_content(traffic: Plain) -> tuple[str, tuple[Table, ...], tuple[str, ...]]:
    """Return the advice, the tables, and what is to be known of the figures."""
    told = [_arms(traffic), _figures(traffic), _rest(traffic)]
    lines = [*each_of(traffic.get("notes"), word), *_first_failures(traffic)]
    return _lead(traffic), tuple(each for each in told if each.rows), tuple(lines)


def _first_failures(traffic: Plain) -> Iterator[str]:
    for arm in each_of(traffic.get("arms"), mapping):
        reason = text(arm.get("first_failure"))
        if reason is not None:
            yield f"{text(arm.get('variant')) or formatting.UNAVAILABLE}: the first that failed: {reason}"


def _lead(traffic: Plain) -> str:
    advice = traffic.get("advice")
    if isinstance(advice, Mapping):
        because = text(advice.get("because"))
        said = f"{text(advice.get('text')) or ''}{f'. Why: {because}' if because else ''}"
    else:
        said = text(advice) or ""
    whole = " ".join(filter(None, (text(traffic.get("headline")), said)))
    return f"{whole[:1].upper()}{whole[1:]}"


def _arms(traffic: Plain) -> Table:
    heads = (
        "Variant",
        "Share of the requests",
        "Requests",
        "Failed",
        "Share that failed",
        "p50",
        "p95",
        "p99",
    )
    rows = each_of(traffic.get("arms"), lambda arm: _arm(mapping(arm)))
    caption = "Both sides of the traffic."
    return without_empty_columns(Table(caption, heads, rows))


def _arm(arm: Plain) -> Row:
    name = text(arm.get("variant")) or text(arm.get("name")) or formatting.UNAVAILABLE
    cells = [
        Cell(name),
        figure(number(arm.get("share")), formatting.share),
        figure(number(arm.get("requests")), lambda value: f"{value:,.0f}"),
        figure(number(arm.get("failed")), lambda value: f"{value:,.0f}"),
        between(interval_of(arm.get("failed_share")), formatting.share),
    ]
    cells += [
        between(interval_of(arm.get(f"{quantile}_s")), formatting.time) for quantile in ("p50", "p95", "p99")
    ]
    return Row(tuple(cells), name)


def _figures(traffic: Plain) -> Table:
    rows = each_of(traffic.get("figures"), lambda one: _figure(mapping(one)))
    first, second = (*each_of(traffic.get("variants"), word), "the first", "the second")[:2]
    caption = f"Times of {second} over those of {first}: below 1 is faster."
    return without_empty_columns(Table(caption, ("Figure", "Ratio", "Margin", "Launches", "Verdict"), rows))


def _figure(one: Plain) -> Row:
    ratio = between(interval_of(one.get("ratio")), formatting.number)
    if ratio == MISSING and one.get("verdict") == "insufficient":
        ratio = Cell("insufficient", tone="missing")
    cells = (
        Cell(text(one.get("figure")) or formatting.UNAVAILABLE),
        ratio,
        figure(number(one.get("margin")), formatting.share),
        figure(number(one.get("launches")), lambda value: f"{value:,.0f}"),
        judged(text(one.get("verdict"))),
    )
    return Row(cells)


def _rest(traffic: Plain) -> Table:
    """Return whatever else it tells as rows."""
    rows = [row for key, value in traffic.items() if key not in _TOLD for row in _flat(str(key), value)]
    shown = [row for row in rows if row[1] != MISSING]
    return plain_table("How the traffic was split.", ("What", "Value"), shown, word_columns=2)


def _flat(name: str, value: object, depth: int = 0) -> Iterator[tuple[Cell, Cell]]:
    """Yield nested tables and lists as rows."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for key, each in value.items():
            yield from _flat(f"{name}: {key}", each, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEEPEST and any(isinstance(e, Mapping) for e in value):
        for place, each in enumerate(value, 1):
            label = each.get("name", place) if isinstance(each, Mapping) else place
            yield from _flat(f"{name}: {label}", each, depth + 1)
    else:
        yield Cell(name.removesuffix("_s").replace("_", " ")), plain_cell(value, name)
