# SPDX-License-Identifier: Apache-2.0
"""Inputs: data sets whose samples have an order, and sources that hand out batch after batch.

A data set is run once, in an order that is the same for every variant: `synthetic`, images in class
folders, or a `.npz` file. A source of timing begins again after its last sample.
"""

from __future__ import annotations

import importlib.util
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.models.image_folders import ImageFiles, find_images
from gpuprof.bench.models.loaders import LoaderSource, check_loader, is_loader
from gpuprof.errors import BenchmarkError, UnavailableError

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Array, Integers

# Mean and deviation of ImageNet's red, green and blue, from 0 to 1.
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_DEVIATION = (0.229, 0.224, 0.225)
SYNTHETIC_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One argument of a model: the shape of one sample, and for whole numbers how many there are to draw."""

    shape: tuple[int, ...]
    values: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers, as tokens are."""
        return self.values is not None


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as tables show it: 3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], inputs: InputSpec) -> Array:
    if inputs.values is not None:
        return generator.integers(0, inputs.values, shape, dtype=np.int64)
    return generator.standard_normal(shape, dtype=np.float32)


def _checked_batch(batch: Array, inputs: InputSpec, where: str) -> Array:
    """Return samples in the type that models take. Raises BenchmarkError where their shape is another."""
    if batch.shape[1:] != inputs.shape:
        raise BenchmarkError(
            "input_shape_of_data",
            f"{where}: a sample has the shape {shape_text(batch.shape[1:])} and the model takes "
            f"{shape_text(inputs.shape)}",
            hint="specify it with --input-shape",
        )
    return np.ascontiguousarray(batch, dtype=np.int64 if inputs.is_whole else np.float32)


# --- data sets -----------------------------------------------------------------------------------


class Dataset:
    """Samples in an order, of those that `text` names the ones at `places`.

    `asked` is what `open_dataset` makes it of once more in another process, `classes` are the names of the
    classes where they are known.
    """

    classes: tuple[str, ...] | None = None
    _all_labels: Array | None = None
    # The shape of a sample of a `.npz` with floats; None where the data has none.
    sample_shape: tuple[int, ...] | None = None

    def __init__(self, text: str, places: Sequence[int] | Integers) -> None:
        self.text = text
        self._places: Integers = np.asarray(places, dtype=np.int64)
        self.asked: dict[str, Any] = {}

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self._places)

    @cached_property
    def labels(self) -> Array | None:
        """One a sample, whole numbers where they are classes; metrics of the user may take others."""
        return None if self._all_labels is None else self._all_labels[self._places]

    @cached_property
    def identity(self) -> str:
        """What must be equal for two variants to be compared."""
        crc = zlib.crc32(self._places.tobytes(), self._checksum())
        labels = self.labels
        crc = crc if labels is None else zlib.crc32(np.ascontiguousarray(labels).tobytes(), crc)
        return f"{self.text}, {self.samples:,} samples, {crc:08x}"

    def rows(self, first: int, last: int, inputs: InputSpec) -> Array:
        """Return samples from `first` up to and without `last`. Raises BenchmarkError."""
        return self._read(self._places[first:last], inputs)

    def again(self, first: int, count: int, inputs: InputSpec) -> Array:
        """Return so many samples from `first` on, where the first one follows the last."""
        return self._read(self._places[np.arange(first, first + count) % self.samples], inputs)

    def _checksum(self) -> int:
        raise NotImplementedError

    def _read(self, places: Integers, inputs: InputSpec) -> Array:
        raise NotImplementedError


