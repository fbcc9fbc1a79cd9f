# SPDX-License-Identifier: Apache-2.0
"""How many bytes a changed module's weights take: quantized layers have them packed, and no parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any


def module_bytes(module: Any) -> int | None:
    """Return the bytes of all weights and buffers, None where some are packed in an unknown form."""
    total, seen = 0, set()
    try:
        for tensor in (*_tensors(module.state_dict()), *module.buffers()):
            # Tied weights stand there under several names.
            key = None if tensor.is_quantized else (tensor.data_ptr(), tensor.numel())
            if key is None or key not in seen:
                seen.add(key)
                total += _bytes_of(tensor)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return total


def _bytes_of(tensor: Any) -> int:
    torch: Any = sys.modules["torch"]
    count = int(tensor.numel() * tensor.element_size())
    if tensor.is_quantized and tensor.qscheme() in (
        torch.per_channel_affine,
        torch.per_channel_symmetric,
        torch.per_channel_affine_float_qparams,
    ):
        parts = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        count += sum(int(each.numel() * each.element_size()) for each in parts)
    return count


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state; packed weights tell what is in them as their own state."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, torch.ScriptObject):
        yield from _tensors(value.__getstate__())
    elif value is not None and not isinstance(value, (bool, int, float, str, torch.dtype)):
        raise TypeError(f"{type(value).__name__} is nothing that weights are packed in")
