# SPDX-License-Identifier: Apache-2.0
"""What the systems share: optional packages, the life of inputs, and failures in words."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.failures import explain_run
from gpuprof.bench.frameworks.protocol import MemoryReading, System, SystemDescription
from gpuprof.bench.measure.memory import (
    HostPeak,
    device_used_bytes,
    limit_host_memory,
    resident_bytes,
)
from gpuprof.bench.models.data import DataSource, InputSpec, make_source, shape_text
from gpuprof.bench.models.sources import ModelKind, ModelSource
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

if TYPE_CHECKING:
    from gpuprof.bench.config import SystemSpec
    from gpuprof.bench.models.recipes import RecipeChoice


def require(module: str, framework: str, install: str) -> Any:
    """Import an optional package. Raises UnavailableError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] == module.split(".", maxsplit=1)[0]:
            raise UnavailableError(
                "not_installed", f"{framework} is not installed", hint=f"pip install {install}"
            ) from error
        raise UnavailableError(
            "cannot_import",
            f"{framework} is installed and cannot be imported ({error})",
            hint=f"pip install --force-reinstall {install}",
        ) from error


def choice_of(spec: SystemSpec) -> RecipeChoice | None:
    """Return what the spec's recipe names, None where it has none."""
    if spec.recipe is None:
        return None
    from gpuprof.bench.models.recipes import parse_recipe  # a process run without a recipe does without

    return parse_recipe(spec.recipe)


@functools.cache
def processor_name() -> str:
    """Return the name of the processor, or that of its architecture."""
    from gpuprof.run.machine import describe_machine

    machine = describe_machine()
    return str(machine["processor"] or machine["architecture"])


_COARSE_FIRST = ("bfloat16", "float16", "float32", "float64")
_SOME_WEIGHTS = 0.01  # fewer of a type do not decide how a model rounds


def coarsest_type(numbers: Mapping[str, int]) -> str | None:
    """Return the coarsest real type that at least 1% of a model's numbers have; None without one."""
    least = _SOME_WEIGHTS * sum(numbers.values())
    return next((each for each in _COARSE_FIRST if numbers.get(each, 0) > least), None)


MODULE_KINDS: tuple[ModelKind, ...] = ("name", "factory", "pickle")  # of which PyTorch makes modules
Package = tuple[str, str, str]  # the module, what messages call it, and what pip installs


