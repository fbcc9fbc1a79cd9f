# SPDX-License-Identifier: Apache-2.0
"""Inputs of models in this process: of the model's own example, of a shape, or of a data source."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuprof.bench.models.data import InputSpec, check_source, make_source
from gpuprof.errors import BenchmarkError

MakeInputs = Callable[[int], Any]


def create_dataloader(
    data_source: str | os.PathLike[str] | Iterable[Any] = "synthetic",
    batch_size: int = 1,
    input_shape: tuple[int, ...] = (3, 224, 224),
    num_batches: int | None = None,
    seed: int = 0,
) -> Iterator[Any]:
    """Return batches of a data source as float32 arrays of (batch_size, *input_shape).

    `data_source` is "synthetic", a folder of images, a .npz file, or an iterable of samples; after the last
    sample comes the first one. `num_batches` None never ends. Raises BenchmarkError for what is no source.
    """
    counts = {"batch_size": batch_size, "num_batches": 1 if num_batches is None else num_batches}
    for name, count in counts.items():
        if count < 1:
            raise BenchmarkError("invalid_option", f"{name}={count}", hint="use 1 or more")
    data = os.fsdecode(data_source) if isinstance(data_source, (str, os.PathLike)) else data_source
    if isinstance(data, str):
        check_source(data, "data_source")
    return _batches(make_source(data, seed), batch_size, InputSpec(tuple(input_shape)), num_batches)


def _batches(source: Any, batch_size: int, inputs: InputSpec, left: int | None) -> Iterator[Any]:
    while left is None or left > 0:
        yield source.batch(batch_size, inputs)
        left = None if left is None else left - 1


def maker_of(
    model: Any, make_inputs: MakeInputs | None = None, input_shape: tuple[int, ...] | None = None
) -> MakeInputs:
    """Return what makes the inputs of a batch size for a model.

    Of `make_inputs`, else of normal numbers of `input_shape`, else of the model's own `example_input_array`,
    as PyTorch Lightning has it, else of the first layer where that is a linear one. Raises BenchmarkError.
    """
    if make_inputs is not None:
        return make_inputs
    if input_shape is not None:
        return _drawn_like(model, tuple(input_shape))
    found = own_maker(model)
    if found is None:
        raise BenchmarkError(
            "unknown_input_shape",
            f"{type(model).__name__}: the shape of its input is not known",
            hint="give make_inputs, or input_shape as in (3, 224, 224)",
        )
    return found


def own_maker(model: Any) -> MakeInputs | None:
    """Return what makes the inputs of a model that has their shape itself; None of others."""
    example = getattr(model, "example_input_array", None)
    if example is not None:
        return lambda size: _repeated(example, size)
    features = _first_features(model)
    return None if features is None else _drawn_like(model, (features,))


def _drawn_like(model: Any, shape: tuple[int, ...]) -> MakeInputs:
    """Return what draws arrays, as tensors of the type of the model's parameters where it is a module."""

    def draw(size: int) -> Any:
        array = make_source("synthetic").batch(size, InputSpec(shape))
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            return array
        dtypes = (each.dtype for each in model.parameters() if each.is_floating_point())
        return torch.from_numpy(array).to(next(dtypes, torch.float32))

    return draw


def _repeated(example: Any, size: int) -> Any:
    """Return a batch whose samples are the first one of an example."""
    if isinstance(example, tuple):
        return tuple(_repeated(each, size) for each in example)
    if isinstance(example, dict):
        return {name: _repeated(each, size) for name, each in example.items()}
    return example[:1].repeat(size, *[1] * (example.ndim - 1))


def _first_features(model: Any) -> int | None:
    """Return the input features of a module whose first layer is a linear one; None of others."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return None
    layers = (each for each in model.modules() if not [*each.children()])
    first = next(layers, None)
    return int(first.in_features) if isinstance(first, torch.nn.Linear) else None
