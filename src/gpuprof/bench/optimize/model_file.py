# SPDX-License-Identifier: Apache-2.0
"""Write a model as a recipe changes it, or a student that is trained on its outputs, to a file."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks import make_system, system_class, with_recipe
from gpuprof.bench.measure.outputs import Outputs, named_arrays
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.models.sources import parse_model
from gpuprof.bench.validation import check_spec
from gpuprof.errors import BenchmarkError, GpuprofError

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.base import FrameworkSystem
    from gpuprof.bench.optimize.distillation import Distillation, DistillationSettings, Progress

DISTILLED = "distilled"
FRAMEWORK_OF_SUFFIX = {
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
    ".pt2": "torch-export",
    ".onnx": "onnxruntime",
}
# Two, since exporters take one for a constant.
_CHECKED_BATCH = 2
# A file that is read back computes what was written, but for the order of sums.
_MOST_DIFFERENCE = 1e-3


@dataclass(frozen=True, slots=True)
class OptimizedModel:
    """A model file that was written, compared with the original model.

    Bytes are those of weights and buffers, `file_bytes` those of the file. `difference` is the norm of the
    difference of the outputs over the norm of the original's outputs, on two samples; None where the outputs
    have other shapes. `fixed_batch_size` is the only batch size that the file takes, None for any.
    """

    path: str
    framework: str
    recipe: str
    technique: str
    original: str
    has_random_weights: bool
    original_bytes: int | None
    model_bytes: int | None
    original_parameters: int | None
    parameters: int | None
    file_bytes: int
    difference: float | None
    fixed_batch_size: int | None
    details: dict[str, str]
    distillation: Distillation | None = None


def check_output(path: Path) -> str:
    """Return the framework of a file to write. Raises BenchmarkError for a path that cannot be written."""
    if path.suffix not in FRAMEWORK_OF_SUFFIX:
        endings = " ".join(FRAMEWORK_OF_SUFFIX)
        raise BenchmarkError(
            "unsupported_file", f"{path}: unsupported file type", hint=f"use one of {endings}"
        )
    if path.exists():
        raise BenchmarkError("exists", f"{path} exists", hint="use another name, or remove it")
    if not path.parent.is_dir():
        raise BenchmarkError("no_such_folder", f"{path}: no folder {path.parent}", hint="make it first")
    return FRAMEWORK_OF_SUFFIX[path.suffix]


def optimized_spec(spec: SystemSpec, recipe: str, path: Path) -> SystemSpec:
    """Return the spec of a model that a recipe changes, in the framework of the file to write.

    Reads no model. Raises GpuprofError for a recipe that makes no file, or none of this type.
    """
    framework = check_output(path)
    chosen = parse_recipe(recipe).recipe
    if "autocast" in chosen.changes or chosen.frameworks[:1] in (("torch-compile",), ("tensorrt",)):
        raise BenchmarkError(
            "writes_no_file",
            f"--recipe {chosen.name} writes no file",
            hint="measure it with gpuprof bench or gpuprof compare",
        )
    if chosen.frameworks and framework not in chosen.frameworks:
        endings = [end for end, each in FRAMEWORK_OF_SUFFIX.items() if each in chosen.frameworks]
        hint = f"use {' or '.join(endings)}"
        if chosen.quantizes_module and framework == "onnxruntime":
            hint += ", or --recipe onnx-int8"
        raise BenchmarkError(
            "recipe_of_other_file", f"--recipe {chosen.name} cannot write {path.name}", hint=hint
        )
    changed = with_recipe(dataclasses.replace(spec, framework=framework), recipe)
    check_spec(changed)
    return changed


def write_optimized(spec: SystemSpec, recipe: str, path: Path) -> OptimizedModel:
    """Apply a recipe to a model, write the result, and read it back to check it. Raises GpuprofError."""
    changed = optimized_spec(spec, recipe, path)
    unchanged = dataclasses.replace(spec, framework="auto", recipe=None)
    with closing(make_system(unchanged)) as original, closing(make_system(changed)) as system:
        _prepare(original)
        expected = named_arrays(original.first_inference())
        _prepare(system)
        written = _written(system, expected, path, original)
    choice = parse_recipe(recipe)
    return dataclasses.replace(written, recipe=recipe, technique=choice.technique)


def write_distilled(
    spec: SystemSpec,
    student: SystemSpec,
    path: Path,
    settings: DistillationSettings,
    progress: Progress | None = None,
) -> OptimizedModel:
    """Train a student on the outputs of a model, and write it. Raises GpuprofError.

    `settings.samples` samples of `spec.data` are used, a fifth of them to measure with. Ctrl-C ends the
    training early, and the file is written.
    """
    from gpuprof.bench.optimize.distillation import distill

    framework = check_output(path)
    count = -(-settings.samples // settings.batch_size)
    with ExitStack() as systems:
        teacher, pupil = (systems.enter_context(closing(_module_system(each))) for each in (spec, student))
        batches = [_batch(teacher, settings.batch_size, number) for number in range(count)]
        reached = distill(teacher.model, pupil.model, batches, settings, seed=spec.seed, progress=progress)
        teacher.prepare(_CHECKED_BATCH)
        expected = named_arrays(teacher.first_inference())
        to_write = dataclasses.replace(
            student, framework=framework, data=spec.data, input_shape=spec.input_shape
        )
        # The teacher's own function of inputs makes the student's, too.
        model = (pupil.model, teacher._make_inputs) if teacher.makes_inputs else pupil.model
        source = parse_model(student.model, trust_pickle=student.trust_pickle)
        system = systems.enter_context(closing(system_class(framework)(to_write, source, model=model)))
        _prepare(system)
        written = _written(system, expected, path, teacher)
    technique = f"distillation of {teacher.source.name} into {source.name}"
    return dataclasses.replace(written, recipe=DISTILLED, technique=technique, distillation=reached)


def _module_system(spec: SystemSpec) -> Any:
    """Return the loaded eager system of a model. Raises GpuprofError if it is no PyTorch module."""
    spec = dataclasses.replace(spec, framework="pytorch")
    check_spec(spec)
    system = make_system(spec)
    system.load()
    return system


def _batch(system: Any, batch_size: int, number: int) -> tuple[Any, ...]:
    """Return a batch on the device; each of synthetic data has a seed of its own."""
    from gpuprof.bench.models.data import make_source

    if system.spec.data == "synthetic":
        system._data = make_source("synthetic", system.spec.seed + number)
    made: tuple[Any, ...] = system._batch(batch_size)
    return made


def _prepare(system: FrameworkSystem) -> None:
    system.load()
    system.prepare(system.fixed_batch_size or _CHECKED_BATCH)


def _written(
    system: FrameworkSystem, expected: Outputs, path: Path, original: FrameworkSystem
) -> OptimizedModel:
    """Write a prepared system next to `path`, check the file, and give it its name."""
    before, after = original.describe(), system.describe()
    with tempfile.TemporaryDirectory(prefix=".gpuprof-", dir=path.parent) as folder:
        made = Path(folder, path.name)
        outputs = named_arrays(system.first_inference())
        try:
            system.save(made)
        except GpuprofError:
            raise
        except Exception as error:
            raise BenchmarkError(
                "cannot_write", f"{path} cannot be written ({reason_of(error)})", hint="use another file type"
            ) from error
        fixed = _checked(made, system, outputs)
        made.rename(path)
    return OptimizedModel(
        path=str(path),
        framework=after.framework,
        recipe="",
        technique="",
        original=before.model,
        has_random_weights=original.source.kind == "name",
        original_bytes=before.model_bytes,
        model_bytes=after.model_bytes,
        original_parameters=before.parameters,
        parameters=after.parameters,
        file_bytes=path.stat().st_size,
        difference=relative_difference(expected, outputs),
        fixed_batch_size=fixed,
        details=dict(after.details),
    )


def _checked(made: Path, system: FrameworkSystem, outputs: Outputs) -> int | None:
    """Read a file back and compare its outputs; return the only batch size that it takes, None for any."""
    # What was written here a moment ago may be unpickled.
    spec = dataclasses.replace(
        system.spec, model=str(made), framework="auto", recipe=None, dtype=None, trust_pickle=True
    )
    with closing(make_system(spec)) as read:
        read.load()
        difference = relative_difference(outputs, _outputs_on(read, system.arguments))
        if difference is None or not difference < _MOST_DIFFERENCE:
            raise BenchmarkError(
                "other_outputs",
                f"{made.name}: the file computes other outputs than the model in memory",
                hint="use another file type",
            )
        return system.batch_size if _is_fixed(read, system) else None


def _outputs_on(read: FrameworkSystem, arguments: Sequence[Any]) -> Outputs:
    """Return what a loaded system computes from the inputs of another one."""
    read.arguments, read.batch_size = tuple(arguments), len(arguments[0])
    with read.explaining():
        read._compile()
    return named_arrays(read.first_inference())


def _is_fixed(read: FrameworkSystem, system: FrameworkSystem) -> bool:
    """Whether a file takes only the batch size that it was made with: a trace may hold it as a constant."""
    first = [each[:1] for each in system.arguments]
    try:
        shapes = _outputs_on(read, first).shapes
    except GpuprofError:
        return True
    whole = named_arrays(system.first_inference()).shapes
    return any(shapes[name] != (1, *shape[1:]) for name, shape in whole.items() if shape)


def relative_difference(expected: Outputs, found: Outputs) -> float | None:
    """Return the norm of the difference of all outputs over the norm of the expected ones.

    None where names or shapes differ, or nothing is a number.
    """
    pairs = list(zip(expected.arrays.values(), found.arrays.values(), strict=False))
    if [each.values.shape for each, _ in pairs] != [each.values.shape for _, each in pairs] or not pairs:
        return None
    if len(expected.arrays) != len(found.arrays):
        return None
    old, new = (
        np.concatenate([np.asarray(each[side].values, np.float64).ravel() for each in pairs])
        for side in (0, 1)
    )
    norm = float(np.linalg.norm(old))
    distance = float(np.linalg.norm(new - old))
    return distance / norm if norm else (0.0 if not distance else None)
