# SPDX-License-Identifier: Apache-2.0
"""Advice from the figures: the recommended variant, warnings about the others, the next steps.

All of it is derived from the comparison document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpuprof.bench.compare.figures import NOT_MEASURED
from gpuprof.bench.measure.diagnostics import MACHINE_WARNINGS
from gpuprof.stats.ratio_test import launches_needed
from gpuprof.stats.significance import student_quantile

Plain = dict[str, Any]
_SHOWN_CLASSES = 5


def find(document: Plain) -> Findings:
    """Return what follows from a document's variants."""
    variants, method = document["variants"], document["method"]
    baseline = next(each for each in variants if each["name"] == document["baseline"])
    others = [each for each in variants if each is not baseline]
    if baseline["status"] == "failed":
        found = Findings(None, f"Nothing can be compared: {baseline['name']}, the baseline, failed.")
        if baseline["failure"] == NOT_MEASURED:
            found.headline = f"Nothing can be compared: {baseline['name']}, the baseline, was not measured."
        found.advise(_mend(baseline, "name another baseline"), baseline["failure"])
    elif not others:
        found = Findings(None, f"{baseline['name']} alone was measured: there is nothing to hold it against.")
        found.advise("name a second variant", "a comparison needs two")
    else:
        found = choose(baseline, others, document)
    found.lines += [_line(each, baseline) for each in (baseline, *others)]
    if document["traffic"] is not None:
        _advise_traffic(found, variants, document["traffic"])
    _advise_quiet(found, variants, document["environment"].get("threads"))
    _advise_baseline(found, baseline)
    _advise_answers(found, variants)
    _advise_batch_size(found, variants, method)
    _advise_more(found, variants, others, method)
    return found


def _line(variant: Plain, baseline: Plain) -> str:
    name, verdict = variant["name"], variant["verdict"]
    if variant["status"] == "failed":
        how = "not measured" if variant["failure"] == NOT_MEASURED else "failed"
        return f"{name}: {how}: {variant['failure']}"
    partly = (
        f"; not all of it could be measured: {variant['failure']}" if variant["status"] == "partly" else ""
    )
    if variant is baseline:
        return f"{name}: the baseline, {variant['technique']}{partly}"
    if variant["speedup"] is None:
        return f"{name}: nothing that {baseline['name']} measured too{partly}"
    return f"{name}: {verdict}, {times_as_fast(variant, baseline)}; {quality_of(variant).why}{partly}"


# --- what to do next -----------------------------------------------------------------------------


def _advise_traffic(found: Findings, variants: Sequence[Plain], traffic: Plain) -> None:
    """Hand on what the shared requests advise, which know times and failures and no answers."""
    advice = traffic["advice"]
    second = next((each for each in variants if each["name"] == traffic["variants"][1]), None)
    why = None if second is None or second["verdict"] == "baseline" else quality_of(second)
    if advice["action"] == "roll out" and why is not None and why.standing != "fit":
        text = f"do not roll out {traffic['variants'][1]}, whose requests are answered as fast"
        found.advise(text, why.why)
    else:
        found.advise(advice["text"], advice["because"])


def _advise_quiet(found: Findings, variants: Sequence[Plain], threads: int | None) -> None:
    """Say first of all that the machine was busy, where that touches half of the launches and more."""
    batches = [batch for each in variants for batch in each["batches"]]
    disturbed, launches = (sum(batch[key] for batch in batches) for key in ("disturbed_launches", "launches"))
    if not disturbed or 2 * disturbed < launches:
        return
    lines = [flag["line"] for batch in batches for flag in batch["flags"] if flag["name"] in MACHINE_WARNINGS]
    found.headline = f"{found.headline} The machine was busy meanwhile."
    fewer = "" if threads == 1 else ", or with fewer threads (OMP_NUM_THREADS=1)"
    advice = {
        "text": f"measure again on a quieter machine{fewer}",
        "because": f"{disturbed} of {launches} measurements were disturbed, as here: {lines[0]}",
    }
    found.recommendations.insert(0, advice)


def _advise_baseline(found: Findings, baseline: Plain) -> None:
    answers = baseline["accuracy"]
    if answers is not None and (answers["nan"] or answers["infinity"]):
        found.advise(f"mend {baseline['name']}", f"its own outputs hold {not_finite(answers)}")


