# SPDX-License-Identifier: Apache-2.0
"""Inputs: synthetic with a seed, images in class folders, arrays of a file, or what the caller hands over."""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuprof.bench.measure.memory import memory_failures
from gpuprof.errors import BenchmarkError, UnavailableError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
# Mean and deviation of ImageNet's red, green and blue, from 0 to 1.
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One argument of a model: the shape of one sample, and for whole numbers how many there are to draw."""

    shape: tuple[int, ...]
    values: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers, as tokens are."""
        return self.values is not None


class DataSource(Protocol):
    """Hands out arrays of a batch, the samples along the first axis, float32 or int64."""

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Return the next `batch_size` samples. Raises BenchmarkError."""
        ...


def make_source(data: str | Iterable[Any], seed: int = 0) -> DataSource:
    """Return the source that `data` names, or one around the caller's iterable of samples."""
    if not isinstance(data, str):
        return IteratorSource(data)
    if data == "synthetic":
        return SyntheticSource(seed)
    path = Path(data)
    if path.is_dir():
        return ImageFolder(path, seed)
    if path.suffix == ".npz":
        return ArrayFile(path)
    raise BenchmarkError(
        f"--data {data}: no folder of images and no .npz file is there; take synthetic, or correct the path"
    )


def check_source(data: str, option: str) -> None:
    """Raise GpuprofError where `make_source` or the first batch would: reads names, not the samples."""
    path = Path(data)
    if data == "synthetic":
        return
    if path.suffix == ".npz" and not path.is_dir():
        if not path.is_file():
            raise BenchmarkError(f"{option} {data}: there is no such file: correct the path")
        import zipfile

        if not zipfile.is_zipfile(path):
            raise BenchmarkError(f"{option} {data}: no .npz file: write it with numpy.savez")
        return
    make_source(data)
    if importlib.util.find_spec("PIL") is None:
        raise UnavailableError("reading images needs Pillow: pip install pillow")


class SyntheticSource:
    """Normal numbers, or whole ones drawn evenly; the same seed and batch size give the same batch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Draw one batch."""
        import numpy as np

        generator = np.random.default_rng(self._seed)
        shape = (batch_size, *inputs.shape)
        with memory_failures(batch_size):
            if inputs.values is not None:
                return generator.integers(0, inputs.values, shape, dtype=np.int64)
            return generator.standard_normal(shape, dtype=np.float32)


class ArrayFile:
    """A `.npz` file: its array `inputs`, or its only or first one, samples along the first axis."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._samples: Array | None = None
        self._place = 0

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Return the next samples, from the first again after the last."""
        import numpy as np

        if self._samples is None:
            self._samples, _ = read_npz(self._path)
        places = np.arange(self._place, self._place + batch_size) % len(self._samples)
        self._place = int(places[-1]) + 1
        with memory_failures(batch_size):
            return checked_batch(self._samples[places], inputs, f"--data {self._path}")


def read_npz(path: Path) -> tuple[Array, Array | None]:
    """Return the samples of a `.npz` file and its array `labels`, if there is one. Raises BenchmarkError."""
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not arrays.files:
                raise BenchmarkError(f"--data {path}: the file holds no array")
            samples: Array = arrays["inputs" if "inputs" in arrays.files else arrays.files[0]]
            labels: Array | None = arrays["labels"] if "labels" in arrays.files else None
    except FileNotFoundError as error:
        raise BenchmarkError(f"--data {path}: there is no such file: correct the path") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            f"--data {path}: cannot be read without unpickling ({error}): write it with numpy.savez"
        ) from error
    if samples.ndim == 0 or not len(samples):
        raise BenchmarkError(f"--data {path}: it holds no samples: write an array of at least one")
    return samples, labels


