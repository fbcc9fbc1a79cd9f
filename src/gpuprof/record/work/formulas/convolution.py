# SPDX-License-Identifier: Apache-2.0
"""Convolutions: plain, grouped, depthwise, dilated, transposed, and their backward passes.

Each output element is a sum over the input channels of its group and the kernel's window:
2 * outputs * (channels_in / groups) * kernel (Dumoulin and Visin, A guide to convolution arithmetic for
deep learning, 2016, for the sizes). The window counts in full where it reaches into the padding. A transposed
convolution spreads each input element in the same way. The algorithm (Winograd, FFT) does not matter: these
are the FLOPs of the definition.
"""

from __future__ import annotations

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.formulas.products import multiply_add_flops
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements


def convolution_flops(
    source: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, *, transposed: bool
) -> int:
    """Return the FLOPs for a weight of (out, in/groups, *kernel), transposed (in, out/groups, *kernel)."""
    spread = source if transposed else result
    first = int(weight.shape[0])
    window = elements(weight) // first if first else 0
    return multiply_add_flops(source) * elements(spread) * window


@formula("convolution _convolution convolution_overrideable")
def _convolution(call: OperatorCall) -> Count:
    """2 * outputs * (channels_in / groups) * kernel."""
    flops = convolution_flops(call["input"], call["weight"], call.output, transposed=call["transposed"])
    return Count(flops)


@formula(
    "mkldnn_convolution cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu"
    " miopen_convolution"
    " miopen_depthwise_convolution miopen_convolution_relu miopen_convolution_add_relu _slow_conv2d_forward"
    " slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d conv_depthwise3d _conv_depthwise2d"
    " _mps_convolution _nnpack_spatial_convolution"
)
def _backend_convolution(call: OperatorCall) -> Count:
    """2 * outputs * (channels_in / groups) * kernel."""
    source = call.get("self", call.get("input"))
    return Count(convolution_flops(source, call["weight"], call.output, transposed=False))


@formula(
    "cudnn_convolution_transpose miopen_convolution_transpose slow_conv_transpose2d slow_conv_transpose3d"
    " _mps_convolution_transpose"
)
def _backend_transposed(call: OperatorCall) -> Count:
    """2 * inputs * (channels_out / groups) * kernel."""
    return Count(convolution_flops(call["self"], call["weight"], call.output, transposed=True))


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
    forward = convolution_flops(source, weight, gradient, transposed=call["transposed"])
    reads = [gradient, *([weight] if for_input else []), *([source] if for_weight else [])]
    return Count(forward * (bool(for_input) + bool(for_weight)), reads=reads)