def _meeting(variants: Sequence[Plain]) -> dict[str, list[int]]:
    """Return who meets the target at which batch sizes, of those whose answers stand."""
    met = {
        each["name"]: [batch["batch_size"] for batch in each["batches"] if batch["target"] == "met"]
        for each in variants
        if quality_of(each).standing == "fit"
    }
    return {name: sizes for name, sizes in met.items() if sizes}


def _advise_answers(found: Findings, variants: Sequence[Plain]) -> None:
    """Name what became worse in the answers of the one to take, though it does not decide."""
    chosen = next((each for each in variants if each["name"] == found.choice), None)
    told = None if chosen is None or chosen["verdict"] == "baseline" else chosen["accuracy"]
    if chosen is None or told is None:
        return
    for metric in told["metrics"]:
        value, before = metric["value"], metric["baseline"]
        sign = 1 if metric["better"] == "higher" else -1
        if value is not None and before is not None and sign * (value - before) < 0:
            found.advise(
                f"judge whether {metric['name']} of {value:.4g} will do for {chosen['name']}",
                f"the baseline has {before:.4g}, and {metric['better']} is better",
            )
    if told["degraded_classes"]:
        names = ", ".join(str(each["class"]) for each in told["degraded_classes"][:_SHOWN_CLASSES])
        found.advise(
            f"look at the classes that {chosen['name']} answers worse",
            f"{names}: they degrade, though the accuracy over all does not",
        )


def _advise_batch_size(found: Findings, variants: Sequence[Plain], method: Plain) -> None:
    chosen = next((each for each in variants if each["name"] == found.choice), None)
    rated = [each for each in (chosen["batches"] if chosen else ()) if each["throughput_per_s"] is not None]
    if method["target"] is not None:
        met = [each for each in rated if each["target"] == "met"]
        if rated and not met:
            others = "".join(
                f"; {name} meets it at batch size {and_list(sizes)}"
                for name, sizes in _meeting(variants).items()
            )
            found.advise(
                f"do not promise {method['target']}",
                f"no batch size of {found.choice} is sure to meet it{others}",
            )
            return
        rated = met
    if len(rated) < 2:
        return
    best = max(rated, key=lambda each: float(each["throughput_per_s"]["value"]))
    rate = float(best["throughput_per_s"]["value"])
    limit = f" and meets {method['target']}" if method["target"] is not None else ""
    found.advise(
        f"run {found.choice} at batch size {best['batch_size']} where throughput counts",
        f"{rate:,.{0 if rate >= 100 else 2}f} samples/s is the best of the sizes measured{limit}",
    )


def _advise_more(found: Findings, variants: Sequence[Plain], others: Sequence[Plain], method: Plain) -> None:
    met = _meeting(variants)
    # Who is slower and alone meets the target is not to be left out.
    alone = {} if found.choice in met else met
    for each in others:
        _advise_calibration(found, each, method)
        if each["status"] == "failed":
            found.advise(_mend(each, "leave it out"), each["failure"])
        elif each["verdict"] == "slower" and each["name"] not in alone:
            found.advise(
                f"leave {each['name']} out", f"it is {speedup_text(each['speedup'])} as fast as the baseline"
            )
        elif each["verdict"] == "inconclusive" and quality_of(each).standing != "unfit":
            _advise_launches(found, each, method)
    if any(
        quality_of(each).standing == "unsure" and (each["accuracy"] or {}).get("labelled") for each in others
    ):
        found.advise(
            "compare the answers on more labelled samples", "the interval of an accuracy is too wide"
        )


def _mend(failed: Plain, otherwise: str) -> str:
    if failed["failure"] == NOT_MEASURED:
        return f"go on with the same command, which measures {failed['name']}"
    return f"mend {failed['name']}, or {otherwise}"


def _advise_calibration(found: Findings, each: Plain, method: Plain) -> None:
    calibration = str(each["details"].get("calibration", ""))
    dataset = method["dataset"]
    if dataset not in (None, "synthetic") and calibration.endswith(f" of {dataset}"):
        found.advise(
            f"calibrate {each['name']} with other samples than it is judged by",
            f"its scales come from {calibration}: others may be answered worse",
        )
    if "synthetic" in calibration and dataset not in (None, "synthetic"):
        found.advise(
            f"calibrate {each['name']} with samples like those that it will meet (RECIPE:64:FOLDER)",
            f"its scales come from {calibration}",
        )


