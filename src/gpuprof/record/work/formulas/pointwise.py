# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators: FLOPs of one element, counted off the definition of each function.

Basic operations (sum, product, quotient, square root, comparison, sign, rounding, bitwise) are one FLOP each:
IEEE 754 defines each as one correctly rounded operation. A transcendental function (exp, log, tanh, erf, sin)
is taken as one FLOP, which makes the count an estimate: libraries spend many instructions on it.
"""

from __future__ import annotations

from typing import Any

import torch

from gpuprof.record.work.call import Count, OperatorCall, tensors_in
from gpuprof.record.work.registry import formula
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import elements

# Counted exactly: names by FLOPs of one element of the result.
_EXACT: dict[int, str] = {
    1: (
        "add sub rsub mul div neg abs sign sgn signbit relu ceil floor round trunc maximum minimum fmax fmin"
        " fix"
        " clamp_min clamp_max eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or"
        " logical_not"
        " logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift"
        " __lshift__ __rshift__ __ilshift__ __irshift__ sqrt reciprocal square deg2rad rad2deg heaviside"
        " nextafter threshold threshold_backward hardshrink hardshrink_backward softshrink_backward copysign"
        " conj_physical _conj_physical true_divide nan_to_num floor_divide"
    ),
    2: (
        "rsqrt hardtanh hardtanh_backward leaky_relu leaky_relu_backward frac _prelu_kernel softshrink"
        " native_dropout_backward _masked_scale _add_relu ldexp relu6"
    ),
    3: "lerp tanh_backward sigmoid_backward fmod remainder hardsigmoid_backward _prelu_kernel_backward",
    4: "hardsigmoid hypot",
    5: "hardswish hardswish_backward",
}
# Estimated, since a transcendental function is among the steps, which the second table spells out.
_ESTIMATED: dict[int, str] = {
    1: (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf"
        " erfc"
        " erfinv lgamma digamma polygamma mvlgamma atan2 angle i0 igamma igammac frexp gcd lcm"
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


def _per_element() -> dict[str, tuple[int, Exactness]]:
    table: dict[str, tuple[int, Exactness]] = {}
    for flops, names in _EXACT.items():
        table.update((name, (flops, "exact")) for name in names.split())
    for flops, names in _ESTIMATED.items():
        table.update((name, (flops, "estimated")) for name in names.split())
    return table


PER_ELEMENT = _per_element()
# Real operations in one operation on complex numbers; four, as an estimate, for the rest.
_COMPLEX = {
    "add": 2,
    "sub": 2,
    "rsub": 2,
    "neg": 2,
    "mul": 6,
    "div": 11,
    "conj_physical": 1,
    "eq": 2,
    "ne": 2,
}


def _scaled(call: OperatorCall, flops: int) -> int:
    """Add the product with `alpha` of a sum or difference, the rounding of a quotient."""
    extra = call.get("alpha", 1) != 1
    return flops + bool(extra) + (call.get("rounding_mode") is not None)


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


def power_flops(exponent: Any) -> tuple[int, Exactness]:
    """Return the FLOPs of a power: products for small whole exponents, one function otherwise."""
    products = {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 0.5: 1, -1: 1, -0.5: 2, -2: 2}
    known = products.get(exponent) if isinstance(exponent, (int, float)) else None
    return (1, "estimated") if known is None else (known, "exact")


@formula("pow")
def _power(call: OperatorCall) -> Count:
    """Products for small whole exponents, one FLOP as an estimate otherwise."""
    flops, exactness = power_flops(call["exponent"])
    return Count(flops * elements(call.output), exactness)


@formula("addcmul addcdiv")
def _add_product(call: OperatorCall) -> Count:
    """A product (quotient) and a sum, one more product where `value` is not 1."""
    return Count((2 + (call["value"] != 1)) * elements(call.output))


@formula("gelu")
def _gelu(call: OperatorCall) -> Count:
    """x/2 * (1 + erf(x/sqrt(2))): 5; x/2 * (1 + tanh(a*x*(1 + b*x*x))): 9 (Hendrycks, Gimpel, 2016)."""
    return Count((9 if call["approximate"] == "tanh" else 5) * elements(call.output), "estimated")


@formula("gelu_backward")
def _gelu_backward(call: OperatorCall) -> Count:
    """Gradient * (cdf + x * pdf): 11; with tanh 20."""
    return Count((20 if call["approximate"] == "tanh" else 11) * elements(call.output), "estimated")


@formula("where masked_fill complex")
def _selection(_: OperatorCall) -> Count:
    """No arithmetic: values are chosen and moved."""
    return Count(0)


@formula("native_dropout _fused_dropout")
def _dropout(call: OperatorCall) -> Count:
    """A random number, a comparison, two products (mask and scale)."""
    return Count(4 * elements(call.output), "estimated")


@formula("equal allclose isclose")
def _comparison(call: OperatorCall) -> Count:
    """One comparison an element; it may stop early."""
    return Count(elements(call["self"]), "estimated")


@formula("_amp_foreach_non_finite_check_and_unscale")
def _unscale(call: OperatorCall) -> Count:
    """A product and a check for each gradient."""
    return Count(2 * sum(elements(tensor) for tensor in call["self"]))


@formula("_amp_update_scale")
def _update_scale(_: OperatorCall) -> Count:
    """A handful of operations on one number."""
    return Count(2, "estimated")


def _foreach_base(call: OperatorCall) -> tuple[int, Exactness] | None:
    name = call.base_name.removeprefix("_foreach_")
    if name == "pow":
        return power_flops(call.get("exponent"))
    if name in ("addcmul", "addcdiv"):
        return 2 + (call.get("value", call.get("scalars")) != 1), "exact"
    flops = PER_ELEMENT.get(name)
    return None if flops is None else (_scaled(call, flops[0]), flops[1])


_FOREACH = [
    name
    for name in (*PER_ELEMENT, "pow", "addcmul", "addcdiv")
    if hasattr(torch.ops.aten, f"_foreach_{name}")
]


@formula(" ".join(f"_foreach_{name}" for name in _FOREACH))
def _foreach(call: OperatorCall) -> Count | None:
    """The elementwise operator's FLOPs for each element of each tensor of the list."""
    base = _foreach_base(call)
    if base is None:
        return None
    tensors = call["self"] if isinstance(call["self"], (list, tuple)) else call["exponent"]
    return Count(base[0] * sum(elements(tensor) for tensor in tensors_in(tensors)), base[1])


@formula("_foreach_norm _foreach_powsum")
def _foreach_norm(call: OperatorCall) -> Count:
    """A square (or absolute value) and a sum an element, as in linalg_vector_norm."""
    return Count(sum(2 * elements(tensor) for tensor in call["self"]), "estimated")


@formula("_foreach_max")
def _foreach_max(call: OperatorCall) -> Count:
    """One comparison less than there are elements."""
    return Count(sum(max(elements(tensor) - 1, 0) for tensor in call["self"]))


@formula("_foreach_copy _foreach_zero _foreach_clone")
def _foreach_move(_: OperatorCall) -> Count:
    """No arithmetic."""
    return Count(0)
