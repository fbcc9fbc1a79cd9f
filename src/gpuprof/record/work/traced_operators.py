# SPDX-License-Identifier: Apache-2.0
"""The operators of an execution trace: names, shapes, types and memory of all that they were called with.

The trace is JSON that PyTorch writes. A process that was forked or killed may leave damaged parts: each
operator is read by itself, and what cannot be read is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gpuprof.record.work.call import OperatorCall, tensors_in

_NODE = re.compile(r'\{\s*"id": ')
# PyTorch writes numbers that JSON does not have.
_NO_NUMBER = re.compile(r"(?<=[\[,: ])(-?)(inf|nan)(?=[\],])")

# What PyTorch calls a node of a backward pass.
_BACKWARD_SCOPE = 1
_MOST_LEVELS = 1000

# The types that PyTorch names as C++ does.
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "long long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
}


class UnreadableCallError(Exception):
    """Why a call of an operator cannot be put together from what the trace has of it."""


@dataclass(frozen=True, slots=True)
class Values:
    """Arguments or results: what the trace has of each, in the order of the schema."""

    values: list[Any]
    shapes: list[Any]
    types: list[str]
    strides: list[Any]


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator call; `parent` is the number of the call around it. Numbers rise with the begins.

    `runs_backward` is set where its thread also runs backward passes.
    """

    number: int
    parent: int
    thread: int
    schema: str
    inputs: Values
    outputs: Values
    runs_backward: bool = False

    @property
    def name(self) -> str:
        """The name as it was announced: `aten::mm`."""
        return self.schema.partition("(")[0].partition(".")[0]

    @property
    def overload(self) -> str:
        """The name of the overload, "" for none."""
        return self.schema.partition("(")[0].partition(".")[2]

    def storages(self) -> list[int]:
        """Return the numbers of the storages, in the order in which the call names them."""
        slots: dict[int, int] = {}
        for given in (self.inputs, self.outputs):
            for value, kind in zip(given.values, given.types, strict=True):
                _place(value, kind, slots)
        return list(slots)


def read_trace(path: Path) -> list[TracedOperator]:
    """Return the operators in the order of their begins. Raises OSError."""
    text = _NO_NUMBER.sub(_as_json, path.read_text(encoding="utf-8", errors="replace"))
    parents: dict[int, int] = {}
    found: dict[int, TracedOperator] = {}
    backward: set[int] = set()
    decoder = json.JSONDecoder()
    for begin in _NODE.finditer(text):
        try:
            node, _ = decoder.raw_decode(text, begin.start())
            parents[int(node["id"])] = int(node["ctrl_deps"])
            attributes = {each["name"]: each["value"] for each in node["attrs"]}
            operator = _operator(node, attributes)
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
        if attributes.get("scope") == _BACKWARD_SCOPE:
            backward.add(int(attributes["tid"]))
        if operator is not None:
            found.setdefault(operator.number, operator)
    return [
        replace(each, parent=_around(each, parents, found), runs_backward=each.thread in backward)
        for _, each in sorted(found.items())
    ]


def _as_json(found: re.Match[str]) -> str:
    return f"{found[1]}Infinity" if found[2] == "inf" else "NaN"


def _operator(node: dict[str, Any], attributes: dict[str, Any]) -> TracedOperator | None:
    """Return a node that is an operator with a schema, else None."""
    if not attributes["op_schema"]:
        return None
    return TracedOperator(
        int(node["id"]),
        int(node["ctrl_deps"]),
        int(attributes["tid"]),
        str(attributes["op_schema"]),
        _values(node["inputs"]),
        _values(node["outputs"]),
    )


def _values(part: dict[str, Any]) -> Values:
    types = part["types"]
    return Values(part["values"], part["shapes"], types, part.get("strides") or [None] * len(types))


def _around(operator: TracedOperator, parents: dict[int, int], operators: Container[int]) -> int:
    """Return the number of the operator around one, -1 for none."""
    parent, steps = operator.parent, 0
    while parent not in operators and parent in parents and steps < _MOST_LEVELS:
        parent, steps = parents[parent], steps + 1
    return parent if parent in operators else -1


# ---- calls -----------------------------------------------------------------------------------


