# SPDX-License-Identifier: Apache-2.0
"""What an old run's findings promised, and what the new run got."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.finding import Rule, TimeRange
from gpuprof.analyze.findings.promises import SCORE_FILE, Outcome, Score, outcome_of

SLOW = Planted(collect=20, sleep=9)


def recorded(path: Path, planted: Planted, steps: int = 12) -> gpuprof.Run:
    return gpuprof.open(train(TrainingHost(settings=settings()), planted, steps).write(path))


def scored(folder: Path, new: Planted, *, old: Planted = SLOW, steps: int = 12) -> Score:
    before = recorded(folder / "old.gpuprof", old, steps)
    return recorded(folder / "new.gpuprof", new, steps).score(before)


def outcomes(score: Score) -> dict[Rule, Outcome]:
    return {each.finding.rule: each.outcome for each in score.promises}


def test_a_repaired_cause_got_what_was_predicted(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(sleep=9))
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.HIT, Rule.WAITING: Outcome.NOT_REPAIRED}
    (promise,) = [each for each in score.promises if each.outcome is Outcome.HIT]
    assert promise.got_ns == pytest.approx(20 * MS)
    assert promise.predicted.low_ns <= 20.01 * MS
    assert promise.predicted.high_ns >= 19.99 * MS
    assert (score.old_step_ns, score.new_step_ns) == (59 * MS, 39 * MS)


def test_a_repair_that_moved_the_time_is_missed(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(startup=0, log=15), old=Planted(collect=20))
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.MISSED}


def test_of_several_repaired_causes_only_the_sum_is_known(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted())
    assert set(outcomes(score).values()) == {Outcome.TOGETHER}
    assert score.together is not None
    predicted, got, outcome = score.together
    assert outcome is Outcome.HIT
    assert got is not None
    assert predicted.low_ns <= got.low_ns == got.high_ns == 29 * MS <= predicted.high_ns


def test_few_steps_have_no_interval(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(), old=Planted(collect=20), steps=3)
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.UNKNOWN}
    assert score.promises[0].got_ns == pytest.approx(20 * MS)


def test_a_faster_start_is_compared_as_a_whole(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(), old=Planted(startup=300))
    (promise,) = score.promises
    assert (promise.outcome, promise.is_of_step, promise.got_ns) == (Outcome.HIT, False, 300 * MS)


def test_the_score_is_kept_once_for_each_old_run(tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", SLOW)
    other = recorded(tmp_path / "other.gpuprof", Planted(collect=20))
    new = recorded(tmp_path / "new.gpuprof", Planted(sleep=9))
    for old in (before, other, before):
        assert new.score(old).kept_in == str(tmp_path / "new.gpuprof" / SCORE_FILE)
    kept = json.loads((tmp_path / "new.gpuprof" / SCORE_FILE).read_text(encoding="utf-8"))["scores"]
    assert [Path(each["old"]).name for each in kept] == ["other.gpuprof", "old.gpuprof"]
    assert {each["outcome"] for each in kept[1]["promises"]} == {"hit", "not_repaired"}
    assert list(gpuprof.open(tmp_path / "new.gpuprof").findings())  # it is still a run


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99}', '{"format": 1, "scores": [7]}', "\x00"])
def test_a_damaged_score_is_replaced(content: str, tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", SLOW)
    new = recorded(tmp_path / "new.gpuprof", Planted(sleep=9))
    (new.path / SCORE_FILE).write_text(content, encoding="utf-8")
    new.score(before)
    kept = json.loads((new.path / SCORE_FILE).read_text(encoding="utf-8"))
    assert len(kept["scores"]) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_run_that_cannot_be_written_is_compared_only(tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", SLOW)
    new = recorded(tmp_path / "new.gpuprof", Planted())
    new.path.chmod(0o500)
    try:
        assert new.score(before).kept_in is None
    finally:
        new.path.chmod(0o700)


@pytest.mark.parametrize(
    ("got", "outcome"),
    [
        (None, Outcome.UNKNOWN),
        (TimeRange(0, 9), Outcome.MISSED),
        (TimeRange(9, 10), Outcome.HIT),
        (TimeRange(12, 13), Outcome.HIT),
        (TimeRange(0, 99), Outcome.HIT),
        (TimeRange(21, 99), Outcome.MISSED),
    ],
)
def test_an_outcome_is_a_hit_if_the_ranges_overlap(got: TimeRange | None, outcome: Outcome) -> None:
    assert outcome_of(TimeRange(10, 20), got) is outcome
