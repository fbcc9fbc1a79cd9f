# SPDX-License-Identifier: Apache-2.0
"""Any callable of Python. What it enqueues elsewhere it has to wait for itself, or hand over how to."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.models.data import InputSpec
from gpuprof.errors import BenchmarkError


class PythonSystem(FrameworkSystem):
    """A function of one batch, as a NumPy array; without an input shape it is called without arguments.

    A callable may carry `synchronize`, a function that waits until what it enqueued is done.
    """

    framework = "python"
    dtypes = ("float32", "float16", "float64", "int8", "int32", "int64")

    def _load(self) -> None:
        if not callable(self.model):
            raise BenchmarkError(
                "kind_of_model",
                f"{self.source.text} gives {type(self.model).__name__}",
                hint="return a torch.nn.Module or a function",
            )
        if self.spec.device not in ("auto", "cpu"):
            raise BenchmarkError(
                "no_such_device",
                f"--device {self.spec.device}: unknown for a Python callable",
                hint="omit --device",
            )
        self._wait: Callable[[], object] | None = getattr(self.model, "synchronize", None)
        self.details["python"] = platform.python_version()

    def synchronize(self) -> None:
        """Wait with the callable's own function, if it has one."""
        if self._wait is not None:
            self._wait()

    def waiting(self) -> Callable[[], object] | None:
        """Return the callable's own way to wait, None where it has none."""
        return self._wait

    def _inputs(self) -> InputSpec:
        if self._make_inputs is not None and self.arguments:
            return super()._inputs()
        shape = () if self.spec.input_shape is None and self._make_inputs is None else self._named_shape()
        return InputSpec(shape, 256 if self.dtype.startswith("int") else None)

    def _place(self, array: Any) -> Any:
        return array.astype(self.dtype)

    def _batch(self, batch_size: int) -> tuple[Any, ...]:
        if self.spec.input_shape is None and self._make_inputs is None:
            return ()
        return super()._batch(batch_size)
