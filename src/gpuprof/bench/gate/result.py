# SPDX-License-Identifier: Apache-2.0
"""What a gate judges by, and what it finds: thresholds, one row for each metric, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.results.run_figures import RunMetric
from gpuprof.bench.results.stored import Configuration, ResultFile
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import GateOutcome, GateVerdict
from gpuprof.stats.change_points import LEVEL
from gpuprof.stats.ratio_test import MARGIN, Comparison, Judgement

_OPEN = (GateVerdict.INCONCLUSIVE, GateVerdict.NOT_MEASURED)
# What other processes, and a few slow calls, change by more than they change a median.
_DEFAULTS = {
    RunMetric.P95: 0.1,
    RunMetric.P99: 0.2,
    RunMetric.MEAN: 0.05,
    RunMetric.THROUGHPUT: 0.05,
    RunMetric.MEMORY: 0.05,
    RunMetric.PROCESS_MEMORY: 0.05,
    RunMetric.ENERGY: 0.05,
    RunMetric.ACCURACY: 0.01,
    RunMetric.SERVICE_P99: 0.2,
    RunMetric.TTFT_P99: 0.2,
    RunMetric.SUCCESS: 0.005,
    RunMetric.GOODPUT: 0.01,
}
_VERDICTS = {
    "slower": GateVerdict.WORSE,
    "faster": GateVerdict.BETTER,
    "same": GateVerdict.SAME,
    "inconclusive": GateVerdict.INCONCLUSIVE,
}
Key = tuple[Configuration, RunMetric]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """By how much a metric may be worse: `margin` of the median, and of others their own or a default.

    `metrics` are those to judge; None is all that have figures. What is named, here or with a threshold of
    its own, must have figures. `load_margin` is that of the median of a load, whose requests wait for others.
    """

    margin: float = MARGIN
    own: Mapping[RunMetric, float] = field(default_factory=dict)
    metrics: tuple[RunMetric, ...] | None = None
    load_margin: float = 0.05

    def of(self, metric: RunMetric, *, is_load: bool = False) -> float:
        """Return the threshold of a metric; a default is not below the margin, but of request fractions."""
        margin = self.load_margin if is_load else self.margin
        least = 0.0 if is_load and metric.is_fraction else margin
        return self.own.get(metric, max(least, _DEFAULTS.get(metric, margin)))

    def of_key(self, key: Key) -> float:
        """Return the threshold of a metric of a configuration."""
        return self.of(key[1], is_load=key[0].load is not None)

    def is_named(self, metric: RunMetric) -> bool:
        """Whether it was asked for by its name."""
        return metric in self.own or metric in (self.metrics or ())

    @property
    def judged(self) -> tuple[RunMetric, ...]:
        """The metrics to judge."""
        wanted = tuple(RunMetric) if self.metrics is None else (*self.metrics, *self.own)
        return tuple(each for each in RunMetric if each in wanted)


def different(old: Mapping[str, Any], new: Mapping[str, Any], joint: str = "and") -> list[str]:
    """Return what two mappings hold differently, by name."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name} {old.get(name, 'none')} {joint} {new.get(name, 'none')}" for name in names]


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
        return different(self.before.versions, self.after.versions, "to")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        figures = {"ratio": self.ratio, "low": self.low, "high": self.high, "versions": self.versions}
        return {"before": self.before.to_dict(), "after": self.after.to_dict(), **figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One metric of one configuration; the figures are geometric means over process runs.

    `ratio` is above 1 where the candidate is worse. `judgement` is None where the candidate did not measure
    it, and a Comparison against one result. `variation` is the standard deviation of the logarithms of the
    units on one side, None where there are too few. Against one result `runs_needed` are the process runs of
    each side that give all rows a verdict, None where they are not needed or unknown; against a history
    `files` are those of the level since the last change. `is_busy`: the machine did something else too.
    """

    configuration: Configuration
    metric: RunMetric = RunMetric.P50
    threshold: float
    baseline: float | None = None
    candidate: float | None = None
    judgement: Judgement | Comparison | None = None
    variation: float | None = None
    reason: Diagnostic | None = None
    runs_needed: int | None = None
    files: tuple[ResultFile, ...] = ()
    all_files: int = 0
    changes: tuple[ChangePoint, ...] = ()
    is_busy: bool = False

    @property
    def verdict(self) -> GateVerdict:
        """The verdict on the candidate."""
        if self.judgement is None:
            return GateVerdict.NOT_MEASURED
        return GateVerdict.INCONCLUSIVE if self.is_busy else _VERDICTS[self.judgement.verdict]

    @property
    def ratio(self) -> float | None:
        """The candidate over the baseline, or its inverse where more is better."""
        if isinstance(self.judgement, Comparison):
            return self.judgement.ratio
        if not self.baseline or not self.candidate:
            return None
        ratio = self.candidate / self.baseline
        return 1 / ratio if self.metric.is_higher_better else ratio

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found = {
            **self.configuration._asdict(),
            "metric": str(self.metric),
            "unit": self.metric.unit,
            "threshold": self.threshold,
            "baseline_value": self.baseline,
            "candidate_value": self.candidate,
            "ratio": self.ratio,
            "verdict": str(self.verdict),
            "busy_machine": self.is_busy,
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
        """Failed where any row is worse, inconclusive where any row is."""
        verdicts = {row.verdict for row in self.rows}
        if GateVerdict.WORSE in verdicts:
            return GateOutcome.FAILED
        return GateOutcome.INCONCLUSIVE if verdicts & set(_OPEN) else GateOutcome.PASSED

    @property
    def worse(self) -> tuple[GateRow, ...]:
        """The rows that let it fail."""
        return tuple(row for row in self.rows if row.verdict == GateVerdict.WORSE)

    @property
    def without_verdict(self) -> tuple[GateRow, ...]:
        """The rows that leave it inconclusive."""
        return tuple(row for row in self.rows if row.verdict in _OPEN)

    @property
    def by_metric(self) -> dict[RunMetric, GateVerdict]:
        """The worst verdict of each metric."""
        order = (GateVerdict.WORSE, *_OPEN, GateVerdict.SAME, GateVerdict.BETTER)
        found: dict[RunMetric, set[GateVerdict]] = {}
        for row in self.rows:
            found.setdefault(row.metric, set()).add(row.verdict)
        return {metric: next(each for each in order if each in found[metric]) for metric in found}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        more = {"change_point_level": LEVEL, "candidates": self.candidates} if self.is_history else {}
        return {
            "outcome": str(self.outcome),
            "margin": self.margin,
            "metrics": {str(metric): str(verdict) for metric, verdict in self.by_metric.items()},
            **more,
            "rows": [row.to_dict() for row in self.rows],
            "notes": [each.to_dict() for each in self.notes],
        }
