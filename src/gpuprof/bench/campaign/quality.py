# SPDX-License-Identifier: Apache-2.0
"""Whether what a variant computes is good enough to take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpuprof.bench.campaign.figure_text import points_text

Plain = dict[str, Any]
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
