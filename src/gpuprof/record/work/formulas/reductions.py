# SPDX-License-Identifier: Apache-2.0
"""Reductions, scans, softmax and ordering, with n for the values that go in and m for those that come out."""

from __future__ import annotations

import math

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
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
    count, _ = _sizes(call)
    return Count(count * (2 if call.inputs[0].is_complex() else 1))


@formula("nansum count_nonzero aminmax")
def _checked_reduce(call: OperatorCall) -> Count:
    """A check (or second comparison) an element beside the n - m operations."""
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
    count, _ = _sizes(call)
    plain = order in (None, 1, 2, math.inf, -math.inf) and call.base_name in ("linalg_vector_norm", "norm")
    return Count((2 if plain else 3) * count, "exact" if plain else "estimated")


@formula("logsumexp")
def _logsumexp(call: OperatorCall) -> Count:
    """Maximum, difference, exp and sum an element: 4n."""
    return Count(4 * _sizes(call)[0], "estimated")


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


@formula("logcumsumexp _logcumsumexp")
def _log_scan(call: OperatorCall) -> Count:
    """Maximum, difference, exp, log and sum: 5n."""
    return Count(5 * _sizes(call)[0], "estimated")


@formula("_softmax _safe_softmax softmax _masked_softmax _nested_tensor_softmax_with_shape _sparse_softmax")
def _softmax(call: OperatorCall) -> Count:
    """Maximum, difference, exp, sum, quotient: 5n less two a row (Milakov, Gimelshein, 2018, algorithm 2)."""
    count, _ = _sizes(call)
    return Count(max(5 * count - 2 * _rows(call["self"], call.get("dim")), 0), "estimated")


@formula("_log_softmax _sparse_log_softmax")
def _log_softmax(call: OperatorCall) -> Count:
    """Maximum, difference, exp, sum, difference an element, and a log a row: 5n less one a row."""
    count, _ = _sizes(call)
    return Count(max(5 * count - _rows(call["self"], call["dim"]), 0), "estimated")


@formula("_softmax_backward_data _masked_softmax_backward _sparse_softmax_backward_data")
def _softmax_backward(call: OperatorCall) -> Count:
    """(gradient - sum(gradient * y)) * y: 4n less one a row."""
    count, _ = _sizes(call)
    return Count(max(4 * count - _rows(call.inputs[0], call.get("dim")), 0))


@formula("_log_softmax_backward_data _sparse_log_softmax_backward_data")
def _log_softmax_backward(call: OperatorCall) -> Count:
    """Gradient - exp(y) * sum(gradient): 4n less one a row."""
    count, _ = _sizes(call)
    return Count(max(4 * count - _rows(call["grad_output"], call["dim"]), 0), "estimated")


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
    """Sorting, and one comparison with the neighbour."""
    count, _ = _sizes(call)
    sorting = 0 if "consecutive" in call.name else _logarithm(count)
    return Count(count * (sorting + 1), "estimated")


@formula("searchsorted bucketize")
def _search(call: OperatorCall) -> Count:
    """log2(boundaries) comparisons for each value."""
    boundaries = call.get("sorted_sequence", call.get("boundaries"))
    return Count(elements(call.output) * _logarithm(int(boundaries.shape[-1]) + 1), "estimated")


@formula("bincount histc histogram")
def _histogram(call: OperatorCall) -> Count:
    """A difference, a quotient and a sum for each value; one sum where values are whole numbers."""
    return Count((1 if call.base_name == "bincount" else 3) * _sizes(call)[0], "estimated")


@formula("renorm embedding_renorm")
def _renorm(call: OperatorCall) -> Count:
    """A square, a sum and a product an element."""
    return Count(3 * elements(call.output), "estimated")
