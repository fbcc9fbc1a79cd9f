# SPDX-License-Identifier: Apache-2.0
"""What follows from the figures: which variant to take, what speaks against the others, what to do next.

All of it is worked out from the comparison document, so that nobody has to believe more than it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuprof.bench.comparison import launches_needed

Plain = dict[str, Any]
Standing = Literal["fit", "unsure", "unfit"]
_MOST_LAUNCHES = 1_000


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
    if found is None:
        return Quality("unsure", f"its answers were not compared: {variant['accuracy_unavailable']}")
    if found["nan"] or found["infinity"]:
        return Quality("unfit", f"its outputs hold {_not_finite(found)}")
    if found["verdict"] == "lower":
        return Quality("unfit", f"its accuracy is lower by {_points(found['change'], sign=-1)}")
    if found["verdict"] in ("same", "higher"):
        verdict = "the same" if found["verdict"] == "same" else "higher"
        return Quality("fit", f"its accuracy is {verdict}: {_points(found['change'])}")
    if found["verdict"] == "inconclusive":
        return Quality(
            "unsure", f"{found['samples']:,} samples do not settle its accuracy: {_points(found['change'])}"
        )
    if found["tolerance"] == "within":
        return Quality("fit", "its outputs differ by no more than their type explains")
    if found["tolerance"] == "beyond":
        return Quality(
            "unsure", "its outputs differ by more than their type explains, and there are no labels"
        )
    return Quality("unsure", "there are no labels to tell what its differences cost")


def _not_finite(found: Plain) -> str:
    words = [
        f"{found[name]:,} {text}"
        for name, text in (("nan", "NaN"), ("infinity", "infinities"))
        if found[name]
    ]
    return " and ".join(words)


def _points(change: Plain | None, sign: int = 1) -> str:
    if change is None:
        return "unavailable"
    value = f"{sign * change['value'] * 100:{'' if sign < 0 else '+'}.2f} points"
    if change["low"] is None or change["high"] is None:
        return value
    low, high = sorted((sign * change["low"] * 100, sign * change["high"] * 100))
    form = ".2f" if sign < 0 else "+.2f"
    return f"{value} ({low:{form}} to {high:{form}})"


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


def find(document: Plain) -> Findings:
    """Return what follows from a document's variants."""
    variants, method = document["variants"], document["method"]
    baseline = next(each for each in variants if each["name"] == document["baseline"])
    others = [each for each in variants if each is not baseline]
    if baseline["status"] == "failed":
        found = Findings(None, f"Nothing can be compared: {baseline['name']}, the baseline, failed.")
        found.advise(f"mend {baseline['name']}, or name another baseline", str(baseline["failure"]))
    elif not others:
        found = Findings(None, f"{baseline['name']} alone was measured: there is nothing to hold it against.")
        found.advise("name a second variant", "a comparison needs two")
    else:
        found = _choice(baseline, others, document)
    found.lines += [_line(each, baseline) for each in (baseline, *others)]
    if document["traffic"] is not None:
        advice = document["traffic"]["advice"]
        found.advise(advice["text"], advice["because"])
    _advise_batch_size(found, variants, method)
    _advise_more(found, others, method)
    return found


def _choice(baseline: Plain, others: Sequence[Plain], document: Plain) -> Findings:
    faster = sorted((each for each in others if each["verdict"] == "faster"), key=_rank)
    fit = [each for each in faster if quality_of(each).standing == "fit"]
    name = str(baseline["name"])
    if fit:
        return _ship(fit, baseline, document)
    unsure = [each for each in faster if quality_of(each).standing == "unsure"]
    if unsure:
        best = unsure[0]
        found = Findings(
            None,
            f"{best['name']} is {_times_as_fast(best, name)}; whether its answers are good enough is open: "
            f"{quality_of(best).why}.",
        )
        found.advise(
            f"compare {best['name']} on labelled data before it is taken (--dataset)", quality_of(best).why
        )
        return found
    if faster:
        best = faster[0]
        found = Findings(name, f"Keep {name}: {best['name']} is faster, but {quality_of(best).why}.")
    elif any(each["verdict"] in ("inconclusive", "mixed") for each in others):
        found = _open(baseline, others)
    elif all(each["status"] == "failed" for each in others):
        found = Findings(name, f"Keep {name}: no other variant could be measured.")
    else:
        found = Findings(name, f"Keep {name}: no other variant is faster.")
    return found


