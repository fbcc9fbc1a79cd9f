# SPDX-License-Identifier: Apache-2.0
"""What an old run's findings promised, and what the new run got."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused
from run_edits import change_meta
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.finding import Rule, TimeRange
from gpuprof.analyze.findings.promises import SCORE_FILE, Outcome, Score, outcome_of, plain_score
from gpuprof.analyze.findings.step_parts import PartDifference, StepPart, TimeSaved
from gpuprof.analyze.findings.text import score_text
from gpuprof.errors import RunError

SLOW = Planted(collect=20, sleep=9)


def recorded(path: Path, planted: Planted, steps: int = 12) -> gpuprof.Run:
    return gpuprof.open(train(TrainingHost(settings=settings()), planted, steps).write(path))


def scored(folder: Path, new: Planted, *, old: Planted = SLOW, steps: int = 12) -> Score:
    before = recorded(folder / "old.gpuprof", old, steps)
    return recorded(folder / "new.gpuprof", new, steps).score(before)


def text_of(score: Score) -> str:
    """Return the printed score with single spaces."""
    return " ".join(score_text(score).split())


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


def test_a_cause_in_each_tenth_step_is_compared_by_the_mean(tmp_path: Path) -> None:
    """The median step does not have the collection."""
    score = scored(tmp_path, Planted(), old=Planted(collect=200, collect_every=10), steps=60)
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.HIT}
    (promise,) = score.promises
    assert promise.got_ns == pytest.approx(20 * MS)
    assert promise.got is not None
    assert 0 < promise.got.low_ns < 20 * MS < promise.got.high_ns
    assert promise.part is not None
    assert promise.part.own.saved_ns == pytest.approx(20 * MS)
    assert promise.predicted.low_ns <= 20 * MS <= promise.predicted.high_ns
    assert (score.old_step_ns, score.new_step_ns) == (30 * MS, 30 * MS)
    assert score.old_mean_step_ns == pytest.approx(50 * MS)
    assert score.new_mean_step_ns == pytest.approx(30 * MS)


def test_a_rare_cause_that_remains_in_the_new_run_is_not_called_repaired(tmp_path: Path) -> None:
    rare = Planted(collect=200, collect_every=10)
    score = scored(tmp_path, rare, old=rare, steps=60)
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.NOT_REPAIRED}


def test_an_edit_above_a_function_does_not_repair_it(tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", Planted(sleep=9))
    edited = train(TrainingHost(settings=settings()), Planted(sleep=9))
    for sample in edited.samples:
        sample["frames"] = [each.replace("train.py:60", "train.py:63") for each in sample["frames"]]
        sample["line"] += 3
    (promise,) = gpuprof.open(edited.write(tmp_path / "new.gpuprof")).score(before).promises
    assert (promise.finding.rule, promise.outcome) == (Rule.WAITING, Outcome.NOT_REPAIRED)
    assert promise.now == promise.predicted


def test_a_cause_of_a_renamed_script_is_the_same(tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", Planted(sleep=9))
    copied = train(TrainingHost(settings=settings()), Planted(sleep=9))
    for sample in copied.samples:
        sample["frames"] = [each.replace("train.py", "copy.py") for each in sample["frames"]]
    now = copied.write(tmp_path / "new.gpuprof")
    for path, name in ((tmp_path / "old.gpuprof", "train.py"), (now, "copy.py")):
        change_meta(path, command=["python", name])
    found = gpuprof.open(now).score(gpuprof.open(before.path))
    assert outcomes(found) == {Rule.WAITING: Outcome.NOT_REPAIRED}
    assert found.warnings == ("The runs are not alike: script train.py before, copy.py now.",)
    assert found.warnings[0] in score_text(found)
    assert plain_score(found)["warnings"] == [*found.warnings]


@pytest.mark.parametrize("in_span", [True, False])
@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_cause_in_a_run_without_stacks_is_the_same(in_span: bool, is_swapped: bool, tmp_path: Path) -> None:
    paths = []
    for name in ("sampled", "unsampled"):
        host = TrainingHost(settings=settings(fused=True))
        for _ in range(12):
            with host.step():
                with host.span("model", "layer"):
                    host.work(20 * MS)
                with host.span("log") if in_span else nullcontext(), host.function("write (train.py:40)"):
                    for _ in range(50):
                        host.operator("aten::item", MS // 10)
        if name == "unsampled":
            host.samples.clear()
        paths.append(host.write(tmp_path / f"{name}.gpuprof"))
    new, old = (gpuprof.open(path) for path in (reversed(paths) if is_swapped else paths))
    assert outcomes(new.score(old)) == {Rule.LOGGING: Outcome.NOT_REPAIRED}


def test_a_cause_that_is_less_than_the_steps_vary_by_is_still_there(tmp_path: Path) -> None:
    before = recorded(tmp_path / "old.gpuprof", Planted(sleep=9))
    host = TrainingHost(settings=settings())
    for number in range(12):
        train(host, Planted(sleep=9), 1)
        begin, _ = host.steps[-1]
        host.work(number % 4 * 50 * MS)
        host.steps[-1] = begin, host.now_ns
    new = gpuprof.open(host.write(tmp_path / "new.gpuprof"))
    assert list(new.findings()) == []
    score = new.score(before)
    assert outcomes(score) == {Rule.WAITING: Outcome.NOT_REPAIRED}
    (kept,) = plain_score(score)["promises"]
    assert kept["outcome"] == "not_repaired"
    assert kept["now"]["low_ns"] <= 9 * MS <= kept["now"]["high_ns"]


def test_a_cause_with_half_of_its_time_is_reduced(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(sleep=4), old=Planted(sleep=9))
    assert outcomes(score) == {Rule.WAITING: Outcome.REDUCED}
    (promise,) = score.promises
    assert promise.got_ns == pytest.approx(5 * MS)
    assert promise.now is not None
    assert promise.now.low_ns <= 4 * MS <= promise.now.high_ns


def test_a_repair_that_moved_the_time_is_kept_in_its_part_only(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(startup=0, log=15), old=Planted(collect=20))
    assert outcomes(score) == {Rule.COLLECTIONS: Outcome.PART}
    (promise,) = score.promises
    assert promise.part is not None
    assert promise.part.own.saved_ns == 20 * MS
    assert (promise.part.rest.saved_ns, promise.part.has_drifted) == (-15 * MS, True)
    assert promise.got_ns == 5 * MS


def test_a_faster_optimizer_is_as_predicted_though_the_steps_drift(tmp_path: Path) -> None:
    """The optimizer's part falls by 11 ms, from 16 ms; waits of 20 ms are new in the rest."""
    score = scored(tmp_path, Planted(sleep=20), old=Planted(is_fused=False))
    assert outcomes(score) == {Rule.OPTIMIZER: Outcome.PART}
    (promise,) = score.promises
    assert promise.part is not None
    assert promise.part.own.saved_ns == 11 * MS
    assert promise.part.rest.saved_ns == -20 * MS
    assert promise.got_ns == -9 * MS
    text = score_text(score)
    assert "got       -9.00 ms a step in the whole" in text
    assert "slower than before" in text
    assert re.search(r"^mean step .* longer\)$", text, re.MULTILINE)
    (kept,) = plain_score(score)["promises"]
    assert (kept["part"]["part"], kept["part"]["has_drifted"]) == ("optimizer", True)