def _advise_launches(found: Findings, each: Plain, method: Plain) -> None:
    comparison = each["comparison"]
    needed = None if comparison is None else launches_to_settle(comparison, method["margin"])
    speedup = speedup_text(each["speedup"])
    if needed is None:
        found.advise(
            f"measure {each['name']} again on a quieter machine",
            f"more than {MOST_LAUNCHES:,} launches would have to settle its speed-up: {speedup}",
        )
        return
    found.advise(
        f"measure {each['name']} in {needed} launches each (--launches {needed})",
        f"after {method['launches']} its speed-up is open: {speedup}",
    )


@dataclass(slots=True)
class Findings:
    """The choice, None where there is none, with headline, lines and recommendations.

    `by_batch_size` names the choice for each batch size where that is not the same for all.
    """

    choice: str | None
    headline: str
    by_batch_size: dict[int, str] | None = None
    lines: list[str] = field(default_factory=list)
    recommendations: list[Plain] = field(default_factory=list)

    def advise(self, text: str, because: str) -> None:
        """Recommend something."""
        self.recommendations.append({"text": text, "because": because})


def choose(baseline: Plain, others: Sequence[Plain], document: Plain) -> Findings:
    """Return the choice with its headline."""
    faster = sorted((each for each in others if each["verdict"] == "faster"), key=_place(baseline))
    fit = [each for each in faster if quality_of(each).standing == "fit"]
    if fit:
        return _ship(fit, baseline, document)
    unsure = [each for each in faster if quality_of(each).standing == "unsure"]
    if unsure:
        return _ask_for_labels(unsure[0], baseline)
    unsettled = [
        each
        for each in others
        if each["verdict"] in ("inconclusive", "mixed") and each["speedup"] is not None
    ]
    wanted = [each for each in unsettled if quality_of(each).standing != "unfit"]
    return _open(baseline, others, wanted) if wanted else _keep(baseline, others, faster, unsettled)


def _ask_for_labels(best: Plain, baseline: Plain) -> Findings:
    why = quality_of(best).why
    found = Findings(
        None,
        f"{best['name']} is {times_as_fast(best, baseline)}; whether its answers are good enough is open: "
        f"{why}.",
    )
    found.advise(f"compare {best['name']} on labelled data before it is taken (--dataset)", why)
    return found


def _keep(
    baseline: Plain, others: Sequence[Plain], faster: Sequence[Plain], unsettled: Sequence[Plain]
) -> Findings:
    """Keep the baseline: what is faster, or may be, answers wrong."""
    if faster:
        why = f"{faster[0]['name']} is faster, but {quality_of(faster[0]).why}"
    elif unsettled:
        first = min(unsettled, key=_rank)
        why = f"whether {first['name']} is faster is open, but {quality_of(first).why}"
    elif all(each["status"] == "failed" for each in others):
        why = "no other variant could be measured"
    else:
        why = "no other variant is faster"
    return Findings(str(baseline["name"]), f"Keep {baseline['name']}: {why}.")


def _ship(fit: Sequence[Plain], baseline: Plain, document: Plain) -> Findings:
    best = fit[0]
    fast = times_as_fast(best, baseline)
    found = Findings(best["name"], f"Take {best['name']}: {fast}, and {quality_of(best).why}.")
    found.advise(f"take {best['name']}", f"{fast}; {quality_of(best).why}")
    for other in fit[1:]:
        if _overlap(best["speedup"], other["speedup"]):
            found.advise(
                f"look at {other['name']} too",
                f"its speed-up of {speedup_text(other['speedup'])} cannot be told from "
                f"{speedup_text(best['speedup'])} of {best['name']}",
            )
    place = _place(baseline)
    for each in document["variants"]:
        if each["verdict"] == "faster" and each not in fit and place(each) < place(best):
            yet = "may be" if _overlap(best["speedup"], each["speedup"]) else "is"
            found.advise(f"do not take {each['name']}, though it {yet} faster yet", quality_of(each).why)
    return found


