# SPDX-License-Identifier: Apache-2.0
"""Which variant to take: the fastest one that is faster and whose answers stand, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.campaign.figure_text import speedup_text
from gpuprof.bench.campaign.quality import quality_of

Plain = dict[str, Any]


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
