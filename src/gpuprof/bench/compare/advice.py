# SPDX-License-Identifier: Apache-2.0
"""Advice from the figures: the recommended variant, and the next steps, each with its reason.

All of it is derived from the comparison document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpuprof.bench.compare.document import (
    AccuracyFigures,
    ComparisonDocument,
    ComparisonMethod,
    ComparisonSummary,
    Recommendation,
    VariantFigures,
)
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.measure.diagnostics import MACHINE_WARNINGS
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.verdicts import (
    AccuracyVerdict,
    Fitness,
    RolloutAction,
    SpeedVerdict,
    TargetVerdict,
    ToleranceVerdict,
    VariantStatus,
)
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import CONFIDENCE, Estimate
from gpuprof.stats.ratio_test import Comparison, launches_needed

MOST_RUNS = 1_000
POWER = 0.8
_SHOWN_CLASSES = 5
_OPEN = (SpeedVerdict.INCONCLUSIVE, SpeedVerdict.MIXED)


@dataclass(slots=True)
class ComparisonAdvice:
    """The recommended variant, None where there is none, with the headline and the next steps."""

    choice: str | None
    headline: Diagnostic
    by_batch_size: dict[int, str] | None = None
    recommendations: list[Recommendation] = field(default_factory=list)

    def add(self, action: Diagnostic, reason: Diagnostic | None) -> None:
        """Recommend something."""
        self.recommendations.append(Recommendation(action, reason))

    @property
    def summary(self) -> ComparisonSummary:
        """The headline and the choice."""
        return ComparisonSummary(self.headline, self.choice, self.by_batch_size)


def advise(document: ComparisonDocument) -> ComparisonAdvice:
    """Return what follows from the variants of a document."""
    baseline = next(each for each in document.variants if each.name == document.baseline)
    others = [each for each in document.variants if each is not baseline]
    # Labels that no output is scores for may be given, too.
    has_labels = any(each.code == "labels_not_used" for each in document.notes)
    found = _without_comparison(baseline, others) or _choose(baseline, others, has_labels=has_labels)
    if baseline.accuracy is not None and not baseline.accuracy.is_finite and found.choice == baseline.name:
        reason = _not_finite(baseline.accuracy)
        found.headline = note("baseline_not_recommended", variant=baseline.name, reason=reason)
        found.choice = None
    _advise_traffic(found, document)
    _advise_quiet(found, document)
    cut = next((each for each in document.notes if each.code == "interrupted"), None)
    if cut is not None:
        found.headline = note("headline_interrupted", headline=found.headline, interrupted=cut)
    if baseline.accuracy is not None and not baseline.accuracy.is_finite:
        found.add(note("fix_variant", variant=baseline.name), _not_finite(baseline.accuracy))
    chosen = document.variant(found.choice)
    if chosen is not None:
        _advise_outputs(found, chosen)
        _advise_batch_size(found, chosen, document)
    _advise_others(found, others, document)
    return found


def _without_comparison(
    baseline: VariantFigures, others: Sequence[VariantFigures]
) -> ComparisonAdvice | None:
    """Return the advice where there is nothing to compare."""
    if baseline.status == VariantStatus.FAILED:
        is_missing = baseline.failure is not None and baseline.failure.code == "not_measured"
        found = ComparisonAdvice(None, note("no_baseline", variant=baseline.name, is_missing=is_missing))
        action = note("continue_measuring" if is_missing else "fix_or_other_baseline", variant=baseline.name)
        found.add(action, baseline.failure)
        return found
    if not others:
        found = ComparisonAdvice(None, note("one_variant", variant=baseline.name))
        found.add(note("name_second_variant"), note("needs_two_variants"))
        return found
    return None


# --- the choice ----------------------------------------------------------------------------------


def _choose(
    baseline: VariantFigures, others: Sequence[VariantFigures], *, has_labels: bool
) -> ComparisonAdvice:
    """Return the recommended variant with its headline; `has_labels`: the data set has labels."""

    def order(each: VariantFigures) -> tuple[int, float]:
        # Means over fewer batch sizes come after those over more.
        return len(_sizes(each, baseline)[1]), _rank(each)

    measured = [each for each in others if each.status != VariantStatus.FAILED]
    if measured and all(each.verdict is None for each in measured):
        return ComparisonAdvice(None, note("none_compared", baseline=baseline.name))
    faster = sorted((each for each in others if each.verdict == SpeedVerdict.FASTER), key=order)
    fit = [each for each in faster if quality_of(each).fitness == Fitness.FIT]
    if fit:
        rivals = [each for each in faster if each not in fit and order(each) < order(fit[0])]
        return _take(fit, rivals, baseline)
    unknown = [each for each in faster if quality_of(each).fitness == Fitness.UNKNOWN]
    if unknown:
        best, reason = unknown[0], quality_of(unknown[0]).reason
        speed = relative_speed(best, baseline)
        found = ComparisonAdvice(None, note("quality_unknown", variant=best.name, speed=speed, reason=reason))
        action = _how_to_judge(best, has_labels=has_labels)
        if action is not None:
            found.add(action, reason)
        return found
    inconclusive = [each for each in others if each.verdict in _OPEN and each.speedup is not None]
    wanted = [each for each in inconclusive if quality_of(each).fitness != Fitness.UNFIT]
    if wanted:
        return _inconclusive(baseline, others, min(wanted, key=_rank))
    # What is faster, or may be, has wrong outputs.
    if faster:
        why = note("faster_but_unfit", variant=faster[0].name, reason=quality_of(faster[0]).reason)
    elif inconclusive:
        first = min(inconclusive, key=_rank)
        why = note("inconclusive_and_unfit", variant=first.name, reason=quality_of(first).reason)
    else:
        is_all = all(each.status == VariantStatus.FAILED for each in others)
        why = note("all_others_failed" if is_all else "none_faster")
    return ComparisonAdvice(baseline.name, note("keep_baseline", variant=baseline.name, reason=why))


def _how_to_judge(variant: VariantFigures, *, has_labels: bool) -> Diagnostic | None:
    """Return what shows whether unknown outputs are good enough; None where other advice has it."""
    accuracy, why_not = variant.accuracy, variant.accuracy_unavailable
    if accuracy is None and why_not is not None and why_not.code in ("no_outputs", "no_baseline_outputs"):
        return note("fix_outputs", variant=variant.name)
    if accuracy is not None and (accuracy.labelled or accuracy.has_baselines_not_finite):
        return None  # more labels, or a baseline that computes numbers
    return note("judge_by_metric" if has_labels else "compare_labelled", variant=variant.name)


def _take(
    fit: Sequence[VariantFigures], rivals: Sequence[VariantFigures], baseline: VariantFigures
) -> ComparisonAdvice:
    """Take the fastest that is fit; the rivals are faster and not fit."""
    best, reason = fit[0], quality_of(fit[0]).reason
    speed = relative_speed(best, baseline)
    found = ComparisonAdvice(best.name, note("take_variant", variant=best.name, speed=speed, reason=reason))
    found.add(note("take", variant=best.name), note("speed_and_quality", speed=speed, quality=reason))
    for other in fit[1:]:
        if _overlap(best.speedup, other.speedup):
            speeds = {"speedup": other.speedup, "best_speedup": best.speedup}
            action = note("consider_too", variant=other.name)
            found.add(action, note("speeds_overlap", best=best.name, **speeds))
    for each in rivals:
        is_certain = not _overlap(best.speedup, each.speedup)
        found.add(note("do_not_take", variant=each.name, is_certain=is_certain), quality_of(each).reason)
    return found


def _inconclusive(
    baseline: VariantFigures, others: Sequence[VariantFigures], best: VariantFigures
) -> ComparisonAdvice:
    by_size = _best_by_size(baseline, others)
    taken = list(dict.fromkeys(by_size.values()))
    if len(taken) > 1:
        sizes = {name: [size for size, each in by_size.items() if each == name] for name in taken}
        found = ComparisonAdvice(None, note("by_batch_size", sizes=sizes), by_size)
        for name in taken:
            reason = note("none_faster_there" if name == baseline.name else "fastest_there")
            found.add(note("take_at_batch_sizes", variant=name, sizes=sizes[name]), reason)
        return found
    if best.verdict == SpeedVerdict.MIXED:
        why = note("mixed_speed")
    else:
        has_interval = best.speedup is not None and best.speedup.low is not None
        why = note("interval_crosses_margin" if has_interval else "no_interval")
    speed = relative_speed(best, baseline)
    return ComparisonAdvice(None, note("inconclusive", variant=best.name, speed=speed, reason=why))


def _best_by_size(baseline: VariantFigures, others: Sequence[VariantFigures]) -> dict[int, str]:
    """Return for each batch size the fastest of the faster variants whose outputs are fit for use.

    Empty where the best one is inconclusive at some size.
    """
    found: dict[int, str] = {}
    fit = [each for each in others if quality_of(each).fitness == Fitness.FIT]
    for size in (batch.batch_size for batch in baseline.batches):
        at_size = [(batch, each.name) for each in fit if (batch := each.batch(size)) and batch.comparison]
        faster = [
            (batch.speedup.value, name)
            for batch, name in at_size
            if batch.verdict == SpeedVerdict.FASTER and batch.speedup is not None
        ]
        if not faster and any(batch.verdict == SpeedVerdict.INCONCLUSIVE for batch, _ in at_size):
            return {}
        found[size] = max(faster)[1] if faster else baseline.name
    return found


def _rank(variant: VariantFigures) -> float:
    return math.inf if variant.speedup is None else -variant.speedup.value


def _sizes(variant: VariantFigures, baseline: VariantFigures) -> tuple[list[int], list[int]]:
    """Return the batch sizes of a speed-up, and those of the baseline that it leaves out."""
    compared = {each.batch_size for each in variant.batches if each.comparison is not None}
    sizes = [each.batch_size for each in baseline.batches]
    return [each for each in sizes if each in compared], [each for each in sizes if each not in compared]


def _overlap(first: Estimate | None, second: Estimate | None) -> bool:
    if first is None or second is None or None in (first.low, first.high, second.low, second.high):
        return True
    return first.low <= second.high and second.low <= first.high  # type: ignore[operator]


def relative_speed(variant: VariantFigures, baseline: VariantFigures) -> Diagnostic:
    """Return the speed-up with the batch sizes that it leaves out."""
    sizes, left_out = _sizes(variant, baseline)
    values = {"baseline": baseline.name, "speedup": variant.speedup}
    return note("relative_speed", **values, sizes=sizes if left_out else [], left_out=left_out)


# --- quality -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quality:
    """Whether what a variant computes is good enough, and why."""

    fitness: Fitness
    reason: Diagnostic


def quality_of(variant: VariantFigures) -> Quality:
    """Judge the outputs of a variant: labels first, then what its type allows."""
    found, why_not = variant.accuracy, variant.accuracy_unavailable
    if variant.verdict == SpeedVerdict.BASELINE:
        return Quality(Fitness.FIT, note("is_baseline"))
    if found is None and why_not is not None and why_not.code == "accuracy_not_requested":
        return Quality(Fitness.FIT, note("outputs_not_compared_as_requested"))
    if found is None:
        return Quality(Fitness.UNKNOWN, note("outputs_not_compared", reason=why_not or note("no_dataset")))
    if found.has_new_not_finite:
        return Quality(Fitness.UNFIT, _not_finite(found))
    if found.has_baselines_not_finite:
        return Quality(
            Fitness.UNKNOWN, note("baseline_not_finite_too", nan=found.nan, infinity=found.infinity)
        )
    if found.verdict == AccuracyVerdict.LOWER:
        return Quality(Fitness.UNFIT, note("accuracy_lower", change=found.change))
    if found.verdict == AccuracyVerdict.INCONCLUSIVE:
        reason = note("accuracy_inconclusive", samples=found.samples, change=found.change)
        return Quality(Fitness.UNKNOWN, reason)
    if found.verdict is not None:
        return Quality(Fitness.FIT, note("accuracy_kept", verdict=found.verdict, change=found.change))
    if found.tolerance == ToleranceVerdict.WITHIN:
        return Quality(Fitness.FIT, note("within_tolerance"))
    is_beyond = found.tolerance == ToleranceVerdict.BEYOND
    return Quality(Fitness.UNKNOWN, note("beyond_tolerance" if is_beyond else "no_labels"))


def _not_finite(found: AccuracyFigures) -> Diagnostic:
    return note("outputs_not_finite", nan=found.nan, infinity=found.infinity)


# --- what to do next -----------------------------------------------------------------------------


def _advise_traffic(found: ComparisonAdvice, document: ComparisonDocument) -> None:
    """Add what the shared requests advise, which know times and failures and no outputs."""
    traffic = document.traffic
    if traffic is None:
        return
    second = document.variant(traffic.variants[1])
    why = None if second is None or second.verdict == SpeedVerdict.BASELINE else quality_of(second)
    is_rollout = traffic.advice.action == RolloutAction.ROLL_OUT
    if is_rollout and why is not None and why.fitness != Fitness.FIT:
        found.add(note("do_not_roll_out", variant=traffic.variants[1]), why.reason)
    else:
        found.add(traffic.advice.text, note("reasons", reasons=traffic.advice.because))


def _advise_quiet(found: ComparisonAdvice, document: ComparisonDocument) -> None:
    """Report first that the machine was busy, where that affects half of the process runs or more."""
    batches = [batch for each in document.variants for batch in each.batches]
    disturbed = sum(batch.disturbed_launches for batch in batches)
    runs = sum(batch.launches for batch in batches)
    of_machine = [each for batch in batches for each in batch.warnings if each.code in MACHINE_WARNINGS]
    if not of_machine or 2 * disturbed < runs:
        return
    found.headline = note("machine_was_busy", headline=found.headline)
    action = note("quieter_machine", has_threads=document.environment.get("threads") != 1)
    reason = note("disturbed_runs", disturbed=disturbed, runs=runs, first=of_machine[0])
    found.recommendations.insert(0, Recommendation(action, reason))


def _advise_outputs(found: ComparisonAdvice, chosen: VariantFigures) -> None:
    """Name what became worse in the outputs of the recommended variant, though it does not decide."""
    accuracy = chosen.accuracy
    if accuracy is None or chosen.verdict == SpeedVerdict.BASELINE:
        return
    for metric in accuracy.metrics:
        if metric.value is None or metric.baseline is None:
            continue
        sign = 1 if metric.better == "higher" else -1
        if sign * (metric.value - metric.baseline) < 0:
            action = note("judge_metric", variant=chosen.name, metric=metric.name, value=metric.value)
            found.add(action, note("metric_of_baseline", baseline=metric.baseline, better=metric.better))
    if accuracy.degraded_classes:
        names = [each.name for each in accuracy.degraded_classes[:_SHOWN_CLASSES]]
        found.add(note("check_classes", variant=chosen.name), note("degraded_classes", classes=names))


def _meeting(document: ComparisonDocument) -> dict[str, list[int]]:
    """Return which variants with fit outputs meet the target at which batch sizes."""
    met = {
        each.name: [batch.batch_size for batch in each.batches if batch.target == TargetVerdict.MET]
        for each in document.variants
        if quality_of(each).fitness == Fitness.FIT
    }
    return {name: sizes for name, sizes in met.items() if sizes}


def _advise_batch_size(found: ComparisonAdvice, chosen: VariantFigures, document: ComparisonDocument) -> None:
    rates = [(batch, batch.throughput_per_s.value) for batch in chosen.batches if batch.throughput_per_s]
    target = document.method.target
    if target is not None:
        met = [pair for pair in rates if pair[0].target == TargetVerdict.MET]
        if rates and not met:
            reason = note("target_not_met", variant=chosen.name, others=_meeting(document))
            found.add(note("do_not_promise", target=target), reason)
            return
        rates = met
    if len(rates) > 1:
        best, rate = max(rates, key=lambda pair: pair[1])
        action = note("best_batch_size", variant=chosen.name, batch_size=best.batch_size)
        found.add(action, note("best_throughput", throughput_per_s=rate, target=target))


def _advise_others(
    found: ComparisonAdvice, others: Sequence[VariantFigures], document: ComparisonDocument
) -> None:
    met = _meeting(document)
    # A slower variant that alone meets the target is not to be left out.
    alone = {} if found.choice in met else met
    for each in others:
        for action, reason in _calibration(each, document.method):
            found.add(action, reason)
        if each.status == VariantStatus.FAILED:
            is_missing = each.failure is not None and each.failure.code == "not_measured"
            found.add(
                note("continue_measuring" if is_missing else "fix_or_leave_out", variant=each.name),
                each.failure,
            )
        elif each.verdict == SpeedVerdict.SLOWER and each.name not in alone:
            found.add(note("leave_out", variant=each.name), note("is_slower", speedup=each.speedup))
        elif each.verdict == SpeedVerdict.INCONCLUSIVE and quality_of(each).fitness != Fitness.UNFIT:
            _advise_runs(found, each, document)
    if any(
        quality_of(each).fitness == Fitness.UNKNOWN and each.accuracy is not None and each.accuracy.labelled
        for each in others
    ):
        found.add(note("more_labelled_samples"), note("wide_accuracy_interval"))


def _calibration(each: VariantFigures, method: ComparisonMethod) -> Iterator[tuple[Diagnostic, Diagnostic]]:
    """Yield what is wrong with the samples that a recipe calibrates with."""
    choice = None if each.recipe is None else parse_recipe(each.recipe)
    if choice is None or "data" not in choice.recipe.options or method.dataset in (None, "synthetic"):
        return
    data, calibration = choice.data or method.data, each.details.get("calibration", "")
    if data == method.dataset:
        reason = note("calibrated_on_dataset", calibration=calibration)
        yield note("calibrate_with_others", variant=each.name), reason
    if data == "synthetic":
        reason = note("calibrated_on_synthetic", calibration=calibration)
        yield note("calibrate_with_real", variant=each.name), reason


def _advise_runs(found: ComparisonAdvice, each: VariantFigures, document: ComparisonDocument) -> None:
    comparison = each.comparison
    needed = None if comparison is None else runs_needed(comparison, document.method.margin)
    if comparison is None or needed is None:
        reason = note("too_many_runs_needed", most=MOST_RUNS, speedup=each.speedup)
        found.add(note("measure_on_quieter_machine", variant=each.name), reason)
        return
    reason = note("inconclusive_after_runs", runs=comparison.new_launches, speedup=each.speedup)
    found.add(note("more_runs", variant=each.name, runs=needed), reason)


def runs_needed(comparison: Comparison, margin: float) -> int | None:
    """Return the process runs of each side that decide with a power of 80%; None for more than 1,000.

    A difference has the level that the verdict uses, corrected for all comparisons. A change within the
    margin is shown to be none where the interval lies inside the margin, so the distance to its nearer edge
    counts, on either side of it.
    """
    variation = variation_of(comparison)
    made = max(comparison.old_launches, comparison.new_launches)
    if variation is None:
        return max(10, made + 1)
    change = abs(math.log(comparison.ratio))
    distance = abs(change - math.log1p(margin))
    if distance <= 0 or math.isinf(variation):
        return None
    # *Same* needs both of two one-sided tests, at 5% whatever else is compared.
    is_within = change < math.log1p(margin)
    level, power = (2 * (1 - CONFIDENCE), (1 + POWER) / 2) if is_within else (comparison.level, POWER)
    needed = max(launches_needed(variation, math.expm1(distance), level=level, power=power), made + 1)
    return needed if needed <= MOST_RUNS else None


def variation_of(comparison: Comparison) -> float | None:
    """Return the coefficient of variation between process runs, worked out from the interval.

    None where there is no interval, infinite for one that begins at zero, as that of two runs may.
    """
    old, new = comparison.old_launches, comparison.new_launches
    if comparison.low is None or comparison.high is None or min(old, new) < 2:
        return None
    if comparison.low <= 0:
        return math.inf
    half = (math.log(comparison.high) - math.log(comparison.low)) / 2
    error = half / float(student_quantile(comparison.level, old + new - 2.0))
    return error / math.sqrt(1 / old + 1 / new)
