# SPDX-License-Identifier: Apache-2.0
"""Re-runs of the findings of simulated programs, with times of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from simulated_gpu import write_table
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.engine import Findings, find
from gpuprof.analyze.findings.finding import GainKind, RerunProblem, Rule, Verdict
from gpuprof.analyze.findings.text import explanation, plain
from gpuprof.analyze.rerun.experiment import Experiment, ExperimentKind, Pairs
from gpuprof.analyze.rerun.rerunner import RERUN_ERROR, Rerunner, difference_of_machines
from gpuprof.run.machine import describe_machine

LEAST, MOST = 1 - RERUN_ERROR, 1 + RERUN_ERROR  # of a measured gain

SHAPES = [{"shape": [100, 100], "dtype": "float32", "count": 49}]


def with_shapes(**changes: Any) -> dict[str, Any]:
    found = settings()
    found["optimizers"][0].update({"shapes": SHAPES, "options": [["amsgrad", True]], **changes})
    return found


class Measured:
    """Returns pairs in place of measuring, and keeps what was asked for."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.experiments: list[Experiment] = []

    def __call__(self, experiment: Experiment) -> Pairs:
        self.experiments.append(experiment)
        return self.pairs


def times(before_ms: float, after_ms: float, count: int = 20) -> Pairs:
    return Pairs(((before_ms * MS, after_ms * MS),) * count)


def findings(
    folder: Path,
    measured: Callable[[Experiment], Pairs],
    plain_settings: dict[str, Any],
    planted: Planted | None = None,
    difference: RerunProblem | None = None,
) -> Findings:
    planted = planted or Planted(is_fused=False)
    path = train(TrainingHost(settings=plain_settings), planted).write(folder / "r.gpuprof")
    run = gpuprof.open(path)
    return find(run._folder, Rerunner(measured, lambda _: difference))


def of(found: Findings, rule: Rule) -> Any:
    (finding,) = [each for each in found if each.rule is rule]
    return finding


def test_the_gain_of_a_fused_optimizer_is_that_of_its_replica(tmp_path: Path) -> None:
    """In the simulated program the loop takes 16 ms of a step of 41 ms."""
    measured = Measured(times(16, 5))
    finding = of(findings(tmp_path, measured, with_shapes()), Rule.OPTIMIZER)
    assert finding.gain.kind is GainKind.RERUN
    assert (finding.gain.step.low_ns, finding.gain.step.high_ns) == pytest.approx(
        (LEAST * 11 * MS, MOST * 11 * MS)
    )
    assert (finding.rerun.problem, finding.rerun.pairs) == (None, 20)
    assert (finding.rerun.before_ns, finding.rerun.after_ns) == (16 * MS, 5 * MS)
    (experiment,) = measured.experiments
    assert (experiment.kind, experiment.threads) == (ExperimentKind.OPTIMIZER, 2)
    assert experiment.values["shapes"][0]["count"] == 49
    assert experiment.values["options"] == {"amsgrad": True}
    assert (experiment.values["before"]["fused"], experiment.values["after"]) == (False, {"fused": True})


def test_the_recorded_time_is_the_other_end_of_the_gain(tmp_path: Path) -> None:
    finding = of(findings(tmp_path, Measured(times(14, 4)), with_shapes()), Rule.OPTIMIZER)
    assert (finding.gain.step.low_ns, finding.gain.step.high_ns) == pytest.approx(
        (LEAST * 10 * MS, MOST * 12 * MS)
    )


def test_a_fix_that_is_not_faster_is_not_promised(tmp_path: Path) -> None:
    found = findings(tmp_path, Measured(times(16, 16)), with_shapes())
    assert [each for each in found if each.rule is Rule.OPTIMIZER] == []
    (result,) = [each for each in found.results if each.rule is Rule.OPTIMIZER]
    assert result.verdict is Verdict.NOT_SIGNIFICANT


def test_an_inconclusive_re_run_leaves_the_replayed_gain(tmp_path: Path) -> None:
    pairs = Pairs(tuple((16.0 * MS, (16.0 + each - 10) * MS) for each in range(20)))
    finding = of(findings(tmp_path, Measured(pairs), with_shapes()), Rule.OPTIMIZER)
    assert finding.gain.kind is GainKind.REPLAYED
    assert finding.rerun.problem is RerunProblem.INCONCLUSIVE


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (Pairs((), RerunProblem.REFUSED), RerunProblem.REFUSED),
        (Pairs(times(16, 5, 5).times_ns, RerunProblem.DEADLINE), RerunProblem.DEADLINE),
        (times(16, 5, 5), RerunProblem.DEADLINE),
    ],
)
def test_too_few_pairs_leave_the_replayed_gain(pairs: Pairs, problem: RerunProblem, tmp_path: Path) -> None:
    finding = of(findings(tmp_path, Measured(pairs), with_shapes()), Rule.OPTIMIZER)
    assert (finding.gain.kind, finding.rerun.problem) == (GainKind.REPLAYED, problem)
    assert finding.rerun.pairs == len(pairs.times_ns)


