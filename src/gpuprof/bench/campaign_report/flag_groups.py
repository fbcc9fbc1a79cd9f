# SPDX-License-Identifier: Apache-2.0
"""What speaks against figures: each flag with its evidence, and those of one name as one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.bench.campaign_report.reading import Report

# What of a line's figures says how bad it is, beside others of that name.
_WEIGHTS: dict[str, Callable[[list[float]], float]] = {
    "spread": lambda found: found[0],
    "drift": lambda found: found[0],
    "interrupted": lambda found: found[0] / found[1],
    "other load": lambda found: found[0],
    "stolen time": lambda found: found[0],
    "enqueue": lambda found: found[0],
    "timer": lambda found: found[-1],
    "warm-up": lambda found: found[-1],
}
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_LAUNCHES = re.compile(r"in \d+ of \d+ launches, first: ")


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    where: str
    line: str

    @property
    def weight(self) -> float:
        """How much it speaks against the figures, beside others of its name."""
        if self.name == "drift" and "%" not in self.line:
            return math.inf  # told as two times because no percentage would do
        said = _LAUNCHES.sub("", self.line, count=1)
        found = [float(each.replace(",", "")) for each in _FIGURE.findall(said)]
        try:
            return _WEIGHTS[self.name](found)
        except (IndexError, ZeroDivisionError):
            return 0.0  # words of another version: any of them will do


def _flags(report: Report) -> list[_Flag]:
    return [
        _Flag(name, f"{variant.name}, batch size {batch.batch_size}", line)
        for variant in report.variants
        for batch in variant.batches
        for name, line in batch.flags
    ]


def flag_lines(report: Report) -> list[str]:
    """Return each flag with its evidence."""
    return [f"{each.name}: {each.where}: {each.line}" for each in _flags(report)]


def flag_groups(report: Report) -> list[str]:
    """Return a line for each name of a flag: in how many measurements, and the worst of them."""
    measurements = sum(len(variant.batches) for variant in report.variants)
    groups: dict[str, list[_Flag]] = {}
    for each in _flags(report):
        groups.setdefault(each.name, []).append(each)
    return [_group_line(group, measurements) for group in groups.values()]


def _group_line(group: list[_Flag], measurements: int) -> str:
    first, places = group[0], len({each.where for each in group})
    begin = f"{first.name}: in {places:,} of {measurements:,} measurements"
    if len(group) == 1:
        return f"{begin}: {first.where}: {first.line}"
    if all(each.line == first.line for each in group):
        return f"{begin}: {first.line}"
    if first.name not in _WEIGHTS:
        return f"{begin}, the first: {first.where}: {first.line}"
    worst = max(group, key=lambda each: each.weight)
    return f"{begin}, worst: {worst.where}: {worst.line}"
