# SPDX-License-Identifier: Apache-2.0
"""All rules on a run: findings by their gain, each cause with its symptoms, and what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.between_layers import logging, waiting
from gpuprof.analyze.findings.candidates import CANDIDATES
from gpuprof.analyze.findings.device import (
    allocations,
    gpu_synchronization,
    launches,
    pageable_copies,
)
from gpuprof.analyze.findings.finding import (
    CONFIDENCE_OF_KIND,
    Draft,
    Finding,
    Gain,
    GainKind,
    Missing,
    RerunProblem,
    Rule,
    RuleResult,
    TimeRange,
    Verdict,
)
from gpuprof.analyze.findings.interpreter import (
    collections,
    interpreter_lock,
    recompilations,
    startup,
    threads,
    unused_import,
)
from gpuprof.analyze.findings.kernels import fp32_products, layout_copies, small_kernels, throttling
from gpuprof.analyze.findings.loading import loader
from gpuprof.analyze.findings.moved_bytes import fp32_norms, lookups, padding
from gpuprof.analyze.findings.operators import slow_operators, small_batch
from gpuprof.analyze.findings.optimizer import optimizer, zeroing
from gpuprof.analyze.findings.other_python import OtherPython, read_other_python
from gpuprof.analyze.findings.places import located
from gpuprof.analyze.findings.ranks import accumulation, buckets, slow_rank
from gpuprof.analyze.findings.record import ProgramRecord
from gpuprof.analyze.whatif.step_gain import FEWEST_STEPS, REPLAY_ERROR, step_interval
from gpuprof.run.facts import lacks_native_sampler

if TYPE_CHECKING:
    from gpuprof.analyze.processor_waits import ProcessorWaits
    from gpuprof.analyze.rerun.rerunner import Rerunner
    from gpuprof.analyze.whatif.intervals import Intervals
    from gpuprof.run.folder import RunFolder

# A gain is significant from this part of the wall time: of a step if the cause is in steps, else of the run.
LEAST_PART = 0.01
MOST_CALLS = 1_000_000  # above, the search takes longer than a table or a page of the run
_SYMPTOM = 0.5  # of its time is that of the cause
# Their time is all of the model's, or all of a function's, whatever else is in it.
_WITHOUT_SYMPTOMS = (
    Rule.THROTTLING,
    Rule.LAUNCHES,
    Rule.SLOW_RANK,
    Rule.THREADS,
    Rule.SMALL_BATCH,
    Rule.PADDING,
    Rule.STARTUP,
)
# Their time is that of kernels: a thread that waits at the same time is another matter.
_ON_GPU = (
    Rule.FP32_NORMS,
    Rule.LOOKUPS,
    Rule.LAYOUT_COPIES,
    Rule.FP32_PRODUCTS,
    Rule.SMALL_KERNELS,
    Rule.THROTTLING,
)
_INCOMPLETE = 0.5
_LEAST_STEADY = 0.1
_PART_OF_BOUND = 0.1  # a bound is before gains that are certain, but less than a tenth of it

RULES: dict[Rule, Callable[[ProgramRecord], list[Draft] | Missing]] = {
    Rule.LOADER: loader,
    Rule.RECOMPILATIONS: recompilations,
    Rule.COLLECTIONS: collections,
    Rule.LOGGING: logging,
    Rule.ALLOCATIONS: allocations,
    Rule.GPU_SYNCHRONIZATION: gpu_synchronization,
    Rule.PAGEABLE_COPIES: pageable_copies,
    Rule.OPTIMIZER: optimizer,
    Rule.ZEROING: zeroing,
    Rule.ACCUMULATION: accumulation,
    Rule.BUCKETS: buckets,
    Rule.SLOW_OPERATORS: slow_operators,
    Rule.FP32_NORMS: fp32_norms,
    Rule.LOOKUPS: lookups,
    Rule.LAYOUT_COPIES: layout_copies,
    Rule.FP32_PRODUCTS: fp32_products,
    Rule.SMALL_KERNELS: small_kernels,
    Rule.THROTTLING: throttling,
    Rule.INTERPRETER_LOCK: interpreter_lock,
    Rule.WAITING: waiting,
    Rule.LAUNCHES: launches,
    Rule.SLOW_RANK: slow_rank,
    Rule.THREADS: threads,
    Rule.SMALL_BATCH: small_batch,
    Rule.PADDING: padding,
    Rule.UNUSED_IMPORT: unused_import,
    Rule.STARTUP: startup,
}


@dataclass(frozen=True, slots=True)
class Findings(Sequence[Finding]):
    """The findings of a run, the largest low end of a gain first; `results` are those of all rules.

    `step_ns` is the median step, `mean_step_ns` the mean one, which gains are a part of; None without steps.
    `rank` is that of the searched process, None for a program without ranks. `missing_ranks` were not
    recorded, or have no steps. `processor_waits` are those of `run.phases()`. `unlisted` are findings whose
    gain is too small, or that are symptoms of another one. `other_python` is the function with most of a
    step's time outside of the model; it is no finding, since what it does may be needed.
    """

    found: tuple[Finding, ...]
    results: tuple[RuleResult, ...]
    wall_ns: int
    step_ns: float | None
    mean_step_ns: float | None = None
    rank: int | None = None
    missing_ranks: tuple[int, ...] = ()
    processor_waits: ProcessorWaits | None = None
    unlisted: tuple[Finding, ...] = ()
    other_python: OtherPython | None = None

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, place: int) -> Finding:  # type: ignore[override]  # no slices
        return self.found[place]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found)


def is_searched(meta: Mapping[str, Any]) -> bool:
    """Whether a run is small enough to look for findings for a table or a page."""
    return ((meta.get("totals") or {}).get("spans") or 0) <= MOST_CALLS


def find(folder: RunFolder, rerun: Rerunner | None = None, rank: int | None = None) -> Findings:
    """Ask all rules about the main process of a run, or about a rank: `rank`, or the one others wait for.

    With `rerun`, gains are measured again where that is possible, and rules that need it are asked, too.
    Raises RunError for a damaged run.
    """
    record = ProgramRecord(folder, rank)
    kept: list[tuple[Draft, Finding]] = []
    unlisted: list[Finding] = []
    results = []
    for rule, look in RULES.items():
        answer = look(record)
        if isinstance(answer, Missing):
            if answer is Missing.STACKS and lacks_native_sampler(folder.meta):
                answer = Missing.NATIVE_SAMPLER
            results.append(RuleResult(rule, Verdict.UNKNOWN, answer))
            continue
        judged = [(draft, _finding(record, draft)) for draft in answer]
        significant = [pair for pair in judged if _is_significant(record, *pair)]
        listed = [pair for pair in significant if not _is_symptom(kept, pair[0])]
        kept += listed
        unlisted += [finding for _, finding in judged if all(finding is not each for _, each in listed)]
        results.append(_result(record, rule, judged, significant))
    if rerun is not None:
        kept, results = _measured(record, rerun, kept, results)
    found = sorted(
        (replace(finding, places=located(record, draft)) for draft, finding in kept),
        key=_by_gain,
    )
    step_ns = None if record.figures is None else record.figures.median_ns
    return Findings(
        found=tuple(found),
        results=tuple(results),
        wall_ns=record.wall_ns,
        step_ns=step_ns,
        mean_step_ns=None if record.steps is None else record.steps.warm.mean_ns,
        rank=record.rank,
        missing_ranks=() if record.phases is None else record.phases.missing_ranks,
        processor_waits=record.processor_waits,
        unlisted=tuple(unlisted),
        other_python=read_other_python(record),
    )


def _by_gain(finding: Finding) -> tuple[float, float]:
    """Return the place of a finding, by its low end; a bound has none, and a part of its upper end counts."""
    gain = finding.gain.run
    low_ns = _PART_OF_BOUND * gain.high_ns if finding.gain.kind is GainKind.BOUND else gain.low_ns
    return -low_ns, -gain.high_ns


def _result(
    record: ProgramRecord,
    rule: Rule,
    judged: list[tuple[Draft, Finding]],
    significant: list[tuple[Draft, Finding]],
) -> RuleResult:
    if significant:
        return RuleResult(rule, Verdict.FOUND)
    if not judged:
        return RuleResult(rule, Verdict.NOT_FOUND)
    draft, finding = max(judged, key=lambda pair: pair[1].gain.run.high_ns)
    return RuleResult(
        rule,
        Verdict.NOT_SIGNIFICANT,
        largest_ns=_largest_ns(finding),
        least_ns=_least_ns(record, draft, finding),
        is_of_step=finding.gain.step is not None,
    )


def _measured(
    record: ProgramRecord, rerun: Rerunner, kept: list[tuple[Draft, Finding]], results: list[RuleResult]
) -> tuple[list[tuple[Draft, Finding]], list[RuleResult]]:
    """Measure the gains of findings again, and ask the rules whose causes only a re-run can show."""
    confirmed: list[tuple[Draft, Finding]] = []
    by_rule = {each.rule: each for each in results}
    for draft, finding in kept:
        measured = _rerun_finding(record, rerun, draft, finding)
        if _is_significant(record, *measured):
            confirmed.append(measured)
        else:
            by_rule[draft.rule] = _result(record, draft.rule, [measured], [])
    for rule, look in CANDIDATES.items():
        answer = look(record)
        if isinstance(answer, Missing):
            by_rule.setdefault(rule, RuleResult(rule, Verdict.UNKNOWN, answer))
            continue
        judged = [_rerun_finding(record, rerun, draft, _finding(record, draft)) for draft in answer]
        measured_again = [pair for pair in judged if pair[1].gain.kind is GainKind.RERUN]
        significant = [pair for pair in measured_again if _is_significant(record, *pair)]
        confirmed += [pair for pair in significant if not _is_symptom(confirmed, pair[0])]
        by_rule[rule] = _candidate_result(record, rule, judged, significant, by_rule.get(rule))
    for draft, _ in confirmed:
        by_rule[draft.rule] = RuleResult(draft.rule, Verdict.FOUND)
    return confirmed, list(by_rule.values())


def _rerun_finding(
    record: ProgramRecord, rerun: Rerunner, draft: Draft, finding: Finding
) -> tuple[Draft, Finding]:
    measured, outcome = rerun(record, draft)
    return measured, replace(_finding(record, measured), symptoms=finding.symptoms, rerun=outcome)


def _candidate_result(
    record: ProgramRecord,
    rule: Rule,
    judged: list[tuple[Draft, Finding]],
    significant: list[tuple[Draft, Finding]],
    before: RuleResult | None,
) -> RuleResult:
    """Return the result of a rule that needs a re-run. Without drafts, an earlier result remains."""
    measured = [pair for pair in judged if pair[1].gain.kind is GainKind.RERUN]
    problems = [pair[1].rerun.problem for pair in judged if pair[1].rerun is not None]
    unknown = [each for each in problems if each is not None and each is not RerunProblem.REFUTED]
    if not significant and unknown:
        return RuleResult(rule, Verdict.UNKNOWN, problem=unknown[0])
    if before is not None and not measured:
        return before
    return _result(record, rule, measured, significant)


def _is_symptom(kept: list[tuple[Draft, Finding]], draft: Draft) -> bool:
    """Add a draft to the symptoms of a cause that has most of its time; return whether there is one."""
    for place, (cause, finding) in enumerate(kept):
        if cause.rule == draft.rule or cause.rule in _WITHOUT_SYMPTOMS:
            continue
        if (cause.rule in _ON_GPU) != (draft.rule in _ON_GPU):
            continue
        shared = int(cause.time.covered_ns(draft.time.begin_ns, draft.time.end_ns).sum())
        if shared > _SYMPTOM * draft.time.total_ns:
            symptoms = tuple(dict.fromkeys([*finding.symptoms, draft.rule]))
            kept[place] = (cause, replace(finding, symptoms=symptoms))
            return True
    return False


def _is_significant(record: ProgramRecord, draft: Draft, finding: Finding) -> bool:
    return _largest_ns(finding) >= max(_least_ns(record, draft, finding), 1)


def _largest_ns(finding: Finding) -> float:
    """Return what is compared with the least gain: a bound's end, or the middle of what was replayed."""
    gain = finding.gain.step or finding.gain.run
    if finding.gain.kind is not GainKind.REPLAYED or finding.cost_step_ns is None or gain.high_ns <= 0:
        return gain.high_ns
    of_step = finding.cost_step_ns / finding.cost_run_ns
    return (finding.gain.run.low_ns + finding.gain.run.high_ns) / 2 * of_step


