# SPDX-License-Identifier: Apache-2.0
"""FLOPs and bytes against formulas that are written out here, and against published totals of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import gpuprof

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


def flops_of(work: Any, phase: str, *operators: str) -> int:
    """Return the FLOPs of a phase; every operator of it must be known."""
    rows = [row for row in work.operators if row.phase == phase]
    rows = [row for row in rows if not operators or row.operator in operators]
    assert all(row.flops is not None for row in rows)
    return sum(row.flops for row in rows)


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
    assert not work.notes
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


def one(work: Any, operator: str) -> Any:
    rows = [row for row in work.operators if row.operator == operator]
    assert len(rows) == 1, [row.operator for row in work.operators]
    return rows[0]


@pytest.mark.parametrize(
    ("call", "shapes", "operator", "expected"),
    [
        (torch.relu, [(4, 5)], "aten::relu", 2 * 80),
        (torch.relu_, [(4, 5)], "aten::relu_", 2 * 80),  # read and written
        (torch.mm, [(3, 4), (4, 5)], "aten::mm", 4 * (12 + 20 + 15)),
        (lambda x: torch.mm(x, x), [(4, 4)], "aten::mm", 4 * (16 + 16)),  # both factors are one memory
        (lambda x: torch.mm(x, x.t()), [(3, 4)], "aten::mm", 4 * (12 + 9)),
        (torch.add, [(4, 5), (5,)], "aten::add", 4 * (20 + 5 + 20)),
        (lambda x: x.expand(100, 5) * 2, [(1, 5)], "aten::mul", 4 * (5 + 500)),  # broadcast once
        (lambda x: x.t(), [(4, 5)], "aten::t", 0),
        (lambda x: x.view(20), [(4, 5)], "aten::view", 0),
        (lambda x: x.zero_(), [(4, 5)], "aten::zero_", 80),
        (lambda a, b: a.copy_(b), [(4, 5), (4, 5)], "aten::copy_", 160),
        (torch.zeros_like, [(4, 5)], "aten::zeros_like", 80),
        (torch.empty_like, [(4, 5)], "aten::empty_like", 0),
        (lambda x: x.half(), [(4, 5)], "aten::_to_copy", 80 + 40),
        (lambda x: x[0].sum(), [(4, 5)], "aten::sum", 20 + 4),  # a row is read, not all
        (lambda x: x[:, :2] + x[:, 1:3], [(4, 5)], "aten::add", 4 * (8 + 8 + 8)),
        (lambda x: x.item(), [()], "aten::_local_scalar_dense", 4),
        (lambda x: torch.addmm(torch.ones(5), x, torch.ones(4, 5), beta=0), [(3, 4)], "aten::addmm", 4 * 47),
        (F.max_pool2d, [(1, 3, 4, 4)], "aten::max_pool2d_with_indices", None),
    ],
)
def test_bytes_are_ideal(call: Any, shapes: Any, operator: str, expected: int | None) -> None:
    inputs = tuple(torch.randn(shape) for shape in shapes)
    if call is F.max_pool2d:
        call, expected = (lambda x: F.max_pool2d(x, 2, return_indices=True)), 4 * (48 + 12) + 8 * 12
    assert one(gpuprof.count_work(call, inputs), operator).bytes == expected


def test_an_embedding_moves_the_rows_that_are_asked_for_once() -> None:
    table = nn.Embedding(1000, 8)
    work = gpuprof.count_work(table, torch.tensor([[1, 2], [2, 3]]), backward=True)
    row = one(work, "aten::embedding")
    assert (row.flops, row.bytes, row.exactness) == (0, 3 * 32 + 4 * 8 + 4 * 32, "exact")
    assert one(work, "aten::embedding_dense_backward").flops == 4 * 8
    fake = one(gpuprof.count_work(table, torch.tensor([[1, 2], [2, 3]]), fake=True), "aten::embedding")
    assert (fake.bytes, fake.exactness) == (4 * 32 + 32 + 128, "estimated")


def test_gather_and_scatter_touch_what_they_name() -> None:
    big, index, values = torch.zeros(1000, 4), torch.tensor([1, 5]), torch.ones(2, 4)
    row = one(gpuprof.count_work(torch.index_select, (big, 0, index)), "aten::index_select")
    assert (row.flops, row.bytes) == (0, 32 + 16 + 32)
    row = one(gpuprof.count_work(lambda: big.index_add_(0, index, values)), "aten::index_add_")
    assert (row.flops, row.bytes) == (8, 16 + 32 + 32 + 32)
    assert not big.any()


@pytest.mark.parametrize("bag_mode", ["sum", "mean"])
def test_embedding_bag(bag_mode: str) -> None:
    bag = nn.EmbeddingBag(100, 6, mode=bag_mode)
    row = one(gpuprof.count_work(bag, torch.tensor([[1, 2, 3], [4, 5, 6]])), "aten::_embedding_bag")
    assert row.flops == (6 - 2) * 6 + (12 if bag_mode == "mean" else 0)


def test_a_gru_steps_by_products() -> None:
    work = gpuprof.count_work(nn.GRU(5, 3), torch.randn(7, 2, 5), backward=True)
    assert flops_of(work, "forward", "aten::addmm") == 2 * 14 * 9 * (5 + 3)
    # The initial state takes no gradient, nor does the input; the weights and the later states do.
    assert flops_of(work, "backward", "aten::mm") == 2 * 14 * 9 * (5 + 3) + 2 * 12 * 9 * 3


def test_stacked_lstm_in_both_directions() -> None:
    work = gpuprof.count_work(nn.LSTM(5, 3, 2, bidirectional=True), torch.randn(7, 2, 5), backward=True)
    weights = 2 * 4 * 3 * (5 + 3) + 2 * 4 * 3 * (6 + 3)
    assert flops_of(work, "forward") == 2 * 14 * weights
    assert flops_of(work, "backward", "aten::mkldnn_rnn_layer_backward") in (0, 2 * 2 * 14 * weights)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_of_transformers_counts_the_tokens_that_are_there() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    source = torch.randn(2, 5, 8)
    weights = 3 * 64 + 64 + 2 * 8 * 16
    with torch.inference_mode():
        work = gpuprof.count_work(encoder, source)
        assert one(work, "aten::_transformer_encoder_layer_fwd").flops == 2 * 10 * weights + 4 * 8 * 2 * 25
        padding = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])
        work = gpuprof.count_work(encoder, {"src": source, "src_key_padding_mask": padding})
        row = one(work, "aten::_transformer_encoder_layer_fwd")
    assert row.flops == 2 * 7 * weights + 4 * 8 * (16 + 9)
    assert row.input_shapes[0] == (2, -1, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.inference_mode():
        work = gpuprof.count_work(attention, (source, source, source))
    assert one(work, "aten::_native_multi_head_attention").flops == 2 * 10 * 4 * 64 + 4 * 8 * 50


def test_composite_operators_are_taken_apart_in_inference_mode() -> None:
    with torch.inference_mode():
        work = gpuprof.count_work(nn.Sequential(nn.Linear(4, 5), nn.Conv1d(3, 2, 2)), torch.randn(1, 3, 4))
    assert one(work, "aten::convolution").flops == 2 * 2 * 4 * 3 * 2
    assert flops_of(work, "forward", "aten::addmm", "aten::mm") == 2 * 3 * 4 * 5
    assert not work.unknown


def test_nested_tensors() -> None:
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert gpuprof.count_work(nn.Linear(8, 4), jagged).flops == 2 * 8 * 8 * 4


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_products_count_the_values_that_are_stored() -> None:
    dense, matrix = torch.ones(9, 5), torch.zeros(7, 9)
    matrix[0, :4] = 1
    for sparse in (matrix.to_sparse(), matrix.to_sparse_csr()):
        work = gpuprof.count_work(torch.sparse.mm, (sparse, dense))
        assert flops_of(work, "forward") == 2 * 4 * 5
    both = gpuprof.count_work(torch.sparse.mm, (matrix.to_sparse(), matrix.t().to_sparse()))
    assert (both.exactness, list(both.unknown)) == ("unknown", ["aten::_sparse_sparse_matmul"])


@pytest.mark.filterwarnings("ignore")
def test_quantized_products_count_by_shapes() -> None:
    linear = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), dtype=torch.qint8)
    row = one(gpuprof.count_work(linear, torch.randn(3, 8)), "quantized::linear_dynamic")
    # 3x8 and 3x4 floats, and 32 weights of a byte.
    assert (row.flops, row.bytes) == (2 * 3 * 8 * 4, 96 + 48 + 32)
    lstm = torch.ao.quantization.quantize_dynamic(nn.LSTM(5, 3), {nn.LSTM}, dtype=torch.qint8)
    assert gpuprof.count_work(lstm, torch.randn(7, 2, 5)).flops == 2 * 14 * 4 * 3 * 8


def test_low_precision_is_named() -> None:
    linear = nn.Linear(8, 4).bfloat16()
    row = one(gpuprof.count_work(linear, torch.randn(2, 8, dtype=torch.bfloat16)), "aten::addmm")
    assert (row.dtype, row.bytes) == ("bfloat16", 2 * (4 + 16 + 32 + 8))
    with torch.autocast("cpu"):
        rows = gpuprof.count_work(nn.Linear(8, 4), torch.randn(2, 8)).operators
    assert [row.dtype for row in rows if row.operator == "aten::addmm"] == ["bfloat16"]


def test_complex_products_count_real_operations() -> None:
    left, right = torch.ones(3, 4, dtype=torch.complex64), torch.ones(4, 5, dtype=torch.complex64)
    assert gpuprof.count_work(torch.mm, (left, right)).flops == 8 * 60
    assert gpuprof.count_work(torch.mul, (left, left)).flops == 6 * 12


@pytest.mark.parametrize(
    ("optimizer", "settings", "steps"),
    [
        ("SGD", {"foreach": True}, 2),
        ("SGD", {"fused": True, "momentum": 0.9}, 5),
        ("AdamW", {"fused": True}, 14),
        ("Adam", {"fused": True}, 13),
    ],
)
def test_optimizers(optimizer: str, settings: dict[str, Any], steps: int) -> None:
    parameters = [nn.Parameter(torch.ones(30)), nn.Parameter(torch.ones(12))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    stepper = getattr(torch.optim, optimizer)(parameters, lr=0.1, **settings)
    work = gpuprof.count_work(stepper.step)
    updates = [row for row in work.operators if row.phase == "optimizer" and row.flops and row.flops > 4]
    assert [row.flops for row in updates] == [steps * 42]
    assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in parameters)
    assert not stepper.state


def products(work: Any) -> float:
    """Return the FLOPs of convolutions and matrix products, in billions."""
    return flops_of(work, "forward", "aten::convolution", "aten::addmm", "aten::mm", "aten::bmm") / 1e9


class Residual(nn.Module):
    """A bottleneck of ResNet-50, with the stride in its 3x3 convolution (version 1.5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *unit(channels, width, 1),
            nn.ReLU(),
            *unit(width, width, 3, stride),
            nn.ReLU(),
            *unit(width, 4 * width, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*unit(channels, 4 * width, 1, stride))

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.shortcut(x))


