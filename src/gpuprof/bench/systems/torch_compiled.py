# SPDX-License-Identifier: Apache-2.0
"""`torch.compile`: the model's graphs, compiled at the first call with each batch size."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.systems.torch_eager import TorchSystem, quiet


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
