# SPDX-License-Identifier: Apache-2.0
"""A data set to be answered: each sample once, in an order that is the same for every variant.

`data.py` has the sources of timing, which begin again behind their last sample.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.models.data import ImageFolder, InputSpec, checked_batch, load_image, read_npz
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


SYNTHETIC_SAMPLES = 256


class Dataset:
    """Samples, their labels if there are any, and the names of their classes if those are known.

    `labels` are whole numbers, one a sample, where they are classes; metrics of the user may take others.
    """

    def __init__(
        self,
        text: str,
        places: Sequence[int],
        labels: Array | None = None,
        classes: tuple[str, ...] | None = None,
        *,
        checksum: int = 0,
    ) -> None:
        self.text, self._places, self.classes = text, places, classes
        self.labels = None if labels is None else labels[np.asarray(places)]
        crc = zlib.crc32(np.asarray(places, dtype=np.int64).tobytes(), checksum)
        crc = crc if self.labels is None else zlib.crc32(np.ascontiguousarray(self.labels).tobytes(), crc)
        # What `open_dataset` makes it of once more, in another process.
        self.asked: dict[str, Any] = {}
        # What two variants must have answered alike to be compared.
        self.identity = f"{text}, {len(places):,} samples, {crc:08x}"

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self._places)

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of a sample of a `.npz` with floats; None where the data does not tell."""
        return None

    def rows(self, first: int, last: int, inputs: InputSpec) -> Array:
        """Return samples from `first` up to and without `last`. Raises BenchmarkError."""
        return self._read(self._places[first:last], inputs)

    def _read(self, places: Sequence[int], inputs: InputSpec) -> Array:
        raise NotImplementedError


class _Synthetic(Dataset):
    """Normal or whole numbers, a generator for each sample: batch sizes change nothing."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__("synthetic", range(count), checksum=seed & 0xFFFFFFFF)
        self._seed = seed

    def _read(self, places: Sequence[int], inputs: InputSpec) -> Array:
        return np.stack([self._sample(place, inputs) for place in places])

    def _sample(self, place: int, inputs: InputSpec) -> Array:
        generator = np.random.default_rng((self._seed, place))
        if inputs.values is not None:
            return generator.integers(0, inputs.values, inputs.shape, dtype=np.int64)
        return generator.standard_normal(inputs.shape, dtype=np.float32)


class _Images(Dataset):
    """Images in a folder a class; classes and files in the order of their names."""

    def __init__(self, folder: Path, count: int | None, seed: int) -> None:
        source = ImageFolder(folder, seed)
        self._images = sorted(source.images, key=lambda each: (each[1], str(each[0])))
        labels = np.array([label for _, label in self._images], dtype=np.int64)
        places = _chosen(len(self._images), count, seed)
        names = "\n".join(str(self._images[place][0].relative_to(folder)) for place in places)
        checksum = zlib.crc32(names.encode(errors="surrogateescape"))
        super().__init__(str(folder), places, labels, tuple(source.classes), checksum=checksum)

    def _read(self, places: Sequence[int], inputs: InputSpec) -> Array:
        return np.stack([load_image(self._images[place][0], inputs.shape) for place in places])


class _Arrays(Dataset):
    """A `.npz` file: `inputs`, or its first array, and `labels`."""

    def __init__(self, path: Path, count: int | None, seed: int) -> None:
        self._samples, labels = read_npz(path)
        _check_labels(path, labels, len(self._samples))
        places = _chosen(len(self._samples), count, seed)
        checksum = zlib.crc32(np.ascontiguousarray(self._samples[np.asarray(places)]).tobytes())
        super().__init__(str(path), places, labels, checksum=checksum)

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of a sample; None for whole numbers, which may be tokens."""
        return tuple(self._samples.shape[1:]) if self._samples.dtype.kind == "f" else None

    def _read(self, places: Sequence[int], inputs: InputSpec) -> Array:
        return checked_batch(self._samples[np.asarray(places)], inputs, f"--dataset {self.text}")


def open_dataset(
    text: str, *, samples: int | None = None, seed: int = 0, needs_labels: bool = False
) -> Dataset:
    """Open `synthetic`, a folder of images in class folders, or a `.npz` file with `inputs` and `labels`.

    Of more than `samples` as many are drawn by the seed. Raises BenchmarkError for an empty data set, for
    labels of another number than the samples, and where labels are needed and missing.
    """
    if samples is not None and samples < 1:
        raise BenchmarkError(f"{samples} samples of --dataset {text}: take at least one")
    path = Path(text)
    found: Dataset
    if text == "synthetic":
        found = _Synthetic(SYNTHETIC_SAMPLES if samples is None else samples, seed)
    elif path.is_dir():
        found = _Images(path, samples, seed)
    elif path.suffix == ".npz":
        found = _Arrays(path, samples, seed)
    else:
        raise BenchmarkError(
            f"--dataset {text}: no folder of images and no .npz file is there; take synthetic, or correct "
            "the path"
        )
    found.asked = {"text": text, "samples": samples, "seed": seed}
    if needs_labels and found.labels is None:
        raise BenchmarkError(
            f"--dataset {text} has no labels, which accuracy needs: add an array `labels` to the .npz file, "
            "or take a folder of images with a folder for each class"
        )
    return found


def _chosen(total: int, count: int | None, seed: int) -> list[int]:
    """Return the places of the samples that are taken, in their own order."""
    if count is None or count >= total:
        return list(range(total))
    drawn = np.random.default_rng(seed).choice(total, count, replace=False)
    return [int(each) for each in np.sort(drawn)]


def _check_labels(path: Path, labels: Array | None, samples: int) -> None:
    if labels is None:
        return
    if labels.ndim == 0 or len(labels) != samples:
        count = "one label" if labels.ndim == 0 else f"{len(labels):,} labels"
        raise BenchmarkError(
            f"--dataset {path}: {count} for {samples:,} samples: one for each sample is needed"
        )
    if labels.dtype.kind not in "biuf":
        raise BenchmarkError(
            f"--dataset {path}: labels of type {labels.dtype} are no numbers: number the classes from 0"
        )
