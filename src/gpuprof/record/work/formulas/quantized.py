# SPDX-License-Identifier: Apache-2.0
"""Quantized operators: products count like those of floats; their type is the row's `dtype`."""

from __future__ import annotations

from typing import Any

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import Traffic, elements

_LINEAR = (
    "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16 linear_relu_dynamic_fp16"
    " linear_leaky_relu linear_tanh linear_dynamic_fp16_unpacked_weight"
    " linear_with_input_q_dq_qweight_dq_output_fp32"
    " linear_with_input_q_dq_qweight_dq_relu_output_fp32"
)
_CONVOLUTION = "{0} {0}_relu {0}_dynamic"


def packed_weight(call: OperatorCall) -> torch.Tensor | None:
    """Return the weight inside a packed argument, None where there is none to be had."""
    packed: Any = next(
        (value for value in call.arguments.values() if isinstance(value, torch.ScriptObject)), None
    )
    if packed is None:
        return None
    weight = packed.unpack()[0]
    return weight if isinstance(weight, torch.Tensor) else None


def _product(call: OperatorCall, flops: int, weight: torch.Tensor | None) -> Count:
    reads: list[Traffic] = list(call.inputs)
    if weight is not None and not any(weight is tensor for tensor in reads):
        reads.append(weight)
    return Count(flops, reads=reads)


@formula(_LINEAR, namespace="quantized")
@formula("linear_dynamic_fp16 linear_relu_dynamic_fp16 qlinear_pointwise", namespace="onednn")
@formula("_linear_pointwise", namespace="mkldnn")
@formula("linear linear_dynamic", namespace="_quantized")
def _linear(call: OperatorCall) -> Count:
    """2 * tokens * inputs * outputs."""
    flops = 2 * elements(call.inputs[0]) * int(call.output.shape[-1])
    return _product(call, flops, packed_weight(call))


def _convolution_weight(call: OperatorCall) -> torch.Tensor | None:
    weight = call.get("qw", call.get("W"))
    return weight if isinstance(weight, torch.Tensor) else packed_weight(call)


@formula(" ".join(_CONVOLUTION.format(f"conv{dims}d") for dims in (1, 2, 3)), namespace="quantized")
@formula("conv2d_add conv2d_add_relu", namespace="quantized")
@formula("conv2d conv2d_relu conv3d conv3d_relu", namespace="_quantized")
@formula("qconv_pointwise qconv1d_pointwise qconv2d_pointwise qconv3d_pointwise", namespace="onednn")
@formula("_convolution_pointwise", namespace="mkldnn")
def _convolution(call: OperatorCall) -> Count | None:
    """2 * outputs * (channels_in / groups) * kernel."""
    weight = _convolution_weight(call)
    if weight is None:
        return None
    channels = int(call.output.shape[1])
    window = elements(weight) // channels if channels else 0
    return _product(call, 2 * elements(call.output) * window, weight)


@formula(
    " ".join(f"conv_transpose{dims}d conv_transpose{dims}d_dynamic" for dims in (1, 2, 3)),
    namespace="quantized",
)
def _transposed(call: OperatorCall) -> Count | None:
    """2 * inputs * (channels_out / groups) * kernel."""
    weight = packed_weight(call)
    if weight is None:
        return None
    window = elements(weight) // max(int(call.inputs[0].shape[1]), 1)
    return _product(call, 2 * elements(call.inputs[0]) * window, weight)


@formula("matmul", namespace="quantized")
def _matmul(call: OperatorCall) -> Count:
    """2 * m * n * k."""
    return Count(2 * elements(call["qa"]) * int(call["qb"].shape[-1]))


@formula("quantized_lstm_cell_dynamic quantized_gru_cell_dynamic", namespace="quantized")
@formula("quantized_rnn_relu_cell_dynamic quantized_rnn_tanh_cell_dynamic", namespace="quantized")
def _cell(call: OperatorCall) -> Count:
    """2 * batch * gates * hidden * (inputs + hidden)."""
    gates = 4 if "lstm" in call.name else 3 if "gru" in call.name else 1
    state = next(iter(call["hx"])) if isinstance(call["hx"], (list, tuple)) else call["hx"]
    width, hidden = int(call["input"].shape[-1]), int(state.shape[-1])
    return Count(2 * elements(state) * gates * (width + hidden))


@formula("add add_relu mul mul_relu", namespace="quantized")
@formula("qadd qadd_relu qmul", namespace="onednn")
def _binary(call: OperatorCall) -> Count:
    """Two values are scaled back, combined, scaled and rounded: nine FLOPs."""
    return Count(9 * elements(call.output), "estimated")


@formula("batch_norm batch_norm1d batch_norm2d batch_norm3d batch_norm_relu", namespace="quantized")
@formula(
    "batch_norm1d_relu batch_norm2d_relu batch_norm3d_relu hardswish elu celu leaky_relu",
    namespace="quantized",
)
@formula(
    "sigmoid relu6 threshold add_scalar add_scalar_relu mul_scalar mul_scalar_relu", namespace="quantized"
)
def _unary(call: OperatorCall) -> Count:
    """A value is scaled back, mapped, scaled and rounded: about seven FLOPs."""
    return Count(7 * elements(call.output), "estimated")


@formula("layer_norm group_norm instance_norm softmax", namespace="quantized")
def _normalize(call: OperatorCall) -> Count:
    """As for floats, and scaling on both sides: about twelve FLOPs."""
    return Count(12 * elements(call.output), "estimated")


@formula("cat cat_relu", namespace="quantized")
def _cat(call: OperatorCall) -> Count:
    """Values are scaled back and again: five FLOPs."""
    return Count(5 * elements(call.output), "estimated")


@formula("quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel")
def _quantize(call: OperatorCall) -> Count:
    """A product, a rounding, a sum, two bounds: five FLOPs."""
    return Count(5 * elements(call.output))


@formula("dequantize")
def _dequantize(call: OperatorCall) -> Count:
    """A difference and a product: two FLOPs."""
    return Count(2 * elements(call.output))


@formula(
    "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
    " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine"
    " _fake_quantize_learnable_per_channel_affine _fused_moving_avg_obs_fq_helper"
)
def _fake_quantize(call: OperatorCall) -> Count:
    """Quantized and back: seven FLOPs, and two bounds for the mask."""
    return Count(9 * elements(call.output), "estimated")
