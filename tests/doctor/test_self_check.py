# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor --aa`: what it counts, with simulated process runs and a few real ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batches import batch_of
from refusals import refused, refused_command

from gpuprof.bench.benchmark import CallableRuns
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.results.result import ProcessRunResult
from gpuprof.bench.workers.schedule import ProcessRun, run_order
from gpuprof.cli.main import execute
from gpuprof.doctor import self_check as module
from gpuprof.doctor.self_check import Replays, SelfCheck, SelfComparison, Sight, self_check
from gpuprof.errors import BenchmarkError
from gpuprof.stats.proportions import exact_share
from gpuprof.stats.ratio_test import compare, launches_needed, smallest_change


class Played:
    """Process runs with a known variation of the medians, one a second; `breaks` is the interrupted one."""

    def __init__(self, spread: float = 0.01, breaks: int | None = None, failing: bool = False) -> None:
        self.generator = np.random.default_rng(60)
        self.spread, self.breaks, self.failing = spread, breaks, failing
        self.now_s = 0.0
        self.made = 0

    def clock_s(self) -> float:
        return self.now_s

    def run(self, plans: Any, runs: int, *, seed: int, progress: Any, **_limits: Any) -> CallableRuns:
        done = CallableRuns(plans)
        for name in run_order(list(plans), runs, seed):
            self.made += 1
            self.now_s += 1.0
            if self.made == self.breaks:
                done.interrupted = True
                break
            done.runs.append(self.process_run(done, name))
            progress(done.runs[-1], len(done.runs), 2 * runs)
        return done

    def process_run(self, done: CallableRuns, name: str) -> ProcessRun:
        if self.failing:
            return ProcessRun(name, self.made, Failure(FailureCode.FAILED, "it died"))
        median_ms = 5 * float(self.generator.lognormal(0, self.spread))
        found = batch_of([median_ms] * 3)
        found.launches = [ProcessRunResult(self.made, found.launches[0].measurement, None, {})]
        done.sessions[name].result.batches.append(found)
        return ProcessRun(name, self.made, None)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def playing(**how: Any) -> Played:
        played = Played(**how)
        monkeypatch.setattr(module, "run_callables", played.run)
        monkeypatch.setattr(module, "self_check", lambda **asked: self_check(clock_s=played.clock_s, **asked))
        return played

    return playing


def made(spread: float, comparisons: int, runs: int = 5) -> SelfCheck:
    generator = np.random.default_rng(61)
    found = []
    for _ in range(comparisons):
        order = tuple(generator.lognormal(0, spread, 2 * runs).tolist())
        found.append(SelfComparison(order[:runs], order[runs:], order, True))
    return SelfCheck(tuple(found))


def test_false_alarms_are_counted_with_and_without_the_margin() -> None:
    check = made(0.02, 60)
    at_zero, different = check.called_different(0.0), check.called_different(0.01)
    assert at_zero is not None
    assert different is not None
    assert at_zero.count <= 7
    assert different.count <= at_zero.count
    assert at_zero.total == 60


def test_the_variation_and_the_smallest_change_are_those_of_the_process_runs() -> None:
    check = made(0.02, 60)
    assert check.variation == pytest.approx(0.02, rel=0.1)
    for sight in check.sights:
        assert (
            launches_needed(check.variation or 0, sight.smallest_change + 1e-9, margin=0.01)
            == sight.launches_per_side
        )
        # The planted change is found about as often as computed: an independent count.
        assert sight.planted_found_share == pytest.approx(0.8, abs=0.08)
        assert sight.false_alarm_share is not None
        assert sight.false_alarm_share <= 0.03


def test_a_change_of_level_between_comparisons_is_no_variation_of_process_runs() -> None:
    check = made(0.01, 10)
    drifting = [
        SelfComparison((), (), tuple(value * 1.1**number for value in each.order), False)
        for number, each in enumerate(check.comparisons)
    ]
    found = SelfCheck(tuple(drifting))
    assert found.variation == pytest.approx(check.variation)
    assert (found.variation_of_all or 0) > 0.2
    assert "over the whole time" in str(found)


def test_replays_find_large_changes_always_and_none_without() -> None:
    replays = Replays.of(made(0.01, 10).medians_s, 10)
    assert replays.slower(1.2, 0.01) == 1.0
    assert replays.slower(1.0, 0.01) + replays.faster(0.01) <= 0.05
    smallest = replays.smallest(0.01)
    assert replays.slower(1 + smallest, 0.01) == pytest.approx(0.8, abs=0.01)


def test_a_replay_is_the_comparison_of_its_process_runs() -> None:
    runs = made(0.01, 2).medians_s
    order = run_order(["old", "new"], 10, 0)
    sides = {
        name: [figure for figure, own in zip(runs, order, strict=True) if own == name]
        for name in ("old", "new")
    }
    found = compare(sides["old"], sides["new"])
    replays = Replays.of(runs, 10, count=1)
    assert found.high == pytest.approx(float(np.exp(replays.difference[0] + replays.half[0])))


