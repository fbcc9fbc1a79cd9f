# SPDX-License-Identifier: Apache-2.0
"""Pooling and interpolation: a window of values for each result. The window counts in full at the border."""

from __future__ import annotations

import math

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements


def _window(call: OperatorCall) -> int:
    sizes = call["kernel_size"]
    if isinstance(sizes, int):
        sizes = [sizes]
    # The schema names as many sizes as there are dimensions; one value stands for all of them.
    dims = next((int(char) for char in call.base_name if char.isdigit()), len(sizes))
    return int(math.prod(sizes)) if len(sizes) == dims else int(sizes[0]) ** dims


@formula(
    "max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d mkldnn_max_pool3d"
    " fractional_max_pool2d"
    " fractional_max_pool3d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d max_pool1d"
    " max_pool2d"
)
def _max_pool(call: OperatorCall) -> Count:
    """One comparison less than the window has values, for each result."""
    return Count(max(_window(call) - 1, 0) * elements(call.output))


@formula(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward"
    " adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward"
)
def _max_pool_backward(call: OperatorCall) -> Count:
    """One sum for each gradient, into the place where the maximum came from. The values are not read."""
    gradient = call["grad_output"]
    return Count(elements(gradient), reads=[gradient, call["indices"]])


@formula("avg_pool1d avg_pool2d avg_pool3d")
def _average_pool(call: OperatorCall) -> Count:
    """A sum for each value of the window but the first, and a quotient."""
    return Count(_window(call) * elements(call.output))


@formula("avg_pool2d_backward avg_pool3d_backward")
def _average_pool_backward(call: OperatorCall) -> Count:
    """A quotient for each gradient and a sum for each place of its window. The values are not read."""
    gradient = call["grad_output"]
    return Count((_window(call) + 1) * elements(gradient), reads=[gradient])


@formula(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d"
)
def _adaptive_pool(call: OperatorCall) -> Count:
    """One operation for each value that goes in; windows that overlap take a few more."""
    return Count(elements(call["self"]), "estimated")


@formula("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward")
def _adaptive_pool_backward(call: OperatorCall) -> Count:
    """One sum for each value, one quotient for each gradient."""
    gradient = call["grad_output"]
    return Count(elements(gradient) + elements(call["self"]), "estimated", reads=[gradient])


# Values that each interpolated value is a weighted sum of.
_TAPS = {
    "upsample_nearest": 0,
    "_upsample_nearest_exact": 0,
    "upsample_linear1d": 2,
    "upsample_bilinear2d": 4,
    "_upsample_bilinear2d_aa": 4,
    "upsample_trilinear3d": 8,
    "upsample_bicubic2d": 16,
    "_upsample_bicubic2d_aa": 16,
}
_NEAREST = " ".join(f"{kind}{dims}d" for kind in list(_TAPS)[:2] for dims in (1, 2, 3))
_INTERPOLATED = " ".join(list(_TAPS)[2:])


@formula(_NEAREST)
def _nearest(_: OperatorCall) -> Count:
    """Values are copied."""
    return Count(0)


@formula(" ".join(f"{name}_backward" for name in _NEAREST.split()))
def _nearest_backward(call: OperatorCall) -> Count:
    """One sum for each gradient."""
    return Count(elements(call["grad_output"]))


@formula(_INTERPOLATED)
def _interpolate(call: OperatorCall) -> Count:
    """A weighted sum of k values: 2k - 1. Antialiasing widens the window, which makes an estimate."""
    taps = _TAPS[call.base_name]
    return Count((2 * taps - 1) * elements(call.output), "estimated" if "_aa" in call.name else "exact")


@formula(" ".join(f"{name}_backward" for name in _INTERPOLATED.split()))
def _interpolate_backward(call: OperatorCall) -> Count:
    """A product and a sum for each of the k values: 2k a gradient."""
    taps = _TAPS[call.base_name.removesuffix("_backward")]
    flops = 2 * taps * elements(call["grad_output"])
    return Count(flops, "estimated" if "_aa" in call.name else "exact")


@formula("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler _grid_sampler_2d_cpu_fallback")
def _grid_sample(call: OperatorCall) -> Count:
    """A weighted sum of the corners for each result (linear), ten steps for each point of the grid."""
    taps = 2 ** (int(call["grid"].shape[-1]))
    points = elements(call["grid"]) // max(int(call["grid"].shape[-1]), 1)
    return Count((2 * taps - 1) * elements(call.output) + 10 * points, "estimated")


@formula("grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward")
def _grid_sample_backward(call: OperatorCall) -> Count:
    """A product and a sum for each corner, for the image and for the grid."""
    taps = 2 ** (int(call["grid"].shape[-1]))
    return Count(4 * taps * elements(call["grad_output"]), "estimated")
