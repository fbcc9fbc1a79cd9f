# SPDX-License-Identifier: Apache-2.0
"""The tables of a comparison: what was measured, how good the outputs are, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gpuprof.bench.compare.document import (
    AccuracyFigures,
    BatchFigures,
    ClassScores,
    ComparisonDocument,
    LayerFigures,
    MetricFigures,
    TrafficArm,
    TrafficFigures,
    TrafficRatio,
    VariantFigures,
)
from gpuprof.bench.messages import title
from gpuprof.bench.report import formatting, summary
from gpuprof.bench.report.table import (
    BASELINE,
    MISSING,
    NOT_MEASURED,
    Cell,
    Table,
    between,
    facts_table,
    figure,
    judged,
    table_of,
    tone_of,
    whole,
    words,
)
from gpuprof.bench.verdicts import SpeedVerdict, VariantStatus

Columns = dict[str, Callable[[VariantFigures], Cell]]
_MOST_ENVIRONMENT = 60
_MOST_CLASSES = 100
_OF_COMPARISONS = ("equivalence margin of times", "equivalence margin of accuracy")
_ORDERS = {"counterbalanced": "random, and reversed in each second round"}
_SHARES = {
    "Accuracy": "accuracy",
    "Precision": "precision",
    "Recall": "recall",
    "F1": "f1",
    "Top-1 agreement": "agreement_top1",
    "Top-5 agreement": "agreement_top5",
}
_NUMBERS = {
    "Cosine": "cosine",
    "MSE": "mse",
    "Relative error": "relative_error",
    "Largest error": "max_absolute_error",
}


class ReportTables:
    """The tables of one document; None where there is nothing to show."""

    def __init__(self, document: ComparisonDocument) -> None:
        self._document = document
        self._baseline = document.variant(document.baseline)
        speedups = [each.speedup.value for each in document.variants if each.speedup is not None]
        self._best = max([1.0, *speedups])

    def variants(self) -> Table | None:
        """One row a variant: what decides between them."""
        measure, currency = self._document.quality.measure, self._document.method.currency
        columns: Columns = {
            "Speed-up": self._speedup,
            "Verdict": lambda each: _failed(each) or judged(each.verdict),
            str(measure or "quality").capitalize(): self._quality,
            "Change": self._change,
            "Model size": lambda each: figure(each.model_bytes, formatting.size),
            "Peak memory": _most_memory,
            "Forwarded": _forwarded,
            f"Cost per million ({currency})": _lowest_cost,
        }
        sizes = self._document.batch_sizes
        over = f" at batch size {sizes[0]}" if sizes else ""
        over = over if len(sizes) < 2 else ": the geometric mean over the batch sizes that both have"
        subjects = ((self._named(each, *_kind(each)), each) for each in self._document.variants)
        return table_of(f"One row per variant. Speed-up is over the baseline{over}.", columns, subjects)

    def _named(self, variant: VariantFigures, *notes: str) -> Cell:
        """Return the name of a variant with what distinguishes it."""
        is_baseline = variant is self._baseline and len(self._document.variants) > 1
        return Cell(variant.name, ", ".join([*(["baseline"] if is_baseline else []), *notes]))

    def _speedup(self, variant: VariantFigures) -> Cell:
        if variant is self._baseline and variant.speedup is None:
            return BASELINE
        bar = None if variant.speedup is None else variant.speedup.value / self._best
        return _failed(variant) or between(variant.speedup, formatting.ratio, bar=bar)

    def _quality(self, variant: VariantFigures) -> Cell:
        found, measure = variant.quality(self._document.quality.measure), self._document.quality.measure
        if found is None:
            return MISSING
        note = "" if found[0] == measure else str(found[0])
        return figure(found[1], formatting.of_quality(found[0]), note)

    def _change(self, variant: VariantFigures) -> Cell:
        return MISSING if variant.accuracy is None else self._change_of(variant, variant.accuracy)

    def _change_of(self, variant: VariantFigures, accuracy: AccuracyFigures) -> Cell:
        if accuracy.change is None and variant is self._baseline:
            return BASELINE
        return between(accuracy.change, formatting.points, tone_of(accuracy.verdict))

    # --- by batch size ---

    def _by_batch(self, caption: str, cell_of: Callable[[BatchFigures], Cell]) -> Table | None:
        """Return a row for each variant with a column for each batch size."""
        subjects = ((self._named(each), each) for each in self._document.measured)
        return table_of(caption, self._batch_columns(cell_of), subjects)

    def _batch_columns(self, cell_of: Callable[[BatchFigures], Cell]) -> Columns:
        def at(variant: VariantFigures, *, size: int) -> Cell:
            batch = variant.batch(size)
            return NOT_MEASURED if batch is None else cell_of(batch)

        return {f"Batch {size}": partial(at, size=size) for size in self._document.batch_sizes}

    def latency(self) -> Table | None:
        """Medians with intervals."""
        return self._by_batch("Median latency with its interval.", partial(_quantile, name="p50"))

    def throughput(self) -> Table | None:
        """Throughput with intervals."""
        caption = "Throughput in samples per second, with its interval."
        return self._by_batch(caption, lambda batch: between(batch.throughput_per_s, formatting.rate))

    def memory(self) -> Table | None:
        """Peak memory."""
        return self._by_batch("Peak memory, of the device where it is known, else of the host.", _peak)

    def tokens(self) -> Table | None:
        """Tokens per second of models whose samples are sequences."""
        if not any(batch.tokens_per_s is not None for _, batch in self._measurements()):
            return None
        caption = "Tokens per second: samples per second times the tokens of a sample."
        return self._by_batch(caption, lambda batch: between(batch.tokens_per_s, formatting.rate))

    def utilization(self) -> Table | None:
        """Utilization of the device."""
        if not any(batch.device_utilization is not None for _, batch in self._measurements()):
            return None
        caption = "Mean utilization of the device during calls, as its driver reports it."
        return self._by_batch(caption, lambda batch: figure(batch.device_utilization, formatting.share))

    def sizes(self) -> Table | None:
        """Model size and parameters, next to the speed-up."""
        columns: Columns = {
            "Model size": lambda each: figure(each.model_bytes, formatting.size),
            "Parameters": lambda each: figure(each.parameters, formatting.count),
            "Speed-up": self._speedup_alone,
        }
        subjects = ((self._named(each), each) for each in self._document.variants if each.model_bytes)
        return table_of("Model size: parameters and buffers, or the model's file.", columns, subjects)

    def _speedup_alone(self, variant: VariantFigures) -> Cell:
        is_baseline = variant is self._baseline and variant.speedup is None
        return BASELINE if is_baseline else between(variant.speedup, formatting.ratio)

    def accuracy_and_time(self, batch_size: int) -> Table | None:
        """Quality next to the median latency of one batch size."""
        measure = self._document.quality.measure

        def median(variant: VariantFigures) -> Cell:
            batch = variant.batch(batch_size)
            return NOT_MEASURED if batch is None else _quantile(batch, name="p50")

        columns: Columns = {
            "Median latency": median,
            str(measure or "quality").capitalize(): self._quality,
        }
        subjects = ((self._named(each), each) for each in self._document.measured)
        return table_of(f"Quality and median latency at batch size {batch_size}.", columns, subjects)

    def cost(self) -> Table | None:
        """Cost per million inferences."""
        caption = f"Cost per million inferences in {self._document.method.currency}."
        return self._by_batch(caption, lambda batch: figure(batch.cost_per_million, formatting.number))

    def techniques(self) -> Table | None:
        """Speed-up over the whole and by batch size, the fastest first."""
        columns: Columns = {
            "Technique": lambda each: Cell(each.technique),
            "Speed-up": lambda each: between(each.speedup, formatting.ratio),
            "Verdict": lambda each: judged(each.verdict),
            **self._batch_columns(
                lambda batch: between(batch.speedup, formatting.ratio, tone_of(batch.verdict))
            ),
        }
        caption = "Speed-up over the baseline with its interval, over all batch sizes and at each."
        return table_of(caption, columns, ((each.name, each) for each in self._document.by_speedup))

    # --- every measurement ---

    def _measurements(self) -> Iterator[tuple[str, BatchFigures]]:
        return ((each.name, batch) for each in self._document.variants for batch in each.batches)

    def quantiles(self) -> Table | None:
        """Quantiles of every measurement."""
        columns: dict[str, Callable[[BatchFigures], Cell]] = {
            "Batch": lambda batch: whole(batch.batch_size),
            **{name: partial(_quantile, name=name) for name in ("p50", "p90", "p95", "p99")},
            "Mean": lambda batch: figure(batch.mean_s, formatting.time),
            "Forwarded": lambda batch: figure(batch.forwarded, formatting.share),
            f"Target {self._document.method.target or ''}": lambda batch: judged(batch.target),
        }
        caption = "Quantiles of every measurement with their intervals."
        return table_of(caption, columns, self._measurements())

    def validity(self) -> Table | None:
        """How many samples each figure has, and the warnings about it."""
        columns: dict[str, Callable[[BatchFigures], Cell]] = {
            "Batch": lambda batch: whole(batch.batch_size),
            "Process runs": lambda batch: whole(batch.launches),
            "Samples": lambda batch: whole(batch.samples),
            "Deviation": lambda batch: figure(batch.std_s, formatting.time),
            "Shortest": lambda batch: figure(batch.min_s, formatting.time),
            "Longest": lambda batch: figure(batch.max_s, formatting.time),
            "Relative IQR": lambda batch: figure(batch.spread, formatting.relative_iqr),
            "Energy a sample": lambda batch: figure(batch.energy_per_sample_j, formatting.energy),
            "Warnings": lambda batch: Cell(
                ", ".join(dict.fromkeys(title(each.code) for each in batch.warnings)) or "none"
            ),
        }
        caption = "The samples of every measurement. Relative IQR: their middle half over their median."
        return table_of(caption, columns, self._measurements())

    # --- outputs, layers and failures ---

    def quality(self) -> Table | None:
        """Quality of each variant's outputs."""

        def of(name: str, write: Callable[[float], str]) -> Callable[[VariantFigures], Cell]:
            return lambda each: figure(getattr(each.accuracy, name), write)

        columns: Columns = {
            **{head: of(name, formatting.share) for head, name in _SHARES.items()},
            "Change": self._change,
            "Verdict": self._accuracy_verdict,
            **{head: of(name, formatting.number) for head, name in _NUMBERS.items()},
            "Tolerance": lambda each: MISSING if each.accuracy is None else judged(each.accuracy.tolerance),
        }
        # Columns of zeros take the room of what matters; one line replaces them.
        if not self._document.is_finite:
            columns |= {
                "NaN": partial(_not_finite, name="nan"),
                "Infinite": partial(_not_finite, name="infinity"),
            }
        subjects = ((_named(each), each) for each in self._document.variants if each.accuracy is not None)
        caption = "Quality of the outputs. The change is against the baseline, in percentage points (pp)."
        return table_of(caption, columns, subjects)

    def _accuracy_verdict(self, variant: VariantFigures) -> Cell:
        accuracy = variant.accuracy
        if accuracy is None or (accuracy.change is None and variant is self._baseline):
            return BASELINE
        return judged(accuracy.verdict)

    def classes(self) -> Table | None:
        """Precision, recall and F1 of each class of each variant; of many classes the worst."""
        found = [
            (_named(each), one) for each in self._document.variants if each.accuracy is not None
            for one in each.accuracy.classes
        ]  # fmt: skip
        labels = {one.label for _, one in found}
        caption = "Scores of each class that has samples. Support: the samples with its label."
        if len(labels) > _MOST_CLASSES:
            worst = {label: min(one.f1 for _, one in found if one.label == label) for label in labels}
            kept = sorted(worst, key=lambda label: worst[label])[:_MOST_CLASSES]
            found = [(name, one) for name, one in found if one.label in kept]
            caption += (
                f" The {_MOST_CLASSES} of {len(labels):,} classes with the lowest F1; the JSON has all."
            )
        columns: dict[str, Callable[[ClassScores], Cell]] = {
            "Class": lambda one: Cell(one.name),
            "Precision": lambda one: _share_or(one.precision, "never predicted"),
            "Recall": lambda one: figure(one.recall, formatting.share),
            "F1": lambda one: figure(one.f1, formatting.share),
            "Support": lambda one: whole(one.support),
        }
        return table_of(caption, columns, found)

    def metrics(self) -> Table | None:
        """Figures that the user defined."""
        columns: dict[str, Callable[[MetricFigures], Cell]] = {
            "Metric": lambda metric: Cell(metric.name),
            "Result": lambda metric: figure(metric.value, formatting.number),
            "Baseline": lambda metric: figure(metric.baseline, formatting.number),
            "Better": lambda metric: Cell(metric.better),
        }
        subjects = (
            (_named(variant), metric)
            for variant in self._document.variants
            for metric in (variant.accuracy.metrics if variant.accuracy is not None else ())
        )
        return table_of("Your metrics.", columns, subjects)

    def layers(self) -> Table | None:
        """Top layers of each variant with their bottleneck."""
        columns: dict[str, Callable[[LayerFigures], Cell]] = {
            "Layer": lambda layer: Cell(layer.name),
            "Class": lambda layer: words(layer.type),
            "Self time in percent": lambda layer: figure(layer.share, formatting.share),
            "Self time in a call": lambda layer: figure(layer.self_s, formatting.time),
            "Bound": _bound,
            "Evidence": lambda layer: words(layer.evidence),
        }
        subjects = ((each.name, layer) for each in self._document.variants for layer in each.layers or ())
        caption = "The layers with the largest self time in a recorded call, and their bottlenecks."
        return table_of(caption, columns, subjects)

    def failures(self) -> Table | None:
        """Variants that failed completely or in part, with the reason."""
        columns: Columns = {
            "Technique": lambda each: Cell(each.technique),
            "State": lambda each: Cell(_how_far(each)),
            "Reason": lambda each: Cell(summary.reason(each.failure)),
        }
        subjects = (
            (each.name, each)
            for each in self._document.variants
            if each.status != VariantStatus.MEASURED or each.failure is not None
        )
        return table_of("Variants that could not be measured completely.", columns, subjects)

    # --- how it was measured ---

    def start(self) -> Table | None:
        """Time until the first inference of each variant, and its size."""
        columns: Columns = {
            "Start to first inference": lambda each: figure(each.startup_s, formatting.time),
            "Compiling": lambda each: figure(each.compile_s, formatting.time),
            "Model size": lambda each: figure(each.model_bytes, formatting.size),
            "Parameters": lambda each: figure(each.parameters, formatting.count),
            "Device": lambda each: words(each.device),
            "Run": lambda each: words(each.run),
        }
        subjects = ((each.name, each) for each in self._document.measured)
        return table_of("What a variant takes before its first inference.", columns, subjects)

    def method(self) -> Table | None:
        """How it was measured."""
        method = self._document.method
        facts: dict[str, object] = {
            "process runs of each variant": method.launches,
            "process runs made": method.launches_done,
            "of these from an earlier time": method.launches_kept or None,
            "order": _ORDERS.get(method.order or "", method.order),
            "confidence of intervals": _percent(method.confidence),
            "equivalence margin of times": _percent(method.margin),
            "equivalence margin of accuracy": _percent(method.accuracy_margin),
            "batch sizes": method.batch_sizes or None,
            "inputs of the timing": method.data,
            "outputs compared on": method.dataset,
            "target": method.target,
            "device": method.device,
            "seed": method.seed,
            "measuring took_s": method.measured_s,
            f"price of an hour ({method.currency})": method.price_per_hour,
        }
        if len(self._document.variants) > 1:
            facts["baseline"] = self._document.baseline
        else:
            facts = {name: value for name, value in facts.items() if name not in _OF_COMPARISONS}
        # What was not requested is not unavailable.
        facts = {name: value for name, value in facts.items() if value is not None} | {
            "measured at": self._document.timestamp,
            "git revision": self._document.git_commit,
        }
        return facts_table("How it was measured.", facts)

    def environment(self) -> Table | None:
        """Machine and versions."""
        found = facts_table("Environment and versions.", self._document.environment)
        return found and Table(found.caption, found.heads, found.rows[:_MOST_ENVIRONMENT])


