# SPDX-License-Identifier: Apache-2.0
"""The gate: whether a candidate is slower than one result, or than a history, by more than the margin.

Of one result the unit is the process run, of a history the result file: there the candidate is compared with
the figures since they last changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.results.stored import Configuration, History, ResultFile
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import GateOutcome, SpeedVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.stats.change_points import LEVEL, find_change_points
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.ratio_test import (
    MARGIN,
    Comparison,
    Judgement,
    Levels,
    LogRatio,
    compare_many,
    judge_ratios,
    required_files,
    required_margin,
    required_runs,
)

MOST_RUNS = 1_000
# In fewer files without any order, a change appears more often than the level allows.
FEWEST_FILES = 8
_MOST_CANDIDATES = 30
_OPEN = (SpeedVerdict.INCONCLUSIVE, SpeedVerdict.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Between which two files the level changed, by which factor, and what else changed with it."""

    before: ResultFile
    after: ResultFile
    ratio: float
    low: float
    high: float

    @property
    def versions(self) -> list[str]:
        """The libraries whose versions changed too."""
        return _different(self.before.versions, self.after.versions, "to")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        figures = {"ratio": self.ratio, "low": self.low, "high": self.high, "versions": self.versions}
        return {"before": self.before.to_dict(), "after": self.after.to_dict(), **figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One configuration; times are means of logarithms or medians over process runs, in seconds.

    `judgement` is None where the candidate did not measure it, and a Comparison against one result.
    `variation` is the standard deviation of the logarithms of the units on one side, None where there are too
    few. Against one result `runs_needed` are the process runs of each side that give a verdict, None where
    they are not needed or unknown; against a history `files` are those of the level since the last change.
    """

    configuration: Configuration
    baseline_s: float
    candidate_s: float | None = None
    ratio: float | None = None
    judgement: Judgement | Comparison | None = None
    variation: float | None = None
    reason: Diagnostic | None = None
    runs_needed: int | None = None
    files: tuple[ResultFile, ...] = ()
    all_files: int = 0
    changes: tuple[ChangePoint, ...] = ()

    @property
    def verdict(self) -> SpeedVerdict:
        """The verdict on the candidate."""
        return SpeedVerdict.NOT_MEASURED if self.judgement is None else SpeedVerdict(self.judgement.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found = {
            **self.configuration._asdict(),
            "baseline_s": self.baseline_s,
            "candidate_s": self.candidate_s,
            "ratio": self.ratio,
            "verdict": str(self.verdict),
            "reason": None if self.reason is None else self.reason.to_dict(),
        }
        judged = to_plain(self.judgement)
        if not self.files:
            return {**found, "launches_needed": self.runs_needed, "comparison": judged}
        return {
            **found,
            "files": self.all_files,
            "baseline": [each.to_dict() for each in self.files],
            "variation_between_files": self.variation,
            "judgement": judged,
            "change_points": [each.to_dict() for each in self.changes],
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate found. `candidates` are the files of the candidate."""

    rows: tuple[GateRow, ...]
    margin: float
    notes: tuple[Diagnostic, ...]
    is_history: bool = False
    candidates: int = 1

    @property
    def outcome(self) -> GateOutcome:
        """Failed where any row is slower, inconclusive where any row is."""
        verdicts = {row.verdict for row in self.rows}
        if SpeedVerdict.SLOWER in verdicts:
            return GateOutcome.FAILED
        return GateOutcome.INCONCLUSIVE if verdicts & set(_OPEN) else GateOutcome.PASSED

    @property
    def slower(self) -> tuple[GateRow, ...]:
        """The rows that let it fail."""
        return tuple(row for row in self.rows if row.verdict == SpeedVerdict.SLOWER)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        more = {"change_point_level": LEVEL, "candidates": self.candidates} if self.is_history else {}
        return {
            "outcome": str(self.outcome),
            "margin": self.margin,
            **more,
            "rows": [row.to_dict() for row in self.rows],
            "notes": [each.to_dict() for each in self.notes],
        }


# --- against one result --------------------------------------------------------------------------


def judge(
    baseline: ResultFile, candidate: ResultFile, *, margin: float = MARGIN, any_machine: bool = False
) -> Gate:
    """Compare the latencies of all configurations of the baseline, process run by process run.

    Raises BenchmarkError where the two were measured on different machines (unless `any_machine`), in
    different ways, or have nothing in common.
    """
    notes = [*_differences(baseline, candidate, any_machine), *_aborted(baseline), *_aborted(candidate)]
    shared = [each for each in baseline.medians_s if each in candidate.medians_s]
    if not shared:
        raise _nothing_shared(candidate, str(baseline.path), next(iter(baseline.medians_s)))
    for each in shared:
        _check_way(each, baseline, candidate)
    pairs = {each: (_figures(baseline, each), _figures(candidate, each)) for each in shared}
    compared = compare_many(pairs, margin=margin)
    rows = tuple(
        _compared_row(each, *pairs[each], compared[each])
        if each in compared
        else GateRow(configuration=each, baseline_s=float(np.median(_figures(baseline, each))))
        for each in baseline.medians_s
    )
    notes += _only_candidate([each for each in candidate.medians_s if each not in baseline.medians_s])
    return Gate(rows, margin, tuple(notes))


def _compared_row(
    each: Configuration, old: Sequence[float], new: Sequence[float], compared: Comparison
) -> GateRow:
    variation = _variation(old, new)
    return GateRow(
        configuration=each,
        baseline_s=float(np.median(old)),
        candidate_s=float(np.median(new)),
        ratio=compared.ratio,
        judgement=compared,
        variation=variation,
        reason=_reason(compared),
        runs_needed=runs_needed(compared, variation),
    )


def runs_needed(compared: Comparison, variation: float | None) -> int | None:
    """Return the process runs a side that give a verdict; None where there is one, or where it is unknown."""
    if compared.verdict != "inconclusive" or variation is None:
        return None
    wanted = required_runs(variation, compared.margin, level=compared.level)
    # With so many already, the ratio lies near the margin: half the width takes four times as many.
    made = min(compared.old_launches, compared.new_launches)
    return 4 * made if wanted is not None and wanted <= made else wanted


def _reason(judged: Judgement | Comparison) -> Diagnostic | None:
    """Return why the verdict is not that both are the same."""
    code = _REASONS.get(judged.reason)
    return None if code is None else note(code, margin=judged.margin)


_REASONS = {
    "above_margin": "gate_slower",
    "below_margin": "gate_faster",
    "across_margin": "gate_crosses",
    "too_few_runs": "gate_one_run",
}


def _differences(baseline: ResultFile, candidate: ResultFile, any_machine: bool) -> Iterator[Diagnostic]:
    machines = _different(baseline.machine, candidate.machine)
    if machines and not any_machine:
        raise BenchmarkError(
            "other_machine",
            f"{baseline.path} was measured on another machine or with other threads than {candidate.path} "
            f"({'; '.join(machines)}): measure the baseline again as the candidate, or add --any-machine",
        )
    if baseline.data != candidate.data:
        raise BenchmarkError(
            "data_differs",
            f"{baseline.path} was measured with data {baseline.data} and {candidate.path} with "
            f"{candidate.data}: measure both with the same data",
        )
    if machines:
        yield warning("different_machines", different=machines)
    versions = _different(baseline.versions, candidate.versions)
    if versions:
        yield note("different_versions", different=versions)


def _different(old: Mapping[str, Any], new: Mapping[str, Any], joint: str = "and") -> list[str]:
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name} {old.get(name, 'none')} {joint} {new.get(name, 'none')}" for name in names]


