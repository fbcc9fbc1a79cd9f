# SPDX-License-Identifier: Apache-2.0
"""From the measured processes of one or several calls to figures: medians, and ratios over rounds.

The ratio of a profiler is that of its processes to the unprofiled ones of the same rounds. How much it adds
within its own process is another figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu._statistics import describe, paired_ratio

BASE = "unprofiled"
Round = tuple[int, int]  # of which call, and its number there
Lines = Mapping[Round, Mapping[str, Any]]


def rows(processes: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each workload and profiler; `processes` are calls' numbers and items' facts."""
    found: dict[str, dict[str, dict[Round, Any]]] = {}
    steps: dict[str, int] = {}
    for call, facts in processes:
        if "round" not in facts:
            continue
        for line in facts["lines"]:
            lines = found.setdefault(line["workload"], {}).setdefault(facts["profiler"], {})
            lines[call, facts["round"]] = line
            steps[line["workload"]] = facts["steps"][line["workload"]]
    return {name: _row(steps[name], profilers) for name, profilers in found.items()}


def _row(steps: int, profilers: Mapping[str, Lines]) -> dict[str, Any]:
    base = _good(profilers.get(BASE, {}))
    entries = {profiler: _entry(lines, base) for profiler, lines in profilers.items()}
    return {"steps_in_a_chunk": steps, "profilers": entries}


def _good(lines: Lines) -> Lines:
    return {number: line for number, line in lines.items() if "error" not in line}


def _entry(lines: Lines, base: Lines) -> dict[str, Any]:
    """Return one profiler's figures of one workload over all rounds."""
    good = _good(lines)
    entry: dict[str, Any] = {"errors": [line["error"] for line in lines.values() if "error" in line]}
    if not good:
        return entry
    before, during, after = (
        [statistics.median(line[phase]) for line in good.values()]
        for phase in ("before_s", "during_s", "after_s")
    )
    entry["step_s"] = describe(during)
    entry["values_s"] = during
    entry["chunk_relative_iqr"] = statistics.median(_relative_iqr(line["during_s"]) for line in good.values())
    if both := sorted(good.keys() & base.keys()):
        entry["to_unprofiled"] = paired_ratio(
            [statistics.median(good[number]["during_s"]) for number in both],
            [statistics.median(base[number]["during_s"]) for number in both],
        )
    entry["within_process"] = paired_ratio(during, before)
    entry["after_stop"] = paired_ratio(after, before)
    entry["start_s"] = describe([line["start_s"] for line in good.values()])
    entry["stop_s"] = describe([line["stop_s"] for line in good.values()])
    entry["recorded"] = next(iter(good.values()))["recorded"]
    return entry


def _relative_iqr(values: list[float]) -> float:
    found = describe(values)
    return float((found["third_quartile"] - found["first_quartile"]) / found["median"])
