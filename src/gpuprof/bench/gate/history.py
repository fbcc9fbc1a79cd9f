# SPDX-License-Identifier: Apache-2.0
"""A gate against a history: the candidate is held against what the figures are since they last changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpuprof.analyze.text_table import Column, wrapped
from gpuprof.bench.gate.gate import (
    MISSING,
    Outcome,
    interval_text,
    name_parts,
    names_table,
    outcome_of,
    shared_line,
    time_text,
)
from gpuprof.bench.results.stored import Configuration, DatedResults, History
from gpuprof.errors import BenchmarkError
from gpuprof.stats.change_points import LEVEL, find_change_points
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.ratio_test import (
    MARGIN,
    Judgement,
    Levels,
    LogRatio,
    files_to_settle,
    judge_ratios,
    margin_to_settle,
)

# Fewer files in no order at all look like a change more often than the level allows.
FEWEST_FILES = 8
_MOST_CANDIDATES = 30  # beyond that nobody measures them
_COLUMNS = (
    Column("configuration", right=False),
    Column("files"),
    Column("since", right=False),
    Column("baseline"),
    Column("candidate"),
    Column("ratio"),
    Column("its interval"),
    Column("verdict", right=False),
)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Between which two files the level changed, by which factor, and what else changed with it."""

    before: DatedResults
    after: DatedResults
    ratio: float
    low: float
    high: float

    @property
    def versions(self) -> list[str]:
        """The libraries whose versions changed too."""
        old, new = self.before.versions, self.after.versions
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return [f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}" for name in names]

    def __str__(self) -> str:
        versions = f"; {', '.join(self.versions)}" if self.versions else ""
        factor = f"{self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"
        return f"{factor} between {self.before} and {self.after}{versions}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "versions": self.versions,
        }


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One configuration: its level since the last change, and the candidate.

    `baseline` are the files of that level. `variation` is the standard deviation of the logarithms between
    files, None where too few files tell it. `judgement` is None where the candidate did not measure it.
    """

    configuration: Configuration
    files: int
    baseline: tuple[DatedResults, ...]
    baseline_s: float
    candidate_s: float | None
    variation: float | None
    judgement: Judgement | None
    changes: tuple[ChangePoint, ...]

    @property
    def verdict(self) -> str:
        """What is shown: the verdict, or that there is none."""
        return MISSING if self.judgement is None else self.judgement.verdict

    @property
    def ratio(self) -> float | None:
        """Candidate over level."""
        return None if self.candidate_s is None else self.candidate_s / self.baseline_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            **self.configuration._asdict(),
            "files": self.files,
            "baseline": [each.to_dict() for each in self.baseline],
            "baseline_s": self.baseline_s,
            "candidate_s": self.candidate_s,
            "ratio": self.ratio,
            "variation_between_files": self.variation,
            "verdict": self.verdict,
            "judgement": None if self.judgement is None else asdict(self.judgement),
            "change_points": [each.to_dict() for each in self.changes],
        }


@dataclass(frozen=True, slots=True)
class HistoryGate:
    """What a gate against a history found."""

    rows: tuple[HistoryRow, ...]
    margin: float
    candidates: int
    notes: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of all rows."""
        return outcome_of(row.verdict for row in self.rows)

    @property
    def slower(self) -> tuple[HistoryRow, ...]:
        """The rows that let it fail."""
        return tuple(row for row in self.rows if row.verdict == "slower")

    def __str__(self) -> str:
        shared, names = name_parts([row.configuration for row in self.rows])
        table = names_table(_COLUMNS, names, [_cells(row) for row in self.rows])
        reasons = [
            wrapped(f"{row.configuration}: {row.judgement.reason}")
            for row in self.rows
            if row.judgement is not None and row.verdict != "same"
        ]
        head = f"{self.outcome}: {_sentence(self)}"
        lines = [head, "", *shared_line(shared), table, "", *_change_lines(self.rows), *reasons]
        return "\n".join([*lines, *(wrapped(f"note: {note}") for note in self.notes)]).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "outcome": self.outcome,
            "margin": self.margin,
            "change_point_level": LEVEL,
            "candidates": self.candidates,
            "rows": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
        }


def judge_history(history: History, *, margin: float = MARGIN, seed: int = 0) -> HistoryGate:
    """Find where each configuration's figures changed, and judge the candidates by the files since then.

    Raises BenchmarkError where history and candidates have nothing in common.
    """
    measured = list(dict.fromkeys(each for file in history.candidates for each in file.launches_s))
    known = {each for file in history.files for each in file.launches_s}
    shared = [each for each in measured if each in known]
    if not shared:
        raise BenchmarkError(
            f"{history.candidates[0].path} measured nothing that the history did ({measured[0]}, ...): "
            "measure the same model, framework, dtype, inputs and batch sizes"
        )
    series = [_Series(history, each, seed) for each in [*shared, *_lacking(history, measured)]]
    names = {str(number): each for number, each in enumerate(series) if each.new}
    ratios = {name: each.ratio for name, each in names.items()}
    judged = judge_ratios(ratios, dict.fromkeys(names, margin))
    rows = [each.row(judged.get(str(number)), len(history.candidates)) for number, each in enumerate(series)]
    return HistoryGate(
        tuple(rows), margin, len(history.candidates), (*history.notes, *_notes(rows, measured))
    )


