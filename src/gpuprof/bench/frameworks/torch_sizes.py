# SPDX-License-Identifier: Apache-2.0
"""Sizes of PyTorch models: bytes and parameters, those of packed weights included.

Quantized layers pack their weights into objects that are neither parameters nor buffers. In a module these
objects are in its state; in a program of TorchScript they are found in its archive alone, which is read
without running anything of it.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuprof.bench.frameworks.base import coarsest_type

_NO_WEIGHTS = frozenset({"scale", "zero_point"})  # of a quantized layer's outputs
_PACKED = "__torch__.torch.classes."  # where an archive has the classes of packed weights
_TENSORS = ("torch.", "collections.")  # and what makes its tensors
_STORAGE_FOLDERS = frozenset({"data", "constants"})
_DTYPE_OF_STORAGE = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "CharStorage": "int8",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
}
_QUANTIZED_TYPES = frozenset({"qint8", "quint8", "qint32", "quint4x2"})
_WEIGHT_TYPES = _QUANTIZED_TYPES | {"float32", "float16", "bfloat16"}  # scales of channels are float64
_INT8_TYPES = frozenset({"int8", "qint8", "quint8", "quint4x2"})


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`size_bytes` are those of weights and buffers, None where some are packed in an unknown form.

    `parameters` is None where a program holds its weights as constants, among which they are not marked.
    `numbers` has how many numbers of each type there are, such as 1,000 of "float16".
    """

    size_bytes: int | None
    parameters: int | None
    numbers: Mapping[str, int]

    @property
    def coarsest_type(self) -> str | None:
        """The type whose rounding the outputs have: int8, or the coarsest type of at least 1% of numbers."""
        return coarsest_type(self.numbers) if _INT8_TYPES.isdisjoint(self.numbers) else "int8"


def size_of_module(module: Any, path: Path | None = None) -> ModelSize:
    """Return the size of a module. `path` is its file where it is a program of TorchScript that was read."""
    if isinstance(module, torch.jit.ScriptModule):
        return _size_of_program(module, path)
    packed = sum(int(each.numel()) for each in _packed_weights(module))
    parameters = packed + sum(int(each.numel()) for each in module.parameters())
    return ModelSize(module_bytes(module), parameters, _numbers(_readable_tensors(module)))


def size_of_exported(program: Any) -> ModelSize:
    """Return the size of an exported program: its state, and the constants of its graph."""
    held = [dict(program.state_dict), dict(program.constants)]
    try:
        tensors = [*_tensors(held)]
        size_bytes: int | None = _bytes_of_all(tensors)
    except (AttributeError, RuntimeError, TypeError):
        tensors, size_bytes = [*program.state_dict.values()], None
    parameters = sum(int(each.numel()) for each in program.parameters())
    return ModelSize(size_bytes, parameters, _numbers(tensors))


def module_bytes(module: Any) -> int | None:
    """Return the bytes of all weights and buffers, None where some are packed in an unknown form."""
    try:
        return _bytes_of_all((*_tensors(module.state_dict()), *module.parameters(), *module.buffers()))
    except (AttributeError, RuntimeError, TypeError):
        return None


def _bytes_of_all(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors; tied ones, which are there under several names, count once."""
    total, seen = 0, set()
    for tensor in tensors:
        key = None if tensor.is_quantized else (tensor.data_ptr(), tensor.numel())
        if key is None or key not in seen:
            seen.add(key)
            total += _bytes_of(tensor)
    return total


def _numbers(tensors: Iterable[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in tensors:
        found[str(each.dtype).removeprefix("torch.")] += int(each.numel())
    return found


def _bytes_of(tensor: Any) -> int:
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
    """Yield the tensors in a state; packed weights are in their own state."""
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


def _readable_tensors(module: Any) -> Iterator[Any]:
    """Yield the tensors of a module's state without those that are packed in an unknown form."""
    for value in module.state_dict().values():
        try:
            yield from [*_tensors(value)]
        except (AttributeError, RuntimeError, TypeError):
            continue  # `module_bytes` is None then


def _packed_weights(module: Any) -> Iterator[Any]:
    """Yield the weights and biases of a module's state that are neither parameters nor buffers."""
    known = {name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())}
    for name, value in module.state_dict().items():
        if name in known or name.rpartition(".")[2] in _NO_WEIGHTS:
            continue
        try:
            yield from [each for each in _tensors(value) if each.is_quantized or each.is_floating_point()]
        except (AttributeError, RuntimeError, TypeError):
            continue  # `module_bytes` is None then


