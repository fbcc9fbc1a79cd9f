# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers, by the steps of their definitions for n elements, without what is done once a row.

Statistics: the mean n; differences, squares and their sum 3n (Ioffe, Szegedy, 2015, algorithm 1; Ba et al.,
2016; Wu, He, 2018; Zhang, Sennrich, 2019). Kernels may take the variance in one pass: these are estimates.
"""

from __future__ import annotations

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements

_STATISTICS = 4


def _batch_norm(call: OperatorCall, *, training: bool) -> Count:
    return Count((2 + training * _STATISTICS) * elements(call.outputs[0]), "estimated")


@formula("native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit")
def _normalize_batch(call: OperatorCall) -> Count:
    """x * scale + shift by channel: 2n, and 4n for the statistics where they are of this batch."""
    return _batch_norm(call, training=bool(call.get("training", call.get("train"))))


@formula("_batch_norm_with_update _batch_norm_with_update_functional _native_batch_norm_legit_functional")
def _normalize_batch_training(call: OperatorCall) -> Count:
    """Statistics 4n, scale and shift 2n."""
    return _batch_norm(call, training=True)


@formula("_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm_elemt")
def _normalize_batch_inference(call: OperatorCall) -> Count:
    """Scale and shift 2n."""
    return _batch_norm(call, training=False)


@formula("batch_norm_stats batch_norm_update_stats")
def _batch_statistics(call: OperatorCall) -> Count:
    """Mean and variance: 4n."""
    return Count(_STATISTICS * elements(call["input"]), "estimated")


@formula(
    "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"
)
def _batch_norm_backward(call: OperatorCall) -> Count:
    """Training: the sums of dy (n) and dy * (x - mean) (3n), and 5n for dx. Inference: n for dx."""
    gradient = call.get("grad_out", call.get("grad_output"))
    training = bool(call.get("train", call.get("update", True)))
    for_input, for_weight, for_bias = call.get("output_mask", (True, True, True))
    sums = 4 if training and for_input else 3 * bool(for_weight) + bool(for_bias)
    return Count((sums + (5 if training else 1) * bool(for_input)) * elements(gradient), "estimated")


def _affine(call: OperatorCall) -> int:
    return sum(call.get(name) is not None for name in ("weight", "bias"))


@formula("native_layer_norm native_group_norm")
def _layer_norm(call: OperatorCall) -> Count:
    """Statistics 4n, (x - mean) / deviation 2n, weight n, bias n."""
    return Count((_STATISTICS + 2 + _affine(call)) * elements(call.outputs[0]), "estimated")


@formula("native_layer_norm_backward native_group_norm_backward")
def _layer_norm_backward(call: OperatorCall) -> Count:
    """The normalised x 2n; dx 7n, one more with a weight; the weight's gradient 2n; the bias's n."""
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
    """The normalised x n; dx 5n, one more with a weight; the weight's gradient 2n."""
    for_input, for_weight = call["output_mask"]
    steps = 1 + 2 * bool(for_weight)
    if for_input:
        steps += 5 + (call.get("weight") is not None)
    return Count(steps * elements(call["grad_out"]), "estimated")


@formula("_weight_norm_interface")
def _weight_norm(call: OperatorCall) -> Count:
    """Squares, their sum, the scale: 3n (Salimans, Kingma, 2016)."""
    return Count(3 * elements(call["v"]), "estimated")


@formula("_weight_norm_interface_backward")
def _weight_norm_backward(call: OperatorCall) -> Count:
    """The product with v and its sum 2n, a scale, a product and a difference 3n."""
    return Count(5 * elements(call["saved_v"]), "estimated")
