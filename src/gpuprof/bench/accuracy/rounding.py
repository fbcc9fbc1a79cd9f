# SPDX-License-Identifier: Apache-2.0
"""A model of double precision that rounds as another type does: what error that type explains.

Parameters, buffers, and what goes into and comes out of every layer that holds no other are rounded;
sums inside a layer are not, as kernels for small types accumulate in a larger one.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

_INTEGER_STEPS = {"int8": 127, "int4": 7}
# float32 has 23 bits behind the point, TF32 keeps 10 of them.
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
