# SPDX-License-Identifier: Apache-2.0
"""GPU: hardware counters of kernels whose bytes and operations are known."""

from __future__ import annotations

from typing import Any

import pytest

ELEMENTS = 1 << 28  # 1 GiB read and 1 GiB written, far more than any L2 holds
SIZE = 4096


@pytest.fixture(scope="module")
def measured(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the run, and what is known of the GPU; skips where the driver keeps its counters."""
    from start_program import start_program

    ran = start_program("counters", tmp_path_factory.mktemp("counters"), ELEMENTS, SIZE, timeout=300)
    status = ran.run.sources["counters"]
    if "no permission" in str(status.values.get("detail")):
        pytest.skip(f"no counters: {status}")
    assert status.is_on, ran.run.notes
    return ran


def value(measured: Any, operator: str, metric: str) -> float:
    query = f"SELECT value FROM counters WHERE operator = '{operator}' AND metric = '{metric}'"
    values = [row[0] for row in measured.run.sql(query).fetchall()]
    assert values, query
    assert None not in values, "not to be had on this GPU"
    return float(sum(values))


def test_one_pass_is_enough(measured: Any) -> None:
    assert measured.run.meta["counters"]["passes"] == 1


def test_an_addition_moves_what_it_reads_and_writes(measured: Any) -> None:
    assert measured.facts["l2_bytes"] is None or measured.facts["l2_bytes"] < 4 * ELEMENTS / 8
    assert value(measured, "aten::add", "dram_bytes") == pytest.approx(2 * 4 * ELEMENTS, rel=0.1)


def test_a_product_has_its_tensor_operations(measured: Any) -> None:
    found = value(measured, "aten::mm", "tensor_operations.bf16")
    assert found == pytest.approx(2 * SIZE**3, rel=0.02)


def test_every_kernel_has_a_name_and_a_time(measured: Any) -> None:
    query = "SELECT kernel, value FROM counters WHERE metric = 'time_ns'"
    found = measured.run.sql(query).fetchall()
    assert len(found) >= 2
    assert all(kernel and time_ns > 0 for kernel, time_ns in found)


def test_the_label_rests_on_measured_bytes(measured: Any) -> None:
    """Where GPUs have ceilings; without, there is no label to rest on anything."""
    from gpuprof.analyze.roofline.counted import load_counted, load_measured, with_measured

    folder = measured.run._folder
    rows = {row.operator: row for row in with_measured(load_counted(folder), load_measured(folder))}
    added = rows["aten::add"].measured
    assert added is not None
    assert added.dram_bytes == pytest.approx(rows["aten::add"].bytes, rel=0.1)
