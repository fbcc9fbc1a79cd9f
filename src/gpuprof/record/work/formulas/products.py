# SPDX-License-Identifier: Apache-2.0
"""Matrix products, dense, sparse and quantized, convolutions, recurrent layers, factorizations, transforms.

An (m, k) by (k, n) product takes m*n*k multiplications and as many additions, the bias as the first
summand: 2*m*n*k (Golub and Van Loan, Matrix Computations, section 1.1). Of a sparse factor only the values
that are stored take part. Products of quantized values count like those of floats; their type is the row's
`dtype`.

Convolutions: each output element is a sum over the input channels of its group and the kernel's window:
2 * outputs * (channels_in / groups) * kernel (Dumoulin and Visin, A guide to convolution arithmetic for
deep learning, 2016, for the sizes). The window counts in full where it reaches into the padding. A transposed
convolution distributes each input element in the same way. The algorithm (Winograd, FFT) does not matter:
these are the FLOPs of the definition.

Recurrent layers: each step multiplies the input and the hidden state by the weights of all gates,
2 * steps * batch * gates * hidden * (inputs + hidden) for each layer and direction (Hochreiter and
Schmidhuber, 1997, for the gates of an LSTM: 4; Cho et al., 2014, for a GRU: 3; 1 for a plain RNN). The gates'
own arithmetic rides along. The backward pass takes two products for each one of the forward pass.

Factorizations count the leading terms of the textbook (all estimates; Golub and Van Loan): LU 2/3 n^3,
Cholesky 1/3 n^3, QR 2mn^2 - 2/3 n^3, triangular solution n^2 a right side, symmetric eigenvalues with vectors
9 n^3, singular values with vectors 4mn^2 + 22n^3 ... A Fourier transform of n points: 5 n log2 n (the
convention of FFTW's benchmarks), half of that between real and complex.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gpuprof.record.work.call import Count, OperatorCall, formula, per_element, tensors_in
from gpuprof.record.work.sizes import elements, is_sparse


def _multiply_add(tensor: torch.Tensor) -> int:
    """Return the FLOPs of one multiply-add: two, or eight between complex numbers."""
    return 8 if tensor.is_complex() else 2


def _product_flops(left: torch.Tensor, right: torch.Tensor) -> int | None:
    """Return the FLOPs of (..., m, k) by (..., k, n); None for two sparse factors, whose values decide."""
    if is_sparse(left) and is_sparse(right):
        return None
    if is_sparse(right):
        return _multiply_add(left) * elements(right) * int(left.shape[-2])
    return _multiply_add(left) * elements(left) * int(right.shape[-1])


@formula("mm bmm _int_mm _scaled_mm _scaled_mm_v2 hspmm _sparse_sparse_matmul")
def _matrix_product(call: OperatorCall) -> Count | None:
    """2*m*n*k for each matrix of the batch."""
    return Count(_product_flops(*call.inputs[:2]))


@formula("addmm addbmm baddbmm _addmm_activation _sparse_addmm sspaddmm")
def _added_product(call: OperatorCall) -> Count | None:
    """2*m*n*k; the addend is the first summand. With beta=0 it is not read."""
    left, right = call.first("mat1", "batch1"), call.first("mat2", "batch2")
    return Count(_product_flops(left, right), reads=[left, right] if call["beta"] == 0 else None)


@formula("sparse_sampled_addmm")
def _sampled_product(call: OperatorCall) -> Count:
    """2*k for each value that is stored in the pattern."""
    depth = int(call["mat1"].shape[-1])
    return Count(_multiply_add(call["mat1"]) * elements(call["self"]) * depth)


@formula("mv addmv")
def _matrix_vector(call: OperatorCall) -> Count:
    """2*m*k: a product with one column."""
    matrix = call.first("mat", "self")
    reads = [matrix, call["vec"]] if call.get("beta") == 0 else None
    return Count(_multiply_add(matrix) * elements(matrix), reads=reads)


@formula("dot vdot")
def _dot(call: OperatorCall) -> Count:
    """2*k."""
    return Count(_multiply_add(call["self"]) * elements(call["self"]))


@formula("addr")
def _outer(call: OperatorCall) -> Count:
    """2*m*n: one multiplication and one addition an element."""
    return Count(_multiply_add(call["vec1"]) * elements(call.output))


@formula("linear mkldnn_linear")
def _linear(call: OperatorCall) -> Count:
    """2*tokens*inputs*outputs; only nested tensors and oneDNN's layout get here undecomposed."""
    inputs = call.first("input", "self")
    return Count(_multiply_add(inputs) * elements(inputs) * int(call["weight"].shape[0]))


