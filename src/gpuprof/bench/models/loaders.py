# SPDX-License-Identifier: Apache-2.0
"""Loaders of the user: a function that returns batches, named on a command line or handed over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpuprof.bench.failures import place_of, reason_of
from gpuprof.bench.measure.streaming import EndOfDataError
from gpuprof.bench.models.importing import find_named
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Array

# Returns samples in the type and shape that a model takes; the second value describes its input.
Check: TypeAlias = "Callable[[Array, Any, str], Array]"
_PREFIX = "python:"
_EXAMPLE = "python:package.module:make_batches or python:file.py:make_batches"


def is_loader(data: str) -> bool:
    """Whether `--data` names a function, as python:module:function or file.py:function."""
    return data.startswith(_PREFIX) or ".py:" in data


def check_loader(data: str, option: str) -> None:
    """Raise BenchmarkError for a name that cannot be that of a function; nothing is imported."""
    source, _, attribute = data.removeprefix(_PREFIX).rpartition(":")
    if not source or not attribute.isidentifier():
        raise BenchmarkError("invalid_loader", f"{option} {data}: no function", hint=f"write {_EXAMPLE}")
    if source.endswith(".py") and not Path(source).is_file():
        raise BenchmarkError(
            "no_such_file", f"{option} {data}: {source}: no such file", hint="check the path"
        )


class LoaderBatches:
    """The batches of an iterable, one after the other.

    A batch is an array or a tensor, or a tuple or list that begins with one, as of inputs and labels. An
    iterable begins again after its last batch, as a DataLoader does; an iterator has one pass.
    """

    def __init__(self, batches: Iterable[Any], name: str) -> None:
        self._iterable, self._name = batches, name
        self._iterator: Iterator[Any] = iter(batches)
        self._has_one_pass = self._iterator is batches
        self.passes = 0

    def next(self) -> Any:
        """Return the inputs of the next batch. Raises EndOfDataError after the last one of an iterator."""
        for _ in range(2):
            for batch in self._iterator:
                return batch[0] if isinstance(batch, (tuple, list)) else batch
            self.passes += 1
            if self._has_one_pass:
                raise EndOfDataError
            self._iterator = iter(self._iterable)
        raise BenchmarkError(
            "no_samples", f"{self._name}: the loader gave no batch", hint="return at least one batch"
        )


class LoaderSource:
    """LoaderBatches of the function that `data` names, called with the batch size where it takes a parameter.

    A batch that is smaller than asked for, as the last one of a data set may be, is left out.
    """

    def __init__(self, data: str, check: Check) -> None:
        self._data, self._check = data, check
        self._batches: LoaderBatches | None = None

    @property
    def passes(self) -> int:
        """How often the data was read to its end."""
        return 0 if self._batches is None else self._batches.passes

    def batch(self, batch_size: int, inputs: Any) -> Array:
        """Return the next batch. Raises BenchmarkError, and EndOfDataError after the last one."""
        is_first = self._batches is None
        self._batches = batches = self._batches or self._made(batch_size)
        passes = batches.passes
        while True:
            try:
                array = self._array(batches.next())
            except EndOfDataError:
                if is_first:
                    raise self._empty(batch_size) from None
                raise
            if len(array) == batch_size:
                return self._check(array, inputs, f"--data {self._data}")
            if len(array) > batch_size:
                raise self._another_size(len(array), batch_size)
            if batches.passes > passes + 1:
                raise self._empty(batch_size)

    def _made(self, batch_size: int) -> LoaderBatches:
        function = find_named(self._data.removeprefix(_PREFIX))
        if not callable(function):
            raise BenchmarkError(
                "invalid_loader", f"--data {self._data}: no function", hint=f"write {_EXAMPLE}"
            )
        try:
            made = function(batch_size) if inspect.signature(function).parameters else function()
            return LoaderBatches(made, f"--data {self._data}")
        except TypeError as error:
            raise BenchmarkError(
                "invalid_loader",
                f"--data {self._data}: {reason_of(error)}",
                hint="return an iterable of batches",
            ) from error
        except Exception as error:
            raise BenchmarkError(
                "loader_failed",
                f"--data {self._data} raised {reason_of(error)} at {place_of(error)}",
                hint="correct the loader",
            ) from error

    def _array(self, batch: Any) -> Array:
        array = np.asarray(batch)
        if array.ndim == 0 or array.dtype.kind not in "biuf":
            raise BenchmarkError(
                "unsupported_batch",
                f"--data {self._data}: a batch is {type(batch).__name__}, not an array of numbers",
                hint="yield arrays or tensors, or tuples that begin with one",
            )
        return array

    def _another_size(self, samples: int, batch_size: int) -> BenchmarkError:
        return BenchmarkError(
            "loader_batch_size",
            f"--data {self._data}: a batch of {samples} samples, and the batch size is {batch_size}",
            hint=f"give the function a parameter for the batch size, or use --batch-size {samples}",
        )

    def _empty(self, batch_size: int) -> BenchmarkError:
        return BenchmarkError(
            "no_samples",
            f"--data {self._data}: the loader gave no batch of {batch_size} samples",
            hint="return at least one batch of the batch size",
        )