def _least_ns(record: ProgramRecord, draft: Draft, finding: Finding) -> float:
    """Return the least significant gain: of the wall time, and of what a step varies by without the cause."""
    if finding.gain.step is None or record.figures is None:
        return LEAST_PART * record.wall_ns
    # A re-run has its own interval: the steps need not be as steady.
    is_measured = draft.kind is GainKind.RERUN
    variation = 0.0 if is_measured else record.step_variation_ns(draft.time) or 0.0
    return max(LEAST_PART * record.figures.median_ns, variation)


def _finding(record: ProgramRecord, draft: Draft) -> Finding:
    cost_ns, cost_step_ns, in_steps = _costs(record, draft)
    if draft.kind is not GainKind.RERUN and cost_ns:
        draft = replace(draft, gain=_within(draft.gain, cost_ns + draft.missed_ns))
    step = None
    if cost_step_ns is not None and in_steps and record.steps is not None:
        warm = record.steps.warm
        if draft.kind is GainKind.REPLAYED and len(warm) == 1:
            # One step does not show by how much steps vary: it has no low end.
            draft = replace(draft, kind=GainKind.BOUND, gain=TimeRange(0.0, draft.gain.high_ns))
        step = _of_step(draft, warm, in_steps)
    return Finding(
        rule=draft.rule,
        values=draft.values,
        places=draft.places,
        cost_run_ns=cost_ns,
        cost_step_ns=cost_step_ns,
        gain=Gain(draft.kind, draft.gain, step),
        factors=_factors(record, draft, is_of_step=step is not None),
        evidence=draft.evidence,
    )