def _aborted(side: ResultFile) -> Iterator[Diagnostic]:
    """Yield which process runs are not counted."""
    for each, (count, total) in side.aborted.items():
        if count:
            counts = {"aborted": count, "process_runs_made": total}
            yield note("aborted_runs", path=str(side.path), configuration=str(each), **counts)


def _check_way(each: Configuration, baseline: ResultFile, candidate: ResultFile) -> None:
    for name, old, new in zip(("mode", "caches"), baseline.ways[each], candidate.ways[each], strict=True):
        if old != new:
            raise BenchmarkError(
                "measured_differently",
                f"{each} was measured with {name} {old} in {baseline.path} and {new} in {candidate.path}: "
                "measure both in the same way",
            )


def _figures(side: ResultFile, each: Configuration) -> tuple[float, ...]:
    figures = side.medians_s[each]
    if not figures:
        raise BenchmarkError(
            "no_process_run", f"{side.path}: no process run of {each} completed: measure it again"
        )
    return figures


def _variation(*sides: Sequence[float]) -> float | None:
    logs = [np.log(side) for side in sides]
    freedom = sum(len(side) - 1 for side in logs)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    return math.sqrt(squares / freedom) if freedom else None


def _nothing_shared(candidate: ResultFile, baseline: str, first: Configuration) -> BenchmarkError:
    return BenchmarkError(
        "no_configuration",
        f"{candidate.path} has no configuration of {baseline} ({first}, ...): "
        "measure the same model, framework, dtype, inputs and batch sizes",
    )


def _only_candidate(new: Iterable[Configuration]) -> list[Diagnostic]:
    names = [str(each) for each in new]
    return [note("only_candidate", configurations=names)] if names else []


# --- against a history ---------------------------------------------------------------------------


