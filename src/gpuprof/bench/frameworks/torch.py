# SPDX-License-Identifier: Apache-2.0
"""PyTorch models: eager, compiled, TorchScript and exported. The others build on the eager system."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks.base import MODULE_KINDS, FrameworkSystem, processor_name, require
from gpuprof.bench.models.data import InputSpec
from gpuprof.bench.models.sources import NamedModel, build_torch
from gpuprof.errors import BenchmarkError, UnavailableError

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.recipe_changes import Changed


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what PyTorch's compilers and exporters warn of: it is their business, not the model's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TorchSystem(FrameworkSystem):
    """A module in evaluation mode, without gradients."""

    framework = "pytorch"
    counted: Any = None  # the module whose parameters are told, whatever becomes of it
    _change: Changed | None = None  # what its recipe made of it
    package = ("torch", "PyTorch", "torch")
    kinds = MODULE_KINDS
    devices = ("cuda", "mps", "cpu")

    def _load(self) -> None:
        self.torch = require(*self.package)
        self.device_type = self._choose_device()
        self.named: NamedModel | None = None
        self.torch.manual_seed(self.spec.seed)
        module = self.counted = self._changed(self._module())
        try:
            self.model = self._moved(module)
        except Exception as error:
            raise BenchmarkError(
                f"{self.source.name} cannot be placed on {self.device_type} in {self.dtype} "
                f"({reason_of(error)}): take another --device or --dtype"
            ) from error
        self._note_settings()

    def _choose_device(self) -> str:
        backends = self.torch.backends
        has_mps = backends.mps.is_available()
        return self._refuse_device({"cuda": self.torch.cuda.is_available(), "mps": has_mps, "cpu": True})

    def _changed(self, module: Any) -> Any:
        """Return the module as its recipe makes it."""
        choice = self.choice
        if choice is None or not choice.recipe.changes_module:
            return module
        from gpuprof.bench.frameworks.recipe_changes import change_module

        name = choice.recipe.name
        if choice.recipe.quantizes_module and self.device_type != "cpu":
            raise UnavailableError(
                f"--recipe {name}: PyTorch has quantized layers for CPUs alone, and --device "
                f"{self.spec.device} takes {self.device_type}: take --device cpu, for what it is compared "
                "with too"
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
                f"{self.source.text} gives {type(self.model).__name__}, no torch.nn.Module: "
                "take --framework python for a callable"
            )
        return self.model

    def _read_file(self) -> Any:
        """Read a module that was saved whole; `parse_model` has asked for the user's trust."""
        try:
            found = self.torch.load(self.source.path, map_location="cpu", weights_only=False)
        except Exception as error:
            raise BenchmarkError(f"{self.source.text}: PyTorch cannot read it: {reason_of(error)}") from error
        if isinstance(found, dict):
            raise BenchmarkError(
                f"{self.source.text} holds weights and no model: name a factory, as in file.py:build"
            )
        return found

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
        if self.spec.dtype is None and self.counted is not None:
            for parameter in self.counted.parameters():
                if parameter.is_floating_point():
                    return str(parameter.dtype).removeprefix("torch.")
        return super().dtype

    def _inputs(self) -> InputSpec:
        named = getattr(self, "named", None)
        if named is not None:
            shape = named.input_shape if self.spec.input_shape is None else self.spec.input_shape
            return InputSpec(shape, named.tokens)
        return super()._inputs()

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
        """Return what rounds inside: layers of 8 bits, and tensor cores that read float32 as TF32."""
        found = super().computes_in()
        if found is None and self._holds_whole_numbers():
            return "int8"
        if found is None and self.device_type == "cuda" and self.dtype == "float32":
            backends = self.torch.backends
            found = "tf32" if backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32 else None
        return found

    def _holds_whole_numbers(self) -> bool:
        state = self.counted.state_dict().values()
        short = (self.torch.int8, self.torch.qint8, self.torch.quint8)
        return any(isinstance(each, self.torch.Tensor) and each.dtype in short for each in state)

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

    def limit_memory(self, budget_bytes: int | None) -> int | None:
        """Let allocations beyond the budget fail, on CUDA those of PyTorch's allocator."""
        if self.device_type != "cuda" or budget_bytes is None:
            return super().limit_memory(budget_bytes)
        total = self.torch.cuda.get_device_properties(0).total_memory
        self.torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / total))
        return budget_bytes

    def reset_peak(self) -> None:
        """Let the peaks of memory begin anew, the allocator's too."""
        super().reset_peak()
        if self.device_type == "cuda":
            self.torch.cuda.reset_peak_memory_stats()

    def _allocator_peak(self) -> int | None:
        return int(self.torch.cuda.max_memory_allocated()) if self.device_type == "cuda" else None

    def _device_name(self) -> str:
        return str(self.torch.cuda.get_device_name()) if self.device_type == "cuda" else processor_name()

    def _model_bytes(self) -> int | None:
        if self._change is not None:
            from gpuprof.bench.frameworks.recipe_changes import module_bytes

            return module_bytes(self.counted)
        tensors = [*self.counted.parameters(), *self.counted.buffers()]
        return sum(int(each.numel() * each.element_size()) for each in tensors) or None

    def _parameters(self) -> int | None:
        if self._change is not None:
            return self._change.parameters
        return sum(int(each.numel()) for each in self.counted.parameters())


