# SPDX-License-Identifier: Apache-2.0
"""Loads of several variants, compared with a baseline: the rows of a gate, all with one correction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.gate.gate import judge
from gpuprof.bench.gate.result import Gate, GateRow, Thresholds
from gpuprof.bench.gate.text import gate_table
from gpuprof.bench.results.readers import has_folder_reader
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.bench.results.stored import ResultFile
from gpuprof.bench.verdicts import GateVerdict, TargetVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.load.gate_side import LoadedRun, read_run, side_of

COMPARISON_KIND = "load_comparison"
# A variant is ranked by the first of these figures that its rows have.
_RANKING = (RunMetric.P99, RunMetric.P50, RunMetric.SERVICE_P50)


# The runs of the baseline and of another variant.
Pair = tuple[Sequence[LoadedRun], Sequence[LoadedRun]]


@dataclass(frozen=True)
class LoadVariant:
    """A variant with its independent runs."""

    name: str
    runs: tuple[LoadedRun, ...]

    @property
    def target_verdict(self) -> TargetVerdict | None:
        """Whether the runs meet their target: the worst verdict of them; None without a target."""
        found = {run.result.verdict for run in self.runs}
        order = (TargetVerdict.MISSED, TargetVerdict.INCONCLUSIVE, TargetVerdict.MET)
        return next((each for each in order if each in found), None)


@dataclass(frozen=True)
class LoadComparison:
    """Variants under a load, and the rows of each one next to the baseline.

    The configuration of a row has the name of the variant as its model.
    """

    name: str
    baseline: LoadVariant
    others: tuple[LoadVariant, ...]
    gate: Gate
    interrupted: bool = False

    @property
    def variants(self) -> tuple[LoadVariant, ...]:
        """The baseline, and the others."""
        return self.baseline, *self.others

    def rows_of(self, name: str) -> tuple[GateRow, ...]:
        """Return the rows of a variant."""
        return tuple(row for row in self.gate.rows if row.configuration.model == name)

    def verdict_of(self, name: str) -> GateVerdict:
        """Return the verdict on a variant: worse if any row is, better if one is and no row is open.

        A variant without a row, which an interrupted comparison may have, is inconclusive.
        """
        verdicts = {row.verdict for row in self.rows_of(name)} or {GateVerdict.NOT_MEASURED}
        if GateVerdict.WORSE in verdicts:
            return GateVerdict.WORSE
        if verdicts & {GateVerdict.INCONCLUSIVE, GateVerdict.NOT_MEASURED}:
            return GateVerdict.INCONCLUSIVE
        return GateVerdict.BETTER if GateVerdict.BETTER in verdicts else GateVerdict.SAME

    @property
    def choice(self) -> LoadVariant | None:
        """The recommended variant: the best of those that are better, else the baseline; None if open."""
        verdicts = {each.name: self.verdict_of(each.name) for each in self.others}
        better = [each for each in self.others if verdicts[each.name] is GateVerdict.BETTER]
        if better:
            return min(better, key=lambda each: self._rank(each.name))
        return None if GateVerdict.INCONCLUSIVE in verdicts.values() else self.baseline

    def _rank(self, name: str) -> float:
        ratios = {row.metric: row.ratio for row in self.rows_of(name)}
        return next((ratio for metric in _RANKING if (ratio := ratios.get(metric)) is not None), 1.0)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return f"{self._found}{'; interrupted before all runs were made' if self.interrupted else ''}"

    @property
    def _found(self) -> str:
        if self.choice is None:
            return "inconclusive: no variant is shown to be better"
        if self.choice is self.baseline:
            return f"recommended: {self.baseline.name}, the baseline; no variant is better"
        ratios = {row.metric: row for row in self.rows_of(self.choice.name)}
        row = next((ratios[metric] for metric in _RANKING if metric in ratios), None)
        change = "" if row is None or row.ratio is None else f", {row.metric} {row.ratio:.3f}x the baseline's"
        return f"recommended: {self.choice.name}{change}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds."""
        return {
            "kind": COMPARISON_KIND,
            "name": self.name,
            "baseline": self.baseline.name,
            "recommended": None if self.choice is None else self.choice.name,
            "interrupted": self.interrupted,
            "variants": [
                {
                    "name": each.name,
                    "verdict": None if each is self.baseline else str(self.verdict_of(each.name)),
                    "target": None if each.target_verdict is None else str(each.target_verdict),
                    "runs": [{"folder": str(run.folder), **run.result.to_dict()} for run in each.runs],
                }
                for each in self.variants
            ],
            "rows": [row.to_dict() for row in self.gate.rows],
            "notes": [each.to_dict() for each in self.gate.notes],
        }

    def __str__(self) -> str:
        lines = [self.headline, "", f"baseline: {self.baseline.name}", ""]
        return "\n".join([*lines, gate_table(self.gate)])