def judge_history(history: History, *, margin: float = MARGIN, seed: int = 0) -> Gate:
    """Find where each configuration's figures changed, and judge the candidates by the files since then.

    Raises BenchmarkError where history and candidates have nothing in common.
    """
    measured = list(dict.fromkeys(each for file in history.candidates for each in file.medians_s))
    known = {each for file in history.files for each in file.medians_s}
    shared = [each for each in measured if each in known]
    if not shared:
        raise _nothing_shared(history.candidates[0], "the history", measured[0])
    series = [_Series(history, each, seed) for each in [*shared, *_lacking(history, measured)]]
    ratios = {each.configuration: each.ratio for each in series if each.new}
    judged = judge_ratios(ratios, dict.fromkeys(ratios, margin))
    rows = tuple(each.row(judged.get(each.configuration)) for each in series)
    few = sum(row.all_files < FEWEST_FILES for row in rows)
    notes = [note("few_files", few=few, configurations=len(rows), fewest=FEWEST_FILES)] if few else []
    notes += _only_candidate(each for each in measured if each not in {row.configuration for row in rows})
    return Gate(rows, margin, (*history.notes, *notes), True, len(history.candidates))


def _lacking(history: History, measured: Sequence[Configuration]) -> list[Configuration]:
    """Return what the newest file of a measured model has and the candidates lack."""

    def kind(each: Configuration) -> tuple[str | None, ...]:
        return each.framework, each.model, each.device_type, each.dtype

    lacking: dict[Configuration, None] = {}
    for wanted in {kind(each) for each in measured}:
        files = [[each for each in file.medians_s if kind(each) == wanted] for file in history.files]
        newest: list[Configuration] = next((found for found in reversed(files) if found), [])
        lacking |= dict.fromkeys(each for each in newest if each not in measured)
    return sorted(lacking, key=str)


class _Series:
    """The files of one configuration, and the candidates that measured it."""

    def __init__(self, history: History, configuration: Configuration, seed: int) -> None:
        self.configuration = configuration
        self.files = [each for each in history.files if configuration in each.medians_s]
        self.new = [each for each in history.candidates if configuration in each.medians_s]
        self._candidates = len(history.candidates)
        logs = [np.log(each.medians_s[configuration]) for each in self.files]
        changes = find_change_points([float(each.mean()) for each in logs], seed=seed)
        self.levels = Levels(tuple(logs), tuple(changes))

    @property
    def ratio(self) -> LogRatio | None:
        """The candidates over the level; None where the variation between files is unknown."""
        return self.levels.against([np.log(each.medians_s[self.configuration]) for each in self.new])

    def row(self, judged: Judgement | None) -> GateRow:
        """Return what is found."""
        begin, end = self.levels.last
        variance = self.levels.between_files()
        variation = None if variance is None else math.sqrt(variance.value)
        new = [float(np.log(each.medians_s[self.configuration]).mean()) for each in self.new]
        baseline_s = math.exp(float(self.levels.figures[begin:end].mean()))
        candidate_s = math.exp(sum(new) / len(new)) if new else None
        return GateRow(
            configuration=self.configuration,
            all_files=len(self.files),
            files=tuple(self.files[begin:end]),
            baseline_s=baseline_s,
            candidate_s=candidate_s,
            ratio=None if candidate_s is None else candidate_s / baseline_s,
            variation=variation,
            judgement=judged,
            reason=None if judged is None else self._reason(judged, variation, end - begin),
            changes=tuple(self._change(number) for number in range(len(self.levels.changes))),
        )

    def _reason(self, judged: Judgement, variation: float | None, files: int) -> Diagnostic | None:
        """Return why the verdict is not that both are the same; the unit is the file."""
        if judged.verdict != "inconclusive":
            return _reason(judged)
        if variation is None:
            return note("gate_one_file")
        fix = self._fix(judged, variation, files)
        return note("gate_crosses_of_files", margin=judged.margin, variation=variation, files=files, fix=fix)

    def _fix(self, judged: Judgement, variation: float, files: int) -> Diagnostic:
        margin, level = judged.margin, judged.level
        needed = required_files(variation, files, margin, level=level) if margin else None
        if needed is not None and self._candidates < needed <= _MOST_CANDIDATES:
            return note("gate_needs_files", files=needed)
        if needed is not None and needed <= self._candidates:
            return note("gate_near_margin")
        enough = required_margin(variation, files, level=level)
        return note("gate_needs_margin", percent=math.ceil(enough * 100))

    def _change(self, number: int) -> ChangePoint:
        first = self.levels.changes[number]
        ratio = self.levels.change(number)
        assert ratio is not None  # a segment has two files at the least
        low, high = ratio.interval(1 - CONFIDENCE)
        return ChangePoint(self.files[first - 1], self.files[first], math.exp(ratio.value), low, high)
