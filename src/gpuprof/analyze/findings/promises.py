# SPDX-License-Identifier: Apache-2.0
"""What the findings of an old run promised, and what the new run got: the score, kept in the new run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.compared_runs import ComparedSide, comparison_notes, same_function, script_of
from gpuprof.analyze.findings.engine import find
from gpuprof.analyze.findings.finding import Finding, GainKind, Rule, TimeRange
from gpuprof.analyze.findings.record import ProgramRecord
from gpuprof.analyze.findings.step_parts import (
    PART_OF_RULE,
    PartDifference,
    StepPart,
    compare_part,
    difference_interval,
)
from gpuprof.analyze.whatif.step_gain import replay_interval
from gpuprof.errors import RunError
from gpuprof.record.recording_folder import write_json

if TYPE_CHECKING:
    from gpuprof.analyze.findings.engine import Findings
    from gpuprof.analyze.phases import Phases, StepFigures
    from gpuprof.run.folder import RunFolder

SCORE_FILE = "score.json"
_SCORE_FORMAT = 1
# What identifies a cause of a rule in two runs. Lines change when a program is edited.
_SUBJECT = ("function", "span", "package", "name", "is_in_process")
_SAME = 0.7  # of a cause's old time: it is still there as it was


class Outcome(str, Enum):
    """Whether a promise was kept.

    `part`: in its part of the step, but the rest changed as well. `drifted`: its part got something else, and
    the rest changed as well, so the cause is unknown. `together`: several causes in one part of the step are
    gone, which shows their sum only. `inconclusive`: the difference is not significant, there may be no gain.
    `not_repaired`: the cause is in the new run as before. `reduced`: it is, with less than 0.7 of its time.
    """

    HIT = "hit"
    PART = "part"
    MORE = "more"
    LESS = "less"
    DRIFTED = "drifted"
    NOT_REPAIRED = "not_repaired"
    REDUCED = "reduced"
    TOGETHER = "together"
    INCONCLUSIVE = "inconclusive"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Promise:
    """A finding of the old run and what became of it.

    `predicted` and `got` are of a step, or of the run if `is_of_step` is false. `got` has a 90% interval for
    steps, and equal ends for what a run has once. It is None if the runs do not have it. `part` is the part
    of the step that the finding is about, None if that is unknown. `now` is the gain that the same finding
    has in the new run, None if the cause is gone.
    """

    finding: Finding
    is_of_step: bool
    predicted: TimeRange
    got_ns: float | None
    got: TimeRange | None
    part: PartDifference | None
    outcome: Outcome
    now: TimeRange | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The promises of an old run. `together` is that of all causes that are gone, if several are.

    Promises and results are of the mean step (`old_mean_step_ns`, `new_mean_step_ns`); `old_step_ns` and
    `new_step_ns` are the median ones, None without steps. `rank` is the one whose steps are compared, None
    for a program without ranks.
    `kept_in` is the file with the score, None if it could not be written. `warnings` are sentences: what is
    not alike between the runs, and which of them was disturbed.
    """

    old: str
    promises: tuple[Promise, ...]
    together: tuple[TimeRange, TimeRange | None, Outcome] | None
    old_step_ns: float | None
    new_step_ns: float | None
    kept_in: str | None
    old_mean_step_ns: float | None = None
    new_mean_step_ns: float | None = None
    rank: int | None = None
    warnings: tuple[str, ...] = ()


def score(new: RunFolder, old: RunFolder) -> Score:
    """Compare the gains that the old run's findings predict with the new run. Raises RunError.

    They are compared by the rank in which the old run's causes were searched: the new run may have another
    slow rank, or none. The score is also written to the new run. A run is not compared with itself.
    """
    if new.path.resolve() == old.path.resolve():
        raise RunError(
            "same_run",
            f"{new.path} is compared with itself",
            hint="name the run before the change: gpuprof explain NEW --against OLD",
        )
    before = find(old)
    after = find(new, rank=before.rank)
    old_side, new_side = (ComparedSide.of([each]) for each in (old, new))
    phases = old_side.phases[0], new_side.phases[0]
    whole = step_difference(*(_steps_of(each, before.rank) for each in phases))
    remaining = _remaining(before, after, (script_of(old.meta), script_of(new.meta)))
    gone = [each for each, now in zip(before, remaining, strict=True) if now is None]
    of_steps = [each for each in gone if each.gain.step is not None]
    has_rank = before.rank in (None, after.rank)
    parts = _parts(of_steps, old, new, before.rank) if has_rank else {}
    promises = []
    for each, now in zip(before, remaining, strict=True):
        of_step = each.gain.step is not None and now is None
        own = PART_OF_RULE.get(each.rule)
        part = parts.get(own) if of_step and own is not None else None
        got = _start_difference(each, *phases) if each.gain.step is None else whole
        promise = _promise(each, now, part, *got)
        if of_step and len(of_steps) > 1 and part is None:
            promise = replace(promise, outcome=Outcome.TOGETHER)
        promises.append(promise)
    together = _together(of_steps, whole[1]) if len(of_steps) > 1 else None
    found = Score(
        old=str(old.path),
        promises=tuple(promises),
        together=together,
        old_step_ns=before.step_ns,
        new_step_ns=after.step_ns if has_rank else None,
        kept_in=None,
        old_mean_step_ns=before.mean_step_ns,
        new_mean_step_ns=after.mean_step_ns if has_rank else None,
        rank=before.rank,
        warnings=tuple(comparison_notes(new_side, old_side)),
    )
    return _kept(found, new, old)


