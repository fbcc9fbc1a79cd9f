# SPDX-License-Identifier: Apache-2.0
"""TorchScript: a file of it, or a trace of a module made for each batch size."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.systems.torch_eager import TorchSystem, quiet
from gpuprof.errors import BenchmarkError


class TorchScriptSystem(TorchSystem):
    """A scripted module. Its profiling executor optimises during the first calls, which `prepare` makes."""

    framework = "torchscript"
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
