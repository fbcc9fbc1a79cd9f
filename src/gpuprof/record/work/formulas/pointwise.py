# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators and optimizer steps: FLOPs of one element, by the definition of each function.

Basic operations (sum, product, quotient, square root, comparison, sign, rounding, bitwise) are one FLOP each:
IEEE 754 defines each as one correctly rounded operation. A transcendental function (exp, log, tanh, erf, sin)
is taken as one FLOP, which makes the count an estimate: libraries spend many instructions on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpuprof.record.work.call import Count, OperatorCall, elements_in, formula, per_element
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import elements

# Counted exactly: names by FLOPs of one element of the result.
_EXACT: dict[int, str] = {
    1: (
        "add sub rsub mul div neg abs sign sgn signbit relu ceil floor round trunc maximum minimum fmax fmin"
        " fix clamp_min clamp_max eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or"
        " logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift"
        " bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__ sqrt reciprocal square deg2rad"
        " rad2deg heaviside nextafter threshold threshold_backward hardshrink hardshrink_backward"
        " softshrink_backward copysign conj_physical _conj_physical true_divide nan_to_num floor_divide"
    ),
    2: (
        "rsqrt hardtanh hardtanh_backward leaky_relu leaky_relu_backward frac _prelu_kernel softshrink"
        " native_dropout_backward _masked_scale _add_relu ldexp relu6"
    ),
    3: "lerp tanh_backward sigmoid_backward fmod remainder hardsigmoid_backward _prelu_kernel_backward",
    4: "hardsigmoid hypot",
    5: "hardswish hardswish_backward",
}
# Estimated, since a transcendental function is among the steps.
_ESTIMATED: dict[int, str] = {
    1: (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf"
        " erfc erfinv lgamma digamma polygamma mvlgamma atan2 angle i0 igamma igammac frexp gcd lcm"
    ),
    2: "xlogy special_xlog1py sinc rrelu_with_noise special_entr",  # a function and a product or quotient
    3: "logit elu",  # quotient, difference, log; exp, difference, product
    4: (
        "sigmoid"  # negation, exp, sum, quotient
        " polar softplus celu elu_backward rrelu_with_noise_backward logit_backward mish"
    ),
    5: (
        "silu"  # sigmoid and a product
        " glu logaddexp logaddexp2 softplus_backward"
    ),
    6: "log_sigmoid_forward log_sigmoid_backward",
    9: "silu_backward glu_backward",
    12: "mish_backward",
}
_EXACTNESS: tuple[tuple[dict[int, str], Exactness], ...] = ((_EXACT, "exact"), (_ESTIMATED, "estimated"))
PER_ELEMENT: dict[str, tuple[int, Exactness]] = {
    name: (flops, exactness)
    for table, exactness in _EXACTNESS
    for flops, names in table.items()
    for name in names.split()
}
# Real operations in one operation on complex numbers; four, as an estimate, for the rest.
_COMPLEX = dict.fromkeys(("add", "sub", "rsub", "neg", "eq", "ne"), 2)
_COMPLEX |= {"conj_physical": 1, "mul": 6, "div": 11}


def _scaled(call: OperatorCall, flops: int) -> int:
    """Add the product with `alpha` of a sum or difference, the rounding of a quotient."""
    return flops + bool(call.get("alpha", 1) != 1) + (call.get("rounding_mode") is not None)


@formula(" ".join(PER_ELEMENT))
def _elementwise(call: OperatorCall) -> Count:
    """The table's FLOPs for each element of the result."""
    name = call.base_name
    flops, exactness = PER_ELEMENT[name]
    flops = _scaled(call, flops)
    if call.inputs and call.inputs[0].is_complex():
        flops, exactness = _COMPLEX.get(name, 4), "exact" if name in _COMPLEX else "estimated"
    return Count(flops * elements(call.output), exactness)


@formula("clamp clip")
def _clamp(call: OperatorCall) -> Count:
    """One comparison a bound."""
    bounds = sum(call.get(name) is not None for name in ("min", "max"))
    return Count(bounds * elements(call.output))


@formula("max min")
def _maximum_or_reduction(call: OperatorCall) -> Count:
    """One comparison a result between two tensors; in a reduction one less than there are values."""
    if "other" in call.arguments:
        return Count(elements(call.output))
    return Count(max(elements(call["self"]) - elements(call.output), 0))


def _power_flops(exponent: Any) -> tuple[int, Exactness]:
    """Return the FLOPs of a power: products for small whole exponents, one function otherwise."""
    products = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 0.5: 1, -1: 1, -0.5: 2, -2: 2}
    known = products.get(exponent) if isinstance(exponent, (int, float)) else None
    return (1, "estimated") if known is None else (known, "exact")


@formula("pow")
def _power(call: OperatorCall) -> Count:
    """Products for small whole exponents, one FLOP as an estimate otherwise."""
    flops, exactness = _power_flops(call["exponent"])
    return Count(flops * elements(call.output), exactness)


@formula("addcmul addcdiv")
def _add_product(call: OperatorCall) -> Count:
    """A product (quotient) and a sum, one more product where `value` is not 1."""
    return Count((2 + (call["value"] != 1)) * elements(call.output))


