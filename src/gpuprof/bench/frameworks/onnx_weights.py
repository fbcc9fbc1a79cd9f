# SPDX-License-Identifier: Apache-2.0
"""The weights of an ONNX file: how many numbers of which type. ONNX Runtime does not list them.

An ONNX file is a message of protocol buffers, `onnx.proto3` of the ONNX project. Read are the tensors of
`GraphProto.initializer` and of `Constant` nodes, and the operators of 8 bits; subgraphs are not.
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.bench.frameworks.base import coarsest_type
from gpuprof.errors import BenchmarkError

_GRAPH = 7  # of ModelProto
_NODE, _INITIALIZER = 1, 5  # of GraphProto
_OPERATOR, _ATTRIBUTE = 4, 5  # of NodeProto
_TENSOR = 5  # of AttributeProto
_DIMENSIONS, _DATA_TYPE = 1, 2  # of TensorProto
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5

_DTYPE_OF_NUMBER = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64", 16: "bfloat16"}
_INT8_OPERATORS = frozenset(
    {b"DequantizeLinear", b"MatMulInteger", b"ConvInteger", b"QLinearConv", b"QLinearMatMul"}
)


@dataclass(slots=True)
class OnnxWeights:
    """How many numbers of each type the tensors of a file hold, and whether it computes in 8 bits."""

    numbers: Counter[str] = field(default_factory=Counter)
    has_int8_operators: bool = False

    @property
    def parameters(self) -> int | None:
        """The numbers of all weights; None where the file has none."""
        return sum(self.numbers.values()) or None

    @property
    def coarsest_type(self) -> str | None:
        """The type whose rounding the outputs have: int8, or the coarsest type of at least 1% of numbers."""
        return "int8" if self.has_int8_operators else coarsest_type(self.numbers)


def read_onnx_weights(path: Path) -> OnnxWeights:
    """Read the types of a file's weights. Raises BenchmarkError for a file that is damaged."""
    found = OnnxWeights()
    try:
        with path.open("rb") as file:
            # Unmapped with its last view: an explicit close would fail while one lives.
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for number, value in _fields(view):
            if number == _GRAPH and isinstance(value, memoryview):
                _read_graph(value, found)
    except (OSError, ValueError, IndexError) as error:
        raise BenchmarkError(
            "cannot_read", f"{path}: not a readable ONNX file", hint="write it again"
        ) from error
    return found


def _read_graph(graph: memoryview, found: OnnxWeights) -> None:
    for number, value in _fields(graph):
        if not isinstance(value, memoryview):
            continue
        if number == _INITIALIZER:
            _read_tensor(value, found)
        elif number == _NODE:
            _read_node(value, found)


def _read_node(node: memoryview, found: OnnxWeights) -> None:
    parts = [(number, value) for number, value in _fields(node) if isinstance(value, memoryview)]
    operators = [bytes(value) for number, value in parts if number == _OPERATOR]
    found.has_int8_operators |= not _INT8_OPERATORS.isdisjoint(operators)
    if b"Constant" not in operators:
        return
    for attribute in (value for number, value in parts if number == _ATTRIBUTE):
        for number, tensor in _fields(attribute):
            if number == _TENSOR and isinstance(tensor, memoryview):
                _read_tensor(tensor, found)


def _read_tensor(tensor: memoryview, found: OnnxWeights) -> None:
    """Count a tensor of numbers; shapes and indices, which are 64-bit whole numbers, are no weights."""
    dimensions: list[int] = []
    dtype = None
    for number, value in _fields(tensor):
        if number == _DIMENSIONS:
            # Packed as a rule, and one by one from some writers.
            dimensions += [value] if isinstance(value, int) else _varints(value)
        elif number == _DATA_TYPE and isinstance(value, int):
            dtype = _DTYPE_OF_NUMBER.get(value)
    if dtype is not None:
        found.numbers[dtype] += math.prod(dimensions)


# --- protocol buffers ----------------------------------------------------------------------------


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field. Raises IndexError and ValueError for damage."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
        elif kind == _BYTES:
            size, position = _varint(message, position)
            if position + size > len(message):
                raise ValueError("a field ends after its message")
            yield number, message[position : position + size]
            position += size
        elif kind in (_FIXED_64, _FIXED_32):
            position += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind}")


def _varints(data: memoryview) -> list[int]:
    position, found = 0, []
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
    return found


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
