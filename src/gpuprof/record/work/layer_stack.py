# SPDX-License-Identifier: Apache-2.0
"""Which layer an operator belongs to: the innermost module that is being called, also in the backward pass.

Autograd numbers its nodes in the order in which the forward pass makes them. At each border between two
layers the next number is recorded, so a node's number leads back to its layer.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

OUTSIDE = ""


class LayerStack:
    """Names layers as recordings do, and follows the calls of modules while `watching`."""

    def __init__(
        self,
        discovered: Callable[[torch.nn.Module], None],
        recorded: Mapping[torch.nn.Module, str],
    ) -> None:
        self._discovered = discovered
        self._recorded = recorded
        self._names: dict[torch.nn.Module, str] = {}
        self._owners: dict[int, str] = {}
        self._roots: dict[str, int] = {}
        self._threads = threading.local()
        self._first_thread = threading.get_ident()
        self._borders: list[tuple[int, str]] = [(0, OUTSIDE)]

    def add_root(self, root: torch.nn.Module) -> None:
        """Name modules as they were recorded, else a root by its class, and what is inside it by its path."""
        class_name = type(root).__name__
        self._roots[class_name] = number = self._roots.get(class_name, 0) + 1
        for path, module in root.named_modules():
            name = path or (class_name if number == 1 else f"{class_name}#{number}")
            name = self._recorded.get(module, name)
            self._names.setdefault(module, name)
            for parameter in module._parameters.values():
                self._owners.setdefault(id(parameter), self._names[module])

    @contextmanager
    def watching(self, is_ours: Callable[[], bool]) -> Iterator[None]:
        """Follow the calls of modules on the threads where `is_ours` holds."""

        def enter(module: torch.nn.Module, _: object) -> None:
            # The wrapper around a compiled module: what it wraps is the layer.
            if is_ours() and type(module).__name__ != "OptimizedModule":
                self._enter(module)

        def leave(module: torch.nn.Module, _: object, __: object) -> None:
            if is_ours():
                self._leave(module)

        with ExitStack() as hooks:
            # Hooks for all modules: hooks of its own would lead a module away from PyTorch's fast paths.
            hooks.callback(module_hooks.register_module_forward_pre_hook(enter).remove)
            hooks.callback(module_hooks.register_module_forward_hook(leave, always_call=True).remove)
            yield

    def current(self) -> tuple[str, bool]:
        """Return the layer that an operator which runs now belongs to, and whether it is a backward one."""
        node = torch._C._current_autograd_node()
        stack = self._stack()
        if node is None:
            return (stack[-1][1] if stack else OUTSIDE), False
        if stack and stack[-1][2]:
            return stack[-1][1], True  # a layer that the backward pass itself calls: checkpointing
        return self._layer_of_node(node), True

    def _layer_of_node(self, node: Any) -> str:
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._owners.get(id(variable), OUTSIDE)
        at = bisect_right(self._borders, node._sequence_nr(), key=lambda border: border[0])
        return self._borders[at - 1][1]

    def _stack(self) -> list[tuple[torch.nn.Module, str, bool]]:
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[tuple[torch.nn.Module, str, bool]] = self._threads.stack
        return stack

    def _enter(self, module: torch.nn.Module) -> None:
        if module not in self._names:
            self._discovered(module)
            self.add_root(module)
        in_backward = torch._C._current_autograd_node() is not None
        self._stack().append((module, self._names[module], in_backward))
        self._note_border()

    def _leave(self, module: torch.nn.Module) -> None:
        stack = self._stack()
        depth = next((at for at in reversed(range(len(stack))) if stack[at][0] is module), None)
        if depth is not None:
            del stack[depth:]
        self._note_border()

    def _note_border(self) -> None:
        # Each thread numbers its own nodes: only those of the thread with the forward pass lead back.
        if threading.get_ident() == self._first_thread:
            stack = self._stack()
            name = stack[-1][1] if stack else OUTSIDE
            self._borders.append((torch.autograd._get_sequence_nr(), name))