class TorchCompileSystem(TorchSystem):
    """The module behind `torch.compile`. `prepare` makes the first call, which compiles."""

    framework = "torch-compile"
    compiles = True

    def _moved(self, module: Any) -> Any:
        self._module_itself = super()._moved(module)
        # Each batch size is compiled for itself: dynamic shapes would make the second one slower code.
        compiled = self.torch.compile(self._module_itself, dynamic=False)
        self.details["compile_mode"] = "default, static shapes"
        return compiled

    def _compile(self) -> None:
        with quiet():
            self._call(*self.arguments)
        self.synchronize()


class TorchScriptSystem(TorchSystem):
    """A scripted module. Its profiling executor optimises during the first calls, which `prepare` makes."""

    framework = "torchscript"
    kinds = (*TorchSystem.kinds, "torchscript")
    compiles = True
    OPTIMISING_CALLS = 2

    def _read_file(self) -> Any:
        if self.source.kind != "torchscript":
            return super()._read_file()
        try:
            with quiet():
                return self.torch.jit.load(str(self.source.path), map_location="cpu")
        except Exception as error:
            raise BenchmarkError(f"{self.source.text}: PyTorch cannot read it: {reason_of(error)}") from error

    def _moved(self, module: Any) -> Any:
        self._module_itself = super()._moved(module)
        return self._module_itself

    def _compile(self) -> None:
        with quiet(), self.torch.inference_mode():
            if not isinstance(self._module_itself, self.torch.jit.ScriptModule):
                self.model = self.torch.jit.trace(self._module_itself, self.arguments, check_trace=False)
                self.details["made_by"] = "torch.jit.trace"
            for _ in range(self.OPTIMISING_CALLS):
                self.model(*self.arguments)
        self.synchronize()

    def close(self) -> None:
        """Let go of the module that was traced too."""
        super().close()
        self._module_itself = None


class TorchExportSystem(TorchSystem):
    """An exported program; a module is exported for each batch size, a file takes those it was made for."""

    framework = "torch-export"
    kinds = (*TorchSystem.kinds, "torch-export")
    compiles = True

    def _read_file(self) -> Any:
        if self.source.kind != "torch-export":
            return super()._read_file()
        try:
            with quiet():
                self._program = self.torch.export.load(str(self.source.path))
        except Exception as error:
            raise BenchmarkError(
                f"{self.source.text}: torch.export cannot read it: {reason_of(error)}"
            ) from error
        return self._program.module()

    def _moved(self, module: Any) -> Any:
        if getattr(self, "_program", None) is None:
            self._module_itself = super()._moved(module)
            return self._module_itself
        # A program keeps the mode and the type that it was exported with, and makes its constants there.
        if self.spec.dtype is not None and self.spec.dtype != self.dtype_of(module):
            raise BenchmarkError(f"the program is of {self.dtype_of(module)}: leave --dtype out")
        return module.to(self.device_type)

    def dtype_of(self, module: Any) -> str:
        """Return the type of the first parameter that is a real number."""
        types = [
            str(each.dtype).removeprefix("torch.") for each in module.parameters() if each.is_floating_point()
        ]
        return types[0] if types else "float32"

    def _inputs(self) -> InputSpec:
        if self.spec.input_shape is None and getattr(self, "_program", None) is not None:
            shape = self._example_shape()
            if shape is not None:
                return InputSpec(shape)
        return super()._inputs()

    def _example_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one sample as the program's first input has it, where that is fixed."""
        shape = self._input_shape()
        sizes = shape[1:] if shape else [None]
        return tuple(map(int, sizes)) if all(isinstance(size, int) for size in sizes) else None

    def _input_shape(self) -> tuple[Any, ...]:
        names = set(self._program.graph_signature.user_inputs)
        shapes = [node.meta["val"].shape for node in self._program.graph.nodes if node.name in names]
        return tuple(shapes[0]) if shapes else ()

    @property
    def fixed_batch_size(self) -> int | None:
        """The batch size that a file was exported with, where that is fixed."""
        if getattr(self, "_program", None) is None:
            return None
        shape = self._input_shape()
        return shape[0] if shape and isinstance(shape[0], int) else None

    def _compile(self) -> None:
        if getattr(self, "_program", None) is not None:
            return
        with quiet(), self.torch.no_grad():
            program = self.torch.export.export(self._module_itself, self.arguments)
        self.model = program.module()
        self.details["made_by"] = "torch.export.export"

    def close(self) -> None:
        """Let go of the program and of the module that was exported too."""
        super().close()
        self._program = self._module_itself = None