def _ship(fit: Sequence[Plain], baseline: Plain, document: Plain) -> Findings:
    best, name = fit[0], str(baseline["name"])
    found = Findings(
        best["name"], f"Take {best['name']}: {_times_as_fast(best, name)}, and {quality_of(best).why}."
    )
    found.advise(f"take {best['name']}", f"{_times_as_fast(best, name)}; {quality_of(best).why}")
    for other in fit[1:]:
        if _overlap(best["speedup"], other["speedup"]):
            found.advise(
                f"look at {other['name']} too",
                f"its speed-up of {_speedup(other)} cannot be told from {_speedup(best)} of {best['name']}",
            )
    beaten = [each for each in _unfit(document) if _rank(each) < _rank(best)]
    for each in beaten:
        found.advise(f"do not take {each['name']}, though it is faster yet", quality_of(each).why)
    return found


def _unfit(document: Plain) -> list[Plain]:
    return [
        each
        for each in document["variants"]
        if each["verdict"] == "faster" and quality_of(each).standing != "fit"
    ]


def _open(baseline: Plain, others: Sequence[Plain]) -> Findings:
    by_size = _best_by_size(baseline, others)
    taken = dict.fromkeys(by_size.values())
    if len(taken) > 1:
        parts = [f"{name} at {_listed(by_size, name)}" for name in taken]
        found = Findings(None, f"It depends on the batch size: {', '.join(parts)}.", by_batch_size=by_size)
        for name in taken:
            why = "nothing is faster there" if name == baseline["name"] else "it is the fastest there"
            found.advise(f"take {name} at batch size {_listed(by_size, name)}", why)
        return found
    best = min((each for each in others if each["speedup"] is not None), key=_rank)
    name = str(baseline["name"])
    if best["speedup"]["low"] is None:
        why = "and so few launches, or so noisy ones, give no interval"
    else:
        why = "and the interval reaches across what matters"
    return Findings(None, f"Not settled: {best['name']} is {_times_as_fast(best, name)}, {why}.")


def _listed(by_size: Mapping[int, str], name: str) -> str:
    *first, last = [str(size) for size, each in by_size.items() if each == name]
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


def _overlap(first: Plain, second: Plain) -> bool:
    ends = (first["low"], first["high"], second["low"], second["high"])
    return None in ends or (first["low"] <= second["high"] and second["low"] <= first["high"])


def _speedup(variant: Plain) -> str:
    found = variant["speedup"]
    value = f"{_ratio(found['value'])}x"
    if found["low"] is None or found["high"] is None:
        return value
    return f"{value} ({_ratio(found['low'])} to {_ratio(found['high'])})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _times_as_fast(variant: Plain, baseline: str) -> str:
    return f"{_speedup(variant)} as fast as {baseline}"


def _line(variant: Plain, baseline: Plain) -> str:
    name, verdict = variant["name"], variant["verdict"]
    if variant["status"] == "failed":
        return f"{name}: failed: {variant['failure']}"
    partly = (
        f"; not all of it could be measured: {variant['failure']}" if variant["status"] == "partly" else ""
    )
    if variant is baseline:
        return f"{name}: the baseline, {variant['technique']}{partly}"
    if variant["speedup"] is None:
        return f"{name}: nothing that {baseline['name']} measured too{partly}"
    return (
        f"{name}: {verdict}, {_times_as_fast(variant, baseline['name'])}; {quality_of(variant).why}{partly}"
    )


# --- what to do next -----------------------------------------------------------------------------


