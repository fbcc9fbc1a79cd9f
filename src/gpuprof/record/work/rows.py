# SPDX-License-Identifier: Apache-2.0
"""What the counting pass hands on: one row an operator call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Exactness = Literal["exact", "estimated", "unknown"]
_WORST_FIRST: tuple[Exactness, ...] = ("unknown", "estimated", "exact")
Phase = Literal["forward", "backward", "optimizer"]

# PyTorch's types, and what a GPU's tensor cores multiply for them; float32 is theirs only as tf32.
TENSOR_TYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "tf32",
    "float64": "fp64",
    "int8": "int8",
    "uint8": "int8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The work of one operator call.

    `layer` is the path of the layer that called it, as recordings name layers: the root by its class,
    what is inside it by its path in `named_modules()`, and "" outside of every layer. An operator of the
    backward pass belongs to the layer whose forward pass it differentiates. `ordinal` counts the
    operators of one layer from 0, in the order of their calls. `flops` and `bytes` are None where they
    are not known. `dtype` is the type that is calculated in: that of the first floating-point input, else
    of the first input, else of the output. `input_shapes` and `input_dtypes` run over the tensors among
    the arguments in their order; a ragged dimension of a nested tensor is -1.
    """

    layer: str
    ordinal: int
    operator: str
    overload: str
    phase: Phase
    flops: int | None
    bytes: int | None
    exactness: Exactness
    dtype: str | None
    input_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes of one piece of memory that an operator read or wrote; `key` is None where it is not known."""

    key: int | None
    bytes: int
    written: bool


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bytes that an operator reads or writes, with the cache that would hold them.

    `written` is set where they are written and were not read before: a store then may read the line first.

    `distance_bytes` is the size of all that was touched since, the bytes themselves included; None where
    they were not touched before or too long ago.
    """

    distance_bytes: int | None
    bytes: int
    written: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """What one operator call did in the counting pass besides its arithmetic.

    `page_faults` are those of the process while the operator ran, None where the system does not report them.
    """

    page_faults: int | None
    touched: tuple[Touched, ...]


@dataclass(frozen=True, slots=True)
class UnknownWork:
    """An operator whose work could not be counted, and the error."""

    operator: str
    error: str


@dataclass(slots=True)
class CountedPass:
    """Everything that one pass counted, and what a reader must know about it.

    `observed` has an element for each row, or is None where it was not requested.
    """

    rows: list[OperatorWork] = field(default_factory=list)
    unknown: list[UnknownWork] = field(default_factory=list)
    observed: list[Observation] | None = None


def worst_of(values: Iterable[Exactness]) -> Exactness:
    """Return the worst of them; without any, nothing is inexact."""
    present = set(values)
    return next((exactness for exactness in _WORST_FIRST if exactness in present), "exact")


def known_sum(values: Iterable[float | None]) -> int | None:
    """Return the sum of what is known, None where there are values and none is known."""
    every = list(values)
    known = [value for value in every if value is not None]
    return None if every and not known else int(sum(known))
