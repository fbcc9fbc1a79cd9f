# SPDX-License-Identifier: Apache-2.0
"""Quality against speed: by which figure answers are ranked, and whom nobody beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Plain = dict[str, Any]


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
