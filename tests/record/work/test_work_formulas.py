# SPDX-License-Identifier: Apache-2.0
"""FLOPs of operators, forward and backward, against formulas that are written out here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from work_rows import flops_of

import gpuprof

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


@dataclass
class Case:
    """A module or function, the shapes of its inputs, and the FLOPs of its operators by hand."""

    name: str
    make: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...]
    forward: int
    backward: int | None = None  # None: not compared


def case(
    name: str, make: Callable[[], Any], *shapes: tuple[int, ...], forward: int, backward: int | None
) -> Case:
    return Case(name, make, shapes, forward, backward)


def function(call: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: call


# A linear layer over 6 tokens, 5 -> 7: the gradients of input and weight take the product again each; the
# bias is summed over the tokens: 6*7 - 7.
CASES = [
    case("linear", lambda: nn.Linear(5, 7), (6, 5), forward=2 * 6 * 5 * 7, backward=2 * 2 * 6 * 5 * 7 + 35),
    case("linear without bias", lambda: nn.Linear(5, 7, bias=False), (6, 5), forward=420, backward=840),
    case("mm", function(torch.mm), (3, 4), (4, 5), forward=2 * 3 * 4 * 5, backward=2 * 120),
    case("bmm", function(torch.bmm), (2, 3, 4), (2, 4, 5), forward=2 * 2 * 3 * 4 * 5, backward=2 * 240),
    case("baddbmm", function(torch.baddbmm), (2, 3, 5), (2, 3, 4), (2, 4, 5), forward=240, backward=480),
    case(
        "mv", function(torch.mv), (3, 4), (4,), forward=2 * 3 * 4, backward=12 + 24
    ),  # outer product as `mul`
    case("dot", function(torch.dot), (9,), (9,), forward=18, backward=18),
    case("addmv", function(torch.addmv), (3,), (3, 4), (4,), forward=24, backward=None),
    case(
        "einsum",
        function(lambda a, b: torch.einsum("bij,bkj->bik", a, b)),
        (2, 3, 4),
        (2, 5, 4),
        forward=2 * 2 * 3 * 4 * 5,
        backward=480,
    ),
    case(
        "matmul by broadcast",
        function(torch.matmul),
        (2, 6, 3, 4),
        (4, 5),
        forward=2 * 12 * 3 * 4 * 5,
        backward=2880,
    ),
    # 2 images, 4 -> 6 channels, 3x3, 8x8 -> 6x6; the bias's gradient rides along.
    case(
        "conv2d", lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 8), forward=2 * 2 * 6 * 36 * 4 * 9, backward=2 * 31104
    ),
    case(
        "conv2d stride, padding, dilation",
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2),
        (2, 4, 8, 8),
        forward=2 * 2 * 6 * 16 * 4 * 9,
        backward=2 * 13824,
    ),
    case(
        "conv2d groups",
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        (2, 4, 8, 8),
        forward=2 * 2 * 6 * 36 * 2 * 9,
        backward=2 * 15552,
    ),
    case(
        "conv2d depthwise",
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        (2, 4, 8, 8),
        forward=2 * 2 * 4 * 36 * 9,
        backward=2 * 5184,
    ),
    case("conv1d", lambda: nn.Conv1d(3, 5, 4), (2, 3, 9), forward=2 * 2 * 5 * 6 * 3 * 4, backward=2 * 1440),
    case(
        "conv3d", lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), forward=2 * 3 * 27 * 2 * 8, backward=2 * 2592
    ),
    case(
        "conv_transpose2d",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2),
        (2, 4, 5, 5),
        forward=2 * 2 * 4 * 25 * 6 * 9,
        backward=2 * 21600,
    ),
    # 2 batches, 3 heads, 6 queries and keys, depth 4; backward has five products instead of two.
    case(
        "attention",
        function(F.scaled_dot_product_attention),
        *[(2, 3, 6, 4)] * 3,
        forward=4 * 6 * 36 * 4,
        backward=10 * 6 * 36 * 4,
    ),
    # Query i sees i + 1 keys: 21 of 36 pairs.
    case(
        "causal attention",
        function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        *[(2, 3, 6, 4)] * 3,
        forward=4 * 6 * 21 * 4,
        backward=10 * 6 * 21 * 4,
    ),
    case(
        "attention between lengths",
        function(F.scaled_dot_product_attention),
        (1, 2, 5, 4),
        (1, 2, 7, 4),
        (1, 2, 7, 4),
        forward=4 * 2 * 35 * 4,
        backward=10 * 2 * 35 * 4,
    ),
    # Gates 4, inputs 5, hidden 3, 7 steps of 2: each weight meets each token.
    case(
        "lstm",
        lambda: nn.LSTM(5, 3),
        (7, 2, 5),
        forward=2 * 14 * 4 * 3 * (5 + 3),
        backward=2 * 2 * 14 * 4 * 3 * (5 + 3),
    ),
    case("relu", function(torch.relu), (4, 5), forward=20, backward=20),
    case("add", function(torch.add), (4, 5), (5,), forward=20, backward=20 - 5),
    case("mul", function(torch.mul), (4, 5), (4, 5), forward=20, backward=40),
    case(
        "add with alpha",
        function(lambda a, b: torch.add(a, b, alpha=2)),
        (4, 5),
        (4, 5),
        forward=40,
        backward=20,
    ),
    case("sigmoid", function(torch.sigmoid), (4, 5), forward=4 * 20, backward=3 * 20),
    case("tanh", function(torch.tanh), (4, 5), forward=20, backward=3 * 20),
    case("gelu", function(F.gelu), (4, 5), forward=5 * 20, backward=11 * 20),
    case("silu", function(F.silu), (4, 5), forward=5 * 20, backward=9 * 20),
    case("leaky relu", function(F.leaky_relu), (4, 5), forward=2 * 20, backward=2 * 20),
    case("pow", function(lambda x: x**3), (4, 5), forward=2 * 20, backward=None),
    case("clamp", function(lambda x: x.clamp(-1, 1)), (4, 5), forward=2 * 20, backward=None),
    # Rows of 5: maximum 4, differences 5, exp 5, sum 4, quotients 5; backward 5 + 4 + 5 + 5.
    case("softmax", lambda: nn.Softmax(-1), (4, 5), forward=4 * 23, backward=4 * 19),
    case("log_softmax", lambda: nn.LogSoftmax(-1), (4, 5), forward=4 * 24, backward=4 * 19),
    case("layer norm", lambda: nn.LayerNorm(5), (4, 5), forward=8 * 20, backward=13 * 20),
    case(
        "layer norm, plain",
        lambda: nn.LayerNorm(5, elementwise_affine=False),
        (4, 5),
        forward=6 * 20,
        backward=9 * 20,
    ),
    case("group norm", lambda: nn.GroupNorm(2, 4), (3, 4, 5), forward=8 * 60, backward=13 * 60),
    case("batch norm, eval", lambda: nn.BatchNorm1d(4).eval(), (3, 4, 5), forward=2 * 60, backward=5 * 60),
    # In training one more for the counter of batches.
    case("batch norm", lambda: nn.BatchNorm1d(4), (3, 4, 5), forward=6 * 60 + 1, backward=9 * 60),
    # Squares, their mean, eps, root and quotient for 4 rows, the scale, the weight.
    case(
        "rms norm", lambda: nn.RMSNorm(5, eps=1e-6), (4, 5), forward=20 + 20 + 4 + 8 + 20 + 20, backward=None
    ),
    case("sum", function(torch.sum), (4, 5), forward=19, backward=0),
    case("mean", function(lambda x: x.mean(1)), (4, 5), forward=20, backward=20),
    case("amax", function(lambda x: x.amax(1)), (4, 5), forward=16, backward=None),
    case("var", function(lambda x: x.var(1)), (4, 5), forward=80, backward=None),
    case("norm", function(lambda x: torch.linalg.vector_norm(x)), (4, 5), forward=40, backward=None),
    case("cumsum", function(lambda x: x.cumsum(1)), (4, 5), forward=16, backward=None),
    case("max_pool2d", lambda: nn.MaxPool2d(2), (1, 3, 4, 4), forward=3 * 12, backward=12),
    case("avg_pool2d", lambda: nn.AvgPool2d(2), (1, 3, 4, 4), forward=4 * 12, backward=5 * 12),
    case(
        "interpolate",
        function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        (1, 2, 3, 3),
        forward=7 * 72,
        backward=8 * 72,
    ),
    case("mse", function(F.mse_loss), (4, 5), (4, 5), forward=60, backward=None),
    case("copy", function(lambda x: x.clone()), (4, 5), forward=0, backward=0),
    case("cat", function(lambda a, b: torch.cat([a, b])), (4, 5), (4, 5), forward=0, backward=0),
    case(
        "cross product",
        function(lambda a, b: torch.linalg.cross(a, b)),
        (4, 3),
        (4, 3),
        forward=36,
        backward=None,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_flops_are_those_of_the_formula(case: Case) -> None:
    inputs = tuple(torch.randn(shape, requires_grad=True) for shape in case.shapes)
    work = gpuprof.count_work(case.make(), inputs, backward=case.backward is not None)
    assert not work.failures
    assert flops_of(work, "forward") == case.forward
    if case.backward is not None:
        assert flops_of(work, "backward") == case.backward


@pytest.mark.parametrize(
    "case", [each for each in CASES if each.backward is not None], ids=lambda case: case.name
)
def test_shapes_alone_give_the_same_flops(case: Case) -> None:
    inputs = tuple(torch.randn(shape, requires_grad=True) for shape in case.shapes)
    model = case.make()
    work = gpuprof.count_work(model, inputs, backward=True, fake=True)
    assert (flops_of(work, "forward"), flops_of(work, "backward")) == (case.forward, case.backward)
    if isinstance(model, nn.Module):
        assert all(type(value) is nn.Parameter and value.grad is None for value in model.parameters())


def test_every_formula_belongs_to_an_operator() -> None:
    from gpuprof.record.work import formulas  # noqa: F401
    from gpuprof.record.work.call import formula, known_operators

    with pytest.raises(ValueError, match="aten::mm has two formulas"):
        formula("mm")(lambda call: None)
    existing = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    inplace = {name for name in existing if name.removesuffix("_") != name}
    known = known_operators()
    missing = [name for name in known if name not in existing and f"{name}_" not in inplace]
    assert len(known) > 700
    # Operators come and go between versions; on this one all of them are there.
    assert not missing or not torch.__version__.startswith("2.13")
