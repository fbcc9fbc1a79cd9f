# SPDX-License-Identifier: Apache-2.0
"""The outputs of the variants for each sample of a data set: computed in processes, stored, and compared.

`batch-00000.npz` and so on hold a batch each, `labels.npz` the labels, and `answers.json`, written last,
describes them. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpuprof.bench.accuracy.outputs_comparison import MARGIN, Batch, OutputsSum
from gpuprof.bench.accuracy.outputs_report import OutputComparison
from gpuprof.bench.accuracy.tolerance import coarsest
from gpuprof.bench.accuracy.variants import kept_random_states
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import note
from gpuprof.bench.frameworks import framework_name, make_system
from gpuprof.bench.frameworks.base import FrameworkSystem, choice_of
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.measure.outputs import NamedArray, Outputs, named_arrays
from gpuprof.bench.models.data import Dataset, open_dataset
from gpuprof.bench.models.sources import parse_model
from gpuprof.bench.serialization import decode, encode
from gpuprof.bench.workers.events import Event, Send, State
from gpuprof.bench.workers.measuring import load_system, prepare_system
from gpuprof.bench.workers.process import run_process
from gpuprof.bench.workers.schedule import TIME_LIMIT_S
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Array


FORMAT = 3
BATCH_SIZE = 32
_INDEX = "answers.json"
# What one process run of a float64 reference may be made of: modules that PyTorch can turn into it.
_MODULE_KINDS = ("name", "factory", "pickle", "torchscript")
_MODULE_FRAMEWORKS = ("auto", "pytorch", "torch-compile", "torchscript", "torch-export", "onnxruntime")


# --- stored outputs ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OutputsIndex:
    """What stored outputs are: `outputs` are their types by name, `computes_in` the type of their roundoff.

    `computes_in` is None where it is not known.
    """

    format: int = FORMAT
    spec: SystemSpec
    description: SystemDescription
    outputs: dict[str, str]
    samples: int
    batch_size: int
    data: str
    classes: tuple[str, ...] | None
    computes_in: str | None
    skipped: tuple[str, ...]  # outputs without values for each sample


@dataclass(frozen=True, kw_only=True)
class StoredOutputs(OutputsIndex):
    """The outputs of one variant."""

    name: str
    folder: Path

    @property
    def labels(self) -> Array | None:
        """The labels of all samples; None where there are none."""
        path = self.folder / "labels.npz"
        return _load(path)["labels"] if path.exists() else None

    def rows(self, first: int, last: int) -> dict[str, NamedArray]:
        """Return the outputs of samples from `first` up to and without `last`."""
        files = range(first // self.batch_size, (last - 1) // self.batch_size + 1)
        batches = [_load(_batch_file(self.folder, number)) for number in files]
        offset = files.start * self.batch_size
        found = {}
        for place, (name, dtype) in enumerate(self.outputs.items()):
            parts = [batch[f"output-{place}"] for batch in batches]
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            found[name] = NamedArray(values[first - offset : last - offset], dtype)
        return found

    def arrays(self) -> dict[str, Array]:
        """Return all outputs of all samples."""
        return {name: each.values for name, each in self.rows(0, self.samples).items()}


def _batch_file(folder: Path, number: int) -> Path:
    return folder / f"batch-{number:05d}.npz"


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BenchmarkError(
            "cannot_read", f"{path}: stored outputs cannot be read ({error})", hint="run the variant again"
        ) from error


def read_outputs(name: str, folder: Path) -> StoredOutputs:
    """Read the outputs in a folder. Raises BenchmarkError where they are missing or not whole."""
    path = folder / _INDEX
    try:
        index = decode(path.read_bytes(), OutputsIndex, str(path))
    except OSError as error:
        raise BenchmarkError(
            "cannot_read", f"{path}: stored outputs cannot be read ({error})", hint="run the variant again"
        ) from error
    return StoredOutputs(name=name, folder=folder, **vars(index))


class _OutputWriter:
    """Writes outputs batch by batch."""

    def __init__(self, folder: Path, labels: Array | None) -> None:
        self._folder = folder
        self.dtypes: dict[str, str] = {}
        self._count = 0
        self._skipped: dict[str, None] = {}
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
        self._skipped |= dict.fromkeys(
            [*outputs.skipped, *(each for each in outputs.arrays if each not in found)]
        )
        if not found:
            shapes = {name: each.values.shape for name, each in outputs.arrays.items()}
            raise BenchmarkError(
                "no_sample_axis",
                f"no output has the {size} samples of the batch along its first axis ({shapes or 'nothing'})",
                hint="return outputs with one row for each sample",
            )
        dtypes = {name: each.dtype for name, each in found.items()}
        if self._count and self.dtypes != dtypes:
            raise BenchmarkError(
                "outputs_differ",
                f"batch {self._count + 1} returns {dtypes}, and the one before {self.dtypes}",
                hint="return outputs of the same names and dtypes for every batch",
            )
        self.dtypes = dtypes
        arrays: dict[str, Any] = {
            f"output-{place}": each.values[:count] for place, each in enumerate(found.values())
        }
        np.savez(_batch_file(self._folder, self._count), **arrays)
        self._count += 1

    def finish(self, **facts: Any) -> None:
        """Write what the outputs are."""
        draft = self._folder / f".{_INDEX}.new"
        draft.write_bytes(encode(OutputsIndex(outputs=self.dtypes, skipped=tuple(self._skipped), **facts)))
        draft.replace(self._folder / _INDEX)


# --- in worker processes -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputsJob:
    """Run each sample of a data set once and store the outputs; `dataset` are arguments of `open_dataset`."""

    entry: ClassVar[str] = "gpuprof.bench.compare.stored_outputs:run_outputs_job"
    keeps_collector: ClassVar[bool] = False

    spec: SystemSpec
    dataset: dict[str, Any]
    folder: str
    batch_size: int


def record_outputs(
    name: str,
    spec: SystemSpec,
    dataset: Dataset,
    folder: Path,
    *,
    batch_size: int = BATCH_SIZE,
    time_limit_s: float = TIME_LIMIT_S,
    on_event: Callable[[Event], None] = lambda _event: None,
) -> StoredOutputs:
    """Run each sample of a data set once, in a fresh process; the outputs are stored in `folder`.

    A model with one batch size of its own is run with that. Raises GpuprofError for a variant that raises,
    hangs, crashes or does not fit. An interrupt goes through.
    """
    if batch_size < 1:
        raise BenchmarkError(
            "invalid_batch_size", f"a batch of {batch_size} holds no samples", hint="use 1 or more"
        )
    job = OutputsJob(spec, dataset.asked, str(folder.resolve()), batch_size)
    run_process(job, time_limit_s=time_limit_s, on_event=on_event)
    return read_outputs(name, folder)


def run_outputs_job(job: OutputsJob, send: Send) -> None:
    """Run each sample of a data set once. Raises GpuprofError."""
    dataset = open_dataset(**job.dataset)
    system = make_system(job.spec)
    try:
        load_system(system, send)
        size = system.fixed_batch_size or min(job.batch_size, dataset.samples)
        with memory_failures(size):
            _Pass(system, dataset, size, send).run(Path(job.folder), job.spec)
    finally:
        system.close()


class _Pass:
    """One pass over a data set."""

    def __init__(self, system: FrameworkSystem, dataset: Dataset, size: int, send: Send) -> None:
        self._system, self._dataset, self._size, self._send = system, dataset, size, send
        # Of several inputs only the factory knows how to make them.
        self._draws = dataset.text == "synthetic" and system.makes_inputs

    def run(self, folder: Path, spec: SystemSpec) -> None:
        """Store all outputs."""
        system, dataset, size = self._system, self._dataset, self._size
        with kept_random_states(system.spec.seed):
            prepare_system(system, size, self._send)
        writer = _OutputWriter(folder, dataset.labels)
        dtypes: set[str] = set()
        for number, first in enumerate(range(0, dataset.samples, size)):
            last = min(first + size, dataset.samples)
            outputs = self._outputs(number, first, last)
            dtypes |= {each.dtype for each in outputs.arrays.values()}
            writer.add(outputs, size, last - first)
            self._send(Event(State.PREDICTING, batch_size=size, calls=last))
        described = system.describe()
        floats = [each for each in (described.dtype, *sorted(dtypes)) if "float" in each]
        made = f", made by the factory, {size} at once" if self._draws else ""
        writer.finish(
            spec=spec,
            description=described,
            samples=dataset.samples,
            batch_size=size,
            data=f"{dataset.identity}{made}",
            classes=dataset.classes,
            computes_in=system.computes_in() or coarsest(floats),
        )

    def _outputs(self, number: int, first: int, last: int) -> Outputs:
        system = self._system
        with kept_random_states(system.spec.seed + number):
            self._feed(first, last)
            outputs = named_arrays(system.first_inference())
        system.count_samples(last - first)
        return outputs

    def _feed(self, first: int, last: int) -> None:
        """Put the samples in; a last batch is filled up with its own samples, whose outputs are dropped.

        Its own, since what quantizes looks at the largest number of a batch.
        """
        system = self._system
        if self._draws:
            system.feed(None)
            return
        system.check_one_input()
        rows = self._dataset.rows(first, last, system.input_spec())
        with system.explaining():
            system.feed(rows[np.arange(self._size) % len(rows)])


# --- comparing -----------------------------------------------------------------------------------


def reference_spec(spec: SystemSpec) -> SystemSpec | None:
    """Return the spec of the same model in float64, which shows what a type's roundoff explains.

    None where the model is no module of PyTorch, or is changed by its recipe.
    """
    if spec.combination is not None:
        return None
    choice = choice_of(spec)
    kind = parse_model(spec.model, trust_pickle=spec.trust_pickle).kind
    is_module = kind in _MODULE_KINDS and framework_name(spec.framework) in _MODULE_FRAMEWORKS
    if not is_module or (choice is not None and choice.recipe.changes):
        return None
    framework = "torchscript" if kind == "torchscript" else "auto" if kind == "factory" else "pytorch"
    device = "cpu" if spec.device in ("auto", "mps") else spec.device
    return dataclasses.replace(spec, framework=framework, dtype="float64", device=device, recipe=None)


def compare_stored_outputs(
    baseline: StoredOutputs,
    variant: StoredOutputs,
    *,
    margin: float = MARGIN,
    classes: bool | Sequence[str] | None = None,
    reference: StoredOutputs | None = None,
) -> OutputComparison:
    """Compare stored outputs as `compare_outputs` compares models: numbers, tolerance, classes.

    `reference` holds the outputs of the same model in higher precision. `classes` are names, the data set's
    own where None. Raises BenchmarkError where the outputs are of other data, or do not match.
    """
    notes = [
        note("output_not_stored", variant=each.name, output=name)
        for each in (baseline, variant)
        for name in each.skipped
    ]
    choice = choice_of(variant.spec)
    if reference is not None and choice is not None and "prune" in choice.recipe.changes:
        notes.append(note("pruned_not_judged", variant=variant.name))
        reference = None
    others = [variant] if reference is None else [variant, reference]
    _check_data(baseline, others)
    compared = [(each, _common_names(each, baseline)) for each in (baseline, *others)]
    names = compared[1][1]
    if len(names) > 1 and any(name != own for own, name in names.items()):
        notes.append(note("outputs_by_order", variant=variant.name, names=names))
    sums = OutputsSum(_class_names(baseline) if classes is None else classes)
    for batch, rows in _batches(baseline):
        sums.add(batch, *(_outputs(*each, rows) for each in compared))
    # Stored numbers do not show what they were computed in.
    found = sums.result((baseline.computes_in, variant.computes_in), margin)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _check_data(baseline: StoredOutputs, others: Sequence[StoredOutputs]) -> None:
    for each in others:
        if (baseline.data, baseline.samples) != (each.data, each.samples):
            raise BenchmarkError(
                "data_differs",
                f"{baseline.name} ran on {baseline.data}, and {each.name} on {each.data}",
                hint="run both on the same data set",
            )


def _batches(stored: StoredOutputs) -> Iterator[tuple[Batch, slice]]:
    """Yield batches, with labels where those are classes, and which samples they hold."""
    labels = stored.labels
    is_classes = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
    for number, first in enumerate(range(0, stored.samples, stored.batch_size), 1):
        rows = slice(first, min(first + stored.batch_size, stored.samples))
        yield Batch(number, None, labels[rows] if labels is not None and is_classes else None), rows


def _common_names(stored: StoredOutputs, baseline: StoredOutputs) -> dict[str, str]:
    """Return the baseline's name of each output.

    Frameworks call the same outputs by other names, or by places: then their order decides.
    """
    if set(stored.outputs) != set(baseline.outputs) and len(stored.outputs) == len(baseline.outputs):
        return dict(zip(stored.outputs, baseline.outputs, strict=True))
    return {name: name for name in stored.outputs}


def _outputs(stored: StoredOutputs, names: Mapping[str, str], rows: slice) -> Outputs:
    found = stored.rows(rows.start, rows.stop)
    return Outputs({names[name]: each for name, each in found.items()}, ())


def _class_names(stored: StoredOutputs) -> tuple[str, ...] | None:
    """Return the data set's names where an output has a score for each."""
    if stored.classes is None or len(stored.classes) < 2:
        return None
    shapes = [each.values.shape for each in stored.rows(0, 1).values()]
    can_be_scores = [shape[1] for shape in shapes if len(shape) == 2]
    return stored.classes if can_be_scores == [len(stored.classes)] else None
