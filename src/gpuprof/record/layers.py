# SPDX-License-Identifier: Apache-2.0
"""Which modules are layers, and what they are called.

A root, that is a module which was passed to `profile` or was seen called on its own, is named by its
class; the modules in it by their paths, exactly as `named_modules()` gives them.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, error_line, note
from gpuprof.record.first_calls import FirstCalls, is_compiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# After so many modules of one class that belonged to no root, further ones are not searched for: code
# that makes a module for each call would pay for the search each time.
_FRUITLESS_SEARCHES = 8
MOST_FAILURES = 10  # of naming, that are notes


@dataclass(slots=True)
class _Root:
    module: weakref.ref[torch.nn.Module]
    name_id: int
    class_name: str
    number: int

    @property
    def name(self) -> str:
        return self.class_name if self.number == 1 else f"{self.class_name}#{self.number}"


class LayerSource:
    """Names modules and has their calls recorded, from `start` to `stop`. Keeps no module alive."""

    def __init__(self, modules: tuple[torch.nn.Module, ...], first_calls: FirstCalls | None = None) -> None:
        self._given = [weakref.ref(module) for module in modules]
        self._roots: list[_Root] = []
        # Modules that were named by their class, since they are part of no other.
        self._standalone: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._fruitless: Counter[type] = Counter()
        self._first_calls = first_calls
        self._types: dict[str, dict[str, str]] = {}  # class of each layer, by root and path
        self.notes: list[Note] = []

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        import torch

        call = vars(torch.nn.Module).get("__call__")
        if not isinstance(call, FunctionType):
            return SourceStatus.off(Reason.MODULE_CALL_REPLACED)
        for reference in self._given:
            module = reference()
            if module is not None and not _native.is_layer(module):
                self._add_root(module)
        take = None if self._first_calls is None else self._first_calls.take
        _native.intercept_layers(call, self._adopt if self._given else self._discover, take)
        return SourceStatus.on(Method.INTERCEPTED_CALLS, modules="given" if self._given else "every")

    def stop(self) -> None:
        """Leave everything as it was found."""
        _native.release_layers()
        self._roots.clear()

    def known_types(self) -> dict[str, dict[str, str]]:
        """Return the class of each layer that was named, by root and path."""
        # A copy in one step, since other threads may be naming layers.
        return {root: dict(types) for root, types in list(self._types.items())}

    def _discover(self, module: torch.nn.Module) -> None:
        """Name a module that was called and is not known. Called from the native core."""
        if is_compiling():
            _leave_out_if_made_by_compiler(module)
        elif not self._is_part_of_root(module):
            self._add_root(module)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Name a module that came to a given one after the start; leave others out."""
        if is_compiling():
            _leave_out_if_made_by_compiler(module)
        elif not self._is_part_of_root(module):
            _native.add_layer(module, "")

    def _is_part_of_root(self, module: torch.nn.Module) -> bool:
        if self._fruitless[type(module)] >= _FRUITLESS_SEARCHES:
            return False
        for entry in self._roots:
            root = entry.module()
            if root is not None and any(each is module for _, each in self._parts(root)):
                self._name_children(root, entry.name_id, entry.name)
                return True
        self._fruitless[type(module)] += 1
        return False

    def _add_root(self, module: torch.nn.Module) -> None:
        try:
            self._name_root(module)
        except Exception as error:
            self._leave_out(module, error)

    def _name_root(self, module: torch.nn.Module) -> None:
        self._roots = [entry for entry in self._roots if entry.module() is not None]
        inside = _uncompiled(module)
        class_name = type(inside).__name__
        has_children = self._has_children(module)
        number = self._free_number(class_name) if has_children else 1
        name = class_name if number == 1 else f"{class_name}#{number}"
        whole = is_compiled(module)
        wanted = self._first_calls is not None and self._first_calls.expect(module, name)
        name_id = _native.add_layer(module, name, 0, whole, wanted)
        self._standalone.add(module)
        self._types.setdefault(name, {})[name] = class_name
        if inside is not module and not _native.is_layer(inside):
            # It may be called without its wrapper, which may be gone by then.
            _native.add_layer(inside, name)
        if has_children:
            self._roots.append(_Root(weakref.ref(inside), name_id, class_name, number))
            # What is inside a compiled module is seen only where it is called without it: it keeps its name.
            self._name_children(inside, name_id, name, rename=not whole)

    def _free_number(self, class_name: str) -> int:
        """Return the first number that no living root of the class has."""
        taken = {entry.number for entry in self._roots if entry.class_name == class_name}
        return next(number for number in range(1, len(taken) + 2) if number not in taken)

    def _name_children(
        self, root: torch.nn.Module, root_id: int, root_name: str, *, rename: bool = True
    ) -> None:
        types = self._types.setdefault(root_name, {})
        former_parts: set[torch.nn.Module] = set()  # of what was called on its own before its whole was
        for name, module in self._parts(root):
            if module is root:
                continue
            if rename and module in self._standalone:
                self._standalone.discard(module)
                former_parts.update(part for _, part in self._parts(module))
            elif _native.is_layer(module) and module not in former_parts:
                continue
            try:
                types[name] = type(_uncompiled(module)).__name__
                _native.add_layer(module, name, root_id, is_compiled(module))
            except Exception as error:
                self._leave_out(module, error)

    def _parts(self, root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the modules in a model with their names, until it refuses to list them."""
        try:
            yield from root.named_modules()
        except Exception as error:
            self._note_failure(root, error)

    def _has_children(self, module: torch.nn.Module) -> bool:
        try:
            return any(True for _ in module.children())
        except Exception as error:
            self._note_failure(module, error)
            return False

    def _leave_out(self, module: torch.nn.Module, error: Exception) -> None:
        """Note a failure, and do not try again to name the module: each of its calls would."""
        self._note_failure(module, error)
        if not _native.is_layer(module):
            _native.add_layer(module, "")

    def _note_failure(self, module: torch.nn.Module, error: Exception) -> None:
        failure = note(NoteCode.LAYERS_NOT_NAMED, module=type(module).__name__, error=error_line(error))
        if len(self.notes) < MOST_FAILURES and failure not in self.notes:
            self.notes.append(failure)


def _leave_out_if_made_by_compiler(module: torch.nn.Module) -> None:
    """Leave a graph out for good. The program's own modules are looked at again when they run."""
    graphs = sys.modules.get("torch.fx.graph_module")
    if graphs is not None and isinstance(module, graphs.GraphModule):
        _native.add_layer(module, "")


def _uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    return (
        vars(module).get("_modules", {}).get("_orig_mod", module) if _is_optimized_module(module) else module
    )


def _is_optimized_module(module: Any) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of a module run compiled code."""
    return _is_optimized_module(module) or getattr(module, "_compiled_call_impl", None) is not None
