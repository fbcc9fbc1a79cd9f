# SPDX-License-Identifier: Apache-2.0
"""Findings of several ranks, on simulated programs that are executed again without the cause."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from run_edits import change_meta
from simulated_ranks import ALL_REDUCE, compute, exchange, finish, train_ranks, write_ranks
from simulated_training import MS, TrainingHost, settings

import gpuprof
from gpuprof.analyze.findings.engine import Findings
from gpuprof.analyze.findings.finding import Finding, GainKind, Missing, Rule, Verdict
from gpuprof.analyze.findings.promises import Outcome, Score
from gpuprof.analyze.findings.text import explanation, plain, repair, score_text, short_lines

STEPS = 12


def findings(folder: Path, hosts: Sequence[TrainingHost], numbers: Sequence[int] | None = None) -> Findings:
    return gpuprof.open(write_ranks(folder, hosts, numbers)).findings()


def only(found: Findings) -> Finding:
    (finding,) = found
    return finding


@pytest.mark.parametrize("works", [(20, 45), (20, 45, 20), (20, 45, 30)])
def test_the_rank_that_the_others_wait_for_is_searched_and_found(
    works: tuple[float, ...], tmp_path: Path
) -> None:
    found = findings(tmp_path, train_ranks(works))
    finding = only(found)
    assert found.rank == 1
    assert (finding.rule, finding.values["rank"], finding.values["others"]) == (
        Rule.SLOW_RANK,
        1,
        len(works) - 1,
    )
    # The repair is that this rank has as much work as the last but one.
    repaired = [min(work, sorted(works)[-2]) for work in works]
    real_ns = train_ranks(works)[0].now_ns - train_ranks(repaired)[0].now_ns
    assert finding.gain.kind is GainKind.REPLAYED
    assert finding.gain.run.low_ns == pytest.approx(real_ns, rel=0.01)
    assert finding.gain.run.high_ns == pytest.approx(real_ns, rel=0.01)


def test_operations_at_the_same_time_count_once_and_only_those_in_steps(tmp_path: Path) -> None:
    hosts = train_ranks((20, 45), steps=0)
    exchange(hosts, 50)  # as when the group is formed
    for _ in range(STEPS):
        begins = [host.now_ns for host in hosts]
        for host, work in zip(hosts, (20, 45), strict=True):
            compute(host, work)
        with ExitStack() as other_threads:
            for host in hosts:
                other_threads.enter_context(host.span("gloo:broadcast"))
            exchange(hosts, 2)
        finish(hosts, begins)
    evidence = {each.code: each.value for each in only(findings(tmp_path, hosts)).evidence}
    assert evidence == {
        "own_collective_time": STEPS * 2 * MS,
        "other_collective_time": STEPS * (25 + 2) * MS,
        "collectives": 2 * STEPS,
    }


def test_equal_ranks_are_no_cause(tmp_path: Path) -> None:
    found = findings(tmp_path, train_ranks((30, 30)))
    assert (list(found), found.rank) == ([], 0)


@pytest.mark.parametrize(
    ("works", "delays_ms", "is_queued", "slow"),
    [
        ((20, 20, 20), (20, 30, 15), True, None),
        ((20, 20, 20), (20, 30, 15), False, 1),
        ((20, 45, 20), (30, 30, 30), True, 1),
        ((20, 20, 20), (0, 30, 0), True, 1),
    ],
    ids=["equal", "equal with processors", "more work", "only one waits"],
)
def test_ranks_that_come_last_in_turns_without_a_processor_are_not_slow(
    works: tuple[int, ...], delays_ms: tuple[int, ...], is_queued: bool, slow: int | None, tmp_path: Path
) -> None:
    hosts = train_ranks(works, steps=0)
    for _ in range(STEPS):
        begins = [host.now_ns for host in hosts]
        for late, delay_ms in zip(hosts, delays_ms, strict=True):
            before = len(late.samples)
            late.sleep(delay_ms * MS)
            for sample in late.samples[before:]:
                sample["queued_ns"] = sample["duration_ns"] if is_queued else 0
            for host, work in zip(hosts, works, strict=True):
                compute(host, work)
            exchange(hosts, 2)
        finish(hosts, begins)
    slow_ranks = [each.values["rank"] for each in findings(tmp_path, hosts) if each.rule is Rule.SLOW_RANK]
    assert slow_ranks == ([] if slow is None else [slow])


def test_the_causes_on_a_slow_rank_are_found_too(tmp_path: Path) -> None:
    hosts = train_ranks((30, 30))
    slow = train_ranks((30, 30), steps=0)
    for _ in range(STEPS):
        begins = [host.now_ns for host in slow]
        with slow[1].function("poll (train.py:60)"):
            slow[1].sleep(20 * MS)
        for host in slow:
            compute(host, 30)
        exchange(slow, 2)
        finish(slow, begins)
    found = findings(tmp_path, slow)
    assert found.rank == 1
    assert {each.rule for each in found} == {Rule.WAITING, Rule.SLOW_RANK}
    # Each line names the rank.
    lines = [text for label, text in short_lines(found, 3, "r") if label == "finding"]
    assert all(line.startswith("Rank 1") for line in lines)
    (slow_rank,) = (each for each in found if each.rule is Rule.SLOW_RANK)
    assert slow_rank.values["function"] == slow_rank.places.function == "poll (train.py:60)"
    real_ns = slow[0].now_ns - hosts[0].now_ns
    for finding in found:
        assert finding.gain.run.low_ns <= real_ns <= finding.gain.run.high_ns


def test_a_rank_that_is_late_for_operations_at_the_same_time_is_late_once(tmp_path: Path) -> None:
    """Its 25 ms of work delay both operations of a backward pass, which are 8 ms apart on each rank."""
    hosts = train_ranks((20, 45), steps=0)
    for _ in range(STEPS):
        begins = [host.now_ns for host in hosts]
        for host, work in zip(hosts, (20, 45), strict=True):
            compute(host, work)
        arrivals = [host.now_ns for host in hosts]
        ends = max(arrivals) + 10 * MS
        for host, arrival in zip(hosts, arrivals, strict=True):
            with host.span(ALL_REDUCE):
                host.work(8 * MS)
                with host.span(ALL_REDUCE):
                    host.sleep(ends - arrival - 8 * MS)
        finish(hosts, begins)
    assert only(findings(tmp_path, hosts)).cost_step_ns == 25 * MS


def test_what_the_backward_pass_waits_for_before_an_operation_is_no_cause_of_its_own(tmp_path: Path) -> None:
    hosts = train_ranks((20, 20), steps=0)
    for _ in range(STEPS):
        begins = [host.now_ns for host in hosts]
        for host in hosts:
            compute(host, 20)
            with host.function("run_backward (torch/autograd/graph.py:1)"):
                host._pass(9 * MS, on_processor=False)
        exchange(hosts, 2)
        finish(hosts, begins)
    assert Rule.WAITING not in {each.rule for each in findings(tmp_path, hosts)}


@pytest.mark.parametrize(("built_in", "is_sleep"), [("time.sleep", True), ("sock.recv", False)])
def test_a_built_in_function_of_a_slow_rank_has_the_place_of_its_caller(
    built_in: str, is_sleep: bool, tmp_path: Path
) -> None:
    hosts = train_ranks((20, 20), steps=0)
    for _ in range(STEPS):
        begins = [host.now_ns for host in hosts]
        with hosts[1].function("poll (train.py:60)", f"{built_in} (built-in)"):
            hosts[1].work(30 * MS)
        for host in hosts:
            compute(host, 20)
        with ExitStack() as calls:
            for host in hosts:
                calls.enter_context(host.span(ALL_REDUCE))
            for host, ends in zip(hosts, [max(each.now_ns for each in hosts)] * 2, strict=True):
                host.work(ends + 2 * MS - host.now_ns)
        finish(hosts, begins)
    (finding,) = (each for each in findings(tmp_path, hosts) if each.rule is Rule.SLOW_RANK)
    assert finding.values["function"] == f"{built_in} (built-in)"
    assert finding.values["caller"] == finding.places.function == "poll (train.py:60)"
    assert repair(finding).startswith("remove the sleep") is is_sleep


def test_gradients_that_are_exchanged_in_each_pass_gain_all_but_the_last(tmp_path: Path) -> None:
    hosts = train_ranks((20, 20), passes=4, transfer=15)
    finding = only(findings(tmp_path, hosts))
    assert (finding.rule, finding.values["passes"]) == (Rule.ACCUMULATION, 4)
    assert finding.gain.kind is GainKind.REPLAYED
    repaired = train_ranks((20, 20), passes=4, transfer=15, synchronized=1)
    real_ns = hosts[0].now_ns - repaired[0].now_ns
    assert finding.gain.run.low_ns <= real_ns <= finding.gain.run.high_ns
    assert finding.gain.run.low_ns == pytest.approx(real_ns, rel=0.01)


def test_gradients_that_are_exchanged_once_are_no_such_cause(tmp_path: Path) -> None:
    found = findings(tmp_path, train_ranks((20, 20), passes=4, synchronized=1))
    verdicts = {each.rule: each.verdict for each in found.results}
    assert verdicts[Rule.ACCUMULATION] is Verdict.NOT_FOUND


def test_an_exchange_after_the_backward_pass_is_bounded_by_its_time(tmp_path: Path) -> None:
    finding = only(findings(tmp_path, train_ranks((20, 20), transfer=8, settings=large())))
    assert (finding.rule, finding.gain.kind) == (Rule.BUCKETS, GainKind.BOUND)
    assert finding.gain.run.low_ns == 0
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 8 * MS)


def large() -> dict[str, object]:
    found = settings(fused=True)
    found["optimizers"][0]["elements"] = 5_000_000
    return found


def test_a_small_model_is_not_exchanged_faster_in_pieces(tmp_path: Path) -> None:
    own = settings(fused=True)
    own["optimizers"][0]["elements"] = 50_000
    assert list(findings(tmp_path, train_ranks((20, 20), transfer=8, settings=own))) == []


def test_ranks_that_were_not_recorded_are_named(tmp_path: Path) -> None:
    found = findings(tmp_path, train_ranks((20, 45)), numbers=(0, 3))
    assert (found.rank, found.missing_ranks) == (3, (1, 2))
    assert plain(found)["missing_ranks"] == [1, 2]
    assert "1, 2" in explanation(found, "r.gpuprof")


def test_a_single_rank_of_several_does_not_know_who_is_slow(tmp_path: Path) -> None:
    found = findings(tmp_path, train_ranks((20,)), numbers=(1,))
    (result,) = [each for each in found.results if each.rule is Rule.SLOW_RANK]
    assert (result.verdict, result.missing, found.missing_ranks) == (Verdict.UNKNOWN, Missing.RANKS, (0,))


@pytest.mark.parametrize(("works", "number"), [((20,), 0), ((20, 20), 0)])
def test_a_rank_after_the_last_recorded_one_may_be_the_slow_one(
    works: tuple[float, ...], number: int, tmp_path: Path
) -> None:
    path = write_ranks(tmp_path, train_ranks(works))
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    change_meta(path, processes=[{**each, "world_size": len(works) + 1} for each in meta["processes"]])
    found = gpuprof.open(path).findings()
    (result,) = [each for each in found.results if each.rule is Rule.SLOW_RANK]
    assert (result.verdict, result.missing) == (Verdict.UNKNOWN, Missing.RANKS)
    assert (found.rank, found.missing_ranks) == (number, (len(works),))
    assert f"slow rank: rank {len(works)} was not recorded" in explanation(found, "r.gpuprof")


def test_ranks_with_different_operations_are_not_compared(tmp_path: Path) -> None:
    hosts = train_ranks((20, 45))
    hosts[0].spans = [each for each in hosts[0].spans if each["span_id"] % 5 != 4]
    found = findings(tmp_path, hosts)
    results = {each.rule: each for each in found.results}
    assert results[Rule.SLOW_RANK].missing is Missing.COLLECTIVES


def test_a_program_without_ranks_has_no_such_cause(tmp_path: Path) -> None:
    (host,) = train_ranks((20,))
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert (found.rank, found.missing_ranks) == (None, ())
    verdicts = {each.rule: each.verdict for each in found.results}
    for rule in (Rule.SLOW_RANK, Rule.ACCUMULATION):
        assert verdicts[rule] is Verdict.NOT_FOUND


def test_ranks_without_operators_are_unknown(tmp_path: Path) -> None:
    path = write_ranks(tmp_path, train_ranks((20, 45), sources=("python",)))
    results = {each.rule: each for each in gpuprof.open(path).findings().results}
    for rule in (Rule.SLOW_RANK, Rule.ACCUMULATION, Rule.BUCKETS):
        assert (results[rule].verdict, results[rule].missing) == (Verdict.UNKNOWN, Missing.OPERATORS)


@pytest.mark.parametrize(
    "hosts", [train_ranks((20, 45)), train_ranks((20, 20), passes=4, transfer=15)], ids=["slow", "passes"]
)
def test_each_figure_is_what_its_query_returns(hosts: list[TrainingHost], tmp_path: Path) -> None:
    run = gpuprof.open(write_ranks(tmp_path, hosts))
    for finding in run.findings():
        assert finding.evidence
        for figure in finding.evidence:
            assert run.sql(figure.sql).fetchall() == [(figure.value,)]


def scored(folder: Path, old: Sequence[float], new: Sequence[float], numbers: Sequence[int]) -> Score:
    runs = []
    for name, works, own in (("old", old, range(len(old))), ("new", new, numbers)):
        (folder / name).mkdir()
        runs.append(gpuprof.open(write_ranks(folder / name, train_ranks(works), list(own))))
    before, after = runs
    return after.score(before)


def test_the_steps_of_the_rank_that_was_slow_are_compared(tmp_path: Path) -> None:
    """The causes of the old run are those of rank 1; of the new one, whose ranks are equal, of rank 0."""
    score = scored(tmp_path, (20, 45), (20, 20), (0, 1))
    (promise,) = score.promises
    assert (promise.outcome, promise.got_ns, score.rank) == (Outcome.HIT, 25 * MS, 1)
    assert promise.got is not None
    assert (score.old_mean_step_ns, score.new_mean_step_ns) == (58 * MS, 33 * MS)


def test_a_rank_that_is_not_in_the_new_run_is_not_compared(tmp_path: Path) -> None:
    score = scored(tmp_path, (20, 45), (20,), (0,))
    (promise,) = score.promises
    assert (promise.outcome, promise.got_ns, promise.got) == (Outcome.UNKNOWN, None, None)
    assert score.new_mean_step_ns is None
    assert "fewer than five steps" not in score_text(score)
    assert "rank 1" in score_text(score).split("got")[1]
