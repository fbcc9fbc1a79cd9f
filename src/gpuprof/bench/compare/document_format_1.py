# SPDX-License-Identifier: Apache-2.0
"""Documents of earlier versions, some of whose facts were sentences, as plain data of this one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from gpuprof.analyze.roofline.labels import Bound
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.verdicts import QualityMeasure
from gpuprof.record.facts import Severity
from gpuprof.stats.ratio_test import Reason

Plain = Mapping[str, Any]
_MEASURES = {str(each) for each in QualityMeasure}
_SAMPLES = re.compile(r"([\d,]+) (?:labelled )?samples")
# What format 1 called bottlenecks.
_RENAMED_BOUNDS: dict[str | None, str] = {
    "under-utilised": Bound.UNDERUTILIZED.value,
    "balanced": Bound.NO_DOMINANT.value,
}
_BOUND = re.compile(r"(?P<bound>[^(]*?)(?: \((?P<more>.*)\))?")


def upgraded(document: Plain) -> dict[str, Any]:
    """Return a document of format 1 as plain data of format 2. Raises KeyError, TypeError, ValueError."""
    summary, quality = document["summary"], document["quality"]
    measure, rests_on = quality["name"], str(quality["rests_on"])
    samples = _SAMPLES.search(rests_on)
    return {
        **document,
        "format": 2,
        "method": {name: each for name, each in document["method"].items() if each is not None},
        "variants": [_variant(each) for each in document["variants"]],
        "quality": {
            "measure": measure if measure in _MEASURES else None,
            "samples": int(samples[1].replace(",", "")) if samples else 0,
        },
        "pareto": [point for each in document["pareto"] if (point := _pareto(each)) is not None],
        "summary": {**summary, "headline": _fact("headline", summary["headline"])},
        "recommendations": [
            {"action": _fact("action", each["text"]), "reason": _fact("reason", each["because"])}
            for each in document["recommendations"]
        ],
        "traffic": None if document["traffic"] is None else _traffic(document["traffic"]),
        "notes": _facts("note", document["notes"]),
    }


def _fact(code: str, text: Any, severity: Severity = Severity.NOTE) -> dict[str, Any] | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not a text")
    return {"code": code, "severity": str(severity), "values": {"text": text}}


def _facts(code: str, texts: Any) -> list[Any]:
    return [_fact(code, each) for each in texts]


def _variant(plain: Plain) -> dict[str, Any]:
    known = {name: each for name, each in plain.items() if each is not None}
    accuracy, layers = plain.get("accuracy"), plain.get("layers")
    return known | {
        "failure": _fact("failed", plain.get("failure"), Severity.ERROR),
        "accuracy_unavailable": _fact("unavailable", plain.get("accuracy_unavailable")),
        "run_unavailable": _fact("unavailable", plain.get("run_unavailable")),
        "batches": [_batch(each) for each in plain["batches"]],
        "accuracy": None if accuracy is None else _accuracy(accuracy),
        "layers": None if layers is None else [_layer(each) for each in layers],
    }


def _batch(plain: Plain) -> dict[str, Any]:
    warnings = [Diagnostic.from_dict(each) for each in plain["flags"]]
    return {
        **plain,
        "warnings": [
            {"code": each.code, "severity": str(each.severity), "values": dict(each.values)}
            for each in warnings
        ],
    }


def _accuracy(plain: Plain) -> dict[str, Any]:
    classes = plain.get("degraded_classes") or ()
    beginnings = tuple(f"class {each['class']} degrades:" for each in classes)
    findings = [
        each
        for each in plain["findings"]
        if not (each.startswith(beginnings) or (classes and each.endswith(" more classes degrade")))
    ]
    return {
        **plain,
        "findings": _facts("finding", findings),
        "degraded_classes": [{**each, "name": str(each["class"])} for each in classes],
    }


def _layer(plain: Plain) -> dict[str, Any]:
    found = _BOUND.fullmatch(plain.get("bound") or "")
    bound, more = (None, None) if not plain.get("bound") or found is None else found.group("bound", "more")
    bound = _RENAMED_BOUNDS.get(bound) or bound
    is_underutilized = bound == Bound.UNDERUTILIZED
    return {
        **plain,
        "bound": bound,
        "nearest": (_RENAMED_BOUNDS.get(more) or more) if is_underutilized else bound,
        "memory_level": None if is_underutilized else more,
    }


def _pareto(plain: Plain) -> dict[str, Any] | None:
    """Return a point; None for one that lacks a figure on either axis, or of a single batch size."""
    figures = (plain.get(key) for key in ("quality", "accuracy", "agreement", "cosine"))
    quality = next((each for each in figures if each is not None), None)
    if quality is None or plain.get("speedup") is None or plain.get("batch_size") is not None:
        return None
    return {**plain, "quality": quality}


def _traffic(plain: Plain) -> dict[str, Any]:
    advice = plain["advice"]
    return {
        **plain,
        "advice": {
            **advice,
            "text": _fact("action", advice["text"]),
            "because": [_fact("reason", advice["because"])],
        },
        "notes": _facts("note", plain["notes"]),
    }


_REASONS: dict[str, Reason] = {"slower": "above_margin", "faster": "below_margin", "same": "within_margin"}


def with_reason_codes(document: Plain) -> dict[str, Any]:
    """Return a document whose comparisons have the code of their reason, where they have a sentence.

    Verdict and interval determine it. Raises KeyError, TypeError, AttributeError.
    """
    variants = [
        {**_with_reason_code(variant), "batches": [_with_reason_code(batch) for batch in variant["batches"]]}
        for variant in document["variants"]
    ]
    return {**document, "variants": variants}


def _with_reason_code(figures: Plain) -> dict[str, Any]:
    found = figures.get("comparison")
    if found is None or found.get("reason") in get_args(Reason):
        return dict(figures)
    inconclusive: Reason = "too_few_runs" if found.get("low") is None else "across_margin"
    return {**figures, "comparison": {**found, "reason": _REASONS.get(found.get("verdict"), inconclusive)}}
