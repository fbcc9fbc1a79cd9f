# SPDX-License-Identifier: Apache-2.0
"""Files of `torch.export` (.pt2): a graph of operators and its weights, run as PyTorch runs it."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.data import InputSpec
from gpuprof.bench.failures import reason_of
from gpuprof.bench.systems.torch_eager import TorchSystem, quiet
from gpuprof.errors import BenchmarkError


class TorchExportSystem(TorchSystem):
    """An exported program; a module is exported for each batch size, a file takes those it was made for."""

    framework = "torch-export"
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