def runs_in(folder: Path) -> list[LoadedRun]:
    """Return the run of a folder, or the runs of the folders in it. Raises GpuprofError."""
    if has_folder_reader(folder):
        return [read_run(folder)]
    found = [each for each in sorted(folder.iterdir()) if has_folder_reader(each)] if folder.is_dir() else []
    if not found:
        raise BenchmarkError(
            "no_results", f"{folder} has no result of a load", hint="name a folder of gpuprof load --out"
        )
    return [read_run(each) for each in found]


def has_loads(folder: Path) -> bool:
    """Whether a path is a folder of a load, or one with such folders in it."""
    return folder.is_dir() and (
        has_folder_reader(folder) or any(has_folder_reader(each) for each in folder.iterdir())
    )


def compare_loads(
    variants: Mapping[str, Sequence[LoadedRun]],
    baseline: str | None = None,
    *,
    name: str = "loads",
    thresholds: Thresholds | None = None,
    interrupted: bool = False,
    any_machine: bool = False,
    pairs: Mapping[str, Pair] | None = None,
    notes: Sequence[Diagnostic] = (),
) -> LoadComparison:
    """Compare the runs of variants with those of the baseline, by default the first one.

    The runs of a variant are independent; all rows of all variants have one correction. `pairs` are the runs
    to compare of the baseline and each other variant, by default all of them; a variant without such runs has
    no rows. Raises BenchmarkError for fewer than two variants, for loads that differ, and for different
    machines (unless `any_machine`).
    """
    names = list(variants)
    first = names[0] if baseline is None and names else baseline
    if first not in names:
        raise BenchmarkError(
            "unknown_baseline",
            f"the baseline {first!r} is not a variant",
            hint=f"use one of {', '.join(names)}",
        )
    if len(names) < 2:
        raise BenchmarkError("one_variant", f"there is one variant, {names[0]}", hint="add a variant")
    others = [each for each in names if each != first]
    if pairs is None:
        pairs = {each: (variants[first], variants[each]) for each in others}
    compared = {name: pair for name, pair in pairs.items() if all(pair)}
    old = _merged([side_of(runs, name) for name, (runs, _) in compared.items()])
    new = _merged([side_of(runs, name) for name, (_, runs) in compared.items()])
    # Runs take turns, and the differences between them are in the interval.
    found = judge(old, new, thresholds or Thresholds(), any_machine=any_machine, any_load=True)
    found = dataclasses.replace(found, notes=(*found.notes, *notes))
    made = {each: LoadVariant(each, tuple(runs)) for each, runs in variants.items()}
    return LoadComparison(name, made[first], tuple(made[each] for each in others), found, interrupted)


def _merged(sides: Sequence[ResultFile]) -> ResultFile:
    """Return sides of several configurations as one."""
    return dataclasses.replace(
        sides[0],
        medians_s={key: value for side in sides for key, value in side.medians_s.items()},
        ways={key: value for side in sides for key, value in side.ways.items()},
        more={key: value for side in sides for key, value in side.more.items()},
    )
