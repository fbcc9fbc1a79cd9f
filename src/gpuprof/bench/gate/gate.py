# SPDX-License-Identifier: Apache-2.0
"""The gate against one baseline: whether a candidate is slower by more than the equivalence margin."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpuprof.analyze.text_table import (
    GAP,
    MIN_FLEXIBLE_WIDTH,
    Column,
    cell_width,
    escape_text,
    format_duration,
    text_table,
    wrapped,
)
from gpuprof.bench.results.stored import Configuration, StoredResults, ended_early, launch_medians_s
from gpuprof.errors import BenchmarkError
from gpuprof.stats.quantiles import WIDEST_FACTOR
from gpuprof.stats.ratio_test import MARGIN, Comparison, compare_many, launches_to_settle

Outcome = Literal["passed", "failed", "open"]
_COLUMNS = (
    Column("configuration", right=False),
    Column("baseline"),
    Column("candidate"),
    Column("ratio"),
    Column("its interval"),
    Column("launches"),
    Column("verdict", right=False),
)
MISSING = "not measured"
MOST_LAUNCHES = 1_000  # beyond that nobody waits for them


@dataclass(frozen=True, slots=True)
class GateRow:
    """One configuration: the medians of its launches' medians, and how they compare.

    `comparison` is None where the candidate did not measure it. `variation` is the standard deviation of the
    logarithms of launches on one side, None where no side has two.
    """

    configuration: Configuration
    baseline_s: float
    candidate_s: float | None
    comparison: Comparison | None
    variation: float | None = None

    @property
    def launches_needed(self) -> int | None:
        """How many launches a side would settle it; None where it is settled, or where nobody can tell."""
        compared = self.comparison
        if compared is None or compared.verdict != "inconclusive" or self.variation is None:
            return None
        wanted = launches_to_settle(self.variation, compared.margin, level=compared.level)
        # With so many already, the ratio lies near the margin: half the width takes four times as many.
        has = min(compared.old_launches, compared.new_launches)
        return 4 * has if wanted is not None and wanted <= has else wanted

    @property
    def verdict(self) -> str:
        """What is shown: the comparison's verdict, or that there is none."""
        return MISSING if self.comparison is None else self.comparison.verdict


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate found. `failed` where anything is slower, `open` where anything is not settled."""

    rows: tuple[GateRow, ...]
    margin: float
    notes: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of all rows."""
        return outcome_of(row.verdict for row in self.rows)

    @property
    def slower(self) -> tuple[GateRow, ...]:
        """The rows that let it fail."""
        return tuple(row for row in self.rows if row.verdict == "slower")

    def __str__(self) -> str:
        shared, names = name_parts([row.configuration for row in self.rows])
        table = names_table(_COLUMNS, names, [_cells(row) for row in self.rows])
        reasons = [
            wrapped(f"{row.configuration}: {row.comparison.reason}")
            for row in self.rows
            if row.comparison is not None and row.verdict != "same"
        ]
        notes = [wrapped(f"note: {note}") for note in self.notes]
        head = f"{self.outcome}: {_sentence(self)}"
        lines = [head, "", *shared_line(shared), table, "", *dict.fromkeys(reasons), *_mend(self), *notes]
        return "\n".join(lines).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "outcome": self.outcome,
            "margin": self.margin,
            "rows": [
                {
                    **row.configuration._asdict(),
                    "baseline_s": row.baseline_s,
                    "candidate_s": row.candidate_s,
                    "verdict": row.verdict,
                    "launches_needed": row.launches_needed,
                    "comparison": None if row.comparison is None else row.comparison.to_dict(),
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }


def outcome_of(verdicts: Iterable[str]) -> Outcome:
    """Return the worst of all verdicts."""
    told = set(verdicts)
    if "slower" in told:
        return "failed"
    return "open" if told & {"inconclusive", MISSING} else "passed"


def judge(
    baseline: StoredResults, candidate: StoredResults, *, margin: float = MARGIN, any_machine: bool = False
) -> Gate:
    """Compare the latencies of all configurations that the baseline has, launch by launch.

    Raises BenchmarkError where the two were measured on different machines (unless `any_machine`), in
    different ways, or have nothing in common.
    """
    notes = [*_differences(baseline, candidate, any_machine), *_early(baseline), *_early(candidate)]
    shared = [each for each in baseline.results if each in candidate.results]
    if not shared:
        first = next(iter(baseline.results))
        raise BenchmarkError(
            f"{candidate.path} measured nothing that {baseline.path} did ({first}, ...): "
            "measure the same model, framework, dtype, inputs and batch sizes"
        )
    for each in shared:
        _check_settings(each, baseline, candidate)
    metrics = {
        str(index): (_figures(baseline, each), _figures(candidate, each)) for index, each in enumerate(shared)
    }
    found = compare_many(metrics, margin=margin)
    compared = {each: found[str(index)] for index, each in enumerate(shared)}
    rows = [
        GateRow(
            configuration=each,
            baseline_s=_middle(_figures(baseline, each)),
            candidate_s=_middle(_figures(candidate, each)) if each in compared else None,
            comparison=compared.get(each),
            variation=_variation(_figures(baseline, each), _figures(candidate, each))
            if each in compared
            else None,
        )
        for each in baseline.results
    ]
    new = [str(each) for each in candidate.results if each not in baseline.results]
    if new:
        notes.append(f"only the candidate measured {'; '.join(new)}: not judged")
    return Gate(tuple(rows), margin, tuple(notes))


def _differences(baseline: StoredResults, candidate: StoredResults, any_machine: bool) -> list[str]:
    told = [
        f"{name} {baseline.machine[name]} and {candidate.machine[name]}"
        for name in baseline.machine
        if baseline.machine[name] != candidate.machine[name]
    ]
    if told and not any_machine:
        raise BenchmarkError(
            f"{baseline.path} was measured on another machine or with other threads than {candidate.path} "
            f"({'; '.join(told)}): measure the baseline again as the candidate, or add --any-machine"
        )
    if baseline.data != candidate.data:
        raise BenchmarkError(
            f"{baseline.path} was measured with data {baseline.data} and {candidate.path} with "
            f"{candidate.data}: measure both alike"
        )
    notes = [f"measured on different machines: {'; '.join(told)}"] if told else []
    names = sorted({*baseline.versions, *candidate.versions})
    versions = [
        f"{name} {baseline.versions.get(name, 'none')} and {candidate.versions.get(name, 'none')}"
        for name in names
        if baseline.versions.get(name) != candidate.versions.get(name)
    ]
    return notes + ([f"different versions: {'; '.join(versions)}"] if versions else [])


def _early(side: StoredResults) -> list[str]:
    """Say which launches are not counted."""
    counts = {each: ended_early(result) for each, result in side.results.items()}
    return [
        f"{side.path}: {count} of {len(side.results[each].launches)} launches of {each} ended early and are "
        "not counted"
        for each, count in counts.items()
        if count
    ]


def _check_settings(each: Configuration, baseline: StoredResults, candidate: StoredResults) -> None:
    for name in ("mode", "caches"):
        old, new = (getattr(side.results[each].settings, name) for side in (baseline, candidate))
        if old != new:
            raise BenchmarkError(
                f"{each} was measured with {name} {old} in {baseline.path} and {new} in {candidate.path}: "
                "measure both alike"
            )


def _figures(side: StoredResults, each: Configuration) -> list[float]:
    figures = launch_medians_s(side.results[each])
    if not figures:
        raise BenchmarkError(f"{side.path}: no launch of {each} came to its end: measure it again")
    return figures


def _variation(*sides: list[float]) -> float | None:
    logs = [np.log(side) for side in sides]
    freedom = sum(len(side) - 1 for side in logs)
    return (
        math.sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in logs) / freedom)
        if freedom
        else None
    )


