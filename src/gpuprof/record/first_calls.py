# SPDX-License-Identifier: Apache-2.0
"""What the first recorded call of each root was given, kept until the recording ends and its work is counted.

Of each later call it is only noted whether it was given the like. The call itself goes on at once: nothing is
copied and nothing is asked of PyTorch's operators, which would stand in the recording.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.record.gpu_facts import gpu_of_call
from gpuprof.record.inputs import CallsGiven, signature_of
from gpuprof.record.tracing import is_tracing

if TYPE_CHECKING:
    import torch

# A program that makes models without end would keep all of them alive.
MOST_ROOTS = 16
# In the recording's segments, until the run is closed.
WORK_FACTS = "work.json"
WORK_ROWS = "work.jsonl"
COUNTER_FACTS = "counters.json"
COUNTER_ROWS = "counters.jsonl"


@dataclass(slots=True)
class FirstCall:
    """A root, its arguments, and the modes that it was called in."""

    root: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool
    inference: bool
    autocast: dict[str, Any]
    training: bool
    threads: int
    # Tensors among the arguments with the version that they had then.
    versions: list[tuple[torch.Tensor, int]]
    gpu: dict[str, Any] | None = None


class FirstCalls:
    """Takes the first call of each root that it was told to expect. Keeps these roots alive."""

    def __init__(self) -> None:
        self.calls: list[FirstCall] = []
        self.left_out: list[str] = []
        self.given = CallsGiven()
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._taken: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def expect(self, module: torch.nn.Module, name: str) -> bool:
        """Return whether the calls of a root are wanted."""
        if module in self._names:
            return False
        if len(self._names) >= MOST_ROOTS:
            self.left_out.append(name)
            return False
        self._names[module] = name
        return True

    def take(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Look at a call, and keep the first of its root. Returns whether the next one is wanted.

        Called from the native core, just before the call goes on.
        """
        name = self._names.get(module)
        torch = sys.modules.get("torch")
        if name is None or torch is None:
            return False
        try:
            if is_tracing():
                return True
            if module not in self._taken:
                self._taken.add(module)
                self._keep(torch, name, module, args, kwargs)
            return self.given.note(name, signature_of(torch, args, kwargs))
        except (RuntimeError, TypeError, AttributeError, ValueError):
            # Of a tensor that cannot be asked. Not every error: a signal's handler may raise one here.
            return False

    def _keep(
        self, torch: Any, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        versions: list[tuple[Any, int]] = []
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        self.calls.append(
            FirstCall(
                name,
                module,
                tuple(_kept(torch, value, versions) for value in args),
                {key: _kept(torch, value, versions) for key, value in kwargs.items()},
                grad=torch.is_grad_enabled(),
                inference=torch.is_inference_mode_enabled(),
                autocast=_autocast(torch),
                training=bool(module.training),
                threads=int(torch.get_num_threads()),
                versions=versions,
                gpu=gpu_of_call(torch, module, given),
            )
        )

    def release(self) -> None:
        """Let go of everything."""
        self.calls.clear()
        self.given = CallsGiven()
        self._names.clear()
        self._taken.clear()


def _kept(torch: Any, value: Any, versions: list[tuple[Any, int]]) -> Any:
    """Return what to keep of an argument: containers are copied, since programs fill them again."""
    if isinstance(value, torch.Tensor):
        if value.grad_fn is None:
            if not value.is_inference():
                versions.append((value, int(value._version)))
            return value
        # Cut off, or it would hold everything that led to it. `detach` would stand in the recording.
        cut = value.data
        cut.requires_grad = True
        return cut
    if type(value) is dict:
        return {key: _kept(torch, each, versions) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(torch, each, versions) for each in value)
    return value


def _autocast(torch: Any) -> dict[str, Any]:
    """Return the type that each kind of device calculates in, where a mode says so."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}