def _steps_of(phases: Phases | None, rank: int | None) -> StepFigures | None:
    """Return the steps of the main process; those of a rank for a launcher."""
    if phases is None or phases.steps is not None:
        return None if phases is None else phases.steps
    return next((each.steps for each in phases.ranks if each.rank == rank), None)


def _remaining(before: Findings, after: Findings, scripts: tuple[str, str]) -> list[Finding | None]:
    """Return for each old finding the same one of the new run, None if it is gone.

    `scripts` are those of the old and the new run.

    A finding that is not listed in the new run, because the steps vary more there or as a symptom of another
    one, is the same one if its time is.
    """
    left = [*after, *after.unlisted]
    listed = len(after)
    found: list[Finding | None] = []
    for old in before:
        place = next(
            (
                place
                for place, new in enumerate(left)
                if _is_same(_subject(old, scripts[0]), _subject(new, scripts[1]))
                and (place < listed or _time_now(old, new) >= _SAME)
            ),
            None,
        )
        found.append(None if place is None else left.pop(place))
        listed -= place is not None and place < listed
    return found


def _subject(finding: Finding, script: str) -> dict[str, Any]:
    values = {name: finding.values.get(name) for name in _SUBJECT}
    return {"rule": finding.rule} | {
        name: same_function(each, script) if isinstance(each, str) else each for name, each in values.items()
    }


