# SPDX-License-Identifier: Apache-2.0
"""The comparison document: everything that a report shows, as plain data.

Times are in seconds, sizes in bytes. None is what is unavailable, or what too few samples tell nothing of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuprof.bench.compare.advice import NOT_ASKED, find
from gpuprof.bench.compare.figures import compare_variants, variant_figures
from gpuprof.bench.compare.runner import CampaignResult
from gpuprof.bench.measure.host import describe_environment
from gpuprof.stats.quantiles import CONFIDENCE

FORMAT_VERSION = 1
KIND = "comparison"
_MOST_DISAGREEMENT = 1.2
Plain = dict[str, Any]


def document_of(
    result: CampaignResult,
    at: datetime,
    *,
    answers: Mapping[str, Plain | str] | None = None,
    layers: Mapping[str, list[Plain]] | None = None,
    traffic: Plain | None = None,
    notes: list[str] | None = None,
) -> Plain:
    """Return the document of a comparison.

    `answers` holds for each variant what was found of its outputs, or the reason why there is nothing;
    `layers` the layers of its run that took longest.
    """
    plan, compared = result.plan, compare_variants(result)
    environment = _environment(result)
    document: Plain = {
        "format": FORMAT_VERSION,
        "kind": KIND,
        "name": plan.name,
        "timestamp": at.isoformat(timespec="seconds"),
        "git_commit": environment.get("revision"),
        "environment": environment,
        "method": _method(result),
        "baseline": plan.baseline.name,
        "variants": [variant_figures(each, plan, compared) for each in result.variants],
        "traffic": traffic,
        "notes": [*(notes or []), *_notes(result)],
    }
    for each in document["variants"]:
        told = (answers or {}).get(each["name"], _why_no_answers(each, result))
        each["accuracy"] = None if isinstance(told, str) else told
        each["accuracy_unavailable"] = told if isinstance(told, str) else None
        each["layers"] = (layers or {}).get(each["name"])
    document["notes"] += _disagreements(document)
    document["quality"] = quality_axis(document["variants"])
    document["pareto"] = pareto(document)
    found = find(document)
    document["summary"] = {
        "headline": found.headline,
        "lines": found.lines,
        "choice": found.choice,
        "by_batch_size": found.by_batch_size,
    }
    document["recommendations"] = found.recommendations
    return document


def _disagreements(document: Plain) -> list[str]:
    """Say where a speed-up is not what the medians beside it give: launches differ much there."""
    baseline = next(each for each in document["variants"] if each["name"] == document["baseline"])
    medians = {batch["batch_size"]: batch["median_s"] for batch in baseline["batches"]}
    found = []
    for variant in document["variants"]:
        for batch in variant["batches"]:
            old, new = medians.get(batch["batch_size"]), batch["median_s"]
            if batch["speedup"] is None or old is None or new is None:
                continue
            pooled, launches = old["value"] / new["value"], batch["speedup"]["value"]
            if max(pooled, launches) > _MOST_DISAGREEMENT * min(pooled, launches):
                found.append(
                    f"{variant['name']}, batch size {batch['batch_size']}: all samples together give "
                    f"{pooled:.3g}x and the launches one by one {launches:.3g}x: they differ much from one "
                    "another"
                )
    return found


def _why_no_answers(variant: Plain, result: CampaignResult) -> str:
    if variant["status"] == "failed":
        return "it could not be measured"
    return NOT_ASKED if result.plan.accuracy is None else "the comparison ended before"


def _environment(result: CampaignResult) -> Plain:
    batches = [batch for each in result.variants for batch in each.session.batches]
    found = dict(batches[0].environment) if batches else describe_environment()
    if found.get("threads") is None and batches:
        # This process has not imported the framework: the launches have.
        threads = batches[0].description.details.get("threads")
        found["threads"] = None if threads is None else int(threads)
    return found


def _method(result: CampaignResult) -> Plain:
    plan = result.plan
    spec = plan.baseline.spec
    return {
        "launches": plan.launches,
        "launches_done": result.launches_done,
        "launches_kept": result.launches_kept,
        "order": "random, and its reverse in each second round",
        "confidence": CONFIDENCE,
        "margin": plan.margin,
        "accuracy_margin": None if plan.accuracy is None else plan.accuracy.margin,
        "seed": plan.seed,
        "batch_sizes": list(plan.batch_sizes),
        "settings": plan.measuring.to_dict(),
        "data": spec.data,
        "dataset": None if plan.accuracy is None else plan.accuracy.dataset,
        "device": spec.device,
        "target": None if plan.target is None else plan.target.text,
        "measured_s": result.measured_s,
        "price_per_hour": plan.price_per_hour,
        "currency": plan.currency,
    }


def _notes(result: CampaignResult) -> list[str]:
    notes = []
    if result.launches_kept:
        notes.append(f"{result.launches_kept} of {result.launches_done} launches are of an earlier time")
    planned = result.plan.launches * len(result.variants)
    if result.launches_done < planned:
        notes.append(f"ended early: {result.launches_done} of {planned} launches were made")
    return [*notes, *_not_in_turn(result), *_not_alike(result)]


def _not_in_turn(result: CampaignResult) -> list[str]:
    """Tell of variants whose launches an earlier time had made, and those of the baseline not, or vice versa.

    What was cut off had made as many of each, or one more.
    """
    baseline = result.baseline
    names = [each.variant.name for each in result.variants if each is not baseline and each.session.batches]
    kept = {name: result.kept.get(name, 0) for name in names}
    of_baseline = result.kept.get(baseline.variant.name, 0)
    return [
        f"{baseline.variant.name} and {name} were not measured in turn: {of_baseline} and {count} of their "
        "launches are of an earlier time, and a machine that has changed since looks like a difference: "
        "--fresh measures all in turn"
        for name, count in kept.items()
        if abs(count - of_baseline) > 1
    ]


def _not_alike(result: CampaignResult) -> list[str]:
    """Tell what the variants do not have in common besides what is compared."""
    measured = [each for each in result.variants if each.session.batches]
    described = [each.session.batches[0].description for each in measured]
    found: dict[str, list[Any]] = {
        "numbers of threads": [each.details.get("threads") for each in described],
        "settings of TF32": [each.details.get("tf32") for each in described],
        "input shapes": [each.input_shape and "x".join(map(str, each.input_shape)) for each in described],
        "devices": [each.device for each in described],
        "data": [each.variant.spec.data for each in measured],
        "seeds": [each.variant.spec.seed for each in measured],
    }
    told = {what: sorted({str(each) for each in given if each is not None}) for what, given in found.items()}
    return [
        f"the variants ran with different {what}: {', '.join(each)}"
        for what, each in told.items()
        if len(each) > 1
    ]


def quality_axis(variants: Sequence[Plain]) -> Plain:
    """Return the figure by which the answers of all variants can be ranked, and what it rests on."""
    told = [each["accuracy"] for each in variants if each["accuracy"] is not None]
    samples = f"{told[0]['samples']:,} samples" if told else ""
    if told and all(each["accuracy"] is not None for each in told):
        return {"name": "accuracy", "rests_on": f"labels of {samples}"}
    if told and all(each["agreement_top1"] is not None for each in told):
        return {
            "name": "top-1 agreement",
            "rests_on": f"the baseline's answers on {samples}",
        }
    if told and all(each["cosine"] is not None for each in told):
        return {"name": "cosine", "rests_on": f"the baseline's outputs on {samples}"}
    return {"name": None, "rests_on": "no answers were compared"}


_AXES = {"accuracy": "accuracy", "top-1 agreement": "agreement_top1", "cosine": "cosine"}


def pareto(document: Plain) -> list[Plain]:
    """Return speed-up and quality of each variant; on the front are those that none beats in both.

    The baseline has a speed-up of 1. A variant without either figure is left out.
    """
    field_name = _AXES.get(document["quality"]["name"] or "")
    points = []
    for each in document["variants"]:
        speedup = 1.0 if each["verdict"] == "baseline" else (each["speedup"] or {}).get("value")
        quality = None if field_name is None or each["accuracy"] is None else each["accuracy"][field_name]
        if speedup is not None and quality is not None:
            points.append({"variant": each["name"], "speedup": speedup, "quality": quality})
    for point in points:
        point["on_front"] = not any(_beats(other, point) for other in points)
    return points


def _beats(other: Plain, point: Plain) -> bool:
    axes = ("speedup", "quality")
    at_least = all(other[axis] >= point[axis] for axis in axes)
    return at_least and any(other[axis] > point[axis] for axis in axes)
