# SPDX-License-Identifier: Apache-2.0
"""Operators that combine many values into few: reductions, scans, ordering, pooling, normalization, losses.

n is the number of values that go in and m of those that come out. A window of pooling counts in full at the
border. Normalization layers count the steps of their definitions for n elements, without what is done once a
row; statistics are the mean n, and differences, squares and their sum 3n (Ioffe, Szegedy, 2015, algorithm 1;
Ba et al., 2016; Wu, He, 2018; Zhang, Sennrich, 2019). Kernels may take the variance in one pass: these are
estimates. Losses are the steps for one element, and one sum an element where the loss is reduced.
"""

from __future__ import annotations

import math

import torch

from gpuprof.record.work.call import Count, OperatorCall, formula, per_element
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import elements


def _sizes(call: OperatorCall) -> tuple[int, int]:
    return elements(call.inputs[0]), elements(call.output)


@formula("sum prod amax amin argmax argmin any all trace _sparse_sum _is_all_true _is_any_true")
def _reduce(call: OperatorCall) -> Count:
    """n - m operations: each result takes one less than it has values."""
    values = call.inputs[0]
    count, results = _sizes(call)
    if call.base_name == "trace":
        count = min(int(size) for size in values.shape)
    return Count(max(count - results, 0) * (2 if values.is_complex() else 1))


@formula("mean")
def _mean(call: OperatorCall) -> Count:
    """n - m sums and m quotients."""
    return Count(_sizes(call)[0] * (2 if call.inputs[0].is_complex() else 1))


@formula("nansum count_nonzero aminmax")
def _checked_reduce(call: OperatorCall) -> Count:
    """A check (or second comparison) an element next to the n - m operations."""
    count, results = _sizes(call)
    return Count(max(2 * count - results, 0), "estimated")


@formula("var std var_mean std_mean")
def _variance(call: OperatorCall) -> Count:
    """4n in two passes: the mean n; differences, squares and their sum 3n. A square root each for std."""
    count, results = _sizes(call)
    return Count(4 * count + (results if "std" in call.name else 0), "estimated")


@formula("linalg_vector_norm norm native_norm linalg__powsum dist")
def _norm(call: OperatorCall) -> Count:
    """2n for the Euclidean norm (squares, sums, root), as for absolute values; 3n for other powers."""
    order = call.get("ord", call.get("p", 2))
    plain = order in (None, 1, 2, math.inf, -math.inf) and call.base_name in ("linalg_vector_norm", "norm")
    return Count((2 if plain else 3) * _sizes(call)[0], "exact" if plain else "estimated")


per_element(4, "logsumexp", "*", "estimated")  # maximum, difference, exp and sum
per_element(5, "logcumsumexp _logcumsumexp", "*", "estimated")  # maximum, difference, exp, log and sum
per_element(3, "renorm embedding_renorm", exactness="estimated")  # a square, a sum and a product


def _rows(tensor: torch.Tensor, dim: int | None) -> int:
    if tensor.dim() == 0 or dim is None or tensor.is_nested:
        return 1
    width = int(tensor.shape[dim])
    return elements(tensor) // width if width else 0


@formula("cumsum cumprod cummax cummin _cummax_helper _cummin_helper")
def _scan(call: OperatorCall) -> Count:
    """One operation for each element but the first of each row."""
    count, _ = _sizes(call)
    return Count(count - _rows(call["self"], call["dim"]) if count else 0)


# FLOPs of one element, and how many less for each row.
_SOFTMAX: dict[str, tuple[int, int, Exactness]] = {
    # Maximum, difference, exp, sum, quotient (Milakov, Gimelshein, 2018, algorithm 2).
    "_softmax _safe_softmax softmax _masked_softmax _nested_tensor_softmax_with_shape _sparse_softmax": (
        5,
        2,
        "estimated",
    ),
    # Maximum, difference, exp, sum, difference an element, and a log a row.
    "_log_softmax _sparse_log_softmax": (5, 1, "estimated"),
    # (gradient - sum(gradient * y)) * y.
    "_softmax_backward_data _masked_softmax_backward _sparse_softmax_backward_data": (4, 1, "exact"),
    # Gradient - exp(y) * sum(gradient).
    "_log_softmax_backward_data _sparse_log_softmax_backward_data": (4, 1, "estimated"),
}
_SOFTMAX_STEPS = {name: steps for names, steps in _SOFTMAX.items() for name in names.split()}


@formula(" ".join(_SOFTMAX_STEPS))
def _softmax(call: OperatorCall) -> Count:
    """The table's FLOPs."""
    steps, less, exactness = _SOFTMAX_STEPS[call.base_name]
    count, _ = _sizes(call)
    return Count(max(steps * count - less * _rows(call.inputs[0], call.get("dim")), 0), exactness)


# ---- ordering --------------------------------------------------------------------------------


def _logarithm(width: int) -> int:
    return math.ceil(math.log2(width)) if width > 1 else 0