def _advise_batch_size(found: Findings, variants: Sequence[Plain], method: Plain) -> None:
    chosen = next((each for each in variants if each["name"] == found.choice), None)
    rated = [each for each in (chosen["batches"] if chosen else ()) if each["throughput_per_s"] is not None]
    if method["target"] is not None:
        met = [each for each in rated if each["target"] == "met"]
        if rated and not met:
            found.advise(
                f"do not promise {method['target']}", f"no batch size of {found.choice} is sure to meet it"
            )
            return
        rated = met
    if len(rated) < 2:
        return
    best = max(rated, key=lambda each: float(each["throughput_per_s"]["value"]))
    limit = f" and meets {method['target']}" if method["target"] is not None else ""
    found.advise(
        f"run {found.choice} at batch size {best['batch_size']} where throughput counts",
        f"{best['throughput_per_s']['value']:,.4g} samples/s is the best of the sizes measured{limit}",
    )


def _advise_more(found: Findings, others: Sequence[Plain], method: Plain) -> None:
    for each in others:
        _advise_calibration(found, each, method)
        if each["status"] == "failed":
            found.advise(f"mend {each['name']}, or leave it out", str(each["failure"]))
        elif each["verdict"] == "slower":
            found.advise(f"leave {each['name']} out", f"it is {_speedup(each)} as fast as the baseline")
        elif each["verdict"] == "inconclusive" and quality_of(each).standing != "unfit":
            _advise_launches(found, each, method)
    if any(
        quality_of(each).standing == "unsure" and (each["accuracy"] or {}).get("labelled") for each in others
    ):
        found.advise(
            "compare the answers on more labelled samples", "the interval of an accuracy is too wide"
        )


def _advise_calibration(found: Findings, each: Plain, method: Plain) -> None:
    calibration = str(each["details"].get("calibration", ""))
    if "synthetic" in calibration and method["dataset"] not in (None, "synthetic"):
        found.advise(
            f"calibrate {each['name']} with samples like those that it will meet (RECIPE:64:FOLDER)",
            f"its scales come from {calibration}",
        )


def _advise_launches(found: Findings, each: Plain, method: Plain) -> None:
    comparison = each["comparison"]
    needed = None if comparison is None else launches_to_settle(comparison, method["margin"])
    if needed is None:
        found.advise(
            f"measure {each['name']} again on a quieter machine",
            f"more than {_MOST_LAUNCHES:,} launches would have to settle its speed-up: {_speedup(each)}",
        )
        return
    found.advise(
        f"measure {each['name']} in {needed} launches each (--launches {needed})",
        f"{method['launches']} leave its speed-up open: {_speedup(each)}",
    )


def launches_to_settle(comparison: Plain, margin: float) -> int | None:
    """Return the launches of each side that would tell with a power of 80%; None for more than 1,000.

    A change within the margin is shown to be none where the interval lies inside the margin, so the distance
    to its nearer edge counts, on either side of it.
    """
    variation = variation_of(comparison)
    if variation is None:
        return 10
    change = abs(math.log(comparison["ratio"]))
    distance = abs(change - math.log1p(margin))
    if distance <= 0:
        return None
    needed = launches_needed(variation, math.expm1(distance))
    needed = max(needed, max(comparison["old_launches"], comparison["new_launches"]) + 1)
    return needed if needed <= _MOST_LAUNCHES else None


def variation_of(comparison: Plain) -> float | None:
    """Return the coefficient of variation between launches that the interval of a comparison tells."""
    from gpuprof.analyze.statistics import student_quantile

    old, new = comparison["old_launches"], comparison["new_launches"]
    if comparison["low"] is None or comparison["high"] is None or min(old, new) < 2:
        return None
    import numpy as np

    half = math.log(comparison["high"] / comparison["low"]) / 2
    error = half / float(student_quantile(comparison["level"], np.array([old + new - 2.0]))[0])
    return error / math.sqrt(1 / old + 1 / new)
