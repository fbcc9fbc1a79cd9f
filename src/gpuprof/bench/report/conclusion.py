# SPDX-License-Identifier: Apache-2.0
"""The conclusion of a comparison: facts from its figures, of which the report makes sentences."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.bench.compare.document import ComparisonDocument, VariantFigures
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.verdicts import AccuracyVerdict, SpeedVerdict, ToleranceVerdict, VariantStatus

_GROUPS = {
    "concluded_faster": (SpeedVerdict.FASTER,),
    "concluded_slower": (SpeedVerdict.SLOWER,),
    "concluded_same": (SpeedVerdict.SAME,),
    "concluded_open": (SpeedVerdict.INCONCLUSIVE, SpeedVerdict.MIXED, SpeedVerdict.INSUFFICIENT),
}


def conclusions(document: ComparisonDocument) -> Iterator[Diagnostic]:
    """Yield what the figures support, from what was measured to what is left to do."""
    whole = sum(each.status == VariantStatus.MEASURED for each in document.variants)
    runs = document.method.launches_done
    yield note("concluded_measured", measured=whole, variants=len(document.variants), runs=runs)
    for code, verdicts in _GROUPS.items():
        names = [each.name for each in document.variants if each.verdict in verdicts]
        if names:
            yield note(code, variants=names, margin=document.method.margin)
    yield from _of_outputs(document)
    yield from _of_the_machine(document)
    if document.recommendations:
        yield note("concluded_steps", steps=len(document.recommendations))


def _of_outputs(document: ComparisonDocument) -> Iterator[Diagnostic]:
    judged = [each for each in document.variants if each.accuracy is not None]
    worse = [each.name for each in judged if _is_worse(each)]
    if worse:
        yield note("concluded_worse_outputs", variants=worse)
    elif len(judged) > 1:
        yield note("concluded_no_worse_outputs", variants=len(judged), samples=document.quality.samples)
    missing = [each.name for each in document.measured if each.accuracy is None]
    if missing:
        yield note("concluded_outputs_unknown", variants=missing)


def _is_worse(variant: VariantFigures) -> bool:
    found = variant.accuracy
    return found is not None and (
        found.verdict == AccuracyVerdict.LOWER
        or found.tolerance == ToleranceVerdict.BEYOND
        or found.has_new_not_finite
    )


def _of_the_machine(document: ComparisonDocument) -> Iterator[Diagnostic]:
    batches = [batch for each in document.variants for batch in each.batches]
    runs, disturbed = sum(each.launches for each in batches), sum(each.disturbed_launches for each in batches)
    if disturbed:
        yield note("concluded_disturbed", disturbed=disturbed, runs=runs)
    elif runs:
        yield note("concluded_undisturbed", runs=runs)