@formula("matmul _sparse_mm_reduce_impl")
def _product_with_other(call: OperatorCall) -> Count | None:
    """2*m*n*k by the width of the result; of matmul only nested tensors get here undecomposed."""
    if call["other"].is_nested:
        return None
    return Count(2 * elements(call["self"]) * int(call["other"].shape[-1]))


@formula("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")
def _grouped_product(call: OperatorCall) -> Count:
    """2*m*n*k, where the groups divide one of the three; times the groups where both sides have their own."""
    left, right = call["self"], call["mat2"]
    groups = int(left.shape[0]) if left.dim() == right.dim() == 3 else 1
    rows, depth, columns = int(left.shape[-2]), int(left.shape[-1]), int(right.shape[-1])
    return Count(2 * groups * rows * depth * columns)


@formula(
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu _mixed_dtypes_linear"
    " _weight_int4pack_mm_with_scales_and_zeros _dyn_quant_matmul_4bit"
)
def _packed_weight_product(call: OperatorCall) -> Count:
    """2*m*n*k; the weight's own shape depends on its packing, so n is taken from the result."""
    return Count(2 * elements(call.inputs[0]) * int(call.output.shape[-1]))


@formula("_foreach_mm")
def _foreach_product(call: OperatorCall) -> Count:
    """2*m*n*k for each pair."""
    pairs = zip(call["self"], call["mat2"], strict=True)
    return Count(sum(_product_flops(left, right) or 0 for left, right in pairs))


@formula("_trilinear")
def _trilinear(call: OperatorCall) -> Count:
    """Three FLOPs (two multiplications, one addition) for each point of the joint index space."""
    shapes = []
    for number in ("1", "2", "3"):
        shape = list(call[f"i{number}"].shape)
        for dim in sorted(call[f"expand{number}"]):
            shape.insert(dim, 1)
        shapes.append(shape)
    return Count(3 * torch.Size(torch.broadcast_shapes(*shapes)).numel(), "estimated")


@formula("_cdist_forward _euclidean_dist")
def _distances(call: OperatorCall) -> Count:
    """Three FLOPs (difference, square, sum) for each pair of points and each coordinate."""
    return Count(3 * elements(call.output) * int(call["x1"].shape[-1]), "estimated")


@formula("_cdist_backward")
def _distances_backward(call: OperatorCall) -> Count:
    """Five FLOPs (difference, two products, quotient, sum) for each pair and each coordinate."""
    return Count(5 * elements(call["cdist"]) * int(call["x1"].shape[-1]), "estimated")


# ---- convolutions ----------------------------------------------------------------------------


def _convolution_flops(
    source: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, *, transposed: bool
) -> int:
    """Return the FLOPs for a weight of (out, in/groups, *kernel), transposed (in, out/groups, *kernel)."""
    first = int(weight.shape[0])
    window = elements(weight) // first if first else 0
    return _multiply_add(source) * elements(source if transposed else result) * window


@formula(
    "convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution"
    " cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution"
    " miopen_depthwise_convolution miopen_convolution_relu miopen_convolution_add_relu"
    " miopen_convolution_transpose _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d"
    " slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_depthwise3d _conv_depthwise2d"
    " _mps_convolution _mps_convolution_transpose _nnpack_spatial_convolution"
)
def _convolution(call: OperatorCall) -> Count:
    """2 * outputs * (channels_in / groups) * kernel; transposed, inputs and channels_out."""
    transposed = bool(call.get("transposed", "transpose" in call.name))
    source = call.first("self", "input")
    return Count(_convolution_flops(source, call["weight"], call.output, transposed=transposed))


