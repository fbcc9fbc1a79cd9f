# SPDX-License-Identifier: Apache-2.0
"""The summary of a comparison as text: headline, a line for each variant, advice, grouped warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.compare.advice import quality_of, relative_speed
from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument, Recommendation, VariantFigures
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.messages import title
from gpuprof.bench.report import formatting
from gpuprof.bench.verdicts import VariantStatus


def headline(document: ComparisonDocument) -> str:
    """Return the result in one sentence."""
    text = str(document.summary.headline)
    return text if text.endswith(".") else f"{text}."


def reason(fact: Diagnostic | None) -> str:
    """Return why something failed."""
    return "no reason was given" if fact is None else str(fact)


def why_no_accuracy(variant: VariantFigures) -> str:
    """Return why the outputs of a variant were not compared."""
    return str(variant.accuracy_unavailable or note("no_dataset"))


def variant_lines(document: ComparisonDocument) -> tuple[str, ...]:
    """Return a line for each variant, the baseline first."""
    baseline = document.variant(document.baseline)
    variants = sorted(document.variants, key=lambda each: each is not baseline)
    return tuple(f"{each.name}: {_line(each, baseline)}" for each in variants)


def _line(variant: VariantFigures, baseline: VariantFigures | None) -> str:
    why = reason(variant.failure)
    if variant.status == VariantStatus.FAILED:
        is_missing = variant.failure is not None and variant.failure.code == "not_measured"
        return f"{'not measured' if is_missing else 'failed'}: {why}"
    partly = f"; not measured completely: {why}" if variant.status == VariantStatus.PARTLY else ""
    if variant is baseline:
        return f"the baseline, {variant.technique}{partly}"
    if variant.speedup is None or variant.verdict is None or baseline is None:
        return f"nothing in common with the baseline was measured{partly}"
    speed, quality = str(relative_speed(variant, baseline)), str(quality_of(variant).reason)
    return f"{formatting.verdict(variant.verdict)}, {speed}; {quality}{partly}"


def advice(recommendation: Recommendation) -> tuple[str, str]:
    """Return what to do and why; the reason may be empty."""
    why = recommendation.reason
    return str(recommendation.action), "" if why is None else str(why)


# --- what is missing --------------------------------------------------------------------------------

Read = Callable[[BatchFigures], float | None]


def unavailable(document: ComparisonDocument) -> Iterator[str]:
    """Yield which figures, accuracies, runs and layers are unavailable, and why."""
    yield from unavailable_figures(document)
    for each in document.measured:
        if each.accuracy is None:
            yield f"accuracy of {each.name}: {formatting.UNAVAILABLE} ({why_no_accuracy(each)})"
        if each.run_unavailable is not None:
            yield f"run of {each.name}: {formatting.UNAVAILABLE} ({each.run_unavailable})"
    if document.measured and all(not each.layers for each in document.measured):
        yield f"layers and their bottlenecks: {formatting.UNAVAILABLE} (no run was recorded)"


def unavailable_figures(document: ComparisonDocument) -> Iterator[str]:
    """Yield which measured figures are unavailable, and why."""
    if not document.measured:
        yield f"all figures: {formatting.UNAVAILABLE} (no variant was measured)"
        return
    kinds: list[tuple[str, str, Read]] = [
        ("device memory", "no device reports its peak", lambda each: each.device_peak_bytes),
        ("host memory", "the system does not report the peak", lambda each: each.host_peak_bytes),
        ("energy", "no device with a counter that gpuprof reads", lambda each: each.energy_per_sample_j),
        ("device utilization", "no samples of a device", lambda each: each.device_utilization),
    ]
    # What was not requested is not unavailable.
    if document.is_priced:
        kinds.append(("cost per million inferences", "unknown for these", lambda each: each.cost_per_million))
    for name, why, read in kinds:
        lacking = [
            each.name for each in document.measured if all(read(batch) is None for batch in each.batches)
        ]
        if lacking:
            of = (
                " for all variants"
                if len(lacking) == len(document.measured)
                else f" for {', '.join(lacking)}"
            )
            yield f"{name}: {formatting.UNAVAILABLE}{'' if len(document.variants) == 1 else of} ({why})"


# --- warnings ------------------------------------------------------------------------------------

# The value of a warning that shows how severe it is, compared with others of its code.
_WEIGHTS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "relative_iqr": lambda values: values["relative_iqr"],
    "drift": lambda values: abs(values["drift"]),
    "large_drift": lambda values: abs(values["last_s"] / values["first_s"] - 1),
    "involuntary_context_switches": lambda values: values["switches"] / values["calls"],
    "background_cpu_load": lambda values: values["busy_cpus"],
    "steal_time": lambda values: values["steal"],
    "enqueue": lambda values: values["fraction"],
    "timer": lambda values: values["fraction"],
    "warmup": lambda values: values["drift"] or 0.0,
}


@dataclass(frozen=True, slots=True)
class LocatedWarning:
    """A warning with the variant and batch size of its figures."""

    variant: VariantFigures
    batch: BatchFigures
    warning: Diagnostic

    @property
    def weight(self) -> float:
        """How severe it is, compared with others of its code."""
        # A warning of an earlier version has its sentence alone.
        read = None if "text" in self.warning.values else _WEIGHTS.get(self.warning.code)
        return 0.0 if read is None else read(self.warning.values)

    def __str__(self) -> str:
        return f"{self.variant.name}, batch size {self.batch.batch_size}: {self.warning}"


def located_warnings(document: ComparisonDocument) -> dict[str, list[LocatedWarning]]:
    """Return all warnings about measurements by their code."""
    found: dict[str, list[LocatedWarning]] = {}
    for variant in document.variants:
        for batch in variant.batches:
            for each in batch.warnings:
                found.setdefault(each.code, []).append(LocatedWarning(variant, batch, each))
    return found


def warning_lines(document: ComparisonDocument) -> tuple[str, ...]:
    """Return each warning with its evidence, but for those that the line of their group has already."""
    lines = (
        f"{title(code)}: {each}"
        for code, group in located_warnings(document).items()
        if not _is_one_fact(group)
        for each in group
    )
    return tuple(dict.fromkeys(lines))


def _is_one_fact(group: list[LocatedWarning]) -> bool:
    return all(each.warning == group[0].warning for each in group)


def warning_groups(document: ComparisonDocument) -> Iterator[str]:
    """Yield a line for each code of a warning: in how many measurements, and the worst of them."""
    measurements = sum(len(variant.batches) for variant in document.variants)
    for code, group in located_warnings(document).items():
        count = len({(each.variant.name, each.batch.batch_size) for each in group})
        begin = f"{title(code)}: in {count:,} of {measurements:,} measurements"
        if len(group) == 1:
            yield f"{begin}: {group[0]}"
        elif _is_one_fact(group):
            yield f"{begin}: {group[0].warning}"
        else:
            yield f"{begin}, worst: {max(group, key=lambda each: each.weight)}"
