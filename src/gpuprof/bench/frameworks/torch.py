# SPDX-License-Identifier: Apache-2.0
"""PyTorch models: eager, compiled, TorchScript and exported. The others build on the eager system."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks.base import MODULE_KINDS, FrameworkSystem, processor_name, require
from gpuprof.bench.models.data import InputSpec
from gpuprof.bench.models.sources import ModelKind, NamedModel, build_torch
from gpuprof.errors import BenchmarkError, UnavailableError

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.recipe_changes import Changed
    from gpuprof.bench.frameworks.torch_sizes import ModelSize


MOST_SAMPLES = 1 << 20  # in a batch of an exported program


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what PyTorch's compilers and exporters warn of: it is their business, not the model's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TorchSystem(FrameworkSystem):
    """A module in evaluation mode, without gradients."""

    framework = "pytorch"
    named: NamedModel | None = None  # where the model is one of a library
    counted: Any = None  # the module whose parameters are counted, whatever is made of it
    _change: Changed | None = None  # what its recipe made of it
    _measured_size: ModelSize | None = None
    package = ("torch", "PyTorch", "torch")
    kinds = MODULE_KINDS
    devices = ("cuda", "mps", "cpu")

    def _load(self) -> None:
        self.torch = require(*self.package)
        self.device_type = self._choose_device()
        self.torch.manual_seed(self.spec.seed)
        module = self.counted = self._changed(self._module())
        try:
            self.model = self._moved(module)
        except Exception as error:
            raise BenchmarkError(
                "cannot_place",
                f"{self.source.name} cannot be placed on {self.device_type} in {self.dtype} "
                f"({reason_of(error)}); hint: use another --device or --dtype",
            ) from error
        self._note_settings()

    def _has(self, device: str) -> bool:
        if device == "mps":
            return bool(self.torch.backends.mps.is_available())
        return device == "cpu" or bool(self.torch.cuda.is_available())

    def _changed(self, module: Any) -> Any:
        """Return the module as its recipe makes it."""
        choice = self.choice
        if choice is None or not choice.recipe.changes_module:
            return module
        from gpuprof.bench.frameworks.recipe_changes import change_module

        name = choice.recipe.name
        if choice.recipe.quantizes_module and self.device_type != "cpu":
            raise UnavailableError(
                "quantized_on_cpu_only",
                f"--recipe {name}: PyTorch has quantized layers for CPUs alone, and --device "
                f"{self.spec.device} takes {self.device_type}; hint: use --device cpu for all variants",
            )
        self.counted = module
        changed = change_module(module, choice, self.source.name, lambda: self.calibration(choice))
        self._change = changed
        self.details |= changed.details
        return changed.module

    def _module(self) -> Any:
        if self.model is None and self.source.kind == "name":
            with quiet():
                self.named = build_torch(self.source.text)
            self.details["model_source"] = self.named.library
            self.model = self.named.model
        elif self.model is None:
            self.model = self._read_file()
        if not isinstance(self.model, self.torch.nn.Module):
            raise BenchmarkError(
                "kind_of_model",
                f"{self.source.text} gives {type(self.model).__name__}, no torch.nn.Module",
                hint="use --framework python for a callable",
            )
        return self.model

    def _read_file(self) -> Any:
        """Read a module that was saved whole; `parse_model` has asked for the user's trust."""
        with self._finding_definitions():
            found = self._read(lambda path: self.torch.load(path, map_location="cpu", weights_only=False))
        if isinstance(found, dict):
            raise BenchmarkError(
                "weights_without_model",
                f"{self.source.text} holds weights and no model; "
                "hint: specify a factory, as in file.py:build",
            )
        return found

    @contextlib.contextmanager
    def _finding_definitions(self) -> Iterator[None]:
        """Find the classes of a saved module next to its file too, since the file holds their names only."""
        assert self.source.path is not None
        sys.path.append(str(self.source.path.resolve().parent))
        try:
            yield
        except BenchmarkError as error:
            cause = error.__cause__
            if not isinstance(cause, (ImportError, AttributeError)):
                raise
            name = getattr(cause, "name", None)
            what = f"the module {name}" if isinstance(cause, ImportError) and name else "the class"
            raise BenchmarkError(
                "definition_not_found",
                f"{self.source.text}: {what} that defines it is not found ({reason_of(cause)})",
                hint="put its .py file next to this file, or use a factory, as in file.py:build",
            ) from cause

    def _read(self, read: Callable[[str], Any]) -> Any:
        """Return what a function of PyTorch reads from the model's file. Raises BenchmarkError."""
        try:
            with quiet():
                return read(str(self.source.path))
        except Exception as error:
            raise BenchmarkError(
                "cannot_load", f"{self.source.text}: PyTorch cannot read it: {reason_of(error)}"
            ) from error

    def _moved(self, module: Any) -> Any:
        dtype = None if self.spec.dtype is None and self.named is None else getattr(self.torch, self.dtype)
        return module.eval().to(self.device_type, dtype)

    def _note_settings(self) -> None:
        torch = self.torch
        self.details["torch"] = torch.__version__
        self.details["threads"] = str(torch.get_num_threads())
        if self.device_type == "cuda":
            self.details["tf32"] = (
                f"matmul {torch.backends.cuda.matmul.allow_tf32}, cudnn {torch.backends.cudnn.allow_tf32}"
            )
            self.details["cuda"] = str(torch.version.cuda)

    @property
    def dtype(self) -> str:
        """The type that was asked for, or that of the module's parameters."""
        own = None if self.counted is None else _dtype_of(self.counted)
        return super().dtype if self.spec.dtype is not None or own is None else own

    def _inputs(self) -> InputSpec:
        if self.named is None:
            return super()._inputs()
        return InputSpec(self.spec.input_shape or self.named.input_shape, self.named.tokens)

    def _place(self, array: Any) -> Any:
        tensor = self.torch.from_numpy(array)
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(self.torch, self.dtype))
        return tensor.to(self.device_type)

    def _adapted(self, made: Any) -> Any:
        if not isinstance(made, self.torch.Tensor):
            return made
        wanted = self.spec.dtype if made.is_floating_point() else None
        return made.to(self.device_type, None if wanted is None else getattr(self.torch, wanted))

    def _call(self, *arguments: Any) -> object:
        with self.torch.inference_mode():
            return self.model(*arguments)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device_type == "cuda":
            self.torch.cuda.synchronize()
        elif self.device_type == "mps":
            self.torch.mps.synchronize()

    def computes_in(self) -> str | None:
        """Return what rounds inside: coarser weights, and tensor cores that read float32 as TF32."""
        found = super().computes_in()
        if found is None:
            held = self._size().coarsest_type
            found = held if held != self.dtype else None
        if found is None and self.device_type == "cuda" and self.dtype == "float32":
            backends = self.torch.backends
            found = "tf32" if backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32 else None
        return found

    def call_on_device_s(self) -> float | None:
        """Make one call between two events of CUDA; None on other devices."""
        if self.device_type != "cuda":
            return None
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def close(self) -> None:
        """Let go of the model, and of what the allocator keeps for it."""
        super().close()
        self.counted = None
        if self.device_type == "cuda":
            self.torch.cuda.empty_cache()

    def limit_memory(self, budget_bytes: int | None) -> None:
        """Let allocations beyond the budget fail, on CUDA those of PyTorch's allocator."""
        if self.device_type != "cuda" or budget_bytes is None:
            super().limit_memory(budget_bytes)
            return
        total = self.torch.cuda.get_device_properties(0).total_memory
        self.torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total))

    def reset_peak(self) -> None:
        """Reset the peaks of memory, the allocator's too."""
        super().reset_peak()
        if self.device_type == "cuda":
            self.torch.cuda.reset_peak_memory_stats()

    def _allocator_peak(self) -> int | None:
        return int(self.torch.cuda.max_memory_allocated()) if self.device_type == "cuda" else None

    def _device_name(self) -> str:
        return str(self.torch.cuda.get_device_name()) if self.device_type == "cuda" else processor_name()

    def _size(self) -> ModelSize:
        """Return the size of the module; reading packed weights takes a while, so it is read once."""
        self._measured_size = self._measured_size or self._read_size()
        return self._measured_size

    def _read_size(self) -> ModelSize:
        from gpuprof.bench.frameworks.torch_sizes import size_of_module  # imports PyTorch

        return size_of_module(self.counted, self.source.path if self.source.kind == "torchscript" else None)

    def _model_bytes(self) -> int | None:
        return self._size().size_bytes or None

    def _parameters(self) -> int | None:
        return self._size().parameters if self._change is None else self._change.parameters