@formula("conv_tbc")
def _convolution_tbc(call: OperatorCall) -> Count:
    """2 * outputs * channels_in * kernel, for a weight of (kernel, in, out)."""
    kernel, channels, _ = (int(size) for size in call["weight"].shape)
    return Count(2 * elements(call.output) * kernel * channels)


@formula("convolution_backward convolution_backward_overrideable")
def _convolution_backward(call: OperatorCall) -> Count:
    """As much as the forward pass for the gradient of the input, and again for that of the weight.

    Both sums run over the same triples of output element, channel and place in the window. What is not
    asked for (output_mask) does not count.
    """
    gradient, source, weight = call["grad_output"], call["input"], call["weight"]
    for_input, for_weight = call["output_mask"][:2]
    forward = _convolution_flops(source, weight, gradient, transposed=call["transposed"])
    reads = [gradient, *([weight] if for_input else []), *([source] if for_weight else [])]
    return Count(forward * (bool(for_input) + bool(for_weight)), reads=reads)


# ---- products of quantized values ------------------------------------------------------------


def _packed_weight(call: OperatorCall) -> torch.Tensor | None:
    """Return the weight inside a packed argument, None where there is none to be had."""
    packed: Any = next(
        (value for value in call.arguments.values() if isinstance(value, torch.ScriptObject)), None
    )
    weight = None if packed is None else packed.unpack()[0]
    return weight if isinstance(weight, torch.Tensor) else None


def _with_weight(call: OperatorCall, flops: int, weight: torch.Tensor | None) -> Count:
    return Count(flops, reads=call.inputs if weight is None else [*call.inputs_except(weight), weight])


_QUANTIZED_LINEAR = (
    "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16 linear_relu_dynamic_fp16"
    " linear_leaky_relu linear_tanh linear_dynamic_fp16_unpacked_weight"
    " linear_with_input_q_dq_qweight_dq_output_fp32 linear_with_input_q_dq_qweight_dq_relu_output_fp32"
)


@formula(_QUANTIZED_LINEAR, namespace="quantized")
@formula("linear_dynamic_fp16 linear_relu_dynamic_fp16 qlinear_pointwise", namespace="onednn")
@formula("_linear_pointwise", namespace="mkldnn")
@formula("linear linear_dynamic", namespace="_quantized")
def _quantized_linear(call: OperatorCall) -> Count:
    """2 * tokens * inputs * outputs."""
    return _with_weight(call, 2 * elements(call.inputs[0]) * int(call.output.shape[-1]), _packed_weight(call))


@formula(
    "conv1d conv1d_relu conv1d_dynamic conv2d conv2d_relu conv2d_dynamic conv2d_add conv2d_add_relu"
    " conv3d conv3d_relu conv3d_dynamic",
    namespace="quantized",
)
@formula("conv2d conv2d_relu conv3d conv3d_relu", namespace="_quantized")
@formula("qconv_pointwise qconv1d_pointwise qconv2d_pointwise qconv3d_pointwise", namespace="onednn")
@formula("_convolution_pointwise", namespace="mkldnn")
def _quantized_convolution(call: OperatorCall) -> Count | None:
    """2 * outputs * (channels_in / groups) * kernel."""
    weight = call.first("qw", "W")
    weight = weight if isinstance(weight, torch.Tensor) else _packed_weight(call)
    if weight is None:
        return None
    channels = int(call.output.shape[1])
    window = elements(weight) // channels if channels else 0
    return _with_weight(call, 2 * elements(call.output) * window, weight)