def _open(baseline: Plain, others: Sequence[Plain], unsettled: Sequence[Plain]) -> Findings:
    by_size = _best_by_size(baseline, others)
    taken = dict.fromkeys(by_size.values())
    if len(taken) > 1:
        parts = [f"{name} at {_listed(by_size, name)}" for name in taken]
        found = Findings(None, f"It depends on the batch size: {', '.join(parts)}.", by_batch_size=by_size)
        for name in taken:
            why = "nothing is faster there" if name == baseline["name"] else "it is the fastest there"
            found.advise(f"take {name} at batch size {_listed(by_size, name)}", why)
        return found
    best = min(unsettled, key=_rank)
    if best["verdict"] == "mixed":
        why = "faster at some batch sizes and slower at others"
    elif best["speedup"]["low"] is None:
        why = "and so few launches, or so noisy ones, give no interval"
    else:
        why = "and the interval reaches across what matters"
    return Findings(None, f"Not settled: {best['name']} is {times_as_fast(best, baseline)}, {why}.")


def _listed(by_size: Mapping[int, str], name: str) -> str:
    return and_list([size for size, each in by_size.items() if each == name])


def and_list(sizes: Sequence[int]) -> str:
    """Return batch sizes as words: 1, 8 and 32."""
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}" if first else last


def _best_by_size(baseline: Plain, others: Sequence[Plain]) -> dict[int, str]:
    """Return for each batch size the fastest of those that are faster and whose answers stand.

    Empty where what is best at some size is open.
    """
    found: dict[int, str] = {}
    fit = [each for each in others if quality_of(each).standing == "fit"]
    for size in (batch["batch_size"] for batch in baseline["batches"]):
        at_size = [
            (batch, each["name"])
            for each in fit
            for batch in each["batches"]
            if batch["batch_size"] == size and batch["comparison"] is not None
        ]
        faster = [(batch["speedup"]["value"], name) for batch, name in at_size if _verdict(batch) == "faster"]
        if not faster and any(_verdict(batch) == "inconclusive" for batch, _ in at_size):
            return {}
        found[size] = max(faster)[1] if faster else str(baseline["name"])
    return found


def _verdict(batch: Plain) -> str:
    return str(batch["comparison"]["verdict"])


def _rank(variant: Plain) -> float:
    speedup = variant["speedup"]
    return math.inf if speedup is None else -float(speedup["value"])


def _place(baseline: Plain) -> Callable[[Plain], tuple[int, float]]:
    """Return what variants are sorted by: means over fewer batch sizes come behind those over more."""
    return lambda each: (len(_sizes(each, baseline)[1]), _rank(each))


def _sizes(variant: Plain, baseline: Plain) -> tuple[list[int], list[int]]:
    """Return the batch sizes that a speed-up is of, and those of the baseline that it leaves out."""
    compared = {each["batch_size"] for each in variant["batches"] if each["comparison"] is not None}
    sizes = [each["batch_size"] for each in baseline["batches"]]
    return [each for each in sizes if each in compared], [each for each in sizes if each not in compared]


def _overlap(first: Plain, second: Plain) -> bool:
    ends = (first["low"], first["high"], second["low"], second["high"])
    return None in ends or (first["low"] <= second["high"] and second["low"] <= first["high"])


def times_as_fast(variant: Plain, baseline: Plain) -> str:
    """Return the speed-up in words, with the batch sizes that it leaves out."""
    compared, left_out = _sizes(variant, baseline)
    text = f"{speedup_text(variant['speedup'])} as fast as {baseline['name']}"
    return (
        f"{text} at batch size {and_list(compared)} (not measured at {and_list(left_out)})"
        if left_out
        else text
    )


NOT_ASKED = "answers were not asked for"
Standing = Literal["fit", "unsure", "unfit"]


@dataclass(frozen=True, slots=True)
class Quality:
    """Whether what a variant computes is good enough, and the sentence that says why."""

    standing: Standing
    why: str