def test_bursts_show_in_the_count_and_not_in_the_computed_change() -> None:
    generator = np.random.default_rng(62)
    spreads = [0.005] * 5 + [0.3] * 4
    rounds = [tuple(generator.lognormal(0, spread, 10).tolist()) for spread in spreads]
    check = SelfCheck(tuple(SelfComparison((), (), each, False) for each in rounds))
    (ten, _) = check.sights
    assert ten.planted_found_share is not None
    assert ten.smallest_change_counted is not None
    assert ten.planted_found_share < 0.78
    assert ten.smallest_change_counted > 1.05 * ten.smallest_change
    assert "use the count" not in str(check)
    check.__dict__["sights"] = [Sight(10, 0.1, 0.6, 0.2, 0.0)]
    assert "in 80% one of 20.0% (runs vary in bursts: use the count)" in " ".join(str(check).split())


def test_few_process_runs_have_a_note_of_what_is_missing() -> None:
    text = " ".join(str(made(0.01, 1)).split())
    assert "counting it needs 20 process runs" in text
    assert "20 runs a side show" in text
    nothing = SelfCheck(())
    assert "not known" in str(nothing)
    assert nothing.to_dict()["called_different"] is None


def test_smallest_change_turns_process_runs_needed_round() -> None:
    for runs in (5, 10, 20):
        change = smallest_change(0.015, runs, margin=0.01)
        assert launches_needed(0.015, change + 1e-9, margin=0.01) == runs
    with pytest.raises(ValueError, match="at least 2"):
        smallest_change(0.01, 1)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (1, 7), (10, 10), (37, 400), (0, 3000)])
def test_beyond_the_interval_of_a_fraction_are_tails_of_2_5_percent(count: int, total: int) -> None:
    low, high = exact_share(count, total)
    assert low <= count / total <= high
    if count:
        assert 1 - at_most(count - 1, total, low) == pytest.approx(0.025)
    if count < total:
        assert at_most(count, total, high) == pytest.approx(0.025)
    assert (low == 0, high == 1) == (count == 0, count == total)


def at_most(count: int, total: int, share: float) -> float:
    return math.fsum(
        math.comb(total, each) * share**each * (1 - share) ** (total - each) for each in range(count + 1)
    )


def test_it_ends_in_time_or_after_so_many_comparisons(play: Callable[..., Played]) -> None:
    played = play()
    assert len(self_check(seconds=55, clock_s=played.clock_s).whole) == 5
    assert played.now_s == 50
    assert len(self_check(seconds=1, clock_s=played.clock_s).whole) == 2
    assert len(self_check(comparisons=3, runs=2, clock_s=played.clock_s).whole) == 3


def test_ctrl_c_keeps_and_prints_what_there_is(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play(breaks=27)
    assert execute(["doctor", "--aa"]) == 130
    printed = " ".join(capsys.readouterr().out.split())
    assert "of 2 (" in printed
    assert "(26 process runs)" in printed
    assert "interrupted" in printed


def test_json_has_all_figures(play: Callable[..., Played], capsys: pytest.CaptureFixture[str]) -> None:
    play()
    assert execute(["doctor", "--aa", "--aa-comparisons", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["campaigns"], told["called_different"]["total"]) == (4, 4)
    assert told["variation_between_launches"] == pytest.approx(0.01, rel=0.5)
    assert [each["launches_per_side"] for each in told["smallest_change"]] == [10, 20]
    assert sum(map(len, told["launches_s"])) == 40


def test_process_runs_that_all_fail_are_one_line(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play(failing=True)
    assert execute(["doctor", "--aa"]) == 2
    assert "it died" in capsys.readouterr().err
    with refused(BenchmarkError, "no_process_run", "it died"):
        self_check(comparisons=1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--aa-seconds", "5"], "needs_aa"),
        (["--aa-comparisons", "2"], "needs_aa"),
        (["--aa", "--aa-seconds", "5", "--aa-comparisons", "2"], "two_lengths"),
        (["--aa", "--aa-seconds", "nan"], "not_finite"),
        (["--aa", "--ceilings"], "aa_and_ceilings"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], code: str) -> None:
    refused_command(["doctor", *arguments], code)


def test_no_comparison_is_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor", "--aa", "--aa-comparisons", "0"]) == 2
    assert "--aa-comparisons" in capsys.readouterr().err


def test_real_process_runs_are_compared() -> None:
    seen: list[tuple[int, int]] = []
    found = self_check(comparisons=1, runs=2, progress=lambda made, done, _s: seen.append((made, done)))
    assert seen == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert found.failures == ()
    assert [len(each.order) for each in found.whole] == [4]
    assert all(0.0001 < each < 1 for each in found.medians_s)
    assert max(map(len, str(found).splitlines())) <= 100