def _middle(figures: list[float]) -> float:
    ordered = sorted(figures)
    half = len(ordered) // 2
    return (ordered[half] + ordered[-half - 1]) / 2


def _sentence(gate: Gate) -> str:
    count = len(gate.rows)
    beyond = f"by more than {gate.margin:.1%}"
    if gate.outcome == "failed":
        return f"{len(gate.slower)} of {count} slower {beyond}"
    if gate.outcome == "passed":
        return f"none of {count} slower {beyond}"
    unsettled = sum(row.verdict in ("inconclusive", MISSING) for row in gate.rows)
    return f"{unsettled} of {count} not settled; none shown to be slower {beyond}"


def _mend(gate: Gate) -> list[str]:
    """Say how many launches would settle what is open: as many as the row that needs most."""
    rows = [(row.launches_needed, row) for row in gate.rows]
    known = [(needed, row) for needed, row in rows if needed is not None]
    if not known:
        return []
    needed, row = max(known, key=lambda each: each[0])
    spread = f"launches of {row.configuration} vary by {row.variation:.1%}, the margin is {gate.margin:.1%}"
    if needed > MOST_LAUNCHES:
        mend = f"to settle it: more than {MOST_LAUNCHES:,} launches a side; take a quieter machine or a wider"
        return [wrapped(f"{mend} --margin ({spread})")]
    return [
        wrapped(f"to settle it: about {needed} launches a side, gpuprof bench --launches {needed} ({spread})")
    ]


