# SPDX-License-Identifier: Apache-2.0
"""Which modules are layers, and what they are called.

A root, that is a module which was passed to `profile` or was seen called on its own, is named by its
class; the modules in it by their paths, exactly as `named_modules()` gives them.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gpuprof import _native

if TYPE_CHECKING:
    import torch

# After so many modules of one class that belonged to no root, further ones are not searched for: code
# that makes a module for each call would pay for the search each time.
_FRUITLESS_SEARCHES = 8


class LayerSource:
    """Names modules and has their calls recorded, from `start` to `stop`."""

    def __init__(self, modules: tuple[torch.nn.Module, ...]) -> None:
        self._given = modules
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._root_ids: list[int] = []
        self._names_in_use: Counter[str] = Counter()
        self._fruitless: Counter[type] = Counter()

    def start(self) -> str:
        """Begin; torch is imported. Returns the method in use, or why there is none."""
        import torch

        call = vars(torch.nn.Module).get("__call__")
        if not isinstance(call, FunctionType):
            return "off: torch.nn.Module.__call__ was replaced by something that is not a function"
        discovers = not self._given
        for module in self._given:
            self._add_root(module)
        _native.intercept_layers(call, self._discover if discovers else None)
        return "intercepted calls, " + ("every module that is called" if discovers else "the given modules")

    def stop(self) -> None:
        """Leave everything as it was found."""
        _native.release_layers()
        self._roots.clear()

    def _discover(self, module: torch.nn.Module) -> None:
        """Name a module that was called and is not known. Called from the native core."""
        if self._fruitless[type(module)] < _FRUITLESS_SEARCHES:
            if self._adopt_into_known_root(module):
                return
            self._fruitless[type(module)] += 1
        self._add_root(module)

    def _adopt_into_known_root(self, module: torch.nn.Module) -> bool:
        for reference, root_id in zip(self._roots, self._root_ids, strict=True):
            root = reference()
            if root is not None and any(each is module for each in root.modules()):
                self._name_children(root, root_id)
                return True
        return False

    def _add_root(self, module: torch.nn.Module) -> None:
        root_id = _native.add_layer(module, self._root_name(module))
        if any(True for _ in module.children()):
            self._roots.append(weakref.ref(module))
            self._root_ids.append(root_id)
        self._name_children(module, root_id)

    def _root_name(self, module: torch.nn.Module) -> str:
        name = type(_uncompiled(module)).__name__
        if not any(True for _ in module.children()):
            return name  # activations and losses are made by the dozen, and one is like the other
        self._names_in_use[name] += 1
        count = self._names_in_use[name]
        return name if count == 1 else f"{name}#{count}"

    def _name_children(self, root: torch.nn.Module, root_id: int) -> None:
        whole: set[torch.nn.Module] = set()
        for name, module in root.named_modules():
            if module in whole:
                _native.add_layer(module, "")
            elif module is not root and not _native.is_layer(module):
                _native.add_layer(module, name, root_id)
            if _is_compiled(module):
                # A compiled module is one span; what graph breaks call of it is part of that span.
                whole.update(each for each in module.modules() if each is not module)


def _uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    return (
        vars(module).get("_modules", {}).get("_orig_mod", module) if _is_optimized_module(module) else module
    )


def _is_optimized_module(module: Any) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _is_compiled(module: torch.nn.Module) -> bool:
    return _is_optimized_module(module) or getattr(module, "_compiled_call_impl", None) is not None
