# SPDX-License-Identifier: Apache-2.0
"""Re-runs of findings, one after the other: each with its measured gain, or why it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.findings.finding import GainKind, Rerun, RerunProblem, TimeRange
from gpuprof.analyze.rerun.figures import figures_of
from gpuprof.analyze.rerun.plans import Plan, plan
from gpuprof.analyze.rerun.process import measure
from gpuprof.run.machine import describe_machine

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import Draft
    from gpuprof.analyze.findings.record import ProgramRecord
    from gpuprof.analyze.rerun.experiment import Experiment, Pairs

# In the program, caches and memory contain other data than in the replica, and the speed of a shared machine
# drifts between both: gains of the same operator differ by up to this part (benchmarks/planted_causes.py).
RERUN_ERROR = 0.2


def difference_of_machines(meta: Mapping[str, Any]) -> RerunProblem | None:
    """Return why work of a run cannot be measured here: another machine, or another PyTorch."""
    machine, here = meta.get("machine") or {}, describe_machine()
    if any(machine.get(name) != here[name] for name in ("architecture", "processor", "cores")):
        return RerunProblem.MACHINE
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return RerunProblem.TORCH
    recorded = (meta.get("versions") or {}).get("torch")
    # The package's version may lack the build, as `+cpu`.
    is_same = recorded is not None and str(recorded).partition("+")[0] == version.partition("+")[0]
    return None if is_same else RerunProblem.TORCH


class Rerunner:
    """Measures the gain of drafts. After an interruption, it measures no more."""

    def __init__(
        self,
        measure: Callable[[Experiment], Pairs] = measure,
        difference: Callable[[Mapping[str, Any]], RerunProblem | None] = difference_of_machines,
    ) -> None:
        self._measure = measure
        self._difference = difference
        self.is_interrupted = False

    def __call__(self, record: ProgramRecord, draft: Draft) -> tuple[Draft, Rerun]:
        """Return the draft with its measured gain; as it was if the re-run has a problem."""
        planned = plan(record, draft)
        if not isinstance(planned, Plan):
            return draft, Rerun(planned)
        if (problem := self._difference(record.folder.meta)) is not None:
            return draft, Rerun(problem)
        if self.is_interrupted:
            return draft, Rerun(RerunProblem.INTERRUPTED)
        pairs = self._measure(planned.experiment)
        self.is_interrupted |= pairs.problem is RerunProblem.INTERRUPTED
        figures = figures_of(pairs)
        count = len(pairs.times_ns)
        if figures is None:
            return draft, Rerun(pairs.problem or RerunProblem.DEADLINE, count)
        found = Rerun(None, count, figures.before_ns, figures.after_ns)
        gain = planned.gain(figures, pairs)
        if gain is None:
            return draft, replace(found, problem=RerunProblem.REFUTED)
        if gain.low_ns <= 0 < gain.high_ns:
            return draft, replace(found, problem=RerunProblem.INCONCLUSIVE)
        gain = with_error(gain, float(draft.time.total_ns))
        return replace(draft, kind=GainKind.RERUN, gain=gain, explained=1.0), found


def with_error(gain: TimeRange, most_ns: float) -> TimeRange:
    """Return a measured gain with the error of replicas, which adds nothing beyond the time that there is."""
    low_ns = gain.low_ns - RERUN_ERROR * abs(gain.low_ns)
    high_ns = gain.high_ns + RERUN_ERROR * abs(gain.high_ns)
    return TimeRange(low_ns, max(gain.high_ns, min(high_ns, most_ns)))