def _of_step(draft: Draft, warm: Intervals, in_steps: float) -> TimeRange:
    """Return the gain of the mean step, where `in_steps` of the cause's time is.

    It varies as the time of the cause does; a bound is an upper end only. The rest of a step is often faster
    without the cause, but that is no gain of its repair: the most is the cost and what samples missed.
    """
    step = draft.gain.scaled(in_steps / len(warm))
    cost_ns = draft.time.covered_ns(warm.begin_ns, warm.end_ns).astype(np.float64)
    if draft.kind is GainKind.BOUND or not cost_ns.any():
        return step
    shares = cost_ns / cost_ns.mean()
    is_replayed = draft.kind is GainKind.REPLAYED
    low_ns, high_ns = step_interval(
        [step.low_ns * shares, step.high_ns * shares], relative_error=REPLAY_ERROR if is_replayed else 0.0
    )
    if not is_replayed:
        return TimeRange(low_ns, high_ns)
    missed_ns = draft.missed_ns * in_steps / len(warm)
    return _within(TimeRange(low_ns, high_ns), float(cost_ns.mean()) + missed_ns)


def _within(gain: TimeRange, cost_ns: float) -> TimeRange:
    """Return a gain that is not below 0 or above the cost."""
    return TimeRange(*(min(max(end, 0.0), cost_ns) for end in (gain.low_ns, gain.high_ns)))


