# SPDX-License-Identifier: Apache-2.0
"""What a call takes and returns, as arrays with names, and the checks without which nothing is measured.

Tensors, tuples, dictionaries and data classes of them. Nothing is imported for it: a tensor is known by what
it can do.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.base import FrameworkSystem
    from gpuprof.stats.arrays import Array

# What a single unnamed output is called.
ONLY_OUTPUT = "output"
# Types that JAX adds to NumPy, which has no arithmetic of its own for them.
_WIDENED = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))


@dataclass(frozen=True, slots=True)
class NamedArray:
    """One output: its values, and the type that it had before NumPy, which lacks bfloat16, got it."""

    values: Array
    dtype: str

    @property
    def is_finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return self.values.dtype.kind not in "fc" or bool(np.isfinite(self.values).all())


@dataclass(frozen=True, slots=True)
class Outputs:
    """The arrays of one call by name, and what else it returned, which has no plain values."""

    arrays: dict[str, NamedArray]
    skipped: tuple[str, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array."""
        return {name: tuple(each.values.shape) for name, each in self.arrays.items()}


def named_arrays(value: object) -> Outputs:
    """Return every array in what a model returned.

    Names are the keys of dictionaries, the fields of (named) tuples and data classes, places elsewhere:
    `logits`, `[0]`, `hidden_states[2]`. None is no output. The dataclass outputs of transformers are
    mappings and are read as such.
    """
    arrays: dict[str, NamedArray] = {}
    skipped: list[str] = []
    for name, leaf in _leaves(value, ""):
        array = as_array(leaf)
        if array is None:
            skipped.append(f"{name or ONLY_OUTPUT} ({type(leaf).__name__})")
        else:
            arrays[name or ONLY_OUTPUT] = NamedArray(array, dtype_name(leaf, array))
    return Outputs(arrays, tuple(skipped))


def dtype_name(value: Any, otherwise: Any = None) -> str:
    """Return `bfloat16` of the type of a tensor, or of `otherwise` where the value has none."""
    return str(getattr(value, "dtype", None) or otherwise.dtype).removeprefix("torch.")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        children = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, (tuple, list)) and hasattr(value, "_fields"):
        children = [*zip(value._fields, value, strict=True)]
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{name}[{index}]")
        return
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        children = [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    else:
        if value is not None:
            yield name, value
        return
    for key, each in children:
        yield from _leaves(each, f"{name}.{key}" if name else key)


def as_array(value: Any) -> Array | None:
    """Return the values of a number, a tensor or what NumPy reads; None of what has no plain values."""
    if hasattr(value, "detach") and hasattr(value, "is_floating_point"):
        return _of_tensor(value.detach())
    if not hasattr(value, "__array__") and not isinstance(value, (bool, int, float, complex)):
        return None
    array: Array = np.asarray(value)
    if array.dtype.name in _WIDENED:
        return array.astype(np.float32)
    return array if array.dtype.kind in "biufc" else None


def _of_tensor(tensor: Any) -> Array | None:
    """Return a tensor's values; those of types that NumPy lacks, such as bfloat16, as 32-bit floats."""
    try:
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        values: Array = tensor.cpu().numpy()
    except (TypeError, RuntimeError):
        # Sparse, quantized and fake tensors have no plain values.
        return None
    return values


# --- checks --------------------------------------------------------------------------------------


def find_not_finite(outputs: object) -> str | None:
    """Return where in the outputs the first NaN or infinity is; None where there is none."""
    for name, each in named_arrays(outputs).arrays.items():
        if not each.is_finite:
            kind = "NaN" if np.isnan(each.values).any() else "infinity"
            return f"{kind} in the output" + ("" if name == ONLY_OUTPUT else f" {name}")
    return None


def fingerprint(values: object) -> int:
    """Return a checksum of all arrays in `values`: equal before and after a call that changes none."""
    checksum = 0
    for name, each in named_arrays(values).arrays.items():
        description = f"{name}{each.dtype}{each.values.shape}".encode()
        checksum = zlib.crc32(np.ascontiguousarray(each.values).tobytes(), zlib.crc32(description, checksum))
    return checksum


class InputGuard:
    """Remembers the inputs of a system, to detect later whether a call has changed them."""

    def __init__(self, system: FrameworkSystem) -> None:
        self._system = system
        self._fingerprint = fingerprint(system.arguments)

    def check(self) -> None:
        """Raise BenchmarkError where an input is not what it was."""
        if fingerprint(self._system.arguments) != self._fingerprint:
            raise BenchmarkError(
                "inputs_changed",
                f"{self._system.source.text} changes its input: later calls would measure other data",
                hint="copy the input in the model before changing it",
            )


def check_outputs(system: FrameworkSystem, outputs: Any) -> None:
    """Raise BenchmarkError where an output holds a NaN or an infinity."""
    found = find_not_finite(outputs)
    if found is not None:
        raise BenchmarkError(
            "not_finite",
            f"{system.source.text} returns {found} with batch size {system.batch_size} in {system.dtype}: "
            "its times would be those of a broken model",
            hint="correct it, or use another --dtype",
        )