class ImageFolder:
    """Images in one folder a class, drawn in an order that the seed decides; resized, scaled, centred."""

    def __init__(self, folder: Path, seed: int) -> None:
        import random

        classes = sorted(each for each in folder.iterdir() if each.is_dir())
        self.classes = [each.name for each in classes]
        self.images = [
            (file, label)
            for label, each in enumerate(classes)
            for file in sorted(each.rglob("*"))
            if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not self.images:
            raise BenchmarkError(f"--data {folder}: no samples: it needs folders of images, one a class")
        random.Random(seed).shuffle(self.images)  # noqa: S311 - an order, no secret
        self._place = 0

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Decode the next images, from the first again after the last."""
        import numpy as np

        with memory_failures(batch_size):
            return np.stack([self._next(inputs) for _ in range(batch_size)])

    def _next(self, inputs: InputSpec) -> Array:
        file, _ = self.images[self._place % len(self.images)]
        self._place += 1
        return load_image(file, inputs.shape)


def load_image(file: Path, shape: tuple[int, ...]) -> Array:
    """Decode an image as (3, height, width) or (height, width, 3), as `shape` is. Raises BenchmarkError."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise UnavailableError("reading images needs Pillow: pip install pillow") from error
    is_first = len(shape) == 3 and shape[0] == 3
    if not is_first and (len(shape) != 3 or shape[2] != 3):
        raise BenchmarkError(f"images cannot be inputs of shape {shape_text(shape)}: take --data synthetic")
    height, width = shape[1:] if is_first else shape[:2]
    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB").resize((width, height)), dtype=np.float32)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise BenchmarkError(f"{file}: no image that can be read ({error}): remove it") from error
    scaled = (pixels / 255 - np.array(IMAGE_MEAN, np.float32)) / np.array(IMAGE_DEVIATION, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1) if is_first else scaled)


class IteratorSource:
    """What the caller hands over: an iterable of samples, each an array."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = iter(samples)
        self._kept: list[Array] = []

    def batch(self, batch_size: int, inputs: InputSpec) -> Array:
        """Take the next samples; those that were taken come again where the iterable has ended."""
        import numpy as np

        taken = [np.asarray(each) for each in itertools.islice(self._samples, batch_size)]
        self._kept += taken
        if not self._kept:
            raise BenchmarkError("data_source hands out no samples: it needs at least one")
        again = itertools.cycle(self._kept)
        taken += itertools.islice(again, batch_size - len(taken))
        return checked_batch(np.stack(taken), inputs, "data_source")


def checked_batch(batch: Array, inputs: InputSpec, where: str) -> Array:
    """Return samples in the type that models take. Raises BenchmarkError where their shape is another."""
    import numpy as np

    if batch.shape[1:] != inputs.shape:
        raise BenchmarkError(
            f"{where}: a sample has the shape {shape_text(batch.shape[1:])} and the model takes "
            f"{shape_text(inputs.shape)}: name it with --input-shape"
        )
    return np.ascontiguousarray(batch, dtype=np.int64 if inputs.is_whole else np.float32)


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as tables show it: 3x224x224."""
    return "x".join(map(str, shape)) or "scalar"


# --- stages --------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _nothing() -> None:
    return None


@dataclass(slots=True)
class StageTimes:
    """Seconds of each stage of each item, in order; `total_s` holds what passed between the stages too."""

    preprocess_s: list[float] = field(default_factory=list)
    inference_s: list[float] = field(default_factory=list)
    postprocess_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Preprocess, inference and postprocess of one item, each timed on its own.

    `synchronize` waits for the device behind the preprocess stage and behind the inference, so that what one
    stage enqueued is not paid for by the next.
    """

    inference: Callable[[Any], Any]
    preprocess: Callable[[Any], Any] = _same
    postprocess: Callable[[Any], Any] = _same
    synchronize: Callable[[], object] = _nothing

    def __call__(self, item: Any) -> Any:
        """Run all stages."""
        return self.postprocess(self.inference(self.preprocess(item)))

    def measure(
        self, items: Iterable[Any], *, warmup: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> StageTimes:
        """Time the stages of each item; the first `warmup` ones are run and not kept.

        Raises BenchmarkError where no item is left to be measured.
        """
        times = StageTimes()
        for number, marks in enumerate(self._marks(items, clock)):
            if number < warmup:
                continue
            begin, prepared, inferred, end = marks
            times.preprocess_s.append(prepared - begin)
            times.inference_s.append(inferred - prepared)
            times.postprocess_s.append(end - inferred)
            times.total_s.append(end - begin)
        if not times.total_s:
            raise BenchmarkError("the pipeline got no samples after the warm-up: hand over more items")
        return times

    def _marks(
        self, items: Iterable[Any], clock: Callable[[], float]
    ) -> Iterator[tuple[float, float, float, float]]:
        for item in items:
            begin = clock()
            prepared = self.preprocess(item)
            self.synchronize()
            middle = clock()
            inferred = self.inference(prepared)
            self.synchronize()
            answered = clock()
            self.postprocess(inferred)
            yield begin, middle, answered, clock()
