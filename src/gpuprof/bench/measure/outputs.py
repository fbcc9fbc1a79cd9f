# SPDX-License-Identifier: Apache-2.0
"""Looking at what a call returned or changed, outside the timed part."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def find_not_finite(outputs: object) -> str | None:
    """Return where in the outputs the first NaN or infinity is, such as `[0]`; None where there is none."""
    for place, array in _arrays(outputs, ""):
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            return f"{kind} in the output{place}"
    return None


def fingerprint(values: object) -> int:
    """Return a checksum of all arrays in `values`: equal before and after a call that changes none."""
    checksum = 0
    for place, array in _arrays(values, ""):
        description = f"{place}{array.dtype}{array.shape}".encode()
        checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(description, checksum))
    return checksum


def _arrays(value: object, place: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _arrays(each, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _arrays(each, f"{place}[{index}]")
    elif isinstance(value, (float, complex, np.generic)):
        yield place, np.asarray(value)
    else:
        array = as_array(value)
        if array is not None:
            yield place, array


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor or of what NumPy reads; None of what has no plain values."""
    if hasattr(value, "detach") and hasattr(value, "is_floating_point"):
        return _of_tensor(value.detach())
    if hasattr(value, "__array__"):
        array: np.ndarray[Any, Any] = np.asarray(value)
        return array if array.dtype.kind in "biufc" else None
    return None


def _of_tensor(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return a tensor's values; those of types that NumPy lacks, such as bfloat16, as 32-bit floats."""
    try:
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        values: np.ndarray[Any, Any] = tensor.cpu().numpy()
    except (TypeError, RuntimeError):
        # Sparse, quantised and fake tensors have no plain values.
        return None
    return values