def _lacking(history: History, measured: Sequence[Configuration]) -> list[Configuration]:
    """Return what the newest file of a measured model has and the candidates lack."""

    def kind(each: Configuration) -> tuple[str | None, ...]:
        return each.framework, each.model, each.device_type, each.dtype

    lacking: dict[Configuration, None] = {}
    for wanted in {kind(each) for each in measured}:
        files = [[each for each in file.launches_s if kind(each) == wanted] for file in history.files]
        newest: list[Configuration] = next((own for own in reversed(files) if own), [])
        lacking |= dict.fromkeys(each for each in newest if each not in measured)
    return sorted(lacking, key=str)


class _Series:
    """The files of one configuration, and the candidates that measured it."""

    def __init__(self, history: History, configuration: Configuration, seed: int) -> None:
        self.configuration = configuration
        self.files = [each for each in history.files if configuration in each.launches_s]
        self.new = [each for each in history.candidates if configuration in each.launches_s]
        logs = [np.log(each.launches_s[configuration]) for each in self.files]
        changes = find_change_points([float(each.mean()) for each in logs], seed=seed)
        self.levels = Levels(tuple(logs), tuple(changes))

    @property
    def ratio(self) -> LogRatio | None:
        """The candidates over the level; None where nobody knows how files differ."""
        return self.levels.against([np.log(each.launches_s[self.configuration]) for each in self.new])

    def row(self, judged: Judgement | None, candidates: int) -> HistoryRow:
        """Return what is found."""
        begin, end = self.levels.last
        spread = self.levels.between_files()
        variation = None if spread is None else math.sqrt(spread.value)
        new = [float(np.log(each.launches_s[self.configuration]).mean()) for each in self.new]
        return HistoryRow(
            configuration=self.configuration,
            files=len(self.files),
            baseline=tuple(self.files[begin:end]),
            baseline_s=math.exp(float(self.levels.figures[begin:end].mean())),
            candidate_s=math.exp(sum(new) / len(new)) if new else None,
            variation=variation,
            judgement=None if judged is None else _told(judged, variation, end - begin, candidates),
            changes=tuple(self._change(number) for number in range(len(self.levels.changes))),
        )

    def _change(self, number: int) -> ChangePoint:
        place = self.levels.changes[number]
        ratio = self.levels.change(number)
        assert ratio is not None  # a segment has two files at the least
        low, high = ratio.interval(1 - CONFIDENCE)
        return ChangePoint(self.files[place - 1], self.files[place], math.exp(ratio.value), low, high)


def _told(judged: Judgement, variation: float | None, files: int, candidates: int) -> Judgement:
    """Return a judgement whose reason speaks of files, which are the unit here."""
    if judged.verdict != "inconclusive":
        return judged
    if variation is None:
        return replace(judged, reason="one file tells nothing of how files differ: a history needs some")
    spread = f"files vary by {variation:.1%}, the level has {files}"
    reach = f"the interval reaches across the practical margin of {judged.margin:.1%} ({spread})"
    return replace(judged, reason=f"{reach}: {_mend(judged, variation, files, candidates)}")


def _mend(judged: Judgement, variation: float, files: int, candidates: int) -> str:
    needed = files_to_settle(variation, files, judged.margin, level=judged.level) if judged.margin else None
    if needed is not None and candidates < needed <= _MOST_CANDIDATES:
        return f"about {needed} files of the candidate, measured apart, settle it; give --candidate for each"
    if needed is not None and needed <= candidates:
        return "the ratio lies near the margin; measure the candidate once more, or take another --margin"
    enough = margin_to_settle(variation, files, level=judged.level)
    return f"no bearable number of candidates settles it; one does with --margin {math.ceil(enough * 100)}%"


def _notes(rows: Sequence[HistoryRow], measured: Sequence[Configuration]) -> list[str]:
    notes = []
    few = [row for row in rows if row.files < FEWEST_FILES]
    if few:
        notes.append(
            f"{len(few)} of {len(rows)} configurations have fewer than {FEWEST_FILES} files, in which no "
            "change of level can be shown: all of them are the baseline"
        )
    known = {row.configuration for row in rows}
    new = [str(each) for each in measured if each not in known]
    return notes + ([f"only the candidate measured {'; '.join(new)}: not judged"] if new else [])


def _change_lines(rows: Sequence[HistoryRow]) -> list[str]:
    changed = [row for row in rows if row.changes]
    if not changed:
        return ["no change of level in the history", ""]
    lines = [f"changes of level (each history without any shows one in {LEVEL:.0%} of cases):"]
    for row in changed:
        lines.append(wrapped(f"  {row.configuration}:", indent="  "))
        lines += [wrapped(f"    {each}", indent="      ") for each in row.changes]
    return [*lines, ""]


def _sentence(gate: HistoryGate) -> str:
    count = len(gate.rows)
    beyond = f"by more than {gate.margin:.1%} than the level of the history"
    if gate.outcome == "failed":
        return f"{len(gate.slower)} of {count} slower {beyond}"
    if gate.outcome == "passed":
        return f"none of {count} slower {beyond}"
    unsettled = sum(row.verdict in ("inconclusive", MISSING) for row in gate.rows)
    return f"{unsettled} of {count} not settled; none shown to be slower {beyond}"


def _cells(row: HistoryRow) -> tuple[str, ...]:
    judged, ratio = row.judgement, row.ratio
    return (
        f"{len(row.baseline)} of {row.files}",
        row.baseline[0].timestamp[:10],
        time_text(row.baseline_s),
        time_text(row.candidate_s),
        "-" if ratio is None else f"{ratio:.3f}",
        "-" if judged is None else interval_text(judged.low, judged.high),
        row.verdict,
    )