# --- cells ---------------------------------------------------------------------------------------


def _percent(fraction: float | None) -> str | None:
    return None if fraction is None else formatting.share(fraction)


def _named(variant: VariantFigures) -> Cell:
    return Cell(variant.name, "failed" if variant.status == VariantStatus.FAILED else "")


def _failed(variant: VariantFigures) -> Cell | None:
    return Cell("failed", tone="bad") if variant.status == VariantStatus.FAILED else None


def _kind(variant: VariantFigures) -> list[str]:
    more = [each for each in (variant.dtype, variant.framework) if each and each not in variant.technique]
    return [
        variant.technique,
        *more,
        *(["partly measured"] if variant.status == VariantStatus.PARTLY else []),
    ]


def _peak(batch: BatchFigures) -> Cell:
    found = batch.peak_memory
    return MISSING if found is None else figure(found[0], formatting.size, found[1])


def _most_memory(variant: VariantFigures) -> Cell:
    return max(map(_peak, variant.batches), key=lambda cell: cell.value or 0, default=MISSING)


def _share_or(value: float | None, why: str) -> Cell:
    return Cell(why, tone="missing") if value is None else figure(value, formatting.share)


def _forwarded(variant: VariantFigures) -> Cell:
    """Return the fraction that a cascade forwarded to its large model, of the data set where it is known."""
    if variant.accuracy is not None and variant.accuracy.forwarded is not None:
        return figure(variant.accuracy.forwarded, formatting.share, "of the data set")
    found = [each for each in variant.batches if each.forwarded is not None]
    return figure(found[0].forwarded, formatting.share, "of the timed samples") if found else MISSING


