# SPDX-License-Identifier: Apache-2.0
"""What follows from the figures: which variant to take, what speaks against the others, what to do next.

All of it is worked out from the comparison document, so that nobody has to believe more than it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof.bench.campaign.choice import Findings, and_list, choose, times_as_fast
from gpuprof.bench.campaign.figure_text import speedup_text
from gpuprof.bench.campaign.figures import NOT_MEASURED, OF_THE_MACHINE
from gpuprof.bench.campaign.quality import not_finite, quality_of
from gpuprof.bench.campaign.settling import MOST_LAUNCHES, launches_to_settle

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
    lines = [flag["line"] for batch in batches for flag in batch["flags"] if flag["name"] in OF_THE_MACHINE]
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
