# SPDX-License-Identifier: Apache-2.0
"""Ensembles and cascades: several systems that are called as one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuprof.bench.config import Average, Combination, SystemSpec
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.memory import resident_bytes
from gpuprof.bench.measure.outputs import as_array
from gpuprof.bench.models.data import InputSpec
from gpuprof.bench.models.sources import ModelSource
from gpuprof.errors import BenchmarkError
from gpuprof.stats.arrays import Array

# A cascade is timed on so many samples in turn: one batch of few would take one way only.
CASCADE_SAMPLES = 64
_SUM_TOLERANCE = 1e-3  # of rows that are probabilities already
_COARSE_FIRST = ("bfloat16", "float16", "float32", "float64")


def combined_system(spec: SystemSpec, parts: Sequence[FrameworkSystem]) -> CombinedSystem:
    """Return the system of an ensemble or a cascade."""
    assert spec.combination is not None
    kind = EnsembleSystem if spec.combination.kind == "ensemble" else CascadeSystem
    return kind(spec, spec.combination, parts)


def check_any_batch_size(source: ModelSource, framework: type[FrameworkSystem]) -> None:
    """Raise BenchmarkError where a framework compiles for one batch size, which a cascade does not know."""
    if not framework.takes_any_batch_size(source.kind):
        raise BenchmarkError(
            "batch_size_of_cascade",
            f"{source.text}: {framework.framework} compiles for one batch size, and the large model of "
            "a cascade gets a different number of samples in each call",
            hint="use pytorch, onnxruntime or python for it",
        )


class CombinedSystem(FrameworkSystem):
    """Systems that get the same inputs. Size and parameters are the sums over the parts."""

    def __init__(self, spec: SystemSpec, combination: Combination, parts: Sequence[FrameworkSystem]) -> None:
        super().__init__(spec, ModelSource("combination", spec.model, spec.model))
        self._placed: list[tuple[tuple[Any, ...], ...]] = []
        self.parts, self.combination = tuple(parts), combination
        # As `--framework` writes them; a name for the class itself would hide what runs.
        self.framework = "+".join(dict.fromkeys(part.framework for part in parts))

    # --- the protocol ---

    def import_framework(self) -> None:
        """Import the packages of all parts."""
        for part in self.parts:
            part.import_framework()

    def load(self) -> None:
        """Load all parts."""
        self._baseline_bytes = resident_bytes()
        for part in self.parts:
            part.load()
        types = [part.device_type for part in self.parts]
        self.device_type = next((each for each in types if each != "cpu"), "cpu")
        for part in self.parts:
            self.details |= part.details
        self.details["technique"] = self.combination.technique

    def prepare(self, batch_size: int) -> None:
        """Prepare all parts, with the same inputs, and check that their outputs fit together."""
        self.batch_size = batch_size
        self.reset_peak()
        for part in self.parts:
            part.prepare(batch_size)
        times = [part.compile_s for part in self.parts if part.compile_s is not None]
        self.compile_s = sum(times) if times else None
        self._check_inputs()
        with self.explaining():
            self._take_batches(self._batches(batch_size))
            self._check_outputs()

    def synchronize(self) -> None:
        """Wait for all parts."""
        for part in self.parts:
            part.synchronize()

    def feed(self, array: Any) -> None:
        """Put other samples in the place of the prepared ones, in all parts."""
        if array is None:
            self.parts[0].feed(None)
            array = self._own_inputs()
        self._take_batches([array])

    def check_one_input(self) -> None:
        """Raise BenchmarkError where a part takes more than one input."""
        for part in self.parts:
            part.check_one_input()

    def reset_peak(self) -> None:
        """Reset the peaks of memory of this process and of the parts' devices."""
        super().reset_peak()
        for part in self.parts:
            part.reset_peak()

    def close(self) -> None:
        """Let go of all parts."""
        super().close()
        for part in self.parts:
            part.close()

    # --- what is known of the parts ---

    @property
    def dtype(self) -> str:
        """The coarsest type of the parts."""
        types = [part.dtype for part in self.parts]
        return next((each for each in ("int8", *_COARSE_FIRST) if each in types), types[0])

    def computes_in(self) -> str | None:
        """Return the coarsest type that a part computes in, other than that of its weights."""
        found = [part.computes_in() for part in self.parts]
        return next((each for each in ("int8", "tf32", *_COARSE_FIRST) if each in found), None)

    @property
    def makes_inputs(self) -> bool:
        """Whether the first part's factory makes the inputs."""
        return self.parts[0].makes_inputs

    @property
    def fixed_batch_size(self) -> int | None:
        """The only batch size that a part takes."""
        return next((size for part in self.parts if (size := part.fixed_batch_size) is not None), None)

    def input_spec(self) -> InputSpec:
        """Return the shape of one sample, which all parts have."""
        return self.parts[0].input_spec()

    def _inputs(self) -> InputSpec:
        return self.input_spec()

    def _device_name(self) -> str:
        return ", ".join(dict.fromkeys(part.describe().device for part in self.parts))

    def _allocator_peak(self) -> int | None:
        # The parts of one framework share its allocator, whose peak is that of all of them.
        peaks = [part.memory().allocator_peak_bytes for part in self.parts]
        return max((each for each in peaks if each is not None), default=None)

    def _model_bytes(self) -> int | None:
        return _sum(part.describe().model_bytes for part in self.parts)

    def _parameters(self) -> int | None:
        return _sum(part.describe().parameters for part in self.parts)

    # --- inputs ---

    def _batches(self, batch_size: int) -> list[Array]:
        if self.makes_inputs:
            return [self._own_inputs()]
        return [self._data.batch(batch_size, self.input_spec())]

    def _own_inputs(self) -> Array:
        """Return what the first part's factory made."""
        self.parts[0].check_one_input()
        array = as_array(self.parts[0].arguments[0])
        if array is None:
            raise BenchmarkError(
                "inputs_not_shared",
                f"{self.parts[0].source.text} makes an input that the other parts cannot read",
                hint="let its factory make an array or a tensor",
            )
        return array

    def _take_batches(self, batches: Sequence[Array]) -> None:
        """Put the batches on the devices of all parts, and take the first one."""
        self._placed = []
        for array in batches:
            for part in self.parts:
                part.feed(array)
            self._placed.append(tuple(part.arguments for part in self.parts))
        self.arguments = tuple(value for each in self._placed for value in each[0])

    def _check_inputs(self) -> None:
        self.check_one_input()
        shapes = [part.input_spec().shape for part in self.parts]
        for part, shape in zip(self.parts, shapes, strict=True):
            if shape != shapes[0]:
                raise BenchmarkError(
                    "different_inputs",
                    f"{self.parts[0].source.text} takes samples of {shapes[0]}, and {part.source.text} of "
                    f"{shape}",
                    hint="use models with the same input shape",
                )

    def _check_outputs(self) -> None:
        """Raise BenchmarkError where the parts' outputs do not have the same shape."""
        shapes = [tuple(self._scores(part).shape) for part in self.parts]
        for part, shape in zip(self.parts, shapes, strict=True):
            if shape[1:] != shapes[0][1:] or not shape:
                raise BenchmarkError(
                    "different_classes",
                    f"{self.parts[0].source.text} returns {_shape_text(shapes[0])} a sample, and "
                    f"{part.source.text} {_shape_text(shape)}",
                    hint="use models with the same classes",
                )
            if self._needs_classes and len(shape) != 2:
                raise BenchmarkError(
                    "no_classes",
                    f"{part.source.text} returns {_shape_text(shape)} a sample, no scores of classes",
                    hint="use classifiers, or the mean of the outputs",
                )

    @property
    def _needs_classes(self) -> bool:
        return self.combination.kind == "cascade" or self.combination.average == "probabilities"

    def _scores(self, part: FrameworkSystem) -> Any:
        return only_output(part.run(), part.source.text)


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the values is unknown."""
    found = [*values]
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:])) or "one number"


class EnsembleSystem(CombinedSystem):
    """The mean of the outputs of all parts."""

    def run(self) -> object:
        """Call every part and average."""
        return mean_of([self._scores(part) for part in self.parts], self.combination.average)


class CascadeSystem(CombinedSystem):
    """A small system, and a large one for the samples of which the small one is not confident.

    Calls take the prepared batches in turn, so that the times have the fraction that is reported.
    """

    def __init__(self, spec: SystemSpec, combination: Combination, parts: Sequence[FrameworkSystem]) -> None:
        super().__init__(spec, combination, parts)
        self._turn = 0
        self._samples = self._forwarded = 0
        self._is_counted = False
        self._last: Array = np.zeros(0, dtype=np.int64)

    def load(self) -> None:
        """Load both parts."""
        super().load()
        large = self.parts[1]
        check_any_batch_size(large.source, type(large))
        if large.fixed_batch_size is not None:
            raise BenchmarkError(
                "batch_size_of_cascade",
                f"{large.source.text} takes batches of {large.fixed_batch_size} alone, and the large model "
                "of a cascade gets a different number of samples in each call",
                hint="export it with a free batch size",
            )

    def prepare(self, batch_size: int) -> None:
        """Prepare both parts, and count the samples of the prepared batches that are forwarded."""
        self._samples = self._forwarded = 0
        super().prepare(batch_size)
        with self.explaining():
            for _ in self._placed:
                self.run()
                self.count_samples(batch_size)
        self._is_counted = True

    def run(self) -> object:
        """Call the small part, and the large one for those samples that it is not confident of."""
        small, large = self.parts
        first, second = self._placed[self._turn]
        self._turn = (self._turn + 1) % len(self._placed)
        small.use(first)
        scores = self._scores(small)
        assert self.combination.threshold is not None
        self._last = below(scores, self.combination.threshold)
        if not len(self._last):
            return scores
        large.use((rows_of(second[0], self._last),))
        return joined(scores, self._last, self._scores(large))

    def feed(self, array: Any) -> None:
        """Put other samples in the place of the prepared ones; from the first ones on these are counted."""
        if self._is_counted:
            self._samples = self._forwarded = 0
            self._is_counted = False
        super().feed(array)

    def count_samples(self, rows: int) -> None:
        """Count how many of the first `rows` samples of the last call was forwarded."""
        self._samples += rows
        self._forwarded += int((self._last < rows).sum())

    @property
    def forwarded(self) -> float | None:
        """The fraction of the samples that was forwarded to the large part."""
        return self._forwarded / self._samples if self._samples else None

    def _batches(self, batch_size: int) -> list[Array]:
        if self.makes_inputs:
            return super()._batches(batch_size)
        count = math.ceil(CASCADE_SAMPLES / batch_size)
        # In one go: a synthetic source draws the same numbers each time.
        samples = self._data.batch(count * batch_size, self.input_spec())
        return [samples[place * batch_size :][:batch_size] for place in range(count)]

    def _take_batches(self, batches: Sequence[Array]) -> None:
        super()._take_batches(batches)
        self._turn = 0


# --- outputs -------------------------------------------------------------------------------------


def only_output(value: Any, what: str) -> Any:
    """Return a model's one output: a tensor, an array, the `logits`, or the only one of a container.

    Raises BenchmarkError where there are several.
    """
    if _is_tensor(value) or isinstance(value, np.ndarray):
        return value
    logits = getattr(value, "logits", None)
    if logits is None and isinstance(value, dict):
        logits = value.get("logits") if len(value) > 1 else next(iter(value.values()), None)
    if logits is None and isinstance(value, (list, tuple)) and len(value) == 1:
        logits = value[0]
    if logits is None and not isinstance(value, (dict, list, tuple)):
        logits = value
    if _is_tensor(logits):
        return logits
    array = None if logits is None else as_array(logits)
    if array is None:
        raise BenchmarkError(
            "no_single_output",
            f"{what} does not return one output, or one called logits",
            hint="let its factory return a function that selects it",
        )
    return array


def mean_of(outputs: Sequence[Any], average: Average) -> Any:
    """Return the mean of outputs of the same shape, or of their probabilities along the last axis."""
    if average == "probabilities":
        outputs = [probabilities(each) for each in outputs]
    devices = {str(each.device) if _is_tensor(each) else "" for each in outputs}
    if len(devices) > 1:
        outputs = [as_array(each) for each in outputs]
    total = outputs[0]
    for each in outputs[1:]:
        total = total + each
    return total / len(outputs)


def probabilities(scores: Any) -> Any:
    """Return the softmax along the last axis; rows that are probabilities already stay as they are."""
    if _is_tensor(scores):
        wide = scores.float()
        sums = wide.sum(-1)
        is_done = bool((wide >= 0).all()) and bool(((sums - 1).abs() < _SUM_TOLERANCE).all())
        return wide if is_done else wide.softmax(-1)
    wide = np.asarray(scores, dtype=np.float64)
    if (wide >= 0).all() and (np.abs(wide.sum(-1) - 1) < _SUM_TOLERANCE).all():
        return wide
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def below(scores: Any, threshold: float) -> Array:
    """Return the rows whose top probability is below the threshold, or is not a number."""
    found = probabilities(scores)
    top = as_array(found.amax(-1)) if _is_tensor(found) else found.max(axis=-1)
    return np.flatnonzero(~(np.asarray(top) >= threshold))


def rows_of(values: Any, rows: Array) -> Any:
    """Return some rows of a tensor or an array, on its device."""
    if _is_tensor(values):
        return values[_index(values, rows)]
    return values[rows]


def joined(scores: Any, rows: Array, better: Any) -> Any:
    """Return the scores with other values in some rows."""
    if _is_tensor(scores) and _is_tensor(better):
        found = scores.clone()
        found[_index(scores, rows)] = better.to(device=scores.device, dtype=scores.dtype)
        return found
    found = np.array(as_array(scores))
    found[rows] = as_array(better)
    return found


def _index(tensor: Any, rows: Array) -> Any:
    import torch

    return torch.from_numpy(rows).to(tensor.device)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "softmax")
