# SPDX-License-Identifier: Apache-2.0
"""What follows from the figures: which variant to take, what speaks against the others, what to do next.

All of it is worked out from the comparison document, so that nobody has to believe more than it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.campaign.figure_text import speedup_text
from gpuprof.bench.campaign.figures import NOT_MEASURED
from gpuprof.bench.campaign.quality import not_finite, quality_of
from gpuprof.bench.campaign.settling import MOST_LAUNCHES, launches_to_settle

Plain = dict[str, Any]
_SHOWN_CLASSES = 5


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
        if baseline["failure"] == NOT_MEASURED:
            found.headline = f"Nothing can be compared: {baseline['name']}, the baseline, was not measured."
        found.advise(_mend(baseline, "name another baseline"), baseline["failure"])
    elif not others:
        found = Findings(None, f"{baseline['name']} alone was measured: there is nothing to hold it against.")
        found.advise("name a second variant", "a comparison needs two")
    else:
        found = _choice(baseline, others, document)
    found.lines += [_line(each, baseline) for each in (baseline, *others)]
    if document["traffic"] is not None:
        _advise_traffic(found, variants, document["traffic"])
    _advise_baseline(found, baseline)
    _advise_answers(found, variants)
    _advise_batch_size(found, variants, method)
    _advise_more(found, variants, others, method)
    return found


def _choice(baseline: Plain, others: Sequence[Plain], document: Plain) -> Findings:
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
        f"{best['name']} is {_times_as_fast(best, baseline)}; whether its answers are good enough is open: "
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
    fast = _times_as_fast(best, baseline)
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
    return Findings(None, f"Not settled: {best['name']} is {_times_as_fast(best, baseline)}, {why}.")


def _listed(by_size: Mapping[int, str], name: str) -> str:
    return _and([size for size, each in by_size.items() if each == name])


def _and(sizes: Sequence[int]) -> str:
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


def _times_as_fast(variant: Plain, baseline: Plain) -> str:
    compared, left_out = _sizes(variant, baseline)
    text = f"{speedup_text(variant['speedup'])} as fast as {baseline['name']}"
    return f"{text} at batch size {_and(compared)} (not measured at {_and(left_out)})" if left_out else text


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
    return f"{name}: {verdict}, {_times_as_fast(variant, baseline)}; {quality_of(variant).why}{partly}"


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
                f"; {name} meets it at batch size {_and(sizes)}" for name, sizes in _meeting(variants).items()
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
    limit = f" and meets {method['target']}" if method["target"] is not None else ""
    found.advise(
        f"run {found.choice} at batch size {best['batch_size']} where throughput counts",
        f"{best['throughput_per_s']['value']:,.4g} samples/s is the best of the sizes measured{limit}",
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
        f"{method['launches']} leave its speed-up open: {speedup}",
    )
