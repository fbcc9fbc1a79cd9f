# SPDX-License-Identifier: Apache-2.0
"""Lookups, normalization in fp32 and padding, on simulated programs with and without their cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_edits import change_meta
from simulated_gpu import write_table
from simulated_training import LOADER, MS, TrainingHost, settings

import gpuprof
from gpuprof.analyze.findings.finding import Finding, GainKind, Missing, Rule, Verdict

STEPS = 12


def new_host(**values: Any) -> TrainingHost:
    return TrainingHost(**{"settings": settings(fused=True, threads=1), **values})


def found(run: gpuprof.Run) -> dict[Rule, Finding]:
    return {each.rule: each for each in run.findings()}


def result(run: gpuprof.Run, rule: Rule) -> tuple[Verdict, Missing | None]:
    (each,) = [each for each in run.findings().results if each.rule is rule]
    return each.verdict, each.missing


def assert_figures(run: gpuprof.Run, finding: Finding) -> None:
    assert finding.evidence
    for figure in finding.evidence:
        assert figure.value is not None
        assert run.sql(figure.sql).fetchall() == [(figure.value,)]


# ---- lookups -----------------------------------------------------------------------------------------------


def look_up(forward: float = 1, dense: float = 0, optimizer: float = 1, loading: float = 0) -> TrainingHost:
    """Look up rows in each step, in ms; a product takes 20 ms."""
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            if loading:
                with host.span(LOADER):
                    host.operator("aten::index_select", round(loading * MS))
            with host.span("model", "layer"):
                with host.span("aten::embedding", "operator"):
                    host.operator("aten::index_select", round(forward * MS))
                host.operator("aten::mm", 20 * MS)
            with host.span("EmbeddingBackward0", "backward"):
                if dense:
                    host.operator("aten::embedding_dense_backward", round(dense * MS))
            with host.span("Optimizer.step#SGD.step"):
                host.operator("aten::add_", round(optimizer * MS))
    return host


def test_a_dense_gradient_is_bounded_by_its_time_and_that_of_the_optimizer(tmp_path: Path) -> None:
    slow, fast = look_up(dense=12, optimizer=9), look_up(dense=0, optimizer=1)
    run = gpuprof.open(slow.write(tmp_path / "r.gpuprof"))
    finding = found(run)[Rule.LOOKUPS]
    assert finding.values["has_dense_gradient"]
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    assert finding.gain.run.high_ns == STEPS * (1 + 12 + 9) * MS
    assert 0 < slow.now_ns - fast.now_ns <= finding.gain.run.high_ns
    assert finding.values["share"] == pytest.approx(22 / 42)
    assert_figures(run, finding)


def test_the_optimizer_counts_for_the_tables_only(tmp_path: Path) -> None:
    path = look_up(dense=12, optimizer=9).write(tmp_path / "r.gpuprof")
    table = {
        "operator": "aten::embedding",
        "phase": "forward",
        "layer": "model",
        "input_shapes": "5000x50, 4x8",
    }
    add_table(path, "work", [table])
    change_meta(path, work={"roots": ["model"], "padding": []})
    finding = found(gpuprof.open(path))[Rule.LOOKUPS]
    # The optimizer has a million elements, the table a quarter of them.
    assert finding.gain.run.high_ns == pytest.approx(STEPS * (1 + 12 + 9 / 4) * MS)


def test_lookups_of_a_large_part_of_the_steps_are_bounded_by_their_time(tmp_path: Path) -> None:
    finding = found(gpuprof.open(look_up(forward=10).write(tmp_path / "r.gpuprof")))[Rule.LOOKUPS]
    assert not finding.values["has_dense_gradient"]
    assert finding.gain.run.high_ns == STEPS * 10 * MS


@pytest.mark.parametrize(
    "host",
    [look_up(), look_up(loading=10), look_up(dense=0.5, forward=0.1, optimizer=20)],
    ids=["short", "in the loader", "short with a long step of the optimizer"],
)
def test_short_lookups_and_those_of_a_loader_are_no_cause(host: TrainingHost, tmp_path: Path) -> None:
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    assert result(run, Rule.LOOKUPS) == (Verdict.NOT_FOUND, None)


def launch_lookups(took_us: int) -> TrainingHost:
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                with host.span("aten::index_select", "operator"):
                    host.launch("indexSelectLargeIndex", took_us * 1000)
                with host.span("aten::mm", "operator"):
                    host.launch("gemm", 3 * MS)
            host.wait()
    return host


def test_lookups_on_a_gpu_are_bounded_by_their_kernels(tmp_path: Path) -> None:
    finding = found(gpuprof.open(launch_lookups(2000).write(tmp_path / "r.gpuprof")))[Rule.LOOKUPS]
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 2 * MS, rel=0.01)
    run = gpuprof.open(launch_lookups(100).write(tmp_path / "short.gpuprof"))
    assert result(run, Rule.LOOKUPS) == (Verdict.NOT_FOUND, None)


def test_a_dense_gradient_on_a_gpu_counts_the_kernels_of_the_optimizer(tmp_path: Path) -> None:
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"), host.span("aten::mm", "operator"):
                host.launch("gemm", 3 * MS)
            with (
                host.span("EmbeddingBackward0", "backward"),
                host.span("aten::embedding_dense_backward", "operator"),
            ):
                host.launch("embedding_backward_kernel", 2 * MS)
            with host.span("Optimizer.step#SGD.step"), host.span("aten::add_", "operator"):
                host.launch("multi_tensor_apply", MS)
            host.wait()
    finding = found(gpuprof.open(host.write(tmp_path / "r.gpuprof")))[Rule.LOOKUPS]
    assert finding.values["has_dense_gradient"]
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 3 * MS, rel=0.01)


# ---- normalization -----------------------------------------------------------------------------------------

ELEMENTS = 64 * 256


def normalize(took: float) -> TrainingHost:
    """Normalize before a product of 20 ms, and in the backward pass."""
    host = new_host()
    for _ in range(STEPS):
        with host.step(), host.span("model", "layer"):
            with host.span("norm", "layer"):
                host.operator("aten::native_layer_norm", round(took * MS))
            with host.span("fc", "layer"):
                host.operator("aten::mm", 20 * MS)
    return host


def counted(path: Path, host: TrainingHost, norm: str, product: str = "bfloat16") -> gpuprof.Run:
    """Write a run in which the layers calculate in these types."""
    folder = host.write(path)
    of_norm = {"operator": "aten::native_layer_norm", "dtype": norm, "flops": 8 * ELEMENTS}
    of_product = {"operator": "aten::mm", "dtype": product, "flops": 512 * ELEMENTS}
    rows = [
        {**of_norm, "layer": "norm", "bytes": 8 * ELEMENTS, "input_shapes": "64x256, 256"},
        {**of_product, "layer": "fc", "bytes": 4 * ELEMENTS, "input_shapes": "64x256, 256x256"},
    ]
    add_table(folder, "work", [{**each, "root": "model", "phase": "forward", "ordinal": 0} for each in rows])
    types = {"model": {"model": "Model", "norm": "RMSNorm", "fc": "Linear"}}
    change_meta(folder, work={"roots": ["model"]}, layer_types=types)
    return gpuprof.open(folder)


def add_table(path: Path, table: str, rows: list[dict[str, Any]]) -> None:
    with duckdb.connect() as connection:
        write_table(connection, path, table, rows)


def test_normalization_in_fp32_is_bounded_by_half_of_its_bytes(tmp_path: Path) -> None:
    run = counted(tmp_path / "r.gpuprof", normalize(8), "float32")
    finding = found(run)[Rule.FP32_NORMS]
    assert (finding.values["type"], finding.values["layers"]) == ("RMSNorm", 1)
    assert finding.values["dtype"] == "bfloat16"
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    # 4 bytes an element, two in and two out, in place of 8.
    assert finding.gain.run.high_ns == normalize(8).now_ns - normalize(4).now_ns
    assert_figures(run, finding)


@pytest.mark.parametrize(
    ("norm", "product"), [("bfloat16", "bfloat16"), ("float32", "float32")], ids=["all small", "all fp32"]
)
def test_layers_of_the_models_type_are_no_cause(norm: str, product: str, tmp_path: Path) -> None:
    run = counted(tmp_path / "r.gpuprof", normalize(8), norm, product)
    assert result(run, Rule.FP32_NORMS) == (Verdict.NOT_FOUND, None)


def test_without_counted_work_types_and_padding_are_unknown(tmp_path: Path) -> None:
    run = gpuprof.open(normalize(8).write(tmp_path / "r.gpuprof"))
    for rule in (Rule.FP32_NORMS, Rule.PADDING):
        assert result(run, rule) == (Verdict.UNKNOWN, Missing.WORK)


def test_normalization_on_a_gpu_is_bounded_by_its_kernels(tmp_path: Path) -> None:
    host = new_host()
    for _ in range(STEPS):
        with host.step(), host.span("model", "layer"):
            with host.span("norm", "layer"), host.span("aten::native_layer_norm", "operator"):
                host.launch("layer_norm_kernel", 2 * MS)
            with host.span("fc", "layer"):
                host.launch("gemm", 3 * MS)
            host.wait()
    finding = found(counted(tmp_path / "r.gpuprof", host, "float32"))[Rule.FP32_NORMS]
    assert finding.gain.run.high_ns == pytest.approx(STEPS * MS, rel=0.01)


# ---- padding -----------------------------------------------------------------------------------------------


def encode(product: float = 15, attention: float = 5) -> TrainingHost:
    host = new_host()
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.operator("aten::mm", round(product * MS))
                host.operator("aten::scaled_dot_product_attention", round(attention * MS))
            with host.span("Optimizer.step#SGD.step"):
                host.operator("aten::add_", 9 * MS)
    return host


def with_padding(path: Path, *facts: dict[str, Any]) -> gpuprof.Run:
    folder = encode().write(path)
    change_meta(folder, work={"roots": ["model"], "padding": list(facts)})
    return gpuprof.open(folder)


def mask(padded: int, kept: int = 1000) -> dict[str, Any]:
    own = {"root": "model", "argument": "attention_mask", "tokens": 1000}
    return {**own, "padded": padded, "kept_by_trimming": kept}


def test_padding_is_bounded_by_its_part_of_the_model_and_of_attention_squared(tmp_path: Path) -> None:
    run = with_padding(tmp_path / "r.gpuprof", mask(400))
    finding = found(run)[Rule.PADDING]
    assert (finding.values["share"], finding.values["argument"]) == (0.4, "attention_mask")
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    # 60% of the tokens, and 36% of the pairs.
    real_ns = encode().now_ns - encode(15 * 0.6, 5 * 0.36).now_ns
    assert finding.gain.run.high_ns == pytest.approx(real_ns)
    assert_figures(run, finding)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([mask(50)], (Verdict.NOT_FOUND, None)),
        ([], (Verdict.NOT_FOUND, None)),
        ([{"root": "model", "argument": None}], (Verdict.UNKNOWN, Missing.MASKS)),
    ],
    ids=["little padding", "no tokens", "no mask"],
)
def test_a_model_without_padding_has_no_finding(
    facts: list[dict[str, Any]], expected: tuple[Verdict, Missing | None], tmp_path: Path
) -> None:
    assert result(with_padding(tmp_path / "r.gpuprof", *facts), Rule.PADDING) == expected
