# SPDX-License-Identifier: Apache-2.0
"""What a loader hands out, as inputs of a call and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.measure.outputs import as_array, named_arrays
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch; `number` counts from 1. `labels` is None where there are none."""

    number: int
    inputs: Any
    labels: Integers | None


class Batches:
    """Reads batches and finds their labels.

    `labels` is None (the second of a pair is taken as labels where it is a whole number for each sample),
    True (it must be), False (there are none), the key of a dictionary, or the labels of all samples in order.
    """

    def __init__(self, loader: Any, labels: Any) -> None:
        self._loader, self._labels = _iterable(loader), labels
        self._all = None if labels is None or isinstance(labels, (bool, str)) else _all_labels(labels)
        self._taken = 0
        self._were_there: bool | None = None

    @property
    def are_asked_for(self) -> bool:
        """Whether the caller said that there are labels."""
        return self._labels is not None and self._labels is not False

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches. Raises BenchmarkError where there is none, or labels are missing."""
        number = 0
        for number, given in enumerate(self._loader, 1):
            inputs, labels = self._split(given, number)
            if self._all is None and self._were_there not in (None, labels is not None):
                raise BenchmarkError(
                    f"labels are missing in batch {number if labels is None else number - 1}, and other "
                    "batches have them: hand them out with every batch, or set labels=False"
                )
            self._were_there = labels is not None
            yield Batch(number, inputs, labels)
        if number == 0:
            raise BenchmarkError(
                "the loader handed out no batch: the data set is empty or was used up before"
            )
        if self._all is not None and self._taken < len(self._all):
            raise BenchmarkError(
                f"labels= holds {len(self._all):,} labels, and the loader handed out {self._taken:,} "
                "samples: one for each sample is needed"
            )

    def _split(self, given: Any, number: int) -> tuple[Any, Integers | None]:
        if self._labels is False:
            return _as_arguments(given), None
        if self._all is not None:
            return _as_arguments(given), self._next_of_all(given)
        if isinstance(self._labels, str):
            return _without_key(given, self._labels, number)
        return self._pair(given, number)

    def _pair(self, given: Any, number: int) -> tuple[Any, Integers | None]:
        is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and not hasattr(given, "_fields")
        labels = _as_labels(given[1]) if is_pair else None
        if labels is not None and (self._labels is True or len(labels) == _sample_count(given[0])):
            return given[0], labels
        if self._labels is True:
            raise BenchmarkError(
                f"labels are missing in batch {number}: labels=True needs pairs of inputs and labels, one "
                f"whole number for each sample, and the batch is {_description(given)}"
            )
        return _as_arguments(given), None

    def _next_of_all(self, given: Any) -> Integers:
        assert self._all is not None
        count = _sample_count(given)
        if count is None or self._taken + count > len(self._all):
            raise BenchmarkError(
                f"labels= holds {len(self._all):,} labels, fewer than the loader has samples: "
                "one for each sample is needed"
            )
        self._taken += count
        return self._all[self._taken - count : self._taken]


def _iterable(loader: Any) -> Iterable[Any]:
    """Return batches; a tensor, an array, a tuple or a dictionary is the inputs of one batch."""
    if hasattr(loader, "shape") or isinstance(loader, (Mapping, tuple)):
        return [loader]
    if callable(loader) and not hasattr(loader, "__iter__"):
        loader = loader()
    try:
        iter(loader)
    except TypeError:
        raise BenchmarkError(
            f"the loader is a {type(loader).__name__}: hand over what batches can be iterated from, such as "
            "a DataLoader or a list of batches"
        ) from None
    found: Iterable[Any] = loader
    return found


def _as_arguments(given: Any) -> Any:
    """Loaders make lists of what data sets make tuples of: positional arguments."""
    return tuple(given) if isinstance(given, list) else given


def _without_key(given: Any, key: str, number: int) -> tuple[Any, Integers]:
    if not isinstance(given, Mapping) or key not in given:
        raise BenchmarkError(f"labels are missing in batch {number}: {_description(given)} has no {key!r}")
    labels = _as_labels(given[key])
    if labels is None:
        raise BenchmarkError(f"{key!r} in batch {number} is not one whole number for each sample")
    return {name: value for name, value in given.items() if name != key}, labels


def _all_labels(labels: Any) -> Integers:
    found = _as_labels(np.asarray(labels) if isinstance(labels, (list, tuple)) else labels)
    if found is None:
        raise BenchmarkError("labels= is a key, True, False, or one whole number for each sample")
    return found


def _as_labels(value: Any) -> Integers | None:
    """Return whole numbers, one a sample; None of what is something else."""
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        return np.asarray(value)
    array = as_array(value)
    return array if array is not None and array.ndim == 1 and array.dtype.kind in "iu" else None


def _sample_count(inputs: Any) -> int | None:
    arrays = named_arrays(inputs).arrays.values()
    return next((len(each.values) for each in arrays if each.values.ndim), None)


def _description(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a dictionary of {', '.join(map(repr, given)) or 'nothing'}"
    if isinstance(given, (tuple, list)):
        return f"a {type(given).__name__} of {len(given)}"
    return f"one {type(given).__name__}"
