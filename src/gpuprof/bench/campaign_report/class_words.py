# SPDX-License-Identifier: Apache-2.0
"""What became worse in the answers of a variant, each told once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuprof.bench.campaign_report.plain_values import Plain, count, each_of, number, real, word

_MORE_CLASSES = re.compile(r"\d+ more classes degrade")


def findings_of(plain: Plain) -> tuple[str, ...]:
    """Return what was found in answers, without the classes that got worse, which `degraded_class` tells."""
    told = [_class_figures(each).get("class") for each in plain.get("degraded_classes") or ()]
    beginnings = tuple(f"class {name} degrades:" for name in told)
    return tuple(
        line
        for line in each_of(plain.get("findings"), word)
        if not (line.startswith(beginnings) or (told and _MORE_CLASSES.fullmatch(line)))
    )


def _class_figures(value: object) -> Plain:
    """Return the figures of a class, which may come as its name alone."""
    return value if isinstance(value, Mapping) else {"class": value}


def degraded_class(value: object) -> str:
    """Return a class that got worse as words, whether it comes as its name or with its figures."""
    plain = _class_figures(value)
    before, after = number(plain.get("baseline")), number(plain.get("accuracy"))
    line = str(plain.get("class"))
    if before is not None and after is not None:
        line += f" from {before:.2%} to {after:.2%}"
    if plain.get("samples") is not None:
        line += f" of {count(plain['samples']):,} samples"
    if plain.get("p_value") is not None:
        line += f" (p={real(plain['p_value']):.2g})"
    taken_for = plain.get("becomes")
    return line if taken_for is None else f"{line}, mostly taken for {taken_for}"
