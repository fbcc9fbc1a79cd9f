# SPDX-License-Identifier: Apache-2.0
"""What error a type allows, judged by a reference of higher precision.

The forward error of a computation is about its condition times its backward error, and the backward error
is a small multiple of the unit roundoff u of the type (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 1.6 and 3.1). Both variants compute the same function, so the condition and what depends
on the number of operations are shared. The baseline's own error against the reference measures them: of an
error e in a type of roundoff u, one of e u' / u is expected in a type of roundoff u'. SLACK times that is
allowed, for other orders of summation and other kernels. A baseline that happens to be better than one
rounding of its result counts as one rounding.

Where the reference is a copy that can be made to round , a coarser type's error is measured
instead: SLACK times the error of the rounding copy and the baseline's together are allowed, where
that is less.

Errors are relative, in the Euclidean norm over all samples: unlike the largest relative error of an
element, that does not blow up where an element is near 0.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.verdicts import ToleranceVerdict
from gpuprof.errors import BenchmarkError

SLACK = 4.0
# A baseline that sums in a lucky order, or in blocks, must not forbid other kernels for the same type.
_OTHER_ORDER = 8.0

# Half the distance from 1 to the next number, 2^-p with p digits in the significand. Whole numbers with one
# scale a tensor: half a step, which is the largest element over 127 (of 8 bits) or over 7 (of 4).
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "int8": 0.5 / 127,
    "int4": 0.5 / 7,
}
_OTHER_NAMES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "tensorfloat32": "tf32",
    "float8": "float8_e4m3fn",
    "fp8": "float8_e4m3fn",
    "qint8": "int8",
    "quint8": "int8",
    "uint8": "int8",
}


def known_dtype(text: str, option: str) -> str:
    """Return the name in UNIT_ROUNDOFF of a user's type. Raises BenchmarkError."""
    name = str(text).removeprefix("torch.").lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in UNIT_ROUNDOFF:
        raise BenchmarkError(
            "unknown_dtype", f"{option}={text!r}: unknown type", hint=f"use one of {', '.join(UNIT_ROUNDOFF)}"
        )
    return name