class Memory:
    """The memory of one call: tensors of the same storage in the trace share one without contents."""

    def __init__(self) -> None:
        self._made: dict[int, torch.UntypedStorage] = {}

    def tensor(self, value: Any, shape: Any, kind: str, strides: Any) -> torch.Tensor:
        """Return a tensor on the device `meta`. Raises UnreadableCallError."""
        dtype = _DTYPES.get(kind.removeprefix("Tensor(").removesuffix(")"))
        if dtype is None or not isinstance(value, list) or len(value) < 3:
            raise UnreadableCallError(kind)
        storage, offset = int(value[1]), int(value[2])
        strides = _contiguous(shape) if strides is None else strides
        end = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        size = max(0, end) * dtype.itemsize if math.prod(shape) else 0
        if storage not in self._made:
            self._made[storage] = torch.empty(0, dtype=torch.uint8, device="meta").untyped_storage()
        made = self._made[storage]
        if made.nbytes() < size:
            made.resize_(size)
        return torch.empty(0, dtype=dtype, device="meta").set_(made, offset, shape, strides)

    def slots(self) -> dict[int, int]:
        """Return by the key of a storage its number, in the order in which the call names them."""
        return {int(made._cdata): at for at, made in enumerate(self._made.values())}


def _contiguous(shape: list[int]) -> list[int]:
    strides, product = [], 1
    for size in reversed(shape):
        strides.append(product)
        product *= max(1, size)
    return strides[::-1]


def call_of(traced: TracedOperator) -> tuple[OperatorCall, Any, Memory]:
    """Return the call with tensors without contents, its operator and its memory.

    Raises UnreadableCallError, and what PyTorch raises for an operator that is not there any more.
    """
    operator = _operator_of(traced)
    memory = Memory()
    values = list(_arguments(traced.inputs, memory))
    arguments = operator._schema.arguments
    positional = [
        value for argument, value in zip(arguments, values, strict=False) if not argument.kwarg_only
    ]
    named = {
        argument.name: value
        for argument, value in zip(arguments, values, strict=False)
        if argument.kwarg_only
    }
    call = OperatorCall(operator, tuple(positional), named)
    call.outputs = list(tensors_in(_arguments(traced.outputs, memory)))
    return call, operator, memory


def _operator_of(traced: TracedOperator) -> Any:
    namespace, _, name = traced.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, traced.overload or "default")


def _arguments(given: Values, memory: Memory) -> Iterator[Any]:
    parts = zip(given.values, given.shapes, given.types, given.strides, strict=True)
    for value, shape, kind, strides in parts:
        yield _argument(value, shape, kind, strides, memory)


def _argument(value: Any, shape: Any, kind: str, strides: Any, memory: Memory) -> Any:
    if kind.startswith("Tensor("):
        return None if "uninitialized" in kind else memory.tensor(value, shape, kind, strides)
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = _kinds_in(kind)
        strides = strides or [None] * len(kinds)
        if not len(value) == len(shape) == len(kinds) == len(strides):
            raise UnreadableCallError(kind)
        return [_argument(*each, memory) for each in zip(value, shape, kinds, strides, strict=True)]
    return None if kind == "None" else value


def _kinds_in(kind: str) -> list[str]:
    """Return the types in `GenericList[Tensor(float),None]`; names of types have no commas of their own."""
    return kind.removeprefix("GenericList[").removesuffix("]").split(",")


def kind_of_call(traced: TracedOperator) -> str:
    """Return what calls with the same work have in common: all but where their memory is."""
    slots: dict[int, int] = {}
    parts = [
        (
            given.shapes,
            given.types,
            given.strides,
            [_place(*each, slots) for each in zip(given.values, given.types, strict=True)],
        )
        for given in (traced.inputs, traced.outputs)
    ]
    return f"{traced.schema}{parts}"


def _place(value: Any, kind: str, slots: dict[int, int]) -> Any:
    """Return a value, with the memory of a tensor by its first use in the call."""
    if kind.startswith("Tensor(") and isinstance(value, list) and len(value) > 2:
        return slots.setdefault(value[1], len(slots)), value[2]
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        return [_place(each, inner, slots) for each, inner in zip(value, _kinds_in(kind), strict=False)]
    return value