def _dtype_of(module: Any) -> str | None:
    """Return the type of the first parameter that is a real number; None where there is none."""
    types = (each.dtype for each in module.parameters() if each.is_floating_point())
    return next((str(each).removeprefix("torch.") for each in types), None)


class TorchCompileSystem(TorchSystem):
    """The module compiled by `torch.compile`. `prepare` makes the first call, which compiles."""

    framework = "torch-compile"
    compiles = True

    def _moved(self, module: Any) -> Any:
        self.details["compile_mode"] = "default, static shapes"
        # Each batch size is compiled for itself: dynamic shapes would make the second one slower code.
        return self.torch.compile(super()._moved(module), dynamic=False)

    def _compile(self) -> None:
        with quiet():
            self._call(*self.arguments)
        self.synchronize()


class TorchScriptSystem(TorchSystem):
    """A scripted module. Its profiling executor optimizes during the first calls, which `prepare` makes."""

    framework = "torchscript"
    kinds = (*TorchSystem.kinds, "torchscript")
    compiles = True
    OPTIMISING_CALLS = 2

    @classmethod
    def takes_any_batch_size(cls, kind: ModelKind) -> bool:
        """Whether the program is of a file: a module is traced for one batch size."""
        return kind == "torchscript"

    def _read_file(self) -> Any:
        if self.source.kind != "torchscript":
            return super()._read_file()
        return self._read(lambda path: self.torch.jit.load(path, map_location="cpu"))

    @property
    def dtype(self) -> str:
        """The type that was asked for, that of the parameters, or of the constants of a frozen program."""
        if self.spec.dtype is None and self.counted is not None and _dtype_of(self.counted) is None:
            held = self._size().coarsest_type
            return "float32" if held in (None, "int8") else str(held)
        return super().dtype

    def _compile(self) -> None:
        with quiet(), self.torch.inference_mode():
            if not isinstance(self.counted, self.torch.jit.ScriptModule):
                self.model = self.torch.jit.trace(self.counted, self.arguments, check_trace=False)
                self.details["made_by"] = "torch.jit.trace"
            for _ in range(self.OPTIMISING_CALLS):
                self.model(*self.arguments)
        self.synchronize()

    def save(self, path: Path) -> None:
        """Write the scripted module."""
        self.model.save(str(path))


