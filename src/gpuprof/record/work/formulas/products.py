# SPDX-License-Identifier: Apache-2.0
"""Matrix products, dense and sparse.

An (m, k) by (k, n) product takes m*n*k multiplications and as many additions, the bias as the first
summand: 2*m*n*k (Golub and Van Loan, Matrix Computations, section 1.1). Of a sparse factor only the values
that are stored take part.
"""

from __future__ import annotations

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements, is_sparse


def multiply_add_flops(tensor: torch.Tensor) -> int:
    """Return the FLOPs of one multiply-add: two, or eight between complex numbers."""
    return 8 if tensor.is_complex() else 2


def product_flops(left: torch.Tensor, right: torch.Tensor) -> int | None:
    """Return the FLOPs of (..., m, k) by (..., k, n); None for two sparse factors, whose values decide."""
    if is_sparse(left) and is_sparse(right):
        return None
    factor = multiply_add_flops(left)
    if is_sparse(right):
        return factor * elements(right) * int(left.shape[-2])
    return factor * elements(left) * int(right.shape[-1])


@formula("mm bmm _int_mm _scaled_mm _scaled_mm_v2")
def _matrix_product(call: OperatorCall) -> Count | None:
    """2*m*n*k for each matrix of the batch."""
    return Count(product_flops(call["self"], call["mat2"]))


@formula("addmm addbmm baddbmm _addmm_activation _sparse_addmm sspaddmm")
def _added_product(call: OperatorCall) -> Count | None:
    """2*m*n*k; the addend is the first summand. With beta=0 it is not read."""
    left = call["mat1"] if "mat1" in call.arguments else call["batch1"]
    right = call["mat2"] if "mat2" in call.arguments else call["batch2"]
    reads = [left, right] if call["beta"] == 0 else None
    return Count(product_flops(left, right), reads=reads)


@formula("hspmm _sparse_sparse_matmul")
def _sparse_product(call: OperatorCall) -> Count | None:
    first, second = call.inputs[:2]
    return Count(product_flops(first, second))


@formula("sparse_sampled_addmm")
def _sampled_product(call: OperatorCall) -> Count:
    """2*k for each value that is stored in the pattern."""
    depth = int(call["mat1"].shape[-1])
    return Count(multiply_add_flops(call["mat1"]) * elements(call["self"]) * depth)


@formula("mv addmv")
def _matrix_vector(call: OperatorCall) -> Count:
    """2*m*k: a product with one column."""
    matrix = call.get("mat", call["self"])
    reads = [matrix, call["vec"]] if call.get("beta") == 0 else None
    return Count(multiply_add_flops(matrix) * elements(matrix), reads=reads)


@formula("dot vdot")
def _dot(call: OperatorCall) -> Count:
    """2*k."""
    return Count(multiply_add_flops(call["self"]) * elements(call["self"]))


@formula("addr")
def _outer(call: OperatorCall) -> Count:
    """2*m*n: one multiplication and one addition an element."""
    return Count(multiply_add_flops(call["vec1"]) * elements(call.output))


@formula("linear mkldnn_linear")
def _linear(call: OperatorCall) -> Count:
    """2*tokens*inputs*outputs; only nested tensors and oneDNN's layout get here undecomposed."""
    inputs = call.get("input", call.get("self"))
    return Count(multiply_add_flops(inputs) * elements(inputs) * int(call["weight"].shape[0]))


@formula("matmul")
def _nested_matmul(call: OperatorCall) -> Count | None:
    """2*m*n*k by the width of the result; only nested tensors get here undecomposed."""
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
    """2*m*n*k; the weight's own shape says how it is packed, so n is read off the result."""
    return Count(2 * elements(call.inputs[0]) * int(call.output.shape[-1]))


@formula("_sparse_mm_reduce_impl")
def _sparse_reduced_product(call: OperatorCall) -> Count:
    """A product and a sum (or comparison) for each stored value and column."""
    return Count(2 * elements(call["self"]) * int(call["other"].shape[-1]))


@formula("_foreach_mm")
def _foreach_product(call: OperatorCall) -> Count:
    """2*m*n*k for each pair."""
    pairs = zip(call["self"], call["mat2"], strict=True)
    return Count(sum(product_flops(left, right) or 0 for left, right in pairs))


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
    pairs, depth = elements(call.output), int(call["x1"].shape[-1])
    return Count(3 * pairs * depth, "estimated")


@formula("_cdist_backward")
def _distances_backward(call: OperatorCall) -> Count:
    """Five FLOPs (difference, two products, quotient, sum) for each pair and each coordinate."""
    return Count(5 * elements(call["cdist"]) * int(call["x1"].shape[-1]), "estimated")
