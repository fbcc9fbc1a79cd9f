# SPDX-License-Identifier: Apache-2.0
"""How far one variant's numbers are from the other's, summed batch by batch in float64, and where.

Errors are over the elements that are finite on both sides; the others are counted and located. Whole
numbers and flags are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.bench.number_text import place_text

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Array, Flags, Floats

# Copies in float64 are made of so many elements at once, or of one sample.
_CHUNK_ELEMENTS = 1 << 21


@dataclass(frozen=True, slots=True)
class Place:
    """One element: the number of the sample over all batches, from 0, and the index in that sample."""

    sample: int
    index: tuple[int, ...]

    def __str__(self) -> str:
        return place_text(self.sample, self.index)


def _place_of(flat: int, shape: tuple[int, ...], first_sample: int) -> Place:
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


class NotFiniteCount:
    """Counts over batches; knows of the places no more than the first and the range on each axis."""

    def __init__(self) -> None:
        self._nan = self._infinite = self._samples = 0
        self._first: Place | None = None
        self._shape: tuple[int, ...] | None = None
        # The least and the greatest index on each axis; None where batches differ in their number of axes.
        self._ends: Array | None = None

    def add(self, values: Array, finite: Flags, first_sample: int) -> None:
        """Count one batch, (samples, ...); `finite` marks the finite values."""
        if finite.all():
            return
        nan = int(np.isnan(values[~finite]).sum())
        self._nan += nan
        self._infinite += int(finite.size - finite.sum()) - nan
        samples, *axes = np.nonzero(~finite)
        self._samples += len(np.unique(samples))
        ends = np.array([[axis.min(), -axis.max()] for axis in axes]).reshape(-1, 2)
        if self._shape is None:
            self._first = _place_of(int(np.argmin(finite)), values.shape, first_sample)
            self._shape, self._ends = values.shape[1:], ends
        elif self._ends is not None:
            self._ends = np.minimum(self._ends, ends) if self._ends.shape == ends.shape else None

    def result(self) -> NotFinite:
        """Return what was counted."""
        return NotFinite(self._nan, self._infinite, self._samples, self._first, self._common_slice())

    def _common_slice(self) -> str | None:
        if self._ends is None or self._shape is None:
            return None
        ends = zip(self._ends.tolist(), self._shape, strict=True)
        parts = [str(low) if low == -high and size > 1 else ":" for (low, high), size in ends]
        return None if set(parts) <= {":"} else f"[:, {', '.join(parts)}]"


@dataclass(frozen=True, slots=True)
class Numerics:
    """One output of two variants, "baseline" and "optimized".

    `shape` is that of one sample, None where it varies. With b and o for finite elements of both:
    `mse` is mean((o - b)^2); `relative_l2` sqrt(sum((o - b)^2) / sum(b^2)), None where all b are 0;
    `cosine_mean` and `cosine_min` are over the samples' cosines b.o / (|b| |o|), samples of nothing but zeros
    left out; `max_relative_error` is the largest |o - b| / |b| where b is not 0. `different` counts elements
    that are not equal (two NaNs are), `new_not_finite` those that are finite in the baseline alone. Of whole
    numbers there are `different` and `max_abs_error` only.
    """

    name: str
    shape: tuple[int | None, ...]
    baseline_dtype: str
    optimized_dtype: str
    samples: int
    elements: int
    compared: int
    different: int
    cosine_mean: float | None
    cosine_min: float | None
    cosine_min_sample: int | None
    mse: float | None
    relative_l2: float | None
    max_abs_error: float | None
    max_abs_place: Place | None
    max_relative_error: float | None
    max_relative_place: Place | None
    baseline_not_finite: NotFinite
    optimized_not_finite: NotFinite
    new_not_finite: int = 0


@dataclass(slots=True)
class _Largest:
    """The largest value seen, with its place."""

    value: float | None = None
    place: Place | None = None

    def add(self, values: Floats, first_sample: int) -> None:
        """Look through a batch, in which -1 marks what does not count."""
        flat = int(np.argmax(values)) if values.size else 0
        found = float(values.reshape(-1)[flat]) if values.size else -1.0
        if found >= 0 and (self.value is None or found > self.value):
            self.value, self.place = found, _place_of(flat, values.shape, first_sample)


class NumericsSum:
    """Sums over batches of one output; `samples` were added so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._dtypes = ("", "")
        self._shape: tuple[int | None, ...] | None = None
        self._is_exact = True
        self.samples = self._elements = self._compared = self._different = 0
        self._squares = self._baseline_squares = 0.0
        self._cosines, self._cosine_samples = 0.0, 0
        self._least_cosine: tuple[float, int] | None = None
        self._largest, self._largest_relative = _Largest(), _Largest()
        self._not_finite = NotFiniteCount(), NotFiniteCount()
        self._new_not_finite = 0

    def add(self, baseline: Array, optimized: Array, dtypes: tuple[str, str] | None = None) -> None:
        """Add a batch of equal shape, the samples along the first axis; a scalar is one sample."""
        if baseline.shape != optimized.shape:
            raise ValueError(f"shapes differ: {baseline.shape} and {optimized.shape}")
        self._dtypes = dtypes or (str(baseline.dtype), str(optimized.dtype))
        baseline, optimized = (np.atleast_1d(each) for each in (baseline, optimized))
        self._merge_shape(baseline.shape[1:])
        self._is_exact &= baseline.dtype.kind in "biu" and optimized.dtype.kind in "biu"
        for rows in _chunks(baseline.shape):
            self._add_chunk(_as_real(baseline[rows]), _as_real(optimized[rows]))

    def _merge_shape(self, shape: tuple[int, ...]) -> None:
        if self._shape is None:
            self._shape = shape
        elif len(self._shape) == len(shape):
            pairs = zip(self._shape, shape, strict=True)
            self._shape = tuple(old if old == new else None for old, new in pairs)
        else:
            self._shape = (None,)

    def _add_chunk(self, baseline: Array, optimized: Array) -> None:
        same = (baseline == optimized) | ((baseline != baseline) & (optimized != optimized))
        self._different += int(same.size - same.sum())
        self._elements += same.size
        # Signalling bit patterns that a broken variant left are no reason for a warning.
        with np.errstate(all="ignore"):
            old, new = baseline.astype(np.float64), optimized.astype(np.float64)
            finite = tuple(np.isfinite(each) for each in (old, new))
            for count, values, flags in zip(self._not_finite, (old, new), finite, strict=True):
                count.add(values, flags, self.samples)
            self._new_not_finite += int((finite[0] & ~finite[1]).sum())
            both = finite[0] & finite[1]
            old[~both] = new[~both] = 0.0
            self._compared += int(both.sum())
            self._add_errors(old, new, both)
            self._add_cosines(old.reshape(len(old), -1), new.reshape(len(new), -1))
        self.samples += len(old)

    def _add_errors(self, old: Floats, new: Floats, both: Flags) -> None:
        error, size = np.abs(new - old), np.abs(old)
        self._squares += float(np.square(error).sum())
        self._baseline_squares += float(np.square(old).sum())
        self._largest.add(np.where(both, error, -1.0), self.samples)
        relative = np.divide(error, size, out=np.full_like(error, -1.0), where=both & (size > 0))
        self._largest_relative.add(relative, self.samples)

    def _add_cosines(self, old: Floats, new: Floats) -> None:
        """Scale each sample by its largest element first, whose square may be more than a double holds."""
        lengths = [np.abs(each).max(axis=1, initial=0.0) for each in (old, new)]
        known = np.flatnonzero((lengths[0] > 0) & (lengths[1] > 0))
        if not len(known):
            return
        old, new = (
            each[known] / length[known, None] for each, length in zip((old, new), lengths, strict=True)
        )
        norms = np.sqrt(np.square(old).sum(axis=1) * np.square(new).sum(axis=1))
        cosines = np.clip((old * new).sum(axis=1) / norms, -1.0, 1.0)
        self._cosines += float(cosines.sum())
        self._cosine_samples += len(cosines)
        place = int(np.argmin(cosines))
        if self._least_cosine is None or cosines[place] < self._least_cosine[0]:
            self._least_cosine = float(cosines[place]), self.samples + int(known[place])

    def result(self) -> Numerics:
        """Return the figures of what was added."""
        is_real = not self._is_exact
        least = self._least_cosine if is_real else None
        return Numerics(
            name=self.name,
            shape=self._shape or (),
            baseline_dtype=self._dtypes[0],
            optimized_dtype=self._dtypes[1],
            samples=self.samples,
            elements=self._elements,
            compared=self._compared,
            different=self._different,
            cosine_mean=self._cosines / self._cosine_samples if self._cosine_samples and is_real else None,
            cosine_min=None if least is None else least[0],
            cosine_min_sample=None if least is None else least[1],
            mse=self._squares / self._compared if self._compared and is_real else None,
            relative_l2=self.relative_l2 if is_real else None,
            max_abs_error=self._largest.value,
            max_abs_place=self._largest.place,
            max_relative_error=self._largest_relative.value if is_real else None,
            max_relative_place=self._largest_relative.place if is_real else None,
            baseline_not_finite=self._not_finite[0].result(),
            optimized_not_finite=self._not_finite[1].result(),
            new_not_finite=self._new_not_finite,
        )

    @property
    def relative_l2(self) -> float | None:
        """The error's norm over the baseline's; 0 where both are 0, None where the baseline alone is."""
        if not self._compared:
            return None
        if self._baseline_squares > 0:
            return math.sqrt(self._squares / self._baseline_squares)
        return 0.0 if self._squares == 0 else None


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    rows = max(1, _CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], rows):
        yield slice(first, first + rows)


def _as_real(values: Array) -> Array:
    """Return complex numbers as pairs, (real, imaginary), along one more axis."""
    if values.dtype.kind != "c":
        return values
    return np.stack((values.real, values.imag), axis=-1)