def _costs(record: ProgramRecord, draft: Draft) -> tuple[float, float | None, float]:
    """Return the time of the cause in the run and in a warm step, and the part in warm steps."""
    total_ns = float(draft.time.total_ns)
    if record.steps is None or not total_ns:
        return total_ns, None, 0.0
    warm = record.steps.warm
    inside = float(draft.time.covered_ns(warm.begin_ns, warm.end_ns).sum())
    return total_ns, inside / len(warm) if inside else None, inside / total_ns


def _factors(record: ProgramRecord, draft: Draft, *, is_of_step: bool) -> dict[str, float]:
    factors = {draft.kind.value: CONFIDENCE_OF_KIND[draft.kind]}
    if draft.kind is GainKind.REPLAYED:
        factors["explained"] = draft.explained
    variation = record.step_variation_ns(draft.time)
    if variation is not None and record.figures is not None and record.figures.median_ns:
        factors["steadiness"] = max(1 - variation / record.figures.median_ns, _LEAST_STEADY)
    if is_of_step and record.steps is not None and (count := len(record.steps.warm)) < FEWEST_STEPS:
        factors["steps"] = count / FEWEST_STEPS
    waits = record.processor_waits
    if draft.kind is GainKind.REPLAYED and waits is not None and waits.contention is not None:
        factors["processors"] = 1 - waits.fraction
    if not record.is_complete:
        factors["incomplete"] = _INCOMPLETE
    return factors