@formula("sort argsort msort kthvalue median nanmedian mode")
def _sort(call: OperatorCall) -> Count:
    """n * log2(width) comparisons, the least that sorting takes (Knuth, volume 3, section 5.3.1)."""
    values, dim = call["self"], call.get("dim", -1)
    width = int(values.shape[dim]) if values.dim() else 1
    return Count(elements(values) * _logarithm(width), "estimated")


@formula("topk")
def _topk(call: OperatorCall) -> Count:
    """A heap of k: n * log2(k + 1) comparisons at most."""
    return Count(elements(call["self"]) * _logarithm(int(call["k"]) + 1), "estimated")


@formula("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive")
def _unique(call: OperatorCall) -> Count:
    """Sorting, and one comparison with the neighbor."""
    count, _ = _sizes(call)
    sorting = 0 if "consecutive" in call.name else _logarithm(count)
    return Count(count * (sorting + 1), "estimated")


@formula("searchsorted bucketize")
def _search(call: OperatorCall) -> Count:
    """log2(boundaries) comparisons for each value."""
    boundaries = call.first("sorted_sequence", "boundaries")
    return Count(elements(call.output) * _logarithm(int(boundaries.shape[-1]) + 1), "estimated")


per_element(1, "bincount", "*", "estimated")
per_element(3, "histc histogram", "*", "estimated")  # a difference, a quotient and a sum for each value


# ---- pooling and interpolation ---------------------------------------------------------------


def _window(call: OperatorCall) -> int:
    sizes = call["kernel_size"]
    if isinstance(sizes, int):
        sizes = [sizes]
    # The schema names as many sizes as there are dimensions; one value applies to all of them.
    dims = next((int(char) for char in call.base_name if char.isdigit()), len(sizes))
    return int(math.prod(sizes)) if len(sizes) == dims else int(sizes[0]) ** dims


@formula(
    "max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d mkldnn_max_pool3d"
    " fractional_max_pool2d fractional_max_pool3d quantized_max_pool1d quantized_max_pool2d"
    " quantized_max_pool3d max_pool1d max_pool2d"
)
def _max_pool(call: OperatorCall) -> Count:
    """One comparison less than the window has values, for each result."""
    return Count(max(_window(call) - 1, 0) * elements(call.output))


# One sum for each gradient, into the place where the maximum came from. The values are not read.
per_element(
    1,
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward"
    " adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward",
    "grad_output",
    reads="grad_output indices",
)


@formula("avg_pool1d avg_pool2d avg_pool3d")
def _average_pool(call: OperatorCall) -> Count:
    """A sum for each value of the window but the first, and a quotient."""
    return Count(_window(call) * elements(call.output))


@formula("avg_pool2d_backward avg_pool3d_backward")
def _average_pool_backward(call: OperatorCall) -> Count:
    """A quotient for each gradient and a sum for each place of its window. The values are not read."""
    gradient = call["grad_output"]
    return Count((_window(call) + 1) * elements(gradient), reads=[gradient])


# One operation for each value that goes in; windows that overlap take a few more.
per_element(
    1,
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "self",
    "estimated",
)


@formula("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward")
def _adaptive_pool_backward(call: OperatorCall) -> Count:
    """One sum for each value, one quotient for each gradient."""
    gradient = call["grad_output"]
    return Count(elements(gradient) + elements(call["self"]), "estimated", reads=[gradient])