def unit(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out)]


def resnet50() -> Any:
    layers, channels = [*unit(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Residual(channels, width, first if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> Any:
    layers: list[Any] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def mobilenet_v2() -> Any:
    layers, channels = [*unit(3, 32, 3, 2), nn.ReLU6()], 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, out, count, first in settings:
        for block in range(count):
            hidden = channels * expansion
            if expansion != 1:
                layers += [*unit(channels, hidden, 1), nn.ReLU6()]
            layers += [*unit(hidden, hidden, 3, first if block == 0 else 1, groups=hidden), nn.ReLU6()]
            layers += unit(hidden, out, 1)
            channels = out
    return nn.Sequential(
        *layers, *unit(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)
    )


@pytest.mark.parametrize(
    ("make", "giga_multiply_adds"),
    # He et al., 2016, and the model zoo for version 1.5; Simonyan, Zisserman, 2015; Sandler et al., 2018.
    [(resnet50, 4.089), (vgg16, 15.47), (mobilenet_v2, 0.3008)],
)
def test_networks_have_their_published_totals(make: Callable[[], Any], giga_multiply_adds: float) -> None:
    with torch.device("meta"):
        model, image = make().eval(), torch.empty(1, 3, 224, 224)
    work = gpuprof.count_work(model, image)
    assert products(work) == pytest.approx(2 * giga_multiply_adds, rel=2e-3)
    assert not work.unknown
    assert work.flops / 1e9 == pytest.approx(2 * giga_multiply_adds, rel=0.08)


def test_a_bert_layer_has_the_published_total() -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
        tokens = torch.empty(2, 128, 768)
    work = gpuprof.count_work(layer, tokens, backward=True)
    # 24 * tokens * width^2 for the maps, 4 * tokens * length * width for attention (Kaplan et al., 2020).
    forward = 24 * 256 * 768**2 + 4 * 256 * 128 * 768
    assert products(work) * 1e9 == forward
    assert flops_of(work, "backward", "aten::mm", "aten::bmm") == 2 * forward - 2 * 256 * 768 * 3 * 768


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (torch.mm, [(30, 40), (40, 50)]),
        (torch.bmm, [(2, 30, 40), (2, 40, 50)]),
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(2, 4, 16, 16), (8, 4, 3, 3)]),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 4, 8, 8), (4, 8, 3, 3)]),
        (lambda x, w: F.conv2d(x, w, groups=2), [(2, 4, 16, 16), (8, 2, 3, 3)]),
    ],
)
def test_products_agree_with_torch(call: Any, shapes: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    inputs = tuple(torch.randn(shape, device="meta") for shape in shapes)
    with FlopCounterMode(display=False) as counter:
        call(*inputs)
    assert gpuprof.count_work(call, inputs).flops == counter.get_total_flops()


def flash_and_back(query: Any, key: Any, value: Any) -> Any:
    aten = torch.ops.aten
    out, lse, *rest = aten._scaled_dot_product_flash_attention(query, key, value)
    seeds, lengths = rest[4:6], (query.shape[-2], key.shape[-2])
    return aten._scaled_dot_product_flash_attention_backward(
        out, query, key, value, out, lse, *rest[:2], *lengths, 0.0, False, *seeds
    )


def test_attention_of_other_devices_agrees_with_torch_by_shapes() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    aten, shape = torch.ops.aten, (2, 3, 64, 16)
    q, k, v = (torch.empty(shape, device="meta") for _ in range(3))
    for call in (
        aten._scaled_dot_product_flash_attention,
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
        lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
        flash_and_back,
    ):
        with FlopCounterMode(display=False) as counter:
            call(q, k, v)
        work = gpuprof.count_work(call, (q, k, v))
        assert (work.flops, work.exactness) == (counter.get_total_flops(), "exact")


def test_packed_attention_counts_the_pairs_of_each_sequence() -> None:
    aten = torch.ops.aten
    tokens = torch.empty(2, 6, 3, 4, device="meta")  # batch, tokens, heads, depth

    def efficient(mask: int) -> Any:
        rest = (None, None, None, None, None, 0.0, mask, True)
        return gpuprof.count_work(lambda x: aten._efficient_attention_forward(x, x, x, *rest), tokens)

    assert (efficient(0).flops, efficient(0).exactness) == (4 * 6 * 36 * 4, "exact")
    assert (efficient(1).flops, efficient(1).exactness) == (4 * 6 * 21 * 4, "estimated")


def test_the_causal_mask_leaves_a_triangle() -> None:
    from gpuprof.record.work.formulas.attention import causal_pairs

    for queries, keys in ((6, 6), (4, 7), (7, 4), (1, 5), (0, 3)):
        top_left = torch.ones(queries, keys).tril()
        bottom_right = torch.ones(queries, keys).tril(keys - queries)
        assert causal_pairs(queries, keys) == top_left.sum()
        assert causal_pairs(queries, keys, bottom_right=True) == bottom_right.sum()


def test_recurrent_layers_and_products_of_other_devices_by_shapes() -> None:
    aten = torch.ops.aten
    weights = [torch.empty(shape, device="meta") for shape in ((12, 5), (12, 3), (12,), (12,))]
    state = torch.empty(1, 2, 3, device="meta")
    settings = (2, 3, 0, 1, False, 0.0, False, False, [], None)
    work = gpuprof.count_work(
        lambda x: aten._cudnn_rnn(x, weights, 4, None, state, state, *settings),
        torch.empty(7, 2, 5, device="meta"),
    )
    assert work.flops == 2 * 14 * 4 * 3 * (5 + 3)
    small = torch.empty(32, 32, device="meta", dtype=torch.int8)
    row = one(gpuprof.count_work(aten._int_mm, (small, small.t())), "aten::_int_mm")
    assert (row.flops, row.dtype) == (2 * 32**3, "int8")


def test_layers_and_ordinals_lead_to_the_same_rows_as_a_recording() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    work = gpuprof.count_work(model, torch.randn(3, 4), backward=True)
    keys = [(row.layer, row.ordinal) for row in work.operators]
    assert len(set(keys)) == len(keys)
    forward = [(row.layer, row.operator) for row in work.operators if row.phase == "forward" and row.flops]
    assert forward == [("0", "aten::addmm"), ("1.0", "aten::relu"), ("1.1", "aten::addmm")]
    backward = [row.layer for row in work.operators if row.phase == "backward" and row.flops]
    assert list(dict.fromkeys(backward)) == ["1.1", "1.0", "0"]
    assert {row.layer for row in work.operators} == {"0", "1.0", "1.1"}
    assert {row.layer for row in gpuprof.count_work(nn.Linear(2, 2), torch.ones(2)).operators} == {"Linear"}


def test_layers_are_named_as_recordings_name_them(record: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), nn.Softmax(-1))
    tied = nn.ModuleDict({"a": model[0], "b": model})
    for root in (model, tied["b"], nn.Linear(4, 4)):
        recorded = record(lambda root=root: root(torch.ones(2, 4)), layers=True)
        counted = {row.layer for row in gpuprof.count_work(root, torch.ones(2, 4)).operators}
        assert counted <= {row.name for row in recorded.rows if row.kind == "layer"}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_what_checkpointing_runs_again_belongs_to_its_layer(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.second(checkpoint(self.first, x, use_reentrant=reentrant))

    work = gpuprof.count_work(Model(), torch.randn(2, 4, requires_grad=True), backward=True)
    again = [row.layer for row in work.operators if row.phase == "backward" and row.operator == "aten::addmm"]
    assert again == ["first.0"]
    assert {row.layer for row in work.operators if row.phase == "backward" and row.flops} == {
        "first.0",
        "first.1",
        "second",
    }


class Restless(nn.Module):
    """Changes whatever a forward pass can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.linear = nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)
        self.calls, self.seen, self.cache = 0, [], None
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(x)
        self.cache = x * 2
        self.total += x.detach().sum(0)
        self.linear.weight.data.mul_(2)
        self.train()
        x.data.add_(1)
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.parametrize("fake", [False, True])
def test_the_model_its_inputs_and_the_generators_are_as_before(fake: bool) -> None:
    torch.manual_seed(3)
    model, x = Restless().eval(), torch.randn(6, 4)
    gradient = model.linear.weight.grad = torch.ones(4, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    values, generator = x.clone(), torch.get_rng_state()
    gpuprof.count_work(model, x, backward=True, fake=fake)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(x, values)
    assert torch.equal(torch.get_rng_state(), generator)
    assert (model.calls, model.seen, model.cache, model.training) == (0, [], None, False)
    assert model.linear.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(4, 4))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "linear.weight")


def test_the_next_steps_of_training_are_bit_identical() -> None:
    def train(count: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(6, 4)

        def step() -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = []
        for _ in range(3):
            if count:
                phases = [row.name for row in gpuprof.count_work(step).by("phase")]
                assert sorted(phases) == ["backward", "forward", "optimizer"]
            losses.append(step())
        return losses

    assert all(map(torch.equal, train(count=True), train(count=False)))


def test_a_graph_that_leads_to_the_inputs_is_left_alone() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = weight.exp()
    gpuprof.count_work(nn.Linear(3, 1), x, backward=True)
    assert weight.grad is None
    x.sum().backward()
    assert weight.grad is not None


def test_compiled_models_are_counted_uncompiled_and_stay_compiled() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.linear(x)

    compiled = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = torch.compile(inner, backend=backend)
    outer = nn.Sequential(model, Head())
    outer[1].compile(backend=backend)
    x = torch.randn(2, 4)
    assert [row.operator for row in gpuprof.count_work(model, x).operators if row.flops] == [
        "aten::addmm",
        "aten::relu",
    ]
    assert {row.layer for row in gpuprof.count_work(model, x).operators if row.flops} == {"0", "1"}
    assert gpuprof.count_work(outer, x).flops == 2 * 2 * 16 + 8 + 2 * 2 * 4 * 2
    function = torch.compile(lambda x: x * 2, backend=backend)
    assert gpuprof.count_work(function, x).flops == 8
    assert not compiled
    assert outer[0] is model
    with torch.no_grad():
        outer(x), function(x)
        assert len(compiled) == 3
        gpuprof.count_work(lambda: function(outer(x)))
        outer(x), function(x)
    assert len(compiled) == 3


def test_inputs_as_people_hand_them_over() -> None:
    class Model(nn.Module):
        def forward(self, x: Any, *, y: Any = None) -> Any:
            return (x if isinstance(x, torch.Tensor) else x[0]) + (0 if y is None else y)

    x = torch.ones(5)
    for inputs in (x, (x,), {"x": x, "y": x}, lambda: x, lambda: (x,), [x]):
        assert gpuprof.count_work(Model(), inputs).flops == 5
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    assert flops_of(gpuprof.count_work(nn.LSTM(5, 3), packed), "forward", "aten::addmm") == 2 * 6 * 12 * 8
    assert gpuprof.count_work(lambda: None).flops == 0


def test_a_forward_that_depends_on_values_is_run_for_real() -> None:
    def model(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x * 2 * 2

    for sign, flops in ((1, 5), (-1, 10)):
        assert flops_of(gpuprof.count_work(model, sign * torch.ones(5)), "forward", "aten::mul") == flops
    with pytest.raises(
        gpuprof.WorkError, match=r"model failed after \d+ operator calls: .*; it needs values.*fake"
    ):
        gpuprof.count_work(model, torch.ones(5), fake=True)


def test_tensors_without_elements_count_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Softmax(-1))
    work = gpuprof.count_work(model, torch.randn(0, 3), backward=True)
    assert (work.flops, work.unknown) == (0, {})
    assert gpuprof.count_work(nn.Conv2d(3, 4, 3), torch.randn(0, 3, 8, 8)).flops == 0
    assert gpuprof.count_work(torch.mm, (torch.ones(2, 0), torch.ones(0, 3))).flops == 0


def test_an_operator_without_a_formula_is_unknown_and_never_zero() -> None:
    with torch.library._scoped_library("gpuprof_test", "FRAGMENT") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", lambda x: x.clone(), "CompositeExplicitAutograd")
        mystery = torch.ops.gpuprof_test.mystery
        alone = gpuprof.count_work(mystery, torch.ones(4, 4))
        work = gpuprof.count_work(lambda x: mystery(x) @ x, torch.ones(4, 4))
    assert (alone.flops, alone.bytes, alone.exactness) == (None, 128, "unknown")
    assert work.unknown == {"gpuprof_test::mystery": 1}
    assert (work.flops, work.exactness) == (128, "unknown")
    row = next(row for row in work.by("operator") if row.name == "gpuprof_test::mystery")
    assert (row.flops, row.unknown_calls, row.exactness) == (None, 1, "unknown")
    assert ">= 128 FLOP" in str(work)
    assert "unknown, and not in the totals: gpuprof_test::mystery (1)" in str(work)


def test_a_formula_that_fails_makes_the_operator_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.record.work import mode

    def broken(_: object) -> Any:
        return lambda call: call["nothing of that name"]

    monkeypatch.setattr(mode, "find_formula", broken)
    work = gpuprof.count_work(torch.relu, torch.ones(3))
    assert (work.flops, list(work.unknown)) == (None, ["aten::relu"])
    assert [note for note in work.notes if "aten::relu" in note and "KeyError" in note]


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        (3, (), {}, r"not int: pass the model"),
        (nn.Linear, (), {}, r"not the class Linear: pass the model"),
        (
            nn.Linear(3, 4),
            torch.ones(2, 5),
            {},
            r"Linear failed after 1 operator call: RuntimeError: .*2x5 and 3x4",
        ),
        (nn.Linear(3, 4), (torch.ones(2, 3), 1), {}, r"Linear failed after 0 operator calls: TypeError: "),
        (
            nn.LazyLinear(4),
            torch.ones(2, 5),
            {},
            r"parameter weight of LazyLinear has no shape yet: call the model",
        ),
        (nn.ReLU(), torch.ones(2), {"backward": True}, r"ReLU: backward=True needs an output"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_mistakes_are_said_in_one_line(model: Any, inputs: Any, options: Any, message: str) -> None:
    with pytest.raises(gpuprof.WorkError, match=message) as caught:
        gpuprof.count_work(model, inputs, **options)
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_is_left_as_it_was_and_what_was_counted_is_kept() -> None:
    class Fails(Restless):
        def forward(self, x: Any) -> Any:
            super().forward(x)
            raise ValueError("first line\nsecond line")

    model = Fails()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        gpuprof.WorkError, match=r"Fails failed after \d+ operator calls: ValueError: first line;"
    ) as caught:
        gpuprof.count_work(model, torch.ones(2, 4))
    assert isinstance(caught.value.__cause__, ValueError)
    assert flops_of(caught.value.work, "forward", "aten::addmm") == 2 * 2 * 4 * 4
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.calls == 0
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_the_table_fits_and_the_rows_are_plain_values() -> None:
    import json

    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(30)])
    work = gpuprof.count_work(model, torch.randn(4, 64), backward=True)
    text = str(work)
    assert max(map(len, text.splitlines())) <= 100
    assert "... and 40 more" in text
    # 30 layers: the product three times, less the input's gradient in the first; the bias's gradient; gelu.
    flops = (30 * 3 - 1) * 2 * 4 * 64 * 64 + 30 * (4 - 1) * 64 + 30 * (5 + 11) * 4 * 64
    assert work.flops == flops
    assert text.startswith(f"{flops / 1e6:.3g} MFLOP, ")
    assert "aten::gelu_backward" in text
    plain = json.loads(json.dumps(work.to_dict()))
    assert plain["flops"] == work.flops == sum(row["flops"] for row in plain["operators"])
    assert set(plain["operators"][0]) >= {
        "layer",
        "ordinal",
        "operator",
        "flops",
        "bytes",
        "exactness",
        "dtype",
    }
    assert [row.name for row in work.by("dtype")] == ["float32"]
    assert sum(row.flops or 0 for row in work.by("layer")) == work.flops


def test_every_formula_belongs_to_an_operator() -> None:
    from gpuprof.record.work import formulas  # noqa: F401
    from gpuprof.record.work.registry import formula, known_operators

    with pytest.raises(ValueError, match="aten::mm has two formulas"):
        formula("mm")(lambda call: None)
    existing = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    inplace = {name for name in existing if name.removesuffix("_") != name}
    known = known_operators()
    missing = [name for name in known if name not in existing and f"{name}_" not in inplace]
    assert len(known) > 700
    # Operators come and go between versions; on this one all of them are there.
    assert not missing or not torch.__version__.startswith("2.13")
