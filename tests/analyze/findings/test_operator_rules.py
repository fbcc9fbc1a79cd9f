# SPDX-License-Identifier: Apache-2.0
"""Rules about operators and kernels, on simulated programs with and without their cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_edits import change_meta
from simulated_gpu import write_table
from simulated_training import MS, TrainingHost, settings

import gpuprof
from gpuprof.analyze.findings.finding import Finding, GainKind, Missing, Rule, Verdict
from gpuprof.record.facts import Method, SourceStatus

STEPS = 12
US = 1_000


def new_host(**values: Any) -> TrainingHost:
    return TrainingHost(**{"settings": settings(fused=True, threads=1), **values})


def only(run: gpuprof.Run) -> Finding:
    (finding,) = run.findings()
    return finding


def result(run: gpuprof.Run, rule: Rule) -> tuple[Verdict, Missing | None]:
    (found,) = [each for each in run.findings().results if each.rule is rule]
    return found.verdict, found.missing


def add_table(path: Path, table: str, rows: list[dict[str, Any]]) -> None:
    with duckdb.connect() as connection:
        write_table(connection, path, table, rows)


# ---- subnormal numbers -------------------------------------------------------------------------------------


def activate(*slow: str, slow_ms: float = 12, slow_steps: int = STEPS) -> TrainingHost:
    """Call four layers with an exponential function of as many numbers; some are slow in the first steps."""
    host = new_host()
    for step in range(STEPS):
        with host.step(), host.span("model", "layer"):
            for layer in "abcd":
                is_slow = layer in slow and step < slow_steps
                with host.span(layer, "layer"):
                    host.operator("aten::exp", round((slow_ms if is_slow else 2) * MS))
    return host


def counted(path: Path, shapes: dict[str, str]) -> gpuprof.Run:
    exp = {"operator": "aten::exp", "phase": "forward", "dtype": "float32", "bytes": 8_000_000}
    rows = [{**exp, "layer": layer, "input_shapes": of} for layer, of in shapes.items()]
    add_table(path, "work", rows)
    change_meta(path, work={"roots": ["model"]})
    return gpuprof.open(path)


EQUAL = dict.fromkeys("abcd", "1000x1000")


def test_an_operator_that_is_slow_in_one_of_equal_layers_is_bounded(tmp_path: Path) -> None:
    run = counted(activate("b", "d").write(tmp_path / "r.gpuprof"), EQUAL)
    finding = only(run)
    assert (finding.rule, finding.values["layers"], finding.values["layer"]) == (Rule.SLOW_OPERATORS, 2, "b")
    assert finding.values["factor"] == pytest.approx(6)
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    assert finding.gain.run.high_ns == activate("b", "d").now_ns - activate().now_ns
    for figure in finding.evidence:
        assert run.sql(figure.sql).fetchall() == [(figure.value,)]


@pytest.mark.parametrize(
    ("host", "shapes"),
    [
        (activate(), EQUAL),
        (activate("b"), {**EQUAL, "b": "1000x9000"}),
        (activate("b", slow_ms=3), EQUAL),
        (activate("b", slow_steps=9), EQUAL),
    ],
    ids=["equal times", "other shapes", "half as slow again", "in most of the steps"],
)
def test_equal_operators_are_no_cause(host: TrainingHost, shapes: dict[str, str], tmp_path: Path) -> None:
    assert list(counted(host.write(tmp_path / "r.gpuprof"), shapes).findings()) == []


@pytest.mark.parametrize(("slow_steps", "is_found"), [(STEPS, True), (STEPS - 1, False)])
def test_waits_for_a_processor_at_the_same_place_of_most_steps_are_no_cause(
    slow_steps: int, is_found: bool, tmp_path: Path
) -> None:
    host = activate("b", slow_steps=slow_steps)
    path = host.write(tmp_path / "r.gpuprof")
    counted(path, EQUAL)
    assert result(gpuprof.open(path), Rule.SLOW_OPERATORS) == (Verdict.FOUND, None)
    for sample in host.samples:
        sample["queued_ns"] = MS // 4
    waiting = counted(host.write(tmp_path / "waiting.gpuprof"), EQUAL)
    assert result(waiting, Rule.SLOW_OPERATORS)[0] is (Verdict.FOUND if is_found else Verdict.NOT_FOUND)


def test_a_difference_that_fresh_memory_explains_is_no_cause(tmp_path: Path) -> None:
    """One layer gets memory that the process has not used before, 8 MB in 2,000 pages of 5 us."""
    path = activate("b").write(tmp_path / "r.gpuprof")
    counted(path, EQUAL)
    assert result(gpuprof.open(path), Rule.SLOW_OPERATORS) == (Verdict.FOUND, None)
    change_meta(
        path, work={"roots": ["model"], "page_faults": [{"resource": "page_fault", "value": 5_000.0}]}
    )
    assert result(gpuprof.open(path), Rule.SLOW_OPERATORS) == (Verdict.NOT_FOUND, None)


def test_without_counted_work_the_shapes_are_unknown(tmp_path: Path) -> None:
    run = gpuprof.open(activate("b").write(tmp_path / "r.gpuprof"))
    assert result(run, Rule.SLOW_OPERATORS) == (Verdict.UNKNOWN, Missing.WORK)


# ---- kernels -----------------------------------------------------------------------------------------------


def launch(*kernels: tuple[str, int]) -> TrainingHost:
    """Launch kernels of so many us in each step, on a GPU that is busy all the time."""
    host = new_host()
    for _ in range(STEPS):
        with host.step(), host.span("model", "layer"):
            for name, took_us in kernels:
                host.launch(name, took_us * US)
            host.wait()
    return host


PRODUCT = ("ampere_bf16_gemm", 3000)
COPY = ("void cudnn::ops::nchwToNhwcKernel<float>", 400)
ADD = ("void at::native::vectorized_elementwise_kernel<4, add>", 300)
FP32 = ("ampere_sgemm_128x64_tn", 2000)


def rules(path: Path, *kernels: tuple[str, int]) -> dict[Rule, Finding]:
    return {each.rule: each for each in gpuprof.open(launch(*kernels).write(path)).findings()}


def test_copies_between_layouts_are_replayed_without(tmp_path: Path) -> None:
    finding = rules(tmp_path / "r.gpuprof", COPY, PRODUCT, COPY)[Rule.LAYOUT_COPIES]
    real_ns = launch(COPY, PRODUCT, COPY).now_ns - launch(PRODUCT).now_ns
    assert finding.gain.kind is GainKind.REPLAYED
    assert finding.gain.run.high_ns == pytest.approx(real_ns, rel=0.02)


def test_a_chain_of_elementwise_kernels_is_bounded_by_one_kernel(tmp_path: Path) -> None:
    finding = rules(tmp_path / "r.gpuprof", PRODUCT, ADD, ADD, ADD, ADD)[Rule.SMALL_KERNELS]
    real_ns = launch(PRODUCT, ADD, ADD, ADD, ADD).now_ns - launch(PRODUCT, ADD).now_ns
    assert finding.values["kernels"] == 3 * STEPS
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    assert finding.gain.run.high_ns == pytest.approx(real_ns, rel=0.02)


def test_single_kernels_and_products_in_bf16_are_no_cause(tmp_path: Path) -> None:
    found = rules(tmp_path / "r.gpuprof", PRODUCT, ADD, PRODUCT, ADD)
    assert found.keys().isdisjoint({Rule.SMALL_KERNELS, Rule.LAYOUT_COPIES, Rule.FP32_PRODUCTS})


def ceiling(dtype: str, value: float) -> dict[str, Any]:
    return {
        "device": "cuda:0",
        "resource": "compute",
        "dtype": dtype,
        "value": value,
        "unit": "flop_per_s",
        "spread": 0.0,
        "method": "by hand",
    }


def test_products_in_fp32_are_bounded_by_the_ceilings(tmp_path: Path) -> None:
    path = launch(FP32).write(tmp_path / "r.gpuprof")
    assert result(gpuprof.open(path), Rule.FP32_PRODUCTS) == (Verdict.UNKNOWN, Missing.CEILINGS)
    add_table(path, "ceilings", [ceiling("fp32", 10e12), ceiling("tf32", 40e12)])
    finding = {each.rule: each for each in gpuprof.open(path).findings()}[Rule.FP32_PRODUCTS]
    real_ns = launch(FP32).now_ns - launch((FP32[0], FP32[1] // 4)).now_ns
    assert finding.gain.run.low_ns == 0
    assert finding.gain.run.high_ns == pytest.approx(real_ns, rel=0.02)


def test_a_gpu_without_tensor_cores_for_it_computes_in_fp32(tmp_path: Path) -> None:
    path = launch(FP32).write(tmp_path / "r.gpuprof")
    add_table(path, "ceilings", [ceiling("fp32", 10e12), ceiling("tf32", 10e12)])
    assert result(gpuprof.open(path), Rule.FP32_PRODUCTS) == (Verdict.NOT_FOUND, None)


def read(path: Path, host: TrainingHost, reasons: int) -> gpuprof.Run:
    """Write a run whose GPU runs at half of its clock."""
    host.sources = (*host.sources, "samples")
    folder = host.write(path)
    rows = [
        {"t_ns": t_ns, "device": 0, "metric": metric, "value": value}
        for t_ns in range(0, host.now_ns, MS)
        for metric, value in (("throttle_reasons", reasons), ("sm_clock_hz", 900e6))
    ]
    add_table(folder, "samples", rows)
    change_meta(folder, devices=[{"index": 0, "name": "invented", "max_sm_clock_hz": 1800e6}])
    return gpuprof.open(folder)


def test_a_gpu_that_is_too_hot_is_bounded_by_its_clock(tmp_path: Path) -> None:
    run = read(tmp_path / "r.gpuprof", launch(PRODUCT), 64)
    finding = {each.rule: each for each in run.findings()}[Rule.THROTTLING]
    assert (finding.values["share"], finding.values["clock"]) == (1.0, 0.5)
    assert finding.gain.run.low_ns == 0
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 3000 * US / 2, rel=0.01)


@pytest.mark.parametrize("reasons", [0, 1, 2], ids=["none", "idle", "set by a user"])
def test_a_clock_that_nothing_reduces_is_no_cause(reasons: int, tmp_path: Path) -> None:
    run = read(tmp_path / "r.gpuprof", launch(PRODUCT), reasons)
    assert result(run, Rule.THROTTLING) == (Verdict.NOT_FOUND, None)


def test_without_readings_the_clock_is_unknown(tmp_path: Path) -> None:
    path = launch(PRODUCT).write(tmp_path / "r.gpuprof")
    change_meta(path, sources={"samples": SourceStatus.on(Method.TEXT, text="x").to_plain()})
    assert result(gpuprof.open(path), Rule.THROTTLING) == (Verdict.NOT_FOUND, None)
    change_meta(path, sources={})
    assert result(gpuprof.open(path), Rule.THROTTLING) == (Verdict.UNKNOWN, Missing.SAMPLES)


# ---- small operators ---------------------------------------------------------------------------------------


def with_self_times(path: Path, operator_ns: int, updates: int = 0) -> gpuprof.Run:
    """Write a model whose operators have a self time, and an optimizer with so many small operators."""
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                for _ in range(100):
                    host.operator("aten::mm", operator_ns)
            if updates:
                with host.span("Optimizer.step#SGD.step"):
                    for _ in range(updates):
                        host.operator("aten::add_", 6 * US)
    folder = host.write(path)
    with duckdb.connect() as connection:
        part = folder / "call_tree" / "rank=0" / "part-0.parquet"
        own = "CASE WHEN kind = 'operator' THEN total_ns ELSE 0 END::BIGINT AS own_ns"
        changed = connection.read_parquet(str(part)).select(f"* REPLACE ({own})")
        changed.write_parquet(str(part.with_name("changed.parquet")))
        part.unlink()
    return gpuprof.open(folder)


@pytest.mark.parametrize("updates", [0, 100])
def test_small_operators_are_bounded_by_half_of_their_time(updates: int, tmp_path: Path) -> None:
    run = with_self_times(tmp_path / "r.gpuprof", 6 * US, updates)
    finding = only(run)
    assert (finding.rule, finding.values["share"], finding.values["batch_size"]) == (Rule.SMALL_BATCH, 1, 4)
    assert (finding.gain.run.low_ns, finding.gain.run.high_ns) == (0, STEPS * 300 * US)
    for figure in finding.evidence:
        assert run.sql(figure.sql).fetchall() == [(figure.value,)]


def test_large_operators_are_no_cause(tmp_path: Path) -> None:
    assert list(with_self_times(tmp_path / "r.gpuprof", 60 * US).findings()) == []


def test_small_operators_of_the_optimizer_are_no_cause(tmp_path: Path) -> None:
    run = with_self_times(tmp_path / "r.gpuprof", 60 * US, updates=2_000)
    assert Rule.SMALL_BATCH not in {each.rule for each in run.findings()}
