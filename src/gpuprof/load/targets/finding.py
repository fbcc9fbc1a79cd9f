# SPDX-License-Identifier: Apache-2.0
"""Which target a user means: a name on the command line, or an object in Python."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.bench.failures import place_of, reason_of
from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.base import BatchTarget, LoopTarget, Target, ThreadTarget
from gpuprof.load.targets.in_process import CallableTarget, CoroutineTarget, SystemTarget

if TYPE_CHECKING:
    from gpuprof.bench.config import SystemSpec
    from gpuprof.bench.frameworks.base import FrameworkSystem

_PYTHON = "python:"
Sizes = npt.NDArray[np.int64]


def find_target(target: Any, inputs: Any, sizes: Sizes, system: SystemSpec | None = None) -> Target:
    """Return the target that is meant; a model is not loaded yet. Raises GpuprofError.

    `sizes` are batch sizes of requests, in turn; a callable is called as it is and counts them as units.
    `system` is how a model that is named is run.
    """
    if isinstance(target, str):
        return _named(target, sizes, system)
    if isinstance(target, (ThreadTarget, BatchTarget, LoopTarget)):
        return target
    return _of_callable(target, inputs, sizes)


def _of_callable(target: Any, inputs: Any, sizes: Sizes) -> Target:
    if len(sizes) > 1:
        raise BenchmarkError(
            "mix_of_callable",
            "--mix sets the batch sizes of a model, and the target is a callable",
            hint="name a model, as in model.py:build",
        )
    if _is(inspect.iscoroutinefunction, target):
        call = target if inputs is None else partial(target, inputs)
        _check_arguments(target, call)
        return CoroutineTarget(call, units=int(sizes[0]))
    from gpuprof.bench.measure.callable import CallableSystem

    system = CallableSystem(target, inputs)
    _check_body(target)
    run = system.run
    _check_arguments(target, run)
    return CallableTarget(_waited(system.run, system.waiting), units=int(sizes[0]))


def _is(kind: Callable[[Any], bool], target: Any) -> bool:
    """Whether a function, or the function by which an object is called, is of a kind."""
    is_object = callable(target) and not isinstance(target, type)
    return kind(target) or (is_object and kind(type(target).__call__))


def _check_body(target: Any) -> None:
    """Raise BenchmarkError for a function whose body does not run when it is called."""
    if _is(inspect.isgeneratorfunction, target) or _is(inspect.isasyncgenfunction, target):
        raise BenchmarkError(
            "generator_function",
            f"{_name_of(target)} is a generator function: a call runs nothing of it",
            hint="use a function that consumes the generator",
        )


def _check_arguments(target: Any, call: Callable[..., object]) -> None:
    """Raise BenchmarkError where `call`, which is the target with its inputs, has not the right arguments."""
    given = partial(call)  # of a partial, its function with all its arguments
    if getattr(given.func, "__signature__", None) is not None:  # what it shows need not be what it takes
        return
    try:
        signature = inspect.signature(given.func, follow_wrapped=False)
    except (TypeError, ValueError):  # of functions in C
        return
    try:
        signature.bind(*given.args, **given.keywords)
    except TypeError as error:
        hint = "set the arguments in a function without any, as with functools.partial"
        raise BenchmarkError(
            "wrong_arguments", f"{_name_of(target)} cannot be called for a request: {error}", hint=hint
        ) from error


def _name_of(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or type(target).__name__)


def _waited(
    run: Callable[[], object], waiting: Callable[[], Callable[[], object] | None]
) -> Callable[[], object]:
    wait = waiting()
    if wait is None:
        return run

    def run_and_wait() -> None:
        run()
        wait()

    return run_and_wait


def _named(text: str, sizes: Sizes, system: SystemSpec | None) -> Target:
    from gpuprof.bench.config import SystemSpec

    spec = system or SystemSpec(text)
    if text.startswith(_PYTHON):
        check_no_model_options(text, system)
        return _of_callable(_imported(text), None, sizes)
    from gpuprof.bench.validation import check_spec

    check_spec(spec)
    return SystemTarget(partial(_make_model, spec), sizes)


def _make_model(spec: SystemSpec) -> FrameworkSystem:
    """Make the system of a model. Raises BenchmarkError for a function that handles requests itself."""
    from gpuprof.bench.frameworks import make_system

    system = make_system(spec)
    source = system.source
    if source.kind == "factory" and system.framework == "python" and not callable(system.model):
        assert source.path is not None
        parts = source.path.with_suffix("").parts
        module = ".".join(parts) if all(each.isidentifier() for each in parts) else "package.module"
        itself = f"{_PYTHON}{module}:{source.attribute}"
        raise BenchmarkError(
            "kind_of_model",
            f"{source.text} gives {type(system.model).__name__}",
            hint="return a torch.nn.Module or a function; for a function to be called for each request, use "
            f"{itself}",
        )
    return system


def check_no_model_options(text: str, system: SystemSpec | None) -> None:
    """Raise BenchmarkError where something that is no model has options of models."""
    from gpuprof.bench.config import SystemSpec

    if system is not None and dataclasses.replace(system, seed=0) != SystemSpec(text):
        raise BenchmarkError(
            "options_of_models",
            f"{text} is not a model and has no framework, dtype, device, input shape or data",
            hint="omit these options",
        )


def _imported(text: str) -> Any:
    module, _, attribute = text.removeprefix(_PYTHON).rpartition(":")
    if not module or not attribute.isidentifier():
        raise BenchmarkError(
            "invalid_target_name", f"{text}: no function", hint="write python:package.module:function"
        )
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as of python -m: the command itself is elsewhere
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        without = f"{_PYTHON}{module.removesuffix('.py')}:{attribute}"
        hint = f"write {without}" if module.endswith(".py") else "check the module's name"
        raise BenchmarkError(
            "cannot_import", f"{text}: {module} cannot be imported ({error})", hint=hint
        ) from error
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        place = "" if isinstance(error, SyntaxError) else f" at {place_of(error)}"
        raise BenchmarkError(
            "import_failed",
            f"{text}: the import of {module} raised {reason_of(error)}{place}",
            hint="correct the module",
        ) from error
    finally:
        # Last from now on: what the module imports later, and no other module, is found there.
        with contextlib.suppress(ValueError):  # the module may replace the list
            sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
    if not callable(found):
        raise BenchmarkError(
            "invalid_target_name", f"{text}: {module} has no function {attribute}", hint="check its name"
        )
    return found
