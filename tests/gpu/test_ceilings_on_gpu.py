# SPDX-License-Identifier: Apache-2.0
"""GPU: its ceilings are plausible against its clocks and widths."""

from __future__ import annotations

from gpuprof.analyze.ceilings.cache import load_gpu_ceilings
from gpuprof.analyze.ceilings.gpu import theoretical_ceilings


def test_ceilings_are_plausible(cuda: str) -> None:
    found, notes = load_gpu_ceilings()
    assert found, notes
    for gpu in found:
        rows = {(row.resource, row.dtype): row for row in gpu.ceilings.rows}
        theory = {row.dtype: row.value for row in theoretical_ceilings(gpu.device, gpu.ceilings.machine)}
        assert 0.5 <= rows["memory.dram", None].value / theory[None] <= 1.05
        assert rows["memory.l2", None].value > rows["memory.dram", None].value
        if ("compute.matmul", "bf16") in rows and "bf16" in theory:
            assert 0.4 <= rows["compute.matmul", "bf16"].value / theory["bf16"] <= 1.05
        assert 200 < rows["launch", None].value < 20_000
        assert rows["launch.period", None].value >= 0.9 * rows["launch", None].value


def test_halves_are_multiplied_twice_as_fast_as_floats(cuda: str) -> None:
    """Where compute capability 8.0 or 9.0 has two pipelines for them."""
    for gpu in load_gpu_ceilings()[0]:
        if gpu.ceilings.machine["capability"] not in (80, 90):
            continue
        rows = {(row.resource, row.dtype): row.value for row in gpu.ceilings.rows}
        assert rows["compute.fma", "fp16"] > 1.7 * rows["compute.fma", "fp32"]
