# SPDX-License-Identifier: Apache-2.0
"""Where in the outputs something is: a sample and an index in it, or what many places have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Place:
    """One element: the number of the sample over all batches, from 0, and the index in that sample."""

    sample: int
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"sample {self.sample}" + (f" at {list(self.index)}" if self.index else "")


def place_of(flat: int, shape: tuple[int, ...], first_sample: int) -> Place:
    """Return the place of the element number `flat` of a batch whose first sample has that number."""
    row, *index = (int(each) for each in np.unravel_index(flat, shape))
    return Place(first_sample + row, tuple(index))


@dataclass(frozen=True, slots=True)
class NotFinite:
    """How many NaNs and infinities there are, the first of them, and on what slice they all lie.

    `slice` is of one sample with its batch: `[:, 3, :, :]` means that all are in channel 3. It is None where
    the elements have no index in common.
    """

    nan: int = 0
    infinite: int = 0
    samples: int = 0
    first: Place | None = None
    slice: str | None = None

    @property
    def count(self) -> int:
        """NaNs and infinities together."""
        return self.nan + self.infinite

    def __str__(self) -> str:
        kinds = [f"{self.nan:,} NaN"] if self.nan else []
        kinds += [f"{self.infinite:,} infinite"] if self.infinite else []
        where = "" if self.slice is None else f", all in {self.slice}"
        return f"{' and '.join(kinds) or 'none'}{where}" + (
            "" if self.first is None else f", first in {self.first}"
        )


class NotFiniteCount:
    """Counts over batches; knows of the places no more than the first and the range on each axis."""

    def __init__(self) -> None:
        self._nan = self._infinite = self._samples = 0
        self._first: Place | None = None
        self._low: Array | None = None
        self._high: Array | None = None
        self._shape: tuple[int, ...] = ()
        self._is_sliceable = True

    def add(self, values: Array, finite: Flags, first_sample: int) -> None:
        """Count one batch, (samples, ...); `finite` says which of its values are."""
        if finite.all():
            return
        nan = int(np.isnan(values[~finite]).sum())
        self._nan += nan
        self._infinite += int(finite.size - finite.sum()) - nan
        places = np.nonzero(~finite)
        self._samples += len(np.unique(places[0]))
        if self._first is None:
            flat = int(np.argmin(finite.reshape(-1)))
            self._first, self._shape = place_of(flat, values.shape, first_sample), values.shape[1:]
        self._widen(
            np.array([[axis.min(), axis.max()] for axis in places[1:]]).reshape(-1, 2), values.shape[1:]
        )

    def _widen(self, ranges: Array, shape: tuple[int, ...]) -> None:
        if len(shape) != len(self._shape):
            self._is_sliceable = False
            return
        low, high = ranges[:, 0], ranges[:, 1]
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)

    def result(self) -> NotFinite:
        """Return what was counted."""
        return NotFinite(self._nan, self._infinite, self._samples, self._first, self._common_slice())

    def _common_slice(self) -> str | None:
        if not self._is_sliceable or self._low is None or self._high is None:
            return None
        ends = zip(self._low.tolist(), self._high.tolist(), self._shape, strict=True)
        parts = [str(low) if low == high and size > 1 else ":" for low, high, size in ends]
        return None if set(parts) <= {":"} else f"[:, {', '.join(parts)}]"


def plain(value: Any) -> Any:
    """Return plain data for JSON, which knows no NaN and no infinity: both become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