def _cells(row: GateRow) -> tuple[str, ...]:
    compared = row.comparison
    if compared is None:
        return (time_text(row.baseline_s), "-", "-", "-", "-", row.verdict)
    ends = interval_text(compared.low, compared.high)
    launches = f"{compared.old_launches} + {compared.new_launches}"
    times = (time_text(row.baseline_s), time_text(row.candidate_s))
    return (*times, f"{compared.ratio:.3f}", ends, launches, row.verdict)


def name_parts(configurations: Sequence[Configuration]) -> tuple[str, list[str]]:
    """Return what all configurations share, in words, and for each of them what is its own."""
    if len(configurations) < 2:
        return "", [str(each) for each in configurations]
    alike = {name for name in Configuration._fields if len({getattr(c, name) for c in configurations}) == 1}
    shared = configurations[0]._replace(**{n: None for n in Configuration._fields if n not in alike})
    own = [each._replace(**dict.fromkeys(alike)) for each in configurations]
    return str(shared).strip(", "), [str(each).strip(", ") for each in own]


def names_table(
    columns: Sequence[Column], names: Sequence[str], rows: Sequence[Sequence[str]], width: int = 100
) -> str:
    """Lay out rows behind names, which are broken into lines where they are too long: none of them is cut."""
    cells = [[escape_text(cell) for cell in row] for row in rows]
    others = [
        max(cell_width(text) for text in (column.title, *column_cells))
        for column, column_cells in zip(columns[1:], zip(*cells, strict=True), strict=True)
    ]
    room = max(width - sum(len(GAP) + other for other in others), MIN_FLEXIBLE_WIDTH)
    blank = [""] * len(others)
    lines: list[Sequence[str]] = []
    for name, row in zip(names, cells, strict=True):
        first, *more = textwrap.wrap(escape_text(name), room, break_on_hyphens=False) or [""]
        lines += [(first, *row), *((f"  {each}", *blank) for each in _indented(more, room))]
    return text_table(columns, lines, width)


def _indented(lines: Sequence[str], room: int) -> list[str]:
    return textwrap.wrap(" ".join(lines), room - 2, break_on_hyphens=False) if lines else []


def shared_line(shared: str) -> list[str]:
    """Return the line above a table that says what all its rows share, and a blank one; or nothing."""
    return [wrapped(f"all: {shared}"), ""] if shared else []


def interval_text(low: float | None, high: float | None) -> str:
    """Return both ends of a ratio's interval; a dash for none, or for one that tells nobody anything."""
    if low is None or high is None or high / max(low, 1e-9) > WIDEST_FACTOR**2:
        return "-"
    return f"{low:.3f} to {high:.3f}"


def time_text(seconds: float | None) -> str:
    """Return seconds with their unit, a dash for none."""
    return "-" if seconds is None else format_duration(seconds * 1e9)