# --- programs of TorchScript ---------------------------------------------------------------------


def _size_of_program(program: Any, path: Path | None) -> ModelSize:
    marked = sum(int(each.numel()) for each in program.parameters())
    archive = path if path is not None else io.BytesIO(program.save_to_buffer())
    size_bytes, storages = _read_archive(archive)
    numbers: Counter[str] = Counter()
    for each in storages:
        if each.dtype is not None:
            numbers[each.dtype] += each.numbers
    packed = sum(each.numbers for each in storages if each.is_packed and each.dtype in _WEIGHT_TYPES)
    return ModelSize(size_bytes, marked + packed or (None if size_bytes else 0), numbers)


def _read_archive(file: Path | io.BytesIO) -> tuple[int, list[_Storage]]:
    """Return the bytes of all tensors of an archive, and what they hold."""
    storages: list[_Storage] = []
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        size_bytes = sum(each.file_size for each in entries if _is_storage(each.filename))
        for each in entries:
            if each.filename.partition("/")[2] in ("data.pkl", "constants.pkl"):
                storages += _storages(archive.read(each))
    return size_bytes, storages


def _is_storage(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[1] in _STORAGE_FOLDERS


class _Stub:
    """What an archive names: its arguments and its state, and nothing that runs."""

    source = ""

    def __init__(self, *values: Any) -> None:
        self.values: list[Any] = [*values]

    def __setstate__(self, state: Any) -> None:
        self.values = [state]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values.append(value)


@dataclass(slots=True)
class _Storage:
    """Numbers of one type in the archive; `dtype` None is a type that no weights have."""

    dtype: str | None
    numbers: int
    is_packed: bool = False


class _StubReader(pickle.Unpickler):
    """Reads a pickle with a stub for every class: no code of it is found, so none is run."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Stub,), {"source": f"{module}.{name}"})

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[Any, _Storage] = {}

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, numbers = pid
        found = _Storage(_DTYPE_OF_STORAGE.get(getattr(kind, "__name__", "")), int(numbers))
        return self.storages.setdefault(key, found)


def _storages(pickled: bytes) -> list[_Storage]:
    """Return what a pickle of an archive refers to; `is_packed` is set of weights that layers pack.

    A layer of 8 bits packs its bias next to its weights, in an object of its own or in its state.
    """
    reader = _StubReader(io.BytesIO(pickled))
    waiting: list[_Stub] = [_Stub(reader.load())]
    seen: set[int] = set()
    while waiting:
        holder = waiting.pop()
        own, inner = _held(holder)
        is_packed = holder.source.startswith(_PACKED) or any(each.dtype in _QUANTIZED_TYPES for each in own)
        for each in own:
            each.is_packed |= is_packed
        waiting += [each for each in inner if id(each) not in seen]
        seen.update(map(id, inner))
    return [*reader.storages.values()]


def _elements(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> list[Any]:
    return [*(value.values() if isinstance(value, dict) else value)]


def _held(holder: _Stub) -> tuple[list[_Storage], list[_Stub]]:
    """Return the storages of the tensors in an object's state, and the objects in it."""
    storages: list[_Storage] = []
    objects: list[_Stub] = []
    waiting: list[Any] = [*holder.values]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _Storage):
            storages.append(value)
        elif isinstance(value, _Stub) and not value.source.startswith(_TENSORS):
            objects.append(value)
        elif isinstance(value, (_Stub, dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values if isinstance(value, _Stub) else _elements(value)
    return storages, objects
