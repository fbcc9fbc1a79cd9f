# SPDX-License-Identifier: Apache-2.0
"""What a model returned, as arrays with names: tensors, tuples, dictionaries and data classes of them.

Nothing is imported for it: a tensor is known by what it can do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.measure.outputs import as_array

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# What a single unnamed output is called.
ONLY_OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class NamedArray:
    """One output: its values, and the type that it had before NumPy, which lacks bfloat16, got it."""

    values: Array
    dtype: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """The arrays of one call by name, and what else it returned, which has no plain values."""

    arrays: dict[str, NamedArray]
    skipped: tuple[str, ...]


def named_arrays(value: object) -> Outputs:
    """Return every array in what a model returned.

    Names are the keys of dictionaries, the fields of (named) tuples and data classes, places elsewhere:
    `logits`, `[0]`, `hidden_states[2]`. None is no output. The dataclass outputs of transformers are
    mappings and are read as such.
    """
    arrays: dict[str, NamedArray] = {}
    skipped: list[str] = []
    for name, leaf in _leaves(value, ""):
        array = _named(leaf)
        if array is None:
            skipped.append(f"{name or ONLY_OUTPUT} ({type(leaf).__name__})")
        else:
            arrays[name or ONLY_OUTPUT] = array
    return Outputs(arrays, tuple(skipped))


def dtype_name(value: Any) -> str:
    """Return `bfloat16` of a tensor's or an array's type."""
    return str(value.dtype).removeprefix("torch.")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    children = _children(value)
    if children is None:
        if value is not None:
            yield name, value
        return
    for key, child in children:
        yield from _leaves(child, _joined(name, key))


def _children(value: Any) -> list[tuple[str | int, Any]] | None:
    if isinstance(value, Mapping):
        return [(str(key), each) for key, each in value.items()]
    if isinstance(value, (tuple, list)):
        fields: Sequence[str] = getattr(value, "_fields", ())
        return [*zip(fields, value, strict=True)] if fields else [*enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    return None


def _joined(name: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{name}[{key}]"
    return f"{name}.{key}" if name else key


def _named(leaf: Any) -> NamedArray | None:
    if isinstance(leaf, (bool, int, float, complex, np.generic)):
        leaf = np.asarray(leaf)
    array = as_array(leaf)
    if array is None and getattr(getattr(leaf, "dtype", None), "name", "") in _WIDENED:
        array = np.asarray(leaf).astype(np.float32)
    return None if array is None else NamedArray(array, dtype_name(leaf))


# Types that JAX adds to NumPy, which has no arithmetic of its own for them.
_WIDENED = frozenset(("bfloat16", "float8_e4m3fn", "float8_e5m2"))