@formula("gelu gelu_backward")
def _gelu(call: OperatorCall) -> Count:
    """x/2 * (1 + erf(x/sqrt(2))): 5; x/2 * (1 + tanh(a*x*(1 + b*x*x))): 9 (Hendrycks, Gimpel, 2016).

    Backward gradient * (cdf + x * pdf): 11; with tanh 20.
    """
    plain, with_tanh = (11, 20) if "backward" in call.name else (5, 9)
    flops = with_tanh if call["approximate"] == "tanh" else plain
    return Count(flops * elements(call.output), "estimated")


# A random number, a comparison, two products (mask and scale).
per_element(4, "native_dropout _fused_dropout", exactness="estimated")
per_element(1, "equal allclose isclose", "self", "estimated")  # one comparison; it may stop early
per_element(2, "_amp_foreach_non_finite_check_and_unscale", "self")  # a product and a check for each gradient
per_element(2, "_amp_update_scale", "self", "estimated")  # a handful of operations on one number


# ---- lists of tensors ------------------------------------------------------------------------

_FOREACH = [
    name
    for name in (*PER_ELEMENT, "pow", "addcmul", "addcdiv")
    if hasattr(torch.ops.aten, f"_foreach_{name}")
]


@formula(" ".join(f"_foreach_{name}" for name in _FOREACH))
def _foreach(call: OperatorCall) -> Count:
    """The elementwise operator's FLOPs for each element of each tensor of the list."""
    name = call.base_name.removeprefix("_foreach_")
    exactness: Exactness = "exact"
    if name == "pow":
        flops, exactness = _power_flops(call.get("exponent"))
    elif name in ("addcmul", "addcdiv"):
        flops = 2 + (call.first("value", "scalars") != 1)
    else:
        flops, exactness = PER_ELEMENT[name]
        flops = _scaled(call, flops)
    tensors = call["self"] if isinstance(call["self"], (list, tuple)) else call["exponent"]
    return Count(flops * elements_in(tensors), exactness)


# A square (or absolute value) and a sum an element, as in linalg_vector_norm.
per_element(2, "_foreach_norm _foreach_powsum", "self", "estimated")


@formula("_foreach_max")
def _foreach_max(call: OperatorCall) -> Count:
    """One comparison less than there are elements."""
    return Count(sum(max(elements(tensor) - 1, 0) for tensor in call["self"]))


# ---- optimizers ------------------------------------------------------------------------------

# Steps for one parameter, counted off the algorithm's definition.
_OPTIMIZER_STEPS: dict[str, Callable[[OperatorCall], int]] = {
    # First moment 3, second moment 4, denominator 3, update 3: 13 (Kingma, Ba, 2015, algorithm 1). Decay
    # takes two more, decoupled from the gradient one (Loshchilov, Hutter, 2019), amsgrad one.
    "_fused_adam": lambda call: 13 + 2 * bool(call["weight_decay"]) + bool(call["amsgrad"]),
    "_fused_adamw": lambda call: 13 + bool(call["weight_decay"]) + bool(call["amsgrad"]),
    # The update 2; momentum 3; Nesterov's 2; decay 2.
    "_fused_sgd": lambda call: (
        2 + 2 * bool(call["weight_decay"]) + bool(call["momentum"]) * (3 + 2 * bool(call["nesterov"]))
    ),
    # The sum of squares 2, the root and update 5; decay 2 (Duchi et al., 2011).
    "_fused_adagrad": lambda call: 7 + 2 * bool(call["weight_decay"]),
}


@formula(" ".join(_OPTIMIZER_STEPS))
def _optimizer_step(call: OperatorCall) -> Count:
    """The table's steps for each parameter."""
    gradients = {id(tensor) for tensor in call["grads"]}
    # The schema lets a fused step write the gradients: it does so only to unscale them.
    writes = [
        tensor for tensor in call.written if id(tensor) not in gradients or call["grad_scale"] is not None
    ]
    flops = _OPTIMIZER_STEPS[call.base_name](call) * elements_in(call["self"])
    return Count(flops, "estimated", writes=[*call.outputs, *writes] if call.written else None)


# ---- quantized values ------------------------------------------------------------------------

# Two values are scaled back, combined, scaled and rounded.
per_element(9, "add add_relu mul mul_relu", exactness="estimated", namespace="quantized")
per_element(9, "qadd qadd_relu qmul", exactness="estimated", namespace="onednn")
# A value is scaled back, mapped, scaled and rounded.
per_element(
    7,
    "batch_norm batch_norm1d batch_norm2d batch_norm3d batch_norm_relu batch_norm1d_relu batch_norm2d_relu"
    " batch_norm3d_relu hardswish elu celu leaky_relu sigmoid relu6 threshold add_scalar add_scalar_relu"
    " mul_scalar mul_scalar_relu",
    exactness="estimated",
    namespace="quantized",
)
# As for floats, and scaling on both sides.
per_element(12, "layer_norm group_norm instance_norm softmax", exactness="estimated", namespace="quantized")
per_element(5, "cat cat_relu", exactness="estimated", namespace="quantized")  # scaled back and again
# A product, a rounding, a sum, two bounds.
per_element(5, "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel")
per_element(2, "dequantize")  # a difference and a product
# Quantized and back: seven FLOPs, and two bounds for the mask.
per_element(
    9,
    "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"
    " _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fake_quantize_learnable_per_tensor_affine"
    " _fake_quantize_learnable_per_channel_affine _fused_moving_avg_obs_fq_helper",
    exactness="estimated",
)
