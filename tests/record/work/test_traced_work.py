# SPDX-License-Identifier: Apache-2.0
"""The work of operators whose inputs were recorded, against formulas by hand and PyTorch's counter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof  # noqa: F401

# isort: split
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gpuprof.record.operator_windows import OperatorWindows
from gpuprof.record.work.traced_operators import read_trace
from gpuprof.record.work.traced_work import traced_rows

Rows = list[dict[str, Any]]


@pytest.fixture
def traced(tmp_path: Path) -> Callable[[Callable[[], object]], Rows]:
    """`traced(body)` returns the rows of the outermost operators of `body`."""

    def run(body: Callable[[], object]) -> Rows:
        windows = OperatorWindows(tmp_path)
        windows.start()
        body()
        windows.stop()
        return [row for row in traced_rows(windows.path) if row["parent"] is None]

    return run


def work(rows: Rows) -> dict[str, tuple[int, int]]:
    """Return FLOPs and bytes by operator, all its calls together."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        flops, size = found.get(row["operator"], (0, 0))
        found[row["operator"]] = (flops + row["flops"], size + row["bytes"])
    return found


def test_cross_entropy_forward_and_backward(traced: Callable[..., Rows]) -> None:
    n, c = 24, 40
    logits = torch.randn(n, c, requires_grad=True)
    target = torch.randint(0, c, (n,))
    found = work(traced(lambda: functional.cross_entropy(logits, target).backward()))
    # Log-softmax reads the logits and writes as much; of that the loss reads one element a row, the targets
    # of 8 bytes, and writes the loss and the sum of the weights. FLOPs: the maximum and the sum of c numbers
    # take c - 1 each, then a difference, an exponential and a difference for each number, a logarithm a row.
    assert found["aten::cross_entropy_loss"] == (n * (5 * c - 1) + n, 2 * 4 * n * c + 12 * n + 4 + 4)
    # Its backward pass writes all and reads targets, gradient and sum of the weights.
    assert found["aten::nll_loss_backward"] == (n, 4 * n * c + 8 * n + 4 + 4)
    assert found["aten::_log_softmax_backward_data"][1] == 3 * 4 * n * c


# FLOPs and tensors read or written, for each number of a parameter: weight decay, the two moments, the
# denominator (root, division, epsilon) and the step.
ADAMW_FLOPS = 1 + 3 + (1 + 3) + (1 + 1 + 1) + 3
ADAMW_TENSORS = 2 + 3 + (2 + 3) + (2 + 2 + 2) + 4
# In one pass: parameter, gradient and moments are read, and all but the gradient written.
FUSED_TENSORS = 4 + 3


@pytest.mark.parametrize(
    ("options", "tensors"),
    [
        ({"foreach": False}, ADAMW_TENSORS),
        ({"foreach": True}, ADAMW_TENSORS),
        ({"fused": True}, FUSED_TENSORS),
    ],
    ids=["single", "foreach", "fused"],
)
def test_adamw(traced: Callable[..., Rows], options: dict[str, bool], tensors: int) -> None:
    sizes = (128, 96)
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.1, **options)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    large = {str(size) for size in sizes}
    rows = [row for row in traced(optimizer.step) if large & set(row["input_shapes"].split(", "))]
    number = sum(sizes)
    assert sum(row["flops"] for row in rows) == ADAMW_FLOPS * number
    # Steps and numbers that PyTorch passes as tensors take a few bytes more.
    moved = sum(row["bytes"] for row in rows)
    assert 0 <= moved - 4 * tensors * number <= 64 * len(sizes)
    assert {row["exactness"] for row in rows} <= {"exact", "estimated"}


def test_clipping_and_zeroing_of_gradients(traced: Callable[..., Rows]) -> None:
    parameters = [nn.Parameter(torch.randn(each)) for each in (64, 32)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.SGD(parameters, foreach=True)

    def body() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.zero_grad(set_to_none=False)

    found = work(traced(body))
    assert found["aten::_foreach_norm"] == (2 * 96, 4 * 96 + 2 * 4)
    assert found["aten::_foreach_mul_"] == (96, 2 * 4 * 96 + 4)
    assert found["aten::_foreach_zero_"] == (0, 4 * 96)


def test_products_equal_those_of_pytorchs_counter(traced: Callable[..., Rows]) -> None:
    x, weight = torch.randn(3, 5, 8), torch.randn(7, 8)
    image, kernel = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)

    def body() -> None:
        functional.linear(x, weight)
        torch.bmm(x, x.transpose(1, 2))
        torch.addmm(torch.randn(7), torch.randn(5, 8), weight.t())
        functional.conv2d(image, kernel, padding=1)

    with FlopCounterMode(display=False) as peer:
        body()
    products = {"aten::linear", "aten::bmm", "aten::addmm", "aten::conv2d"}
    found = {name: flops for name, (flops, _) in work(traced(body)).items() if name in products}
    assert found.keys() == products
    assert sum(found.values()) == peer.get_total_flops()


def test_views_move_no_bytes_and_copies_do(traced: Callable[..., Rows]) -> None:
    x = torch.randn(6, 4)
    rows = {row["operator"]: row for row in traced(lambda: (x.t(), x.view(24), x[1:], x.t().contiguous()))}
    for view in ("aten::t", "aten::view", "aten::slice"):
        assert (rows[view]["flops"], rows[view]["bytes"], rows[view]["exactness"]) == (0, 0, "exact")
    assert rows["aten::contiguous"]["bytes"] == 2 * 4 * 24


def test_what_has_no_formula_is_unknown_and_not_zero(traced: Callable[..., Rows]) -> None:
    numbers = torch.arange(9)
    (row,) = traced(lambda: torch.isin(numbers, numbers))
    assert (row["flops"], row["exactness"]) == (None, "unknown")


def test_numbers_that_json_does_not_have(traced: Callable[..., Rows]) -> None:
    mask = torch.tensor([True, False])
    body = lambda: torch.ones(2).masked_fill(mask, -float("inf"))  # noqa: E731
    assert "aten::masked_fill" in work(traced(body))


def test_a_damaged_trace_loses_the_damaged_operators_alone(tmp_path: Path) -> None:
    windows = OperatorWindows(tmp_path)
    windows.start()
    for _ in range(5):
        torch.ones(3).mul_(2)
    windows.stop()
    whole = read_trace(windows.path)
    text = windows.path.read_text(encoding="utf-8")
    middle = text.index('"id"', len(text) // 2)
    windows.path.write_text(
        text[: middle + 9] + "\0 garbage" + text[middle + 9 :] + text[-400:], encoding="utf-8"
    )
    read = read_trace(windows.path)
    assert len(whole) - 1 <= len(read) <= len(whole)
    assert {each.name for each in read} == {each.name for each in whole}
    assert json.dumps(traced_rows(windows.path))
