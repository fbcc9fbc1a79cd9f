# SPDX-License-Identifier: Apache-2.0
"""The steps of a program between windows, at the price of one call a step.

Steps end with the step of the first optimizer. In a program without one they are the calls of the model with
the longest total time. PyTorch calls a hook for the former; the native core watches the outermost calls of
modules for the latter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

from gpuprof import _native
from gpuprof.record.import_hook import ImportHook

StepEnded = Callable[[int, int], None]
_MOST_MODELS = 1_000


class StepWatch:
    """Calls `step_ended(begin_ns, end_ns)` on the thread of each step, from `start` to `stop`."""

    def __init__(self, step_ended: StepEnded) -> None:
        self._step_ended = step_ended
        self._hook: ImportHook | None = None
        self._handle: Any = None
        self._optimizer: int | None = None
        self._last_end_ns: int | None = None
        self._totals_ns: dict[int, int] = {}

    def start(self) -> None:
        """Begin now, or when torch is imported."""
        if "torch" in sys.modules:
            self._watch_torch()
            return
        self._hook = ImportHook("torch", self._watch_torch)
        self._hook.install()

    def stop(self) -> None:
        """End. Harmless where it never began."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        _native.release_outermost()

    def _watch_torch(self) -> None:
        try:
            import torch
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._handle = register_optimizer_step_post_hook(self._optimizer_stepped)
            call = vars(torch.nn.Module).get("__call__")
            if isinstance(call, FunctionType):
                _native.watch_outermost(call, self._model_called)
        except Exception:
            return  # another library of that name, or another version: windows begin without steps

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            _native.release_outermost()  # its calls are parts of steps
        if self._optimizer != id(optimizer):
            return
        if self._last_end_ns is not None:
            self._step_ended(self._last_end_ns, time.monotonic_ns())
        # What a window's begin or end costs is no part of the next step.
        self._last_end_ns = time.monotonic_ns()

    def _model_called(self, module: Any, begin_ns: int, end_ns: int) -> None:
        key = id(module)
        totals = self._totals_ns
        if key not in totals and len(totals) >= _MOST_MODELS:
            return
        totals[key] = totals.get(key, 0) + end_ns - begin_ns
        if totals[key] >= max(totals.values()):
            self._step_ended(begin_ns, end_ns)