@formula(
    " ".join(f"conv_transpose{dims}d conv_transpose{dims}d_dynamic" for dims in (1, 2, 3)),
    namespace="quantized",
)
def _quantized_transposed(call: OperatorCall) -> Count | None:
    """2 * inputs * (channels_out / groups) * kernel."""
    weight = _packed_weight(call)
    if weight is None:
        return None
    window = elements(weight) // max(int(call.inputs[0].shape[1]), 1)
    return _with_weight(call, 2 * elements(call.inputs[0]) * window, weight)


@formula("matmul", namespace="quantized")
def _quantized_matmul(call: OperatorCall) -> Count:
    """2 * m * n * k."""
    return Count(2 * elements(call["qa"]) * int(call["qb"].shape[-1]))


@formula(
    "quantized_lstm_cell_dynamic quantized_gru_cell_dynamic quantized_rnn_relu_cell_dynamic"
    " quantized_rnn_tanh_cell_dynamic",
    namespace="quantized",
)
def _quantized_cell(call: OperatorCall) -> Count:
    """2 * batch * gates * hidden * (inputs + hidden)."""
    gates = 4 if "lstm" in call.name else 3 if "gru" in call.name else 1
    state = next(tensors_in([call["hx"]]))
    width, hidden = int(call["input"].shape[-1]), int(state.shape[-1])
    return Count(2 * elements(state) * gates * (width + hidden))


# ---- recurrent layers ------------------------------------------------------------------------


def _tokens(call: OperatorCall) -> int:
    source = call["input"]
    width = int(source.shape[-1])
    return elements(source) // width if width else 0


@formula("mkldnn_rnn_layer")
def _onednn_layer(call: OperatorCall) -> Count:
    """2 * steps * batch * (weights of the input + weights of the hidden state)."""
    flops = 2 * _tokens(call) * (elements(call["weight0"]) + elements(call["weight1"]))
    # The last result is the library's scratch memory, which the definition knows nothing of.
    return Count(flops, writes=call.outputs[:3])


@formula("mkldnn_rnn_layer_backward")
def _onednn_layer_backward(call: OperatorCall) -> Count:
    """Twice the forward pass: the gradients of the data and of the weights."""
    flops = 4 * _tokens(call) * (elements(call["weight1"]) + elements(call["weight2"]))
    return Count(flops, reads=call.inputs_except(call["workspace"]))


@formula("_cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward _lstm_mps lstm_mps_backward")
def _library_layers(call: OperatorCall) -> Count:
    """2 * steps * batch * weights, over all layers, directions and projections.

    Backward once for the data and once more where gradients of the weights are asked for.
    """
    weights = sum(elements(weight) for weight in call.first("weight", "params") if weight.dim() == 2)
    products = 1
    if call.name.endswith("_backward"):
        products += bool(call["output_mask"][3]) if "output_mask" in call.arguments else 1
    return Count(2 * products * _tokens(call) * weights)


@formula("quantized_lstm quantized_gru")
def _quantized_layers(call: OperatorCall) -> Count | None:
    """2 * steps * batch * gates * hidden * (inputs + hidden), by the states: weights are packed."""
    if "input" not in call.arguments:
        return None
    is_lstm = call.name.endswith("lstm")
    state = call["hx"][0] if is_lstm else call["hx"]
    hidden, directions = int(state.shape[-1]), 2 if call["bidirectional"] else 1
    width, weights = int(call["input"].shape[-1]), 0
    for _ in range(int(call["num_layers"])):
        weights += directions * (4 if is_lstm else 3) * hidden * (width + hidden)
        width = directions * hidden
    return Count(2 * _tokens(call) * weights)


# Elementwise FLOPs of one hidden unit, with a sigmoid as four and tanh as one, without and with biases.
_CELL_FLOPS = {
    # Into each of four gates one addition (three with biases); three sigmoids and a tanh; two products and a
    # sum for the cell's state; a tanh and a product for the output.
    "_thnn_fused_lstm_cell": ("cx", 22, 30),
    # Into two gates one addition (three with biases), two sigmoids; a product, an addition (three), a tanh
    # for the candidate; a difference, a product and a sum for the state.
    "_thnn_fused_gru_cell": ("hx", 16, 22),
}