def test_causes_in_different_parts_of_the_step_are_compared_on_their_own(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(), old=Planted(collect=20, sleep=9, is_fused=False))
    assert set(outcomes(score)) == {Rule.COLLECTIONS, Rule.WAITING, Rule.OPTIMIZER}
    saved = {each.finding.rule: each.part and each.part.own.saved_ns for each in score.promises}
    assert saved == {Rule.COLLECTIONS: 20 * MS, Rule.WAITING: 9 * MS, Rule.OPTIMIZER: 11 * MS}


def test_of_several_repaired_causes_in_a_part_only_the_sum_is_known(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(), old=Planted(log=20, values=5, sleep=9))
    assert set(outcomes(score)) == {Rule.LOGGING, Rule.WAITING}
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
    assert "20.0 ms a step in the whole, without an interval: fewer than five steps" in text_of(score)


def test_a_faster_start_is_compared_as_a_whole(tmp_path: Path) -> None:
    score = scored(tmp_path, Planted(), old=Planted(startup=300))
    (promise,) = score.promises
    assert (promise.outcome, promise.is_of_step, promise.got_ns) == (Outcome.HIT, False, 300 * MS)
    assert "got 300 ms, without an interval: one run on each side" in text_of(score)


@pytest.mark.parametrize(("half_ns", "is_significant"), [(5 * MS, True), (40 * MS, False)])
def test_a_result_that_may_be_none_is_called_not_significant(
    half_ns: int, is_significant: bool, tmp_path: Path
) -> None:
    score = scored(tmp_path, Planted(sleep=4), old=Planted(sleep=9))
    got = TimeRange(34.0 * MS - half_ns, 34.0 * MS + half_ns)
    (promise,) = score.promises
    text = text_of(replace(score, promises=(replace(promise, got_ns=34.0 * MS, got=got),)))
    assert "got 34.0 ms (90% CI" in text
    assert ("a step, no significant difference" in text) is not is_significant


