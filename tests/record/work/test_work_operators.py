# SPDX-License-Identifier: Apache-2.0
"""Bytes, and operators that need more than one line: embedding, recurrent, fused, sparse, quantized."""

from __future__ import annotations

from typing import Any

import pytest
from work_rows import flops_of, one

import gpuprof

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


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


needs_shapes_of_attention = pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="PyTorch 2.4 reports no shapes of these operators on a CPU"
)


@needs_shapes_of_attention
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


@needs_shapes_of_attention
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
