# SPDX-License-Identifier: Apache-2.0
"""Rules about GPUs, on simulated programs that are executed again without the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_edits import change_meta
from simulated_program import PROCESS
from simulated_training import TrainingHost, settings

import gpuprof
from gpuprof.analyze.findings.finding import Finding, GainKind, Missing, Rule, Verdict
from gpuprof.record.facts import Reason, SourceStatus

STEPS = 30
US = 1_000


def execute(
    host: TrainingHost, *, waits: bool = True, kernel_us: int = 30, host_us: int = 20
) -> TrainingHost:
    """Launch 20 kernels in each step, then read a value."""
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                for _ in range(20):
                    with host.span("aten::mm", "operator"):
                        host.work(host_us * US)
                        host.launch("gemm", kernel_us * US)
            with host.span("aten::item", "operator"):
                host.work(5 * US)
                if waits:
                    host.wait()
            host.work(100 * US)
    host.wait()
    return host


def findings(folder: Path, host: TrainingHost) -> dict[Rule, Finding]:
    run = gpuprof.open(host.write(folder / "r.gpuprof"))
    return {each.rule: each for each in run.findings()}


def new_host() -> TrainingHost:
    return TrainingHost(settings=settings())


def test_a_wait_in_each_step_gains_what_the_host_could_do_meanwhile(tmp_path: Path) -> None:
    found = findings(tmp_path, execute(new_host()))
    finding = found[Rule.GPU_SYNCHRONIZATION]
    assert (finding.values["name"], finding.values["waits"]) == ("aten::item", STEPS)
    assert finding.gain.kind is GainKind.REPLAYED
    slow_ns, fast_ns = (execute(new_host(), waits=waits).now_ns for waits in (True, False))
    real_ns = slow_ns - fast_ns
    assert finding.gain.run.low_ns <= real_ns + 0.01 * slow_ns
    assert finding.gain.run.high_ns >= real_ns - 0.01 * slow_ns
    # The GPU's work remains: the gain is far below the time of the waits.
    assert finding.gain.run.high_ns < 0.9 * finding.cost_run_ns


def test_a_program_that_does_not_wait_has_no_such_finding(tmp_path: Path) -> None:
    assert Rule.GPU_SYNCHRONIZATION not in findings(tmp_path, execute(new_host(), waits=False))


def test_a_gpu_that_waits_for_launches_is_bounded_by_its_self_time(tmp_path: Path) -> None:
    host = execute(new_host(), waits=False, kernel_us=4, host_us=60)
    wall_ns = host.now_ns
    finding = findings(tmp_path, host)[Rule.LAUNCHES]
    assert finding.gain.kind is GainKind.BOUND
    assert finding.gain.run.low_ns == 0
    kernels_ns = STEPS * 20 * 4 * US
    assert 0 < finding.gain.run.high_ns <= wall_ns - kernels_ns
    assert finding.values["idle_share"] > 0.9


def test_launches_of_the_backward_pass_on_its_own_thread_are_of_the_host_too(tmp_path: Path) -> None:
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            with host.span("backward", "backward"):
                for _ in range(20):
                    with host.span("aten::mm", "operator"):
                        host.work(60 * US)
                        host.launch("gemm", 4 * US)
            host.work(100 * US)
    host.wait()
    for span in host.spans:
        if span["name"] in ("backward", "aten::mm"):
            span["thread_id"] = PROCESS + 1
    finding = findings(tmp_path, host)[Rule.LAUNCHES]
    launching_ns = STEPS * 20 * 60 * US
    assert 0.9 * launching_ns < finding.gain.run.high_ns <= host.now_ns - STEPS * 20 * 4 * US


def test_a_busy_gpu_is_not_launch_bound(tmp_path: Path) -> None:
    host = execute(new_host(), waits=False, kernel_us=90, host_us=5)
    assert findings(tmp_path, host) == {}


def copy_batches(*, pageable: bool) -> TrainingHost:
    """Copy a batch, prepare the next one, and launch kernels; only the last step waits."""
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            host.copy(200 * US, pageable=pageable)
            host.work(300 * US)
            with host.span("model", "layer"):
                host.launch("gemm", 100 * US)
    host.wait()
    return host


def test_copies_of_pageable_memory_are_bounded_by_copies_that_do_not_block(tmp_path: Path) -> None:
    host = copy_batches(pageable=True)
    real_ns = host.now_ns - copy_batches(pageable=False).now_ns
    finding = findings(tmp_path, host)[Rule.PAGEABLE_COPIES]
    assert finding.gain.kind is GainKind.BOUND
    assert finding.values["copies"] == STEPS
    assert 0 < 0.98 * real_ns <= finding.gain.run.high_ns <= finding.cost_run_ns


def test_copies_of_pinned_memory_are_no_cause(tmp_path: Path) -> None:
    assert findings(tmp_path, copy_batches(pageable=False)) == {}


def free_memory(*, frees: bool, records_calls: bool = True) -> TrainingHost:
    """Free and allocate GPU memory in each step from the fifth on; `cudaFree` waits for the GPU."""
    host = new_host()
    for number in range(STEPS):
        with host.step(), host.span("model", "layer"):
            if records_calls:
                with host.span("cudaLaunchKernel", "operator"):
                    host.work(5 * US)
            host.launch("gemm", 400 * US)
            if records_calls and (number == 0 or (frees and number > 3)):
                with host.span("cudaFree", "operator"):
                    host.work(max(0, host.ends_ns[7] - host.now_ns) + 100 * US)
                with host.span("cudaMalloc", "operator"):
                    host.work(200 * US)
            host.work(300 * US)
    host.wait()
    return host


def test_allocations_after_the_warm_up_are_replayed_without(tmp_path: Path) -> None:
    slow, fast = free_memory(frees=True), free_memory(frees=False)
    finding = findings(tmp_path, slow)[Rule.ALLOCATIONS]
    assert (finding.values["allocated"], finding.values["freed"]) == (STEPS - 4, STEPS - 4)
    assert finding.gain.kind is GainKind.REPLAYED
    real_ns = slow.now_ns - fast.now_ns
    assert finding.gain.run.low_ns <= 1.01 * real_ns
    assert finding.gain.run.high_ns >= 0.99 * real_ns
    # The GPU's work, for which cudaFree waits, remains.
    assert finding.gain.run.high_ns < finding.cost_run_ns


@pytest.mark.parametrize(
    ("records_calls", "expected"),
    [(True, (Verdict.NOT_FOUND, None)), (False, (Verdict.UNKNOWN, Missing.ALLOCATIONS))],
    ids=["calls recorded", "calls not recorded"],
)
def test_allocations_are_unknown_where_calls_of_cuda_were_not_recorded(
    records_calls: bool, expected: tuple[Verdict, Missing | None], tmp_path: Path
) -> None:
    host = free_memory(frees=False, records_calls=records_calls)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    (result,) = [each for each in run.findings().results if each.rule is Rule.ALLOCATIONS]
    assert (result.verdict, result.missing) == expected


def test_the_rules_are_silent_where_there_is_no_gpu_and_unknown_where_it_was_not_recorded(
    tmp_path: Path,
) -> None:
    path = execute(new_host()).write(tmp_path / "r.gpuprof")
    expected = {
        Reason.NO_DRIVER: (Verdict.NOT_FOUND, None),
        Reason.NOT_WANTED: (Verdict.UNKNOWN, Missing.KERNELS),
    }
    for reason, said in expected.items():
        change_meta(path, sources={"kernels": SourceStatus.off(reason).to_plain()})
        results = {each.rule: each for each in gpuprof.open(path).findings().results}
        for rule in (Rule.GPU_SYNCHRONIZATION, Rule.PAGEABLE_COPIES, Rule.LAUNCHES):
            assert (results[rule].verdict, results[rule].missing) == said


@pytest.mark.parametrize("rule", [Rule.GPU_SYNCHRONIZATION, Rule.LAUNCHES])
def test_each_figure_is_what_its_query_returns(rule: Rule, tmp_path: Path) -> None:
    run = gpuprof.open(execute(new_host()).write(tmp_path / "r.gpuprof"))
    (finding,) = [each for each in run.findings() if each.rule is rule]
    for figure in finding.evidence:
        assert run.sql(figure.sql).fetchall() == [(figure.value,)]