@pytest.mark.slow
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
        (TimeRange(0, 9), Outcome.LESS),
        (TimeRange(9, 10), Outcome.HIT),
        (TimeRange(12, 13), Outcome.HIT),
        (TimeRange(1, 99), Outcome.HIT),
        (TimeRange(0, 99), Outcome.INCONCLUSIVE),
        (TimeRange(-50, 12), Outcome.INCONCLUSIVE),
        (TimeRange(21, 99), Outcome.MORE),
    ],
)
def test_an_outcome_is_a_hit_if_the_ranges_overlap(got: TimeRange | None, outcome: Outcome) -> None:
    assert outcome_of(TimeRange(10, 20), got) is outcome


@pytest.mark.parametrize(
    ("got", "outcome"),
    [
        (TimeRange(1, 12), Outcome.HIT),
        (TimeRange(-1, 12), Outcome.INCONCLUSIVE),
        (TimeRange(-5, 99), Outcome.INCONCLUSIVE),
        (TimeRange(-9, -1), Outcome.LESS),
        (TimeRange(21, 99), Outcome.MORE),
    ],
)
def test_an_upper_bound_is_a_hit_if_there_is_a_gain(got: TimeRange, outcome: Outcome) -> None:
    assert outcome_of(TimeRange(0, 20), got) is outcome
    part = PartDifference(StepPart.OPTIMIZER, TimeSaved(12, got), TimeSaved(0, TimeRange(-1, 1)), False)
    assert outcome_of(TimeRange(0, 20), TimeRange(1, 2), part) is outcome


@pytest.mark.parametrize(
    ("part", "has_drifted", "whole", "outcome"),
    [
        (TimeRange(12, 13), False, TimeRange(40, 50), Outcome.HIT),
        (TimeRange(12, 13), True, TimeRange(12, 18), Outcome.HIT),
        (TimeRange(12, 13), True, TimeRange(40, 50), Outcome.PART),
        (TimeRange(2, 3), False, TimeRange(12, 18), Outcome.LESS),
        (TimeRange(30, 31), False, TimeRange(12, 18), Outcome.MORE),
        (TimeRange(30, 31), True, TimeRange(12, 18), Outcome.DRIFTED),
        (None, True, TimeRange(12, 18), Outcome.HIT),
    ],
)
def test_the_part_of_the_step_decides(
    part: TimeRange | None, has_drifted: bool, whole: TimeRange, outcome: Outcome
) -> None:
    own, rest = TimeSaved(12, part), TimeSaved(0, TimeRange(-1, 1))
    compared = PartDifference(StepPart.OPTIMIZER, own, rest, has_drifted)
    assert outcome_of(TimeRange(10, 20), whole, compared) is outcome


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = recorded(tmp_path / "r.gpuprof", SLOW)
    link = tmp_path / "link.gpuprof"
    link.symlink_to(run.path)
    with refused(RunError, "same_run", "r.gpuprof"):
        run.score(gpuprof.open(link))
    assert not (run.path / SCORE_FILE).exists()
