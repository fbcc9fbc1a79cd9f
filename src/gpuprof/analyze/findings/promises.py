# SPDX-License-Identifier: Apache-2.0
"""What the findings of an old run promised, and what the new run got: the score, kept in the new run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.findings.engine import find
from gpuprof.analyze.findings.finding import Finding, Rule, TimeRange
from gpuprof.analyze.phases import read_phases
from gpuprof.record.recording_folder import write_json

if TYPE_CHECKING:
    from gpuprof.analyze.phases import Phases
    from gpuprof.run.folder import RunFolder

SCORE_FILE = "score.json"
_SCORE_FORMAT = 1
# What identifies a cause of a rule in two runs.
_SUBJECT = ("function", "line", "span", "package", "name", "is_in_process")


class Outcome(str, Enum):
    """Whether a promise was kept. `together`: several causes are gone, and the steps show their sum only."""

    HIT = "hit"
    MISSED = "missed"
    NOT_REPAIRED = "not_repaired"
    TOGETHER = "together"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Promise:
    """A finding of the old run and what became of it.

    `predicted` and `got` are of a step, or of the run if `is_of_step` is false. `got` has a 90% interval for
    steps, and equal ends for what a run has once. It is None if the runs do not have it.
    """

    finding: Finding
    is_of_step: bool
    predicted: TimeRange
    got_ns: float | None
    got: TimeRange | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Score:
    """The promises of an old run. `together` is that of all causes that are gone, if several are.

    `kept_in` is the file with the score, None if it could not be written.
    """

    old: str
    promises: tuple[Promise, ...]
    together: tuple[TimeRange, TimeRange | None, Outcome] | None
    old_step_ns: float | None
    new_step_ns: float | None
    kept_in: str | None


def score(new: RunFolder, old: RunFolder) -> Score:
    """Compare the gains that the old run's findings predict with the new run. Raises RunError.

    The score is also written to the new run.
    """
    before, after = find(old), find(new)
    phases = _phases(old), _phases(new)
    remaining = {_subject(each) for each in after}
    gone = [each for each in before if _subject(each) not in remaining]
    of_steps = [each for each in gone if each.gain.step is not None]
    promises = tuple(_promise(each, each in gone, len(of_steps) > 1, *phases) for each in before)
    together = _together(of_steps, *phases) if len(of_steps) > 1 else None
    found = Score(str(old.path), promises, together, before.step_ns, after.step_ns, None)
    return _kept(found, new, old)


def _phases(folder: RunFolder) -> Phases | None:
    with folder.reading():
        return read_phases(folder)


def _subject(finding: Finding) -> tuple[Rule, tuple[Any, ...]]:
    return finding.rule, tuple(finding.values.get(name) for name in _SUBJECT)


def _promise(
    finding: Finding, is_gone: bool, with_others: bool, old: Phases | None, new: Phases | None
) -> Promise:
    is_of_step = finding.gain.step is not None
    predicted = finding.gain.step or finding.gain.run
    got_ns, got = step_difference(old, new) if is_of_step else _start_difference(finding, old, new)
    if not is_gone:
        outcome = Outcome.NOT_REPAIRED
    elif is_of_step and with_others:
        outcome = Outcome.TOGETHER
    else:
        outcome = outcome_of(predicted, got)
    return Promise(finding, is_of_step, predicted, got_ns, got, outcome)


def outcome_of(predicted: TimeRange, got: TimeRange | None) -> Outcome:
    """Return whether two ranges have a common value."""
    if got is None:
        return Outcome.UNKNOWN
    is_hit = predicted.low_ns <= got.high_ns and got.low_ns <= predicted.high_ns
    return Outcome.HIT if is_hit else Outcome.MISSED


def _together(
    gone: Sequence[Finding], old: Phases | None, new: Phases | None
) -> tuple[TimeRange, TimeRange | None, Outcome]:
    """Return prediction and result of several causes: their sum is an upper end only."""
    steps = [each.gain.step for each in gone if each.gain.step is not None]
    predicted = TimeRange(max(each.low_ns for each in steps), sum(each.high_ns for each in steps))
    _, got = step_difference(old, new)
    return predicted, got, outcome_of(predicted, got)


def step_difference(old: Phases | None, new: Phases | None) -> tuple[float | None, TimeRange | None]:
    """Return by how much the median step became shorter, with its 90% interval.

    The interval of the difference is that of Zou and Donner, Statistics in Medicine 27 (2008) 1693: the
    distances of the ends from the medians, added as independent errors.
    """
    before, after = (None if each is None else each.steps for each in (old, new))
    if before is None or after is None:
        return None, None
    got_ns = before.median_ns - after.median_ns
    if before.interval_ns is None or after.interval_ns is None:
        return got_ns, None
    (old_low, old_high), (new_low, new_high) = before.interval_ns, after.interval_ns
    below = math.hypot(before.median_ns - old_low, new_high - after.median_ns)
    above = math.hypot(old_high - before.median_ns, after.median_ns - new_low)
    return got_ns, TimeRange(got_ns - below, got_ns + above)


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
        "old_step_ns": found.old_step_ns,
        "new_step_ns": found.new_step_ns,
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