def _lowest_cost(variant: VariantFigures) -> Cell:
    found = variant.lowest_cost
    return MISSING if found is None else figure(found[0], formatting.number, f"batch size {found[1]}")


def _quantile(batch: BatchFigures, *, name: str) -> Cell:
    found = batch.quantiles[name]
    if found is None:
        return Cell(formatting.missing_quantile(batch, name), tone="missing")
    return between(found, formatting.time)


def _not_finite(variant: VariantFigures, *, name: str) -> Cell:
    count = getattr(variant.accuracy, name)
    return Cell(f"{count:,}", value=count, tone="bad" if count else "")


def _bound(layer: LayerFigures) -> Cell:
    text = formatting.bound(layer)
    of = "" if layer.bound_share is None else f"{formatting.share(layer.bound_share)} of the ceiling"
    return MISSING if text is None else Cell(text, of)


def _how_far(variant: VariantFigures) -> str:
    if not variant.batches:
        return "failed: nothing was measured"
    sizes = [str(each.batch_size) for each in variant.batches]
    return f"{variant.status}: batch size{'s' if len(sizes) > 1 else ''} {', '.join(sizes)} measured"


# --- shared traffic ------------------------------------------------------------------------------


def traffic_tables(traffic: TrafficFigures) -> Iterator[Table | None]:
    """Yield the requests of both variants, their ratios, and how the traffic was split."""
    arms: dict[str, Callable[[TrafficArm], Cell]] = {
        "Percent of requests": lambda arm: figure(arm.share, formatting.share),
        "Requests": lambda arm: whole(arm.requests),
        "Failed": lambda arm: whole(arm.failed),
        "Failed in percent": lambda arm: between(arm.failed_share, formatting.share),
        "p50": lambda arm: between(arm.p50_s, formatting.time),
        "p95": lambda arm: between(arm.p95_s, formatting.time),
        "p99": lambda arm: between(arm.p99_s, formatting.time),
    }
    yield table_of("Both variants of the traffic.", arms, ((each.variant, each) for each in traffic.arms))
    ratios: dict[str, Callable[[TrafficRatio], Cell]] = {
        "Ratio": _ratio,
        "Margin": lambda ratio: figure(ratio.margin, formatting.share),
        "Process runs": lambda ratio: whole(ratio.launches),
        "Verdict": lambda ratio: judged(ratio.verdict),
    }
    first, second = traffic.variants
    caption = f"Times of {second} over those of {first}: below 1 is faster."
    yield table_of(caption, ratios, ((each.figure, each) for each in traffic.figures), first="Figure")
    facts: dict[str, object] = {
        "process runs": traffic.launches,
        "confidence of intervals": _percent(traffic.confidence),
        **traffic.settings,
        "interrupted": traffic.interrupted or None,
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    if traffic.failure_difference is not None:
        facts["change of the requests that failed"] = between(traffic.failure_difference, formatting.points)
    yield facts_table("How the traffic was split.", facts)


def _ratio(ratio: TrafficRatio) -> Cell:
    if ratio.verdict == SpeedVerdict.INSUFFICIENT:
        return Cell("too few samples", tone="missing")
    return between(ratio.ratio, formatting.number)
