# SPDX-License-Identifier: Apache-2.0
"""The outputs of one variant for each sample of a data set, as plain arrays in a folder.

`batch-00000.npz` and so on hold a batch each, `labels.npz` the labels, and `answers.json`, written last, says
what they are. Nothing is pickled.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.accuracy.arrays import Outputs
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

FORMAT = 1
_INDEX = "answers.json"


class StoredArray:
    """An output with the type that it had before NumPy, which lacks bfloat16, got it."""

    def __init__(self, values: Array, dtype: str) -> None:
        self.values, self.dtype = values, dtype
        self.shape = values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values if dtype is None else self.values.astype(dtype)


class AnswerWriter:
    """Writes answers batch by batch."""

    def __init__(self, folder: Path, labels: Array | None) -> None:
        self._folder = folder
        self._dtypes: dict[str, str] | None = None
        self._count = 0
        self.skipped: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for old in (folder / _INDEX, *folder.glob("batch-*.npz"), folder / "labels.npz"):
            old.unlink(missing_ok=True)
        if labels is not None:
            np.savez(folder / "labels.npz", labels=labels)

    def add(self, outputs: Outputs, size: int, count: int) -> None:
        """Write the first `count` of `size` samples. Raises BenchmarkError where outputs change."""
        found = {
            name: each
            for name, each in outputs.arrays.items()
            if each.values.ndim and len(each.values) == size
        }
        for name in (*outputs.skipped, *(name for name in outputs.arrays if name not in found)):
            self.skipped[name] = None
        if not found:
            shapes = {name: each.values.shape for name, each in outputs.arrays.items()}
            raise BenchmarkError(
                f"no output has the {size} samples of the batch along its first axis "
                f"({shapes or 'nothing'}): outputs cannot be told apart by sample"
            )
        dtypes = {name: each.dtype for name, each in found.items()}
        if self._dtypes not in (None, dtypes):
            raise BenchmarkError(
                f"batch {self._count + 1} returns {dtypes}, the one before {self._dtypes}: they must be alike"
            )
        self._dtypes = dtypes
        arrays: dict[str, Any] = {
            f"output-{place}": each.values[:count] for place, each in enumerate(found.values())
        }
        np.savez(_batch_file(self._folder, self._count), **arrays)
        self._count += 1

    def finish(self, said: Mapping[str, Any]) -> None:
        """Write what the answers are."""
        outputs = [{"name": name, "dtype": dtype} for name, dtype in (self._dtypes or {}).items()]
        notes = [f"not stored, since it has no values for each sample: {name}" for name in self.skipped]
        text = json.dumps({"format": FORMAT, "outputs": outputs, **said, "notes": notes}, indent=1)
        draft = self._folder / f".{_INDEX}.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self._folder / _INDEX)


def _batch_file(folder: Path, number: int) -> Path:
    return folder / f"batch-{number:05d}.npz"


@dataclass(frozen=True)
class StoredAnswers:
    """The answers of one variant. `said` is what the launch told of it.

    `computes_in` is the type whose roundoff they have, None where it is not known.
    """

    name: str
    folder: Path
    samples: int
    batch_size: int
    outputs: Mapping[str, str]
    data: str
    computes_in: str | None
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]
    said: Mapping[str, Any] = field(repr=False)

    @property
    def labels(self) -> Array | None:
        """The labels of all samples; None where there are none."""
        path = self.folder / "labels.npz"
        return _load(path)["labels"] if path.exists() else None

    def rows(self, first: int, last: int) -> dict[str, StoredArray]:
        """Return the outputs of samples from `first` up to and without `last`."""
        files = range(first // self.batch_size, (last - 1) // self.batch_size + 1)
        batches = [_load(_batch_file(self.folder, number)) for number in files]
        offset = files.start * self.batch_size
        found = {}
        for place, (name, dtype) in enumerate(self.outputs.items()):
            parts = [batch[f"output-{place}"] for batch in batches]
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            found[name] = StoredArray(values[first - offset : last - offset], dtype)
        return found

    def arrays(self) -> dict[str, Array]:
        """Return all outputs of all samples."""
        return {name: each.values for name, each in self.rows(0, self.samples).items()}


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            f"{path}: stored answers cannot be read ({error}): run the variant again"
        ) from error


def read_answers(name: str, folder: Path) -> StoredAnswers:
    """Read the answers in a folder. Raises BenchmarkError where they are missing or not whole."""
    path = folder / _INDEX
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise BenchmarkError(f"{path} is of format {said['format']}, not {FORMAT}: run the variant again")
        classes = said["classes"]
        return StoredAnswers(
            name=name,
            folder=folder,
            samples=said["samples"],
            batch_size=said["batch_size"],
            outputs={each["name"]: each["dtype"] for each in said["outputs"]},
            data=said["data"],
            computes_in=said["computes_in"],
            classes=None if classes is None else tuple(classes),
            notes=tuple(said["notes"]),
            said=said,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(
            f"{path}: no answers that can be read ({error!r}): run the variant again"
        ) from error
