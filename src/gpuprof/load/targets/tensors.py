# SPDX-License-Identifier: Apache-2.0
"""Input tensors of KServe's open inference protocol, version 2, filled with reproducible random values."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import ServerAddress

# The data types of the protocol that NumPy has. BF16 is written as its upper half, BYTES with lengths.
_NUMPY_TYPES = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class TensorInput:
    """An input of a model: its name, KServe's data type, and a shape without free dimensions."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def values(self, seed: int = 0) -> Any:
        """Return an array of small values: token ids, pixels and probabilities are all near zero."""
        random = np.random.default_rng(seed)
        if self.datatype in _NUMPY_TYPES:
            dtype = np.dtype(_NUMPY_TYPES[self.datatype])
            if dtype.kind == "f":
                return random.random(self.shape).astype(dtype)
            return random.integers(0, 2, self.shape).astype(dtype)
        if self.datatype == "BF16":
            return random.random(self.shape).astype("<f4")
        if self.datatype == "BYTES":
            return np.full(self.shape, "text", dtype=object)
        raise BenchmarkError(
            "unknown_datatype",
            f"the input {self.name!r} has the data type {self.datatype!r}",
            hint="give --body",
        )

    def raw(self, seed: int = 0) -> bytes:
        """Return the values in the protocol's binary form: row-major, little-endian."""
        values = self.values(seed)
        if self.datatype == "BF16":
            return bytes((values.view("<u4") >> 16).astype("<u2").tobytes())
        if self.datatype == "BYTES":
            return b"".join(struct.pack("<I", len(each)) + each.encode() for each in values.ravel())
        return bytes(values.tobytes())

    def as_json(self, seed: int = 0) -> list[Any]:
        """Return the values as the flat list of the JSON form."""
        flat: list[Any] = self.values(seed).ravel().tolist()
        return flat


def tensor_input(
    name: str, datatype: str, shape: Sequence[int], batch: int, shapes: Mapping[str, Sequence[int]]
) -> TensorInput:
    """Return an input as a server describes it: a free first dimension is the batch, others must be given."""
    found = list(shapes.get(name, shape))
    if found and found[0] == -1:
        found[0] = batch
    if any(each < 0 for each in found):
        raise BenchmarkError(
            "free_dimension",
            f"the input {name!r} has the shape {list(shape)}, whose sizes are not all known",
            hint=f"give --server-input {name}:{','.join('8' if each < 0 else str(each) for each in found)}",
        )
    if math.prod(found) > _MOST_ELEMENTS:
        raise BenchmarkError(
            "tensor_too_large",
            f"the input {name!r} of {found} is too large to send",
            hint="take a smaller batch",
        )
    return TensorInput(name, datatype, tuple(found))


class DescribedInput(Protocol):
    """An input as a server describes it."""

    @property
    def name(self) -> str:
        """Its name in requests."""

    @property
    def datatype(self) -> str:
        """A type of the protocol, such as FP32."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes, -1 where one is free."""


def tensor_inputs(
    described: Iterable[DescribedInput], batch: int, shapes: Mapping[str, Sequence[int]]
) -> list[TensorInput]:
    """Return the inputs of a model; raises BenchmarkError for shapes of inputs that it does not have."""
    found = [tensor_input(each.name, each.datatype, each.shape, batch, shapes) for each in described]
    names = [each.name for each in found]
    if found and (unknown := [name for name in shapes if name not in names]):
        raise BenchmarkError(
            "unknown_input",
            f"the model has no input {unknown[0]!r}",
            hint=f"name one of its inputs with --server-input: {', '.join(map(repr, names))}",
        )
    return found


def split_model(address: ServerAddress) -> tuple[str, str, str]:
    """Return prefix, model and version of `/model`, `/v2/models/model` or `/v2/models/model/versions/1`."""
    words = [each for each in address.path.partition("?")[0].split("/") if each]
    prefix = ""
    if "v2" in words[:-2] and words[words.index("v2") + 1] == "models":
        prefix = "/".join(["", *words[: words.index("v2")]])
        words = words[words.index("v2") + 2 :]
    if words and words[-1] == "infer":
        words.pop()
    version = words.pop() if len(words) == 3 and words[-2] == "versions" else ""
    if version:
        words.pop()
    if len(words) != 1:
        raise BenchmarkError(
            "no_model_in_address",
            f"{address.authority}{address.path} names no model",
            hint=f"add its name, as in {address.scheme}://{address.authority}/resnet50",
        )
    return prefix.rstrip("/"), words[0], version