class _Synthetic(Dataset):
    """Normal or whole numbers, a generator for each sample: batch sizes change nothing."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__("synthetic", range(count))
        self._seed = seed

    def _checksum(self) -> int:
        return self._seed & 0xFFFFFFFF

    def _read(self, places: Integers, inputs: InputSpec) -> Array:
        generators = (np.random.default_rng((self._seed, place)) for place in places.tolist())
        return np.stack([_drawn(each, inputs.shape, inputs) for each in generators])


class _Images(Dataset):
    """Images in a folder a class, resized, scaled, centered; classes and files in order of their names."""

    def __init__(self, folder: Path, found: ImageFiles, count: int | None, seed: int) -> None:
        self.classes = found.classes
        self._files = [file for file, _ in found.files]
        self._all_labels = np.array([label for _, label in found.files], dtype=np.int64)
        super().__init__(str(folder), _chosen(len(found.files), count, seed))

    def shuffle(self, seed: int) -> None:
        """Put the samples into an order that the seed decides: as timing draws them."""
        import random

        places = self._places.tolist()
        random.Random(seed).shuffle(places)  # noqa: S311 - an order, no secret
        self._places = np.array(places)

    def _checksum(self) -> int:
        names = "\n".join(str(self._files[place].relative_to(self.text)) for place in self._places)
        return zlib.crc32(names.encode(errors="surrogateescape"))

    def _read(self, places: Integers, inputs: InputSpec) -> Array:
        return np.stack([_load_image(self._files[place], inputs.shape) for place in places])


class _Arrays(Dataset):
    """A `.npz` file: `inputs`, or its only or first array, samples along the first axis, and `labels`."""

    def __init__(self, path: Path, count: int | None, seed: int) -> None:
        self._samples, self._all_labels = _read_npz(path)
        super().__init__(str(path), _chosen(len(self._samples), count, seed))
        # Whole numbers may be tokens, of which there may be any number.
        self.sample_shape = tuple(self._samples.shape[1:]) if self._samples.dtype.kind == "f" else None

    def check_labels(self) -> None:
        """Raise BenchmarkError for labels of another number than the samples, and for such as no numbers."""
        labels, samples = self._all_labels, len(self._samples)
        if labels is None:
            return
        if labels.ndim == 0 or len(labels) != samples:
            count = "one label" if labels.ndim == 0 else f"{len(labels):,} labels"
            raise BenchmarkError(
                "number_of_labels",
                f"{self.text}: {count} for {samples:,} samples",
                hint="write one label for each sample",
            )
        if labels.dtype.kind not in "biuf":
            raise BenchmarkError(
                "invalid_labels",
                f"{self.text}: labels of type {labels.dtype} are no numbers",
                hint="number the classes from 0",
            )

    def _checksum(self) -> int:
        return zlib.crc32(np.ascontiguousarray(self._samples[self._places]).tobytes())

    def _read(self, places: Integers, inputs: InputSpec) -> Array:
        return _checked_batch(self._samples[places], inputs, self.text)


def open_dataset(
    text: str,
    *,
    samples: int | None = None,
    seed: int = 0,
    needs_labels: bool = False,
    split: str | None = None,
) -> Dataset:
    """Open `synthetic`, a folder of images in class folders, or a `.npz` file with `inputs` and `labels`.

    Of more than `samples` as many are drawn by the seed. `split` is the folder of a split, such as "val", in
    a folder of images that has some. Raises BenchmarkError for an empty data set, for labels of another
    number than the samples, where labels are needed and missing, and where a split is missing or unknown.
    """
    if samples is not None and samples < 1:
        raise BenchmarkError(
            "invalid_samples", f"{samples} samples of --dataset {text}", hint="use at least one"
        )
    path = Path(text)
    found: Dataset
    if split is not None and not path.is_dir():
        raise BenchmarkError(
            "unknown_split", f"--split {split}: --dataset {text} has no splits", hint="omit --split"
        )
    if text == "synthetic":
        found = _Synthetic(SYNTHETIC_SAMPLES if samples is None else samples, seed)
    elif path.is_dir():
        found = _Images(path / (split or ""), find_images(path, split), samples, seed)
    elif path.suffix == ".npz":
        found = arrays = _Arrays(path, samples, seed)
        arrays.check_labels()
    else:
        raise _nothing_there(text, "--dataset")
    found.asked = {"text": text, "samples": samples, "seed": seed, "split": split}
    if needs_labels and found.labels is None:
        raise BenchmarkError(
            "no_labels",
            f"--dataset {text} has no labels, which accuracy needs",
            hint="add an array `labels` to the .npz file, or use a folder of images for each class",
        )
    return found


def _nothing_there(text: str, option: str) -> BenchmarkError:
    return BenchmarkError(
        "no_such_data",
        f"{option} {text}: no folder of images and no .npz file is there",
        hint="use synthetic, or correct the path",
    )


def _chosen(total: int, count: int | None, seed: int) -> Integers:
    """Return the places of the samples that are taken, in their own order."""
    if count is None or count >= total:
        return np.arange(total)
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def _no_such_file(name: str) -> BenchmarkError:
    return BenchmarkError(
        "no_such_file",
        f"{name}: no such file",
        hint="check the path, or run the script that writes the file with numpy.savez",
    )


def _read_npz(path: Path) -> tuple[Array, Array | None]:
    """Return the samples of a `.npz` file and its array `labels`, if there is one. Raises BenchmarkError."""
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not arrays.files:
                raise BenchmarkError(
                    "no_array", f"{path}: the file holds no array", hint="write it with numpy.savez"
                )
            samples: Array = arrays["inputs" if "inputs" in arrays.files else arrays.files[0]]
            labels: Array | None = arrays["labels"] if "labels" in arrays.files else None
    except FileNotFoundError as error:
        raise _no_such_file(str(path)) from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            "cannot_read",
            f"{path}: cannot be read without unpickling ({error})",
            hint="write it with numpy.savez",
        ) from error
    if samples.ndim == 0 or not len(samples):
        raise BenchmarkError(
            "no_samples", f"{path}: it holds no samples", hint="write an array of at least one"
        )
    return samples, labels


def _check_lengths(path: Path) -> None:
    """Raise BenchmarkError for a `.npz` without arrays, or with others than one label a sample."""
    lengths = _npz_lengths(path)
    if not lengths:
        raise BenchmarkError("no_array", f"{path}: the file holds no array", hint="write it with numpy.savez")
    samples = lengths["inputs" if "inputs" in lengths else next(iter(lengths))]
    if not samples:
        raise BenchmarkError(
            "no_samples", f"{path}: it holds no samples", hint="write an array of at least one"
        )
    if lengths.get("labels", samples) != samples:
        raise BenchmarkError(
            "number_of_labels",
            f"{path}: {lengths['labels']:,} labels for {samples:,} samples",
            hint="write one label for each sample",
        )


def _npz_lengths(path: Path) -> dict[str, int]:
    """Return the length of each array by its name, 0 of a single value; reads their heads alone."""
    import zipfile

    lengths = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    read = np.lib.format.read_array_header_1_0
                    read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
                    shape = read(file)[0]
                    lengths[name.removesuffix(".npy")] = shape[0] if shape else 0
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            "cannot_read", f"{path}: cannot be read ({error})", hint="write it with numpy.savez"
        ) from error
    return lengths


def _load_image(file: Path, shape: tuple[int, ...]) -> Array:
    """Decode an image as (3, height, width) or (height, width, 3), as `shape` is. Raises BenchmarkError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise _no_pillow() from error
    is_first = len(shape) == 3 and shape[0] == 3
    if not is_first and (len(shape) != 3 or shape[2] != 3):
        raise BenchmarkError(
            "input_shape_of_images",
            f"images cannot be inputs of shape {shape_text(shape)}",
            hint="use --data synthetic",
        )
    height, width = shape[1:] if is_first else shape[:2]
    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB").resize((width, height)), dtype=np.float32)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BenchmarkError(
            "cannot_read", f"{file}: not a readable image ({error})", hint="remove it"
        ) from error
    scaled = (pixels / 255 - np.array(IMAGE_MEAN, np.float32)) / np.array(IMAGE_DEVIATION, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1) if is_first else scaled)