@formula(" ".join(_CELL_FLOPS))
def _fused_cell(call: OperatorCall) -> Count:
    """The gates alone: 22 or 30 FLOPs a unit, in a GRU 16 or 22. The products are other operators."""
    state, plain, biased = _CELL_FLOPS[call.base_name]
    flops = plain if call.get("input_bias") is None else biased
    return Count(flops * elements(call[state]), "estimated")


# About as many as forward for each gate's derivative.
per_element(
    30, "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward", "cx grad_hy", "estimated"
)


# ---- factorizations and transforms -----------------------------------------------------------


@formula("_fft_c2c _fft_r2c _fft_c2r")
def _fourier(call: OperatorCall) -> Count:
    """5 n log2 n for each transform, half of that for a real one."""
    whole = call.output if call.name.endswith("c2r") else call["self"]
    points = math.prod(int(whole.shape[dim]) for dim in call["dim"])
    logarithm = math.log2(points) if points > 1 else 0.0
    return Count(round(elements(whole) * logarithm * (5 if "c2c" in call.name else 2.5)), "estimated")


def _matrices(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return how many matrices there are, and their rows and columns."""
    rows, columns = int(tensor.shape[-2]), int(tensor.shape[-1])
    return math.prod(int(size) for size in tensor.shape[:-2]), rows, columns


# FLOPs of one factorization by its rows m and columns n, with n the smaller.
_FACTOR: dict[str, Callable[[int, int], float]] = {
    "linalg_lu_factor_ex": lambda m, n: m * n * n - n**3 / 3,
    "linalg_lu": lambda m, n: m * n * n - n**3 / 3,
    "_linalg_det": lambda _, n: 2 * n**3 / 3,
    "_linalg_slogdet": lambda _, n: 2 * n**3 / 3,
    "linalg_cholesky_ex": lambda _, n: n**3 / 3,
    "cholesky": lambda _, n: n**3 / 3,
    "cholesky_inverse": lambda _, n: 2 * n**3 / 3,
    "linalg_qr": lambda m, n: 4 * m * n * n - 4 * n**3 / 3,
    "geqrf": lambda m, n: 2 * m * n * n - 2 * n**3 / 3,
    "linalg_inv_ex": lambda _, n: 2 * n**3,
    "_linalg_eigh": lambda _, n: 9 * n**3,
    "_linalg_svd": lambda m, n: 4 * m * n * n + 22 * n**3,
    "linalg_eig": lambda _, n: 25 * n**3,
    "_linalg_eigvals": lambda _, n: 10 * n**3,
}


@formula(" ".join(_FACTOR))
def _factorize(call: OperatorCall) -> Count:
    """The textbook's leading terms."""
    matrix = call.inputs[0]
    batch, rows, columns = _matrices(matrix)
    factor = 4 if matrix.is_complex() else 1
    flops = batch * factor * _FACTOR[call.base_name](max(rows, columns), min(rows, columns))
    return Count(round(flops), "estimated")


@formula(
    "linalg_solve_triangular triangular_solve cholesky_solve _cholesky_solve_helper linalg_lu_solve"
    " _linalg_solve_ex"
)
def _solve(call: OperatorCall) -> Count:
    """n^2 a right side for each triangle; solving from scratch factorizes first, 2/3 n^3."""
    name = call.base_name
    factor_is_second = name in ("triangular_solve", "cholesky_solve", "_cholesky_solve_helper")
    size = int(call.inputs[1 if factor_is_second else 0].shape[-1])
    flops = float(elements(call.output) * size * (1 if "triangular" in name else 2))
    if name == "_linalg_solve_ex":
        flops += _matrices(call["A"])[0] * 2 * size**3 / 3
    return Count(round(flops), "estimated")


per_element(3, "linalg_cross")  # two products and a difference for each coordinate