class TorchExportSystem(TorchSystem):
    """An exported program; a module is exported for each batch size, a file takes those it was made for."""

    framework = "torch-export"
    kinds = (*TorchSystem.kinds, "torch-export")
    compiles = True
    _program: Any = None  # of a file

    @classmethod
    def takes_any_batch_size(cls, kind: ModelKind) -> bool:
        """Whether the program is of a file; `fixed_batch_size` shows whether that one is fixed."""
        return kind == "torch-export"

    def _read_file(self) -> Any:
        if self.source.kind != "torch-export":
            return super()._read_file()
        self._program = self._read(self.torch.export.load)
        return self._program.module()

    def _moved(self, module: Any) -> Any:
        if self._program is None:
            return super()._moved(module)
        # A program keeps the mode and the type that it was exported with, and makes its constants there.
        own = _dtype_of(module) or "float32"
        if self.spec.dtype not in (None, own):
            raise BenchmarkError("unsupported_dtype", f"the program is of {own}; hint: omit --dtype")
        return module.to(self.device_type)

    def _inputs(self) -> InputSpec:
        shape = self._input_shape()
        if self.spec.input_shape is None and shape and all(isinstance(size, int) for size in shape[1:]):
            return InputSpec(tuple(map(int, shape[1:])))
        return super()._inputs()

    def _input_shape(self) -> tuple[Any, ...]:
        """Return the shape of a program's first input, where a size that is not fixed is no int."""
        if self._program is None:
            return ()
        names = set(self._program.graph_signature.user_inputs)
        shapes = (node.meta["val"].shape for node in self._program.graph.nodes if node.name in names)
        return tuple(next(shapes, ()))

    @property
    def fixed_batch_size(self) -> int | None:
        """The batch size that a file was exported with, where that is fixed."""
        shape = self._input_shape()
        return shape[0] if shape and isinstance(shape[0], int) else None

    def _read_size(self) -> ModelSize:
        if self._program is None:
            return super()._read_size()
        from gpuprof.bench.frameworks.torch_sizes import size_of_exported  # imports PyTorch

        return size_of_exported(self._program)

    def _compile(self) -> None:
        if self._program is not None:
            return
        with quiet(), self.torch.no_grad():
            program = self.torch.export.export(self.counted, self.arguments)
        self.model = program.module()
        self.details["made_by"] = "torch.export.export"

    def save(self, path: Path) -> None:
        """Write the program with a free batch size, or with the prepared one where the model fixes it."""
        program, export = self._program, self.torch.export
        if program is None:
            free = tuple({0: export.Dim("batch", min=1, max=MOST_SAMPLES)} for _ in self.arguments)
            with quiet(), self.torch.no_grad():
                try:
                    program = export.export(self.counted, self.arguments, dynamic_shapes=free)
                except (
                    Exception
                ):  # a model that fixes the size is refused in many ways; a broken one again below
                    program = export.export(self.counted, self.arguments)
        with quiet():
            export.save(program, path)

    def close(self) -> None:
        """Let go of the program too."""
        super().close()
        self._program = None