def coarsest(names: list[str]) -> str | None:
    """Return the type with the fewest digits; None where there is none that is known."""
    known = [name for each in names if (name := _OTHER_NAMES.get(each, each)) in UNIT_ROUNDOFF]
    return max(known, key=lambda name: UNIT_ROUNDOFF[name], default=None)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Whether one output's error is one that the type explains.

    `baseline_error` and `optimized_error` are against the reference, relative, in the Euclidean norm;
    `allowed` is what the optimized variant's may be. `reason` is that of the verdict.
    """

    name: str
    verdict: ToleranceVerdict
    reason: Diagnostic
    baseline_dtype: str | None
    optimized_dtype: str | None
    baseline_error: float | None = None
    optimized_error: float | None = None
    allowed: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}: {self.reason}"


def is_coarser(dtype: str | None, other: str | None) -> bool:
    """Whether both types are known and the first has fewer digits."""
    return dtype is not None and other is not None and UNIT_ROUNDOFF[dtype] > UNIT_ROUNDOFF[other]


def allowance(
    baseline_error: float, baseline_dtype: str, optimized_dtype: str, rounding_error: float | None = None
) -> float:
    """Return the error that a type allows (see the head of this file).

    SLACK max(e, u) u' / u, and at least SLACK times 8 roundings of the sums, which are in float32 or better;
    with the error r of a copy that rounds, no more than SLACK max(e + r, u').
    """
    unit, other = UNIT_ROUNDOFF[baseline_dtype], UNIT_ROUNDOFF[optimized_dtype]
    least = _OTHER_ORDER * min(unit, UNIT_ROUNDOFF["float32"])
    allowed = SLACK * max(max(baseline_error, unit) * max(other / unit, 1.0), least)
    if rounding_error is None or other <= unit:
        return allowed
    return min(allowed, SLACK * max(baseline_error + rounding_error, other))


def judge(
    name: str,
    baseline_error: float | None,
    optimized_error: float | None,
    dtypes: tuple[str | None, str | None],
    reference_dtype: str | None,
    new_not_finite: int = 0,
    rounding_error: float | None = None,
) -> Tolerance:
    """Hold errors against each other. `new_not_finite` counts NaNs and infinities of the new variant."""
    baseline_dtype, optimized_dtype = dtypes
    if new_not_finite:
        reason = note("new_not_finite", count=new_not_finite)
        return Tolerance(name, ToleranceVerdict.BEYOND, reason, *dtypes, baseline_error, optimized_error)
    why_not = _why_unknown(baseline_error, optimized_error, dtypes, reference_dtype)
    if why_not is not None:
        return Tolerance(name, ToleranceVerdict.UNKNOWN, why_not, *dtypes, baseline_error, optimized_error)
    assert baseline_error is not None
    assert optimized_error is not None
    assert baseline_dtype is not None
    assert optimized_dtype is not None
    allowed = allowance(baseline_error, baseline_dtype, optimized_dtype, rounding_error)
    verdict = ToleranceVerdict.WITHIN if optimized_error <= allowed else ToleranceVerdict.BEYOND
    reason = note("error_of_type", error=optimized_error, allowed=allowed, dtype=optimized_dtype)
    return Tolerance(name, verdict, reason, *dtypes, baseline_error, optimized_error, allowed)


def _why_unknown(
    baseline_error: float | None,
    optimized_error: float | None,
    dtypes: tuple[str | None, str | None],
    reference_dtype: str | None,
) -> Diagnostic | None:
    if reference_dtype is None:
        return note("reference_without_floats")
    if baseline_error is None or optimized_error is None:
        return note("reference_is_zero")
    for side, dtype in zip(("baseline", "optimized"), dtypes, strict=True):
        if dtype is None:
            return note("dtype_unknown", side=side)
    if UNIT_ROUNDOFF[reference_dtype] >= UNIT_ROUNDOFF[str(dtypes[0])]:
        return note("reference_too_coarse", reference=reference_dtype, baseline=dtypes[0])
    return None


_INTEGER_STEPS = {"int8": 127, "int4": 7}
# float32 has 23 bits after the point, TF32 keeps 10 of them.
_BITS_BEYOND_TF32 = 13


def rounding_copy(high: Any, dtype: str) -> Any:
    """Return a copy of a module in float64 that rounds to `dtype` wherever tensors are kept."""
    torch: Any = sys.modules["torch"]
    model = copy.deepcopy(high)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(rounded(tensor, dtype))
    for module in model.modules():
        if next(module.children(), None) is None:
            module.register_forward_pre_hook(lambda _, args: _each(args, dtype))
            module.register_forward_hook(lambda _, _args, output: _each(output, dtype))
    return model


def rounded(tensor: Any, dtype: str) -> Any:
    """Return the nearest values that `dtype` has, in the tensor's own type; of an unknown type the same."""
    torch: Any = sys.modules["torch"]
    if dtype in _INTEGER_STEPS:
        step = tensor.abs().max() / _INTEGER_STEPS[dtype] if tensor.numel() else 0
        return (tensor / step).round() * step if step else tensor
    if dtype == "tf32":
        bits = tensor.float().view(torch.int32)
        half = 1 << (_BITS_BEYOND_TF32 - 1)
        return ((bits + half) & -(1 << _BITS_BEYOND_TF32)).view(torch.float32).to(tensor.dtype)
    target = getattr(torch, dtype, None)
    return tensor if target is None else tensor.to(target).to(tensor.dtype)


def _each(value: Any, dtype: str) -> Any:
    """Round tensors in plain tuples and lists; anything else is left as it is."""
    if type(value) in (tuple, list):
        return type(value)(_each(item, dtype) for item in value)
    is_float = hasattr(value, "is_floating_point") and value.is_floating_point()
    return rounded(value, dtype) if is_float else value