class FrameworkSystem(System):
    """A system of one framework. Children fill `_load`, `_place`, `_call`, and what differs from a CPU.

    `kinds` are the models and `devices` the devices that it takes, the device that is best first.

    `model` is what a factory handed over; None has the source read. `data` is the caller's iterable.
    """

    framework = ""
    package: Package | None = None
    kinds: tuple[ModelKind, ...] = ("factory",)
    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")

    def __init__(self, spec: SystemSpec, source: ModelSource, *, model: Any = None, data: Any = None) -> None:
        self.spec = spec
        self.source = source
        self.model: Any = model
        self.arguments: tuple[Any, ...] = ()
        self.batch_size = 0
        self.compile_s: float | None = None
        self.device_type = "cpu"
        self.details: dict[str, str] = {}
        self._host_peak = HostPeak()
        self._baseline_bytes: int | None = None
        self._make_inputs: Any = None
        if isinstance(model, tuple) and len(model) == 2 and callable(model[1]):
            self.model, self._make_inputs = model
        self._is_callers_data = data is not None
        self._data: DataSource = make_source(spec.data if data is None else data, spec.seed)

    # --- what is known before it is made ---

    @classmethod
    def check(cls, spec: SystemSpec, source: ModelSource) -> None:
        """Raise BenchmarkError for a kind of model, a recipe or a type that the framework does not take."""
        if source.kind not in cls.kinds:
            raise BenchmarkError(
                "kind_of_model",
                f"{source.text}: {cls.framework} cannot run this kind of model",
                hint="omit --framework, or name a factory, as in file.py:build",
            )
        choice = choice_of(spec)
        if choice is not None and choice.recipe.changes_module and source.kind not in MODULE_KINDS:
            raise BenchmarkError(
                "recipe_of_program",
                f"--recipe {choice.recipe.name}: {source.text} is a program, whose layers cannot be changed "
                "any more",
                hint="use a factory of the module, as in file.py:build",
            )
        cls.check_dtype(spec.dtype or "float32")

    @classmethod
    def check_dtype(cls, dtype: str) -> None:
        """Raise BenchmarkError for a type that the framework does not take."""
        if dtype not in cls.dtypes:
            raise BenchmarkError(
                "unsupported_dtype",
                f"{cls.framework} cannot run in {dtype}",
                hint=f"use --dtype {', '.join(cls.dtypes)}",
            )

    @classmethod
    def chosen_device(cls, asked: str, there: Sequence[str]) -> str:
        """Return the device that was asked for, or the first that is there. Raises BenchmarkError."""
        if asked == "auto" and there:
            return there[0]
        if asked not in there:
            hint = f"use --device {' or '.join(there)}" if there else f"it needs {' or '.join(cls.devices)}"
            raise BenchmarkError(
                "no_such_device", f"--device {asked}: {cls.framework} finds no such device", hint=f"{hint}"
            )
        return asked

    @classmethod
    def packages(cls, kind: ModelKind) -> tuple[Package, ...]:  # noqa: ARG003 - a child's
        """Return what has to be installed for a kind of model."""
        return () if cls.package is None else (cls.package,)

    @classmethod
    def takes_any_batch_size(cls, kind: ModelKind) -> bool:  # noqa: ARG003 - a child's
        """Whether calls of one `prepare` may have different numbers of samples, with a kind of model."""
        return not cls.compiles

    # --- the protocol ---

    def import_framework(self) -> None:
        """Import the framework's package, so that `load` does not pay for it. Raises UnavailableError."""
        if self.package is not None:
            require(*self.package)

    def load(self) -> None:
        """Build or read the model and place it on the device."""
        self.check(self.spec, self.source)
        self.check_dtype(self.dtype)
        self._baseline_bytes = resident_bytes()
        self._load()

    def prepare(self, batch_size: int) -> None:
        """Make one batch on the device, and compile for it where the framework does that ahead."""
        if batch_size < 1:
            raise BenchmarkError(
                "invalid_batch_size", f"a batch of {batch_size} holds no samples", hint="use 1 or more"
            )
        self.arguments = ()
        self.batch_size = batch_size
        self.reset_peak()
        with self.explaining():
            self.arguments = self._batch(batch_size)
            begin_s = time.perf_counter()
            self._compile()
            self.compile_s = time.perf_counter() - begin_s if self.compiles else None

    def run(self) -> object:
        """Enqueue one call."""
        return self._call(*self.arguments)

    def waiting(self) -> Callable[[], object] | None:
        """Return what waits for the device, None where a call has ended when it returns."""
        return None if self.device_type == "cpu" else self.synchronize

    def memory(self) -> MemoryReading:
        """Return the host's peak since `prepare` with its parts, and what the device holds."""
        calls = self._host_peak.added()
        return MemoryReading(
            allocator_peak_bytes=self._allocator_peak(),
            device_used_bytes=device_used_bytes() if self.device_type == "cuda" else None,
            host_resident_bytes=self._host_peak.read(),
            host_baseline_bytes=self._baseline_bytes,
            host_calls_bytes=calls,
            host_own_bytes=None if calls is None else calls + (self._model_bytes() or 0),
        )

    def call_on_device_s(self) -> float | None:
        """Make one call and return the seconds that the device worked; None where they are unknown."""
        return None

    def close(self) -> None:
        """Let go of the model and its inputs."""
        self.model, self.arguments = None, ()

    def describe(self) -> SystemDescription:
        """Return what is measured."""
        inputs, choice = self._inputs(), self.choice
        details = dict(self.details)
        if inputs.is_whole:
            details["tokens_per_sample"] = str(math.prod(inputs.shape))
        if choice is not None:
            details |= {"recipe": str(self.spec.recipe), "technique": choice.technique}
        return SystemDescription(
            framework=self.framework,
            model=self.source.name,
            device=self._device_name(),
            device_type=self.device_type,
            dtype=self.dtype,
            input_shape=inputs.shape,
            model_bytes=self._model_bytes(),
            parameters=self._parameters(),
            details=details,
            forwarded=self.forwarded,
        )

    def save(self, path: Path) -> None:
        """Write the prepared model to a file of its framework's format. Raises BenchmarkError."""
        raise BenchmarkError(
            "no_file_format",
            f"{path}: {self.framework} has no file format of models",
            hint="use .pt, .pt2 or .onnx",
        )

    def limit_memory(self, budget_bytes: int | None) -> None:
        """Let allocations beyond the budget, or what there is, fail."""
        if self.device_type == "cpu":
            limit_host_memory(budget_bytes)

    @property
    def forwarded(self) -> float | None:
        """The fraction of the samples that a cascade hands on to its large model; None of other models."""
        return None

    @property
    def makes_inputs(self) -> bool:
        """Whether the factory's own function makes the inputs."""
        return self._make_inputs is not None

    def computes_in(self) -> str | None:
        """Return the type whose roundoff the outputs have; None where that of the weights is all."""
        choice = self.choice
        if choice is not None and choice.recipe.computes_in is not None:
            return choice.recipe.computes_in
        return "int8" if self.dtype == "int8" else None

    def feed(self, array: Any) -> None:
        """Put other samples in the place of the prepared ones: as many, of the same shape.

        None draws again from the factory's own function.
        """
        if array is None:
            self.use(self._batch(self.batch_size))
            return
        self.check_one_input()
        self.use((self._place(array),))

    def use(self, arguments: tuple[Any, ...]) -> None:
        """Take these inputs, which are on the device, for the next calls."""
        self.arguments = arguments

    def count_samples(self, rows: int) -> None:
        """Count the first `rows` of the last call as samples; what follows them filled up the batch."""

    def next_inputs(self) -> int:
        """Put the next batch of `--data` in the place of the inputs."""
        if self.makes_inputs:
            raise BenchmarkError(
                "cannot_stream",
                f"{self.source.text} makes its inputs itself",
                hint="return the model alone from the factory, or omit --stream",
            )
        self.feed(self._data.batch(self.batch_size, self._inputs()))
        return self.batch_size

    @property
    def passes(self) -> int | None:
        """How often the data was read to its end; None where its source does not count it."""
        return getattr(self._data, "passes", None)

    def check_one_input(self) -> None:
        """Raise BenchmarkError where a data set's samples cannot be all that a call takes."""
        if len(self.arguments) != 1:
            raise BenchmarkError(
                "number_of_inputs",
                f"{self.source.text} takes {len(self.arguments)} inputs, and a data set has one",
                hint="compare it on synthetic data, which its factory makes",
            )

    def input_spec(self) -> InputSpec:
        """Return the shape of one sample; after `load`, of some models after `prepare`."""
        return self._inputs()

    @property
    def fixed_batch_size(self) -> int | None:
        """The only batch size that a file takes; None where any will do. After `load`."""
        return None

    # --- what children fill ---

    def _load(self) -> None:
        raise NotImplementedError

    def _place(self, array: Any) -> Any:
        return array

    def _adapted(self, made: Any) -> Any:
        """Return an input of the factory's own function on the device, in the type that was asked for."""
        return made

    # Whether `_compile` makes code, so that its time is that of compiling.
    compiles = False

    def _compile(self) -> None:
        """Nothing is compiled ahead, unless a child does."""

    def _call(self, *arguments: Any) -> object:
        return self.model(*arguments)

    def _inputs(self) -> InputSpec:
        if self._make_inputs is not None and self.arguments:
            first = self.arguments[0]
            is_whole = "int" in str(getattr(first, "dtype", ""))
            # Drawn by the factory's own function: only that they are whole numbers is known.
            return InputSpec(tuple(getattr(first, "shape", (0,)))[1:], 0 if is_whole else None)
        return InputSpec(self._named_shape())

    def _device_name(self) -> str:
        return processor_name()

    def _allocator_peak(self) -> int | None:
        return None

    def reset_peak(self) -> None:
        """Reset the peaks of memory."""
        self._host_peak.reset()

    def _model_bytes(self) -> int | None:
        path = self.source.path
        return None if path is None or self.source.kind == "factory" else path.stat().st_size

    def _parameters(self) -> int | None:
        return None

    # --- shared ---

    @property
    def choice(self) -> RecipeChoice | None:
        """The recipe that was asked for; None without one."""
        return choice_of(self.spec)

    def calibration(self, choice: RecipeChoice) -> Sequence[tuple[Any, ...]]:
        """Return batches of the samples that a recipe calibrates with."""
        from gpuprof.bench.models.recipes import CALIBRATION_BATCH, batch_sizes, calibration_text

        kept, largest = self._data, self.fixed_batch_size or CALIBRATION_BATCH
        if choice.data is not None or not self._is_callers_data:
            # A source of its own: what is measured still begins with the first sample.
            self._data = make_source(choice.data or self.spec.data, self.spec.seed)
        try:
            sizes = batch_sizes(choice.samples, largest, is_fixed=self.fixed_batch_size is not None)
            found = [self._batch(size) for size in sizes]
        finally:
            self._data = kept
        data = "data_source" if self._is_callers_data else self.spec.data
        self.details["calibration"] = calibration_text(sum(sizes), choice.data or data)
        return found

    @property
    def dtype(self) -> str:
        """The type that was asked for, or float32."""
        return self.spec.dtype or "float32"

    def first_inference(self) -> Any:
        """Make one call and wait for it; returns its outputs. Raises BenchmarkError in the model's words."""
        with self.explaining():
            outputs = self.run()
            self.synchronize()
        return outputs

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn what the model raises on its batch into BenchmarkError."""
        try:
            yield
        except GpuprofError:
            raise
        except Exception as error:
            raise self.explained(error) from error

    def explained(self, error: BaseException) -> BenchmarkError:
        """Return what the model raised on its batch as one line with a hint."""
        recipe = "" if self.spec.recipe is None else f" with --recipe {self.spec.recipe}"
        return explain_run(
            error,
            what=f"{self.source.name} in {self.framework}{recipe}",
            batch_size=self.batch_size,
            shape=shape_text((self.batch_size, *self._inputs().shape)),
            dtype=self.dtype,
        )

    def _batch(self, batch_size: int) -> tuple[Any, ...]:
        if self._make_inputs is not None:
            made = self._make_inputs(batch_size)
            return tuple(map(self._adapted, made if isinstance(made, tuple) else (made,)))
        return (self._place(self._data.batch(batch_size, self._inputs())),)

    def _named_shape(self) -> tuple[int, ...]:
        if self.spec.input_shape is not None:
            return self.spec.input_shape
        if self._make_inputs is not None:
            return ()
        raise BenchmarkError(
            "unknown_input_shape",
            f"{self.source.text}: the shape of its input is not known",
            hint="specify that of one sample, as in --input-shape 3,224,224",
        )

    def _choose_device(self) -> str:
        """Return the device to use: the asked one, or the first that is there. Raises BenchmarkError."""
        return self.chosen_device(self.spec.device, [each for each in self.devices if self._has(each)])

    def _has(self, device: str) -> bool:
        """Whether the framework finds one of its devices here; after `import_framework`."""
        return device == "cpu"
