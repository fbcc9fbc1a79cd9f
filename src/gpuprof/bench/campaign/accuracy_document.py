# SPDX-License-Identifier: Apache-2.0
"""A comparison of answers as plain data for the comparison document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuprof.bench.accuracy.places import plain

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.class_figures import ClassFigures, Classification, VariantFigures
    from gpuprof.bench.accuracy.numerics import Numerics
    from gpuprof.bench.accuracy.outputs_comparison import OutputComparison
    from gpuprof.bench.metrics import MetricValue

_FIGURES = ("accuracy", "precision", "recall", "f1")


def accuracy_document(
    comparison: OutputComparison | None,
    *,
    metrics: Sequence[MetricValue] = (),
    is_baseline: bool = False,
) -> dict[str, Any] | None:
    """Return the accuracy of one variant; None where nothing was compared.

    Of several outputs the figures are those of the scores of classes, else of the one with the largest
    relative error. A baseline, which is compared with itself, has no change and no verdict.
    """
    if comparison is None:
        return None
    scores = comparison.classification
    main = _main_output(comparison)
    change = None if scores is None or is_baseline else scores.change
    labelled = scores is not None and scores.change is not None
    not_finite = [each.optimized_not_finite for each in comparison.numerics]
    found: dict[str, Any] = {
        "samples": comparison.samples,
        "labelled": labelled,
        "baseline": _figures(scores.baseline) if scores is not None and labelled else None,
        **_figures(scores.optimized if scores is not None else None),
        "change": None if change is None else {"low": change.low, "value": change.value, "high": change.high},
        "verdict": None if change is None else change.verdict,
        "agreement_top1": None if scores is None else scores.top1_agreement,
        "agreement_top5": None if scores is None else scores.top5_agreement,
        "cosine": main.cosine_mean,
        "relative_error": main.relative_l2,
        "max_absolute_error": main.max_abs_error,
        "tolerance": _tolerance(comparison),
        "nan": sum(each.nan for each in not_finite),
        "infinity": sum(each.infinite for each in not_finite),
        "findings": [*comparison.findings, *(each.note for each in metrics if each.note)],
        "degraded_classes": [] if scores is None else [_degraded(scores, each) for each in scores.degraded],
        "metrics": [
            {"name": each.name, "value": each.value, "baseline": each.baseline, "better": each.better}
            for each in metrics
        ],
    }
    document: dict[str, Any] = plain(found)
    return document


def _main_output(comparison: OutputComparison) -> Numerics:
    if comparison.classification is not None:
        name = comparison.classification.output
        return next(each for each in comparison.numerics if each.name == name)
    return max(comparison.numerics, key=lambda each: -1.0 if each.relative_l2 is None else each.relative_l2)


def _figures(figures: VariantFigures | None) -> dict[str, float | None]:
    return {name: None if figures is None else getattr(figures, name) for name in _FIGURES}


def _tolerance(comparison: OutputComparison) -> str | None:
    """Return the worst verdict over the outputs, None where none was judged."""
    verdicts = {each.verdict for each in comparison.tolerance}
    return next((each for each in ("beyond", "unknown", "within") if each in verdicts), None)


def _degraded(scores: Classification, each: ClassFigures) -> dict[str, Any]:
    return {
        "class": scores.name_of(each.label),
        "label": each.label,
        "samples": each.count,
        "baseline": each.accuracy[0],
        "accuracy": each.accuracy[1],
        "p_value": each.p_value,
        "becomes": None if each.becomes is None else scores.name_of(each.becomes[0]),
    }
