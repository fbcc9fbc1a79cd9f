# SPDX-License-Identifier: Apache-2.0
"""The gate against a history: the candidate is compared with the files since the figures last changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.gate.gate import (
    is_busy,
    is_whole,
    judged_keys,
    nothing_shared,
    only_candidate,
    reason_of_verdict,
    side_notes,
    unmeasured_row,
)
from gpuprof.bench.gate.result import ChangePoint, Gate, GateRow, Key, Thresholds
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.bench.results.stored import Configuration, ResultFile
from gpuprof.bench.results.stored_history import History
from gpuprof.stats.change_points import find_change_points
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.ratio_test import (
    Judgement,
    Levels,
    LogRatio,
    judge_ratios,
    required_files,
    required_margin,
)

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

# In fewer files without any order, a change appears more often than the level allows.
FEWEST_FILES = 8
_MOST_CANDIDATES = 30


def judge_history(
    history: History, thresholds: Thresholds | None = None, *, any_load: bool = False, seed: int = 0
) -> Gate:
    """Find where each configuration's figures changed, and judge the candidates by the files since then.

    Raises BenchmarkError where history and candidates have nothing in common.
    """
    limits, sides = thresholds or Thresholds(), (history.files, history.candidates)
    measured = list(dict.fromkeys(each for file in history.candidates for each in file.medians_s))
    known = {each for file in history.files for each in file.medians_s}
    shared = [each for each in measured if each in known]
    if not shared:
        raise nothing_shared(history.candidates[0], "the history", measured[0])
    keys = [key for each in shared for key in judged_keys(each, limits, sides)]
    series = {key: _Series(history, key, seed) for key in keys if is_whole(key, sides)}
    lacking = {(each, RunMetric.P50): None for each in _lacking(history, measured)}
    series |= {key: _Series(history, key, seed) for key in lacking}
    judged = judge_ratios(
        {key: each.ratio for key, each in series.items() if each.new},
        {key: limits.of_key(key) for key in series},
    )
    rows = tuple(
        series[key].row(judged.get(key), limits, is_disturbed=not any_load and is_busy(key, *sides))
        if key in series
        else unmeasured_row(key, limits, sides)
        for key in [*keys, *lacking]
    )
    medians = [row for row in rows if row.metric is RunMetric.P50]
    few = sum(row.all_files < FEWEST_FILES for row in medians)
    notes = [note("few_files", few=few, configurations=len(medians), fewest=FEWEST_FILES)] if few else []
    notes += side_notes(shared, limits, sides)
    notes += only_candidate(each for each in measured if each not in known)
    return Gate(rows, limits.margin, (*history.notes, *notes), True, len(history.candidates))


def _lacking(history: History, measured: Sequence[Configuration]) -> list[Configuration]:
    """Return what the newest file of a measured model has and the candidates lack."""

    def kind(each: Configuration) -> tuple[str | None, ...]:
        return each.framework, each.model, each.device_type, each.dtype, each.load

    lacking: dict[Configuration, None] = {}
    for wanted in {kind(each) for each in measured}:
        files = [[each for each in file.medians_s if kind(each) == wanted] for file in history.files]
        newest: list[Configuration] = next((found for found in reversed(files) if found), [])
        lacking |= dict.fromkeys(each for each in newest if each not in measured)
    return sorted(lacking, key=str)


def levels_of(logs: Sequence[Floats], *, seed: int = 0) -> Levels:
    """Divide a series of files, as the logarithms of their process runs, at its change points."""
    changes = find_change_points([float(each.mean()) for each in logs], seed=seed)
    return Levels(tuple(logs), tuple(changes))


class _Series:
    """The files with one metric of one configuration, and the candidates that measured it."""

    def __init__(self, history: History, key: Key, seed: int) -> None:
        self.key = key
        self.files = [each for each in history.files if each.figures(*key)]
        self.new = [each for each in history.candidates if each.figures(*key)]
        self._candidates = len(history.candidates)
        self.levels = levels_of([self._logs(each) for each in self.files], seed=seed)

    def _logs(self, file: ResultFile) -> Floats:
        """Return the logarithms of a file's process runs, larger where they are worse."""
        logs: Floats = np.log(file.figures(*self.key))
        return -logs if self.key[1].is_higher_better else logs

    def _value(self, log: float) -> float:
        return math.exp(-log if self.key[1].is_higher_better else log)

    @property
    def ratio(self) -> LogRatio | None:
        """The candidates over the level; None where the variation between files is unknown."""
        return self.levels.against([self._logs(each) for each in self.new])

    def row(self, judged: Judgement | None, limits: Thresholds, *, is_disturbed: bool) -> GateRow:
        """Return what is found."""
        begin, end = self.levels.last
        variance = self.levels.between_files()
        variation = None if variance is None else math.sqrt(variance.value)
        new = [float(self._logs(each).mean()) for each in self.new]
        reason = None if judged is None else self._reason(judged, variation, end - begin)
        return GateRow(
            configuration=self.key[0],
            metric=self.key[1],
            threshold=limits.of_key(self.key),
            all_files=len(self.files),
            files=tuple(self.files[begin:end]),
            baseline=self._value(float(self.levels.figures[begin:end].mean())),
            candidate=self._value(sum(new) / len(new)) if new else None,
            variation=variation,
            judgement=judged,
            reason=note("gate_busy_machine") if is_disturbed and new else reason,
            changes=tuple(self._change(number) for number in range(len(self.levels.changes))),
            is_busy=is_disturbed,
        )

    def _reason(self, judged: Judgement, variation: float | None, files: int) -> Diagnostic | None:
        """Return why the verdict is not that both are the same; the unit is the file."""
        if judged.verdict != "inconclusive":
            return reason_of_verdict(judged)
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
        return note("gate_needs_margin", metric=self.key[1], percent=math.ceil(enough * 100))

    def _change(self, number: int) -> ChangePoint:
        first = self.levels.changes[number]
        ratio = self.levels.change(number)
        assert ratio is not None  # a segment has two files at the least
        low, high = ratio.interval(1 - CONFIDENCE)
        return ChangePoint(self.files[first - 1], self.files[first], math.exp(ratio.value), low, high)