def _no_pillow() -> UnavailableError:
    return UnavailableError("not_installed", "reading images needs Pillow", hint="pip install pillow")


# --- sources of timing ---------------------------------------------------------------------------


class DataSource(Protocol):
    """Hands out arrays of a batch, the samples along the first axis, float32 or int64."""

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Return the next `batch_size` samples. Raises BenchmarkError."""
        ...


def make_source(data: str | Iterable[Any], seed: int = 0) -> DataSource:
    """Return the source that `data` names, or one around the caller's iterable of samples."""
    if not isinstance(data, str):
        return _IteratorSource(data)
    if data == "synthetic":
        return _SyntheticSource(seed)
    path = Path(data)
    if is_loader(data):
        return LoaderSource(data, _checked_batch)
    if path.is_dir():
        images = _Images(path, find_images(path, needs_labels=False), None, seed)
        images.shuffle(seed)
        return _DatasetSource(lambda: images)
    if path.suffix == ".npz":
        return _DatasetSource(lambda: _Arrays(path, None, seed))
    raise _nothing_there(data, "--data")


def check_source(data: str, option: str) -> None:
    """Raise GpuprofError where `make_source` or the first batch would: reads names, not the samples."""
    path = Path(data)
    if data == "synthetic":
        return
    if is_loader(data):
        check_loader(data, option)
        return
    if path.suffix == ".npz" and not path.is_dir():
        if not path.is_file():
            raise _no_such_file(f"{option} {data}")
        import zipfile

        if not zipfile.is_zipfile(path):
            raise BenchmarkError(
                "not_an_npz_file", f"{option} {data}: not a .npz file", hint="write it with numpy.savez"
            )
        _check_lengths(path)
        return
    make_source(data)
    if importlib.util.find_spec("PIL") is None:
        raise _no_pillow()


class _SyntheticSource:
    """Normal numbers, or whole ones drawn evenly; the same seed and batch size give the same batch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Draw one batch."""
        with memory_failures(batch_size):
            return _drawn(np.random.default_rng(self._seed), (batch_size, *inputs.shape), inputs)


class _DatasetSource:
    """The samples of a data set, which is opened for its first batch; the first one follows the last."""

    def __init__(self, opened: Callable[[], Dataset]) -> None:
        self._opened = opened
        self._dataset: Dataset | None = None
        self._next = 0

    @property
    def passes(self) -> int:
        """How often the data was read to its end."""
        return 0 if self._dataset is None else self._next // self._dataset.samples

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Return the next samples."""
        self._dataset = self._dataset or self._opened()
        first, self._next = self._next, self._next + batch_size
        with memory_failures(batch_size):
            return self._dataset.again(first, batch_size, inputs)


class _IteratorSource:
    """What the caller hands over: an iterable of samples, each an array."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = iter(samples)
        self._kept: list[Array] = []

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Take the next samples; those that were taken come again where the iterable has ended."""
        taken = [np.asarray(each) for each in itertools.islice(self._samples, batch_size)]
        self._kept += taken
        if not self._kept:
            raise BenchmarkError(
                "no_samples", "data_source returns no samples", hint="use an iterable with at least one"
            )
        again = itertools.cycle(self._kept)
        taken += itertools.islice(again, batch_size - len(taken))
        return _checked_batch(np.stack(taken), inputs, "data_source")