def quality_of(variant: Plain) -> Quality:
    """Judge a variant by its answers: labels first, then what its type allows, then agreement."""
    found = variant["accuracy"]
    if variant["verdict"] == "baseline":
        return Quality("fit", "it is what the others are held against")
    if found is None and variant["accuracy_unavailable"] == NOT_ASKED:
        return Quality("fit", "its answers were not compared, as was asked")
    if found is None:
        return Quality("unsure", f"its answers were not compared: {variant['accuracy_unavailable']}")
    if found["nan"] or found["infinity"]:
        return Quality("unfit", f"its outputs hold {not_finite(found)}")
    if found["verdict"] == "lower":
        return Quality("unfit", f"its accuracy is lower by {points_text(found['change'], sign=-1)}")
    if found["verdict"] in ("same", "higher"):
        verdict = "the same" if found["verdict"] == "same" else "higher"
        return Quality("fit", f"its accuracy is {verdict}: {points_text(found['change'])}")
    if found["verdict"] == "inconclusive":
        return Quality(
            "unsure",
            f"{found['samples']:,} samples do not settle its accuracy: {points_text(found['change'])}",
        )
    if found["tolerance"] == "within":
        return Quality("fit", "its outputs differ by no more than their type explains")
    if found["tolerance"] == "beyond":
        return Quality(
            "unsure", "its outputs differ by more than their type explains, and there are no labels"
        )
    return Quality("unsure", "there are no labels to tell what its differences cost")


def not_finite(found: Plain) -> str:
    """Return what outputs hold besides numbers."""
    words = [
        f"{found[name]:,} {text}"
        for name, text in (("nan", "NaN"), ("infinity", "infinities"))
        if found[name]
    ]
    return " and ".join(words)


MOST_LAUNCHES = 1_000


def launches_to_settle(comparison: Mapping[str, Any], margin: float) -> int | None:
    """Return the launches of each side that would tell with a power of 80%; None for more than 1,000.

    A change within the margin is shown to be none where the interval lies inside the margin, so the distance
    to its nearer edge counts, on either side of it.
    """
    variation = variation_of(comparison)
    made = int(max(comparison["old_launches"], comparison["new_launches"]))
    if variation is None:
        return max(10, made + 1)
    change = abs(math.log(comparison["ratio"]))
    distance = abs(change - math.log1p(margin))
    if distance <= 0 or math.isinf(variation):
        return None
    needed = launches_needed(variation, math.expm1(distance))
    needed = max(needed, made + 1)
    return needed if needed <= MOST_LAUNCHES else None


def variation_of(comparison: Mapping[str, Any]) -> float | None:
    """Return the coefficient of variation between launches that the interval of a comparison tells.

    None where there is no interval, infinite for one that begins at zero, as that of two launches may.
    """
    old, new = comparison["old_launches"], comparison["new_launches"]
    if comparison["low"] is None or comparison["high"] is None or min(old, new) < 2:
        return None
    if comparison["low"] <= 0:
        return math.inf
    half = (math.log(comparison["high"]) - math.log(comparison["low"])) / 2
    error = half / float(student_quantile(comparison["level"], np.array([old + new - 2.0]))[0])
    return error / math.sqrt(1 / old + 1 / new)


_MOST_DIGITS = 6


def speedup_text(found: Plain) -> str:
    """Return a speed-up with its interval, whose ends do not round to 1 where they lie beyond it."""
    low, value, high = found["low"], found["value"], found["high"]
    if low is None or high is None:
        return f"{_ratio(value, 2)}x"
    digits = _digits(1.0, low, high)
    return f"{_ratio(value, digits)}x ({_ratio(low, digits)} to {_ratio(high, digits)})"


def _ratio(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.{digits}g}"


def points_text(change: Plain | None, sign: int = 1) -> str:
    """Return a change of a share in percentage points; with a sign of -1 as a loss, which has none."""
    if change is None:
        return "unavailable"
    if change["low"] is None or change["high"] is None:
        return f"{_points(sign * change['value'], 2, sign)} points"
    low, high = sorted((sign * change["low"], sign * change["high"]))
    digits = _digits(0.0, low * 100, high * 100)
    value = _points(sign * change["value"], digits, sign)
    return f"{value} points ({_points(low, digits, sign)} to {_points(high, digits, sign)})"


def _points(share: float, digits: int, sign: int) -> str:
    # Nothing is -0.00: what rounds to zero has no side.
    rounded = round(share * 100, digits) + 0.0
    return f"{rounded:{'' if sign < 0 else '+'}.{digits}f}"


def _digits(nothing: float, low: float, high: float) -> int:
    """Return how many digits tell the nearer end of an interval from no difference, 2 where it has none."""
    nearer = low if low > nothing else high if high < nothing else None
    digits = 2
    while nearer is not None and round(nearer, digits) == nothing and digits < _MOST_DIGITS:
        digits += 1
    return digits