def test_what_is_missing_is_a_code(tmp_path: Path) -> None:
    measured = Measured(times(16, 5))
    for number, (given, difference, problem) in enumerate(
        [
            (settings(), None, RerunProblem.SHAPES),
            (with_shapes(), RerunProblem.MACHINE, RerunProblem.MACHINE),
            (with_shapes(), RerunProblem.TORCH, RerunProblem.TORCH),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        finding = of(findings(folder, measured, given, difference=difference), Rule.OPTIMIZER)
        assert (finding.gain.kind, finding.rerun.problem) == (GainKind.REPLAYED, problem)
    assert measured.experiments == []
    planted = Planted(collect=20)
    (tmp_path / "gc").mkdir()
    finding = of(findings(tmp_path / "gc", measured, with_shapes(), planted), Rule.COLLECTIONS)
    assert finding.rerun.problem is RerunProblem.NO_REPLICA


def test_after_an_interruption_nothing_is_measured(tmp_path: Path) -> None:
    measured = Measured(Pairs(times(16, 5, 12).times_ns, RerunProblem.INTERRUPTED))
    plain_settings = with_shapes()
    plain_settings["optimizers"].append({**plain_settings["optimizers"][0], "elements": 7})
    found = findings(tmp_path, measured, plain_settings)
    by_kind = {each.gain.kind: each for each in found if each.rule is Rule.OPTIMIZER}
    first, second = by_kind[GainKind.RERUN], by_kind[GainKind.REPLAYED]
    assert first.rerun is not None
    assert second.rerun is not None
    assert (first.rerun.pairs, first.rerun.problem) == (12, None)
    assert second.rerun.problem is RerunProblem.INTERRUPTED
    assert len(measured.experiments) == 1


def test_a_loop_of_another_optimizer_is_found_by_its_re_run_only(tmp_path: Path) -> None:
    given = with_shapes(name="RMSprop", can_be_fused=False)

    def host() -> TrainingHost:
        made = TrainingHost(settings=given)
        for _ in range(12):
            with made.step():
                made.operator("aten::mm", 20 * MS)
                with made.span("Optimizer.step#RMSprop.step"):
                    made.operator("aten::addcmul_", 10 * MS)
        return made

    run = gpuprof.open(host().write(tmp_path / "r.gpuprof"))
    assert [each.rule for each in run.findings()] == []
    slower, faster = Measured(times(10, 10)), Measured(times(10, 4))
    assert [each.rule for each in find(run._folder, Rerunner(slower, lambda _: None))] == []
    found = find(run._folder, Rerunner(faster, lambda _: None))
    finding = of(found, Rule.OPTIMIZER)
    assert finding.gain.step.low_ns == pytest.approx(LEAST * 6 * MS)
    assert faster.experiments[0].values["after"] == {"foreach": True}
    assert "foreach" in explanation(found, "r.gpuprof")
    assert plain(found)["findings"][0]["rerun"]["problem"] is None


def test_a_measured_gain_may_be_smaller_than_the_variation_of_the_steps(tmp_path: Path) -> None:
    host = TrainingHost(settings=with_shapes(name="RMSprop", can_be_fused=False))
    for index in range(12):
        with host.step():
            host.operator("aten::mm", (40 + 30 * (index % 2)) * MS)
            with host.span("Optimizer.step#RMSprop.step"):
                host.operator("aten::addcmul_", 10 * MS)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    found = find(run._folder, Rerunner(Measured(times(10, 8)), lambda _: None))
    assert of(found, Rule.OPTIMIZER).gain.step.high_ns == pytest.approx(MOST * 2 * MS)


def test_a_measured_gain_of_a_step_varies_as_the_time_of_its_cause(tmp_path: Path) -> None:
    finding = {}
    for name, half_ms in (("steady", 0), ("varied", 6)):
        host = TrainingHost(settings=with_shapes(name="RMSprop", can_be_fused=False))
        for index in range(12):
            with host.step():
                host.operator("aten::mm", 20 * MS)
                with host.span("Optimizer.step#RMSprop.step"):
                    host.operator("aten::addcmul_", (10 + half_ms * (-1) ** index) * MS)
        run = gpuprof.open(host.write(tmp_path / f"{name}.gpuprof"))
        found = find(run._folder, Rerunner(Measured(times(10, 4)), lambda _: None))
        finding[name] = of(found, Rule.OPTIMIZER)
    steady, varied = finding["steady"].gain, finding["varied"].gain
    assert varied.run == steady.run
    assert varied.step.low_ns < steady.step.low_ns - 1 * MS
    assert varied.step.high_ns > steady.step.high_ns + 1 * MS


def with_operators(folder: Path, host: TrainingHost, table: str, *rows: dict[str, Any]) -> gpuprof.Run:
    path = host.write(folder / "r.gpuprof")
    with duckdb.connect() as connection:
        write_table(connection, path, table, list(rows))
    return gpuprof.open(path)


SOFTPLUS = {
    "position": 0,
    "operator": "aten::softplus",
    "overload": "",
    "dtype": "float32",
    "input_shapes": "1000x1000",
}


@pytest.mark.parametrize(
    ("before", "after", "ordinary", "gain"),
    [
        (9, 4, 4, 5.0),  # slow numbers, which the fix makes fast
        (9, 4, 4.8, 5.0),  # slow by less than twice
        (11.4, 4, 6.5, None),  # the recorded calls were as fast as other caches can explain
        (9, 9, 4, None),  # slow, and the fix does not help
        (9, 4, 8, None),  # no slow numbers
        (50, 4, 20, None),  # the recorded calls were not slow
    ],
)
def test_numbers_below_the_normal_range(
    before: float, after: float, ordinary: float, gain: float | None, tmp_path: Path
) -> None:
    """In the simulated program a call takes 9 ms."""
    host = TrainingHost(settings=settings())
    for _ in range(12):
        with host.step():
            host.operator("aten::mm", 20 * MS)
            host.operator("aten::softplus", 9 * MS)
    run = with_operators(tmp_path, host, "operator_inputs", SOFTPLUS)
    pairs = Pairs(times(before, after).times_ns, ordinary_ns=ordinary * MS)
    measured = Measured(pairs)
    found = find(run._folder, Rerunner(measured, lambda _: None))
    assert measured.experiments[0].values["operator"]["shapes"] == [[1000, 1000]]
    if gain is None:
        assert len(found) == 0
    else:
        assert of(found, Rule.SUBNORMALS).gain.step.low_ns == pytest.approx(LEAST * gain * MS)


def test_an_operator_with_inputs_of_several_shapes_is_unknown(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    for _ in range(12):
        with host.step():
            host.operator("aten::softplus", 9 * MS)
    other = {**SOFTPLUS, "position": 1, "input_shapes": "7"}
    run = with_operators(tmp_path, host, "operator_inputs", SOFTPLUS, other)
    found = find(run._folder, Rerunner(Measured(times(9, 4)), lambda _: None))
    (result,) = [each for each in found.results if each.rule is Rule.SUBNORMALS]
    assert (result.verdict, result.problem) == (Verdict.UNKNOWN, RerunProblem.SEVERAL_SHAPES)


def test_attention_as_a_chain_of_operators(tmp_path: Path) -> None:
    """Attention takes 12 ms of a step, and all of the model 30 ms."""
    host = TrainingHost(settings={**settings(threads=8), "optimizers": []}, cores=4)
    for _ in range(12):
        with host.step(), host.span("model", "layer"):
            host.operator("aten::mm", 18 * MS)
            host.operator("aten::_scaled_dot_product_attention_math", 12 * MS)
    shapes = "2x4x8x16, 2x4x8x16, 2x4x8x16"
    attention = {**SOFTPLUS, "operator": "aten::scaled_dot_product_attention", "input_shapes": shapes}
    run = with_operators(tmp_path, host, "operator_inputs", attention)
    measured = Measured(times(10, 5))
    found = find(run._folder, Rerunner(measured, lambda _: None))
    assert of(found, Rule.ATTENTION).gain.step.low_ns == pytest.approx(LEAST * 6 * MS)
    (experiment,) = measured.experiments
    assert (experiment.kind, experiment.threads) == (ExperimentKind.ATTENTION, 8)
    assert len(experiment.values["calls"][0]["shapes"]) == 3


def test_only_the_machine_and_the_pytorch_of_the_run_are_comparable() -> None:
    import torch

    here = {"machine": describe_machine(), "versions": {"torch": torch.__version__}}
    assert difference_of_machines(here) is None
    other = {**here, "machine": {**here["machine"], "cores": 1_000}}
    assert difference_of_machines(other) is RerunProblem.MACHINE
    assert difference_of_machines({}) is RerunProblem.MACHINE
    assert difference_of_machines({**here, "versions": {"torch": "1.0"}}) is RerunProblem.TORCH
    assert difference_of_machines({**here, "versions": None}) is RerunProblem.TORCH