# An interpolated value is a weighted sum of k values: 2k - 1, and 2k a gradient. Antialiasing widens the
# window, which makes an estimate. The nearest value is copied, its gradient summed.
for _taps, _names in (
    (0, "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
    (0, "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"),
    (2, "upsample_linear1d"),
    (4, "upsample_bilinear2d _upsample_bilinear2d_aa"),
    (8, "upsample_trilinear3d"),
    (16, "upsample_bicubic2d _upsample_bicubic2d_aa"),
):
    for _name in _names.split():
        _exactness: Exactness = "estimated" if "_aa" in _name else "exact"
        per_element(max(2 * _taps - 1, 0), _name, exactness=_exactness)
        per_element(max(2 * _taps, 1), f"{_name}_backward", "grad_output", _exactness)


@formula("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback")
def _grid_sample(call: OperatorCall) -> Count:
    """A weighted sum of the corners for each result (linear), ten steps for each point of the grid."""
    dims = int(call["grid"].shape[-1])
    points = elements(call["grid"]) // max(dims, 1)
    return Count((2 * 2**dims - 1) * elements(call.output) + 10 * points, "estimated")


@formula("grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward")
def _grid_sample_backward(call: OperatorCall) -> Count:
    """A product and a sum for each corner, for the image and for the grid."""
    return Count(4 * 2 ** int(call["grid"].shape[-1]) * elements(call["grad_output"]), "estimated")


# ---- normalization ---------------------------------------------------------------------------

_STATISTICS = 4


def _affine(call: OperatorCall) -> int:
    return sum(call.get(name) is not None for name in ("weight", "bias"))


@formula(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update"
    " _batch_norm_with_update_functional _native_batch_norm_legit_functional"
    " _native_batch_norm_legit_no_training _batch_norm_no_update batch_norm_elemt"
)
def _batch_norm(call: OperatorCall) -> Count:
    """x * scale + shift by channel: 2n, and 4n for the statistics where they are of this batch."""
    training = call.get("training", "with_update" in call.name)
    return Count((2 + bool(training) * _STATISTICS) * elements(call.outputs[0]), "estimated")


@formula(
    "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"
)
def _batch_norm_backward(call: OperatorCall) -> Count:
    """Training: the sums of dy (n) and dy * (x - mean) (3n), and 5n for dx. Inference: n for dx."""
    training = bool(call.get("train", call.get("update", True)))
    for_input, for_weight, for_bias = call.get("output_mask", (True, True, True))
    sums = 4 if training and for_input else 3 * bool(for_weight) + bool(for_bias)
    gradient = call.first("grad_out", "grad_output")
    return Count((sums + (5 if training else 1) * bool(for_input)) * elements(gradient), "estimated")


@formula("native_layer_norm native_group_norm")
def _layer_norm(call: OperatorCall) -> Count:
    """Statistics 4n, (x - mean) / deviation 2n, weight n, bias n."""
    return Count((_STATISTICS + 2 + _affine(call)) * elements(call.outputs[0]), "estimated")


@formula("native_layer_norm_backward native_group_norm_backward")
def _layer_norm_backward(call: OperatorCall) -> Count:
    """The normalized x 2n; dx 7n, one more with a weight; the weight's gradient 2n; the bias's n."""
    for_input, for_weight, for_bias = call["output_mask"]
    steps = 2 * bool(for_input or for_weight) + 2 * bool(for_weight) + bool(for_bias)
    if for_input:
        steps += 7 + (call.get("weight") is not None)
    return Count(steps * elements(call["grad_out"]), "estimated")


@formula("_fused_rms_norm")
def _rms_norm(call: OperatorCall) -> Count:
    """Squares, their sum, the scale: 3n, and n for a weight."""
    return Count((3 + _affine(call)) * elements(call["input"]), "estimated")


@formula("_fused_rms_norm_backward")
def _rms_norm_backward(call: OperatorCall) -> Count:
    """The normalized x n; dx 5n, one more with a weight; the weight's gradient 2n."""
    for_input, for_weight = call["output_mask"]
    steps = 1 + 2 * bool(for_weight)
    if for_input:
        steps += 5 + (call.get("weight") is not None)
    return Count(steps * elements(call["grad_out"]), "estimated")


per_element(_STATISTICS, "batch_norm_stats batch_norm_update_stats", "input", "estimated")
# Squares, their sum, the scale (Salimans, Kingma, 2016).
per_element(3, "_weight_norm_interface", "v", "estimated")
# The product with v and its sum 2n, a scale, a product and a difference 3n.
per_element(5, "_weight_norm_interface_backward", "saved_v", "estimated")


# ---- losses ----------------------------------------------------------------------------------

# Steps of one element without the reduction.
_LOSS_STEPS: dict[str, tuple[int, Exactness]] = {
    "mse_loss": (2, "exact"),  # difference, square
    "smooth_l1_loss": (5, "exact"),  # difference, absolute value, comparison, square, scale
    "huber_loss": (5, "exact"),
    "soft_margin_loss": (4, "estimated"),  # product, negation, exp, log1p
    "binary_cross_entropy": (6, "estimated"),  # two logs, difference, two products, sum
    "binary_cross_entropy_with_logits": (7, "estimated"),  # (1-t)*x + log1p(exp(-|x|)) + max(-x, 0)
}
per_element(3, "mse_loss_backward", "self")  # difference, scale, gradient
per_element(4, "smooth_l1_loss_backward huber_loss_backward", "self")
per_element(6, "soft_margin_loss_backward", "self", "estimated")
per_element(5, "binary_cross_entropy_backward", "self", "estimated")  # (x - t) / (x * (1 - x)) * gradient


@formula(" ".join(_LOSS_STEPS))
def _loss(call: OperatorCall) -> Count:
    """The steps of one element; one more for the sum where the loss is reduced."""
    steps, exactness = _LOSS_STEPS[call.base_name]
    return Count((steps + (call["reduction"] != 0)) * elements(call["self"]), exactness)


@formula("nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward")
def _negative_log_likelihood(call: OperatorCall) -> Count:
    """One value a target is read and summed, multiplied with its weight where there are weights.

    Backward one quotient (and product) a target; the values themselves are not read.
    """
    targets, values = int(call["target"].numel()), call["self"]
    picked = [] if "backward" in call.name else [int(targets * values.element_size())]
    steps = 1 + (call["weight"] is not None)
    return Count(steps * targets, reads=[*picked, *call.inputs_except(values)])