def _is_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two subjects are the same, as far as both are known: without stacks, they have no function."""
    is_known = None not in (old["function"], new["function"])
    return all(
        old[name] == new[name] for name in old if name != "function" or (is_known and old["span"] is None)
    )


def _time_now(old: Finding, new: Finding) -> float:
    """Return the time of a cause in the new run, relative to the old one."""
    if old.cost_step_ns and new.cost_step_ns:
        return new.cost_step_ns / old.cost_step_ns
    return new.cost_run_ns / old.cost_run_ns if old.cost_run_ns else 1.0


def _promise(
    finding: Finding,
    now: Finding | None,
    part: PartDifference | None,
    got_ns: float | None,
    got: TimeRange | None,
) -> Promise:
    is_of_step = finding.gain.step is not None
    predicted = finding.gain.step or _of_run(finding)
    if now is None:
        return Promise(finding, is_of_step, predicted, got_ns, got, part, outcome_of(predicted, got, part))
    outcome = Outcome.NOT_REPAIRED if _time_now(finding, now) >= _SAME else Outcome.REDUCED
    gain_now = now.gain.step if is_of_step else _of_run(now)
    return Promise(finding, is_of_step, predicted, got_ns, got, part, outcome, gain_now)


def _of_run(finding: Finding) -> TimeRange:
    """Return the gain of a run: a replay gives that of the old recording, without the error of replays."""
    gain = finding.gain.run
    if finding.gain.kind is not GainKind.REPLAYED:
        return gain
    low_ns, high_ns = replay_interval(gain.low_ns, gain.high_ns)
    return TimeRange(low_ns, min(high_ns, finding.cost_run_ns) if finding.cost_run_ns else high_ns)


def _parts(
    gone: Sequence[Finding], old: RunFolder, new: RunFolder, rank: int | None
) -> dict[StepPart, PartDifference | None]:
    """Return the differences of the parts of the step that only one cause that is gone is about."""
    parts = [PART_OF_RULE.get(each.rule) for each in gone]
    records = ProgramRecord(old, rank), ProgramRecord(new, rank)
    return {
        part: compare_part(part, *records) for part in parts if part is not None and parts.count(part) == 1
    }


def outcome_of(predicted: TimeRange, got: TimeRange | None, part: PartDifference | None = None) -> Outcome:
    """Compare a prediction with what the whole step got, and with what its own part of the step got."""
    of_step = _overlap(predicted, got)
    if part is None or part.own.interval is None:
        return of_step
    of_part = _overlap(predicted, part.own.interval)
    if of_part is Outcome.HIT:
        return Outcome.PART if part.has_drifted and of_step is not Outcome.HIT else Outcome.HIT
    return Outcome.DRIFTED if part.has_drifted else of_part


def _overlap(predicted: TimeRange, got: TimeRange | None) -> Outcome:
    """Return whether two ranges have a common value, and which is larger."""
    if got is None:
        return Outcome.UNKNOWN
    if got.low_ns > predicted.high_ns:
        return Outcome.MORE
    if got.high_ns < predicted.low_ns:
        return Outcome.LESS
    # An upper bound begins at 0, and overlaps with no gain at all.
    return Outcome.INCONCLUSIVE if got.low_ns <= 0 <= predicted.low_ns else Outcome.HIT


def _together(gone: Sequence[Finding], got: TimeRange | None) -> tuple[TimeRange, TimeRange | None, Outcome]:
    """Return prediction and result of several causes: their sum is an upper end only."""
    steps = [each.gain.step for each in gone if each.gain.step is not None]
    predicted = TimeRange(max(each.low_ns for each in steps), sum(each.high_ns for each in steps))
    return predicted, got, outcome_of(predicted, got)


def step_difference(
    before: StepFigures | None, after: StepFigures | None
) -> tuple[float | None, TimeRange | None]:
    """Return by how much the mean step became shorter, with its 90% interval."""
    if before is None or after is None or before.mean_ns is None or after.mean_ns is None:
        return None, None
    interval = difference_interval(
        before.mean_ns, before.mean_interval_ns, after.mean_ns, after.mean_interval_ns
    )
    return before.mean_ns - after.mean_ns, interval


def _start_difference(
    finding: Finding, old: Phases | None, new: Phases | None
) -> tuple[float | None, TimeRange | None]:
    """Return by how much the start-up became shorter, or the run for a cause that is not in the start-up."""
    if old is None or new is None:
        return None, None
    is_start = finding.rule in (Rule.STARTUP, Rule.UNUSED_IMPORT) and new.steps is not None
    got_ns = float(old.startup_ns - new.startup_ns if is_start else old.wall_ns - new.wall_ns)
    return got_ns, TimeRange(got_ns, got_ns)


def plain_score(found: Score) -> dict[str, Any]:
    """Return a score as values for JSON, with units in the keys."""
    together = None
    if found.together is not None:
        predicted, got, outcome = found.together
        together = {
            "predicted": asdict(predicted),
            "got": None if got is None else asdict(got),
            "outcome": outcome.value,
        }
    return {
        "old": found.old,
        "rank": found.rank,
        "warnings": list(found.warnings),
        "old_step_ns": found.old_step_ns,
        "new_step_ns": found.new_step_ns,
        "old_mean_step_ns": found.old_mean_step_ns,
        "new_mean_step_ns": found.new_mean_step_ns,
        "promises": [
            {
                "rule": each.finding.rule.value,
                "values": dict(each.finding.values),
                "kind": each.finding.gain.kind.value,
                "confidence": each.finding.confidence,
                "is_of_step": each.is_of_step,
                "predicted": asdict(each.predicted),
                "got_ns": each.got_ns,
                "got": None if each.got is None else asdict(each.got),
                "part": None if each.part is None else {**asdict(each.part), "part": each.part.part.value},
                "now": None if each.now is None else asdict(each.now),
                "outcome": each.outcome.value,
            }
            for each in found.promises
        ],
        "together": together,
    }


def _kept(found: Score, new: RunFolder, old: RunFolder) -> Score:
    """Write a score into the new run, in place of an earlier one against the same run."""
    file = new.path / SCORE_FILE
    origin = old.meta.get("origin_unix_ns")
    scores = [each for each in _earlier(new) if each.get("old_origin_unix_ns") != origin]
    scores.append({"old_origin_unix_ns": origin, **plain_score(found)})
    try:
        write_json(file, {"format": _SCORE_FORMAT, "scores": scores})
    except OSError:
        return found  # the run is on a read-only medium
    return replace(found, kept_in=str(file))


def _earlier(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the scores in a run; none from a file that is damaged or of another version."""
    try:
        content = json.loads((folder.path / SCORE_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(content, dict) or content.get("format") != _SCORE_FORMAT:
        return []
    return [each for each in content.get("scores") or () if isinstance(each, dict)]
