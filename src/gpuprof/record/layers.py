# SPDX-License-Identifier: Apache-2.0
"""Which modules are layers, and what they are called.

A root is a module that was passed to `profile`, or the outermost module that owns a called one. It is named
by its class, and the modules in it by their paths, exactly as `named_modules()` gives them. Where a run has
several roots with parts, names are `Root/path`; a discovered program's first root goes without, so that a
second one changes no name. A module keeps its name, from wherever it is called. The wrapper that runs a
model in several processes or devices has its class as name, and changes none of the model's names.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, error_line, note
from gpuprof.record.first_calls import FirstCalls, is_compiling
from gpuprof.record.module_owners import outermost_owner

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
    class_name: str
    number: int
    label: str
    prefix: str  # of the names of its layers


class LayerSource:
    """Names modules and has their calls recorded, from `start` to `stop`. Keeps no module alive."""

    def __init__(self, modules: tuple[torch.nn.Module, ...], first_calls: FirstCalls | None = None) -> None:
        self._given = [weakref.ref(module) for module in modules]
        self._roots: list[_Root] = []
        self._wrappers: list[_Root] = []
        # The model whose layers are named by their paths alone: the only given one, or the first called one.
        self._plain: str | None = None
        # Modules without parts that were named by their class, since no other one owned them.
        self._alone: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._fruitless: Counter[type] = Counter()
        self._first_calls = first_calls
        self._types: dict[str, dict[str, str]] = {}  # class of each layer, by root and name
        self.notes: list[Note] = []

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        import torch

        call = vars(torch.nn.Module).get("__call__")
        if not isinstance(call, FunctionType):
            return SourceStatus.off(Reason.MODULE_CALL_REPLACED)
        self._add_given([module for each in self._given if (module := each()) is not None])
        take = None if self._first_calls is None else self._first_calls.take
        _native.intercept_layers(call, self._adopt if self._given else self._discover, take)
        if self._first_calls is not None and self._first_calls.windows is not None:
            self._first_calls.windows.start()
        return SourceStatus.on(Method.INTERCEPTED_CALLS, modules="given" if self._given else "every")

    def stop(self) -> None:
        """Leave everything as it was found."""
        _native.release_layers()
        if self._first_calls is not None and self._first_calls.windows is not None:
            self._first_calls.windows.stop()
        self._roots.clear()
        self._wrappers.clear()

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the file of the recording: the class of each layer that was named, by root and name."""
        # A copy in one step, since other threads may be naming layers.
        return {"layer_types": {root: dict(types) for root, types in list(self._types.items())}}

    # ---- which modules are roots -------------------------------------------------------------

    def _add_given(self, modules: list[torch.nn.Module]) -> None:
        parts = {id(part) for module in modules for _, part in self._parts(module) if part is not module}
        wholes = [module for module in modules if id(module) not in parts] or modules
        if sum(map(self._has_children, wholes)) > 1:
            self._plain = ""  # none: which of them is called first must not change a name
        for module in wholes:
            if not _native.is_layer(module):
                self._add_root(module)

    def _discover(self, module: torch.nn.Module) -> None:
        """Name a module that was called and is not known. Called from the native core."""
        if is_compiling():
            _leave_out_if_made_by_compiler(module)
        elif not self._is_part_of_root(module):
            self._add_root(self._whole_of(module))
            if not _native.is_layer(module):
                self._add_root(module)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Name a module that came to a given one after the start; leave others out."""
        if is_compiling():
            _leave_out_if_made_by_compiler(module)
        elif not self._is_part_of_root(module):
            self._fruitless[type(module)] += 1
            _native.add_layer(module, "")

    def _is_part_of_root(self, module: torch.nn.Module) -> bool:
        if self._fruitless[type(module)] >= _FRUITLESS_SEARCHES:
            return False
        for entry in self._roots:
            root = entry.module()
            if root is not None and any(each is module for _, each in self._parts(root)):
                self._name_parts(root, entry)
                return True
        return False

    def _whole_of(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module that a called one is part of, else itself."""
        import torch

        if self._fruitless[type(module)] >= _FRUITLESS_SEARCHES:
            return module
        whole = module
        # A program may forbid to look at its objects.
        with contextlib.suppress(Exception):
            whole = outermost_owner(module, torch.nn.Module)
        if whole is module or _native.is_layer(whole):
            self._fruitless[type(module)] += 1
            return module
        return whole

    # ---- names -------------------------------------------------------------------------------

    def _add_root(self, module: torch.nn.Module) -> None:
        try:
            self._name_root(module)
        except Exception as error:
            self._leave_out(module, error)

    def _name_root(self, module: torch.nn.Module) -> None:
        self._roots = [entry for entry in self._roots if entry.module() is not None]
        inside = _uncompiled(module)
        if (model := _parallel_model(inside)) is not None:
            label = self._wrapper_label(inside)
            self._name(module, label, label)
            if inside is not module:
                self._name(inside, label, label)
            self._name_root(model)
            return
        class_name = type(inside).__name__
        if not self._has_children(module):
            self._name(module, class_name, class_name)
            self._alone.add(module)
            return
        root = self._root_of(inside) or self._new_root(inside, class_name)
        self._name(module, root.label, root.label)
        if inside is not module and not _native.is_layer(inside):
            # It may be called without its wrapper, which may be gone by then.
            self._name(inside, root.label, root.label)
        # What is inside a compiled module is seen only where it is called without it: it keeps its name.
        self._name_parts(inside, root, rename=not is_compiled(module))

    def _root_of(self, module: torch.nn.Module) -> _Root | None:
        return next((entry for entry in self._roots if entry.module() is module), None)

    def _new_root(self, module: torch.nn.Module, class_name: str) -> _Root:
        number, label = _free_label(self._roots, class_name)
        if self._plain is None:
            self._plain = label
        prefix = "" if label == self._plain else f"{label}/"
        root = _Root(weakref.ref(module), class_name, number, label, prefix)
        self._roots.append(root)
        return root

    def _wrapper_label(self, wrapper: torch.nn.Module) -> str:
        self._wrappers = [entry for entry in self._wrappers if entry.module() is not None]
        class_name = type(wrapper).__name__
        number, label = _free_label(self._wrappers, class_name)
        self._wrappers.append(_Root(weakref.ref(wrapper), class_name, number, label, ""))
        return label

    def _name_parts(self, module: torch.nn.Module, root: _Root, *, rename: bool = True) -> None:
        for path, part in self._parts(module):
            if part is module:
                continue
            if rename and part in self._alone:
                self._alone.discard(part)
            elif _native.is_layer(part):
                continue
            try:
                self._name(part, f"{root.prefix}{path}", root.label)
            except Exception as error:
                self._leave_out(part, error)

    def _name(self, module: torch.nn.Module, name: str, root: str) -> None:
        name = _as_text(name)
        if self._first_calls is not None:
            self._first_calls.names[module] = name
        self._types.setdefault(root, {})[name] = type(_uncompiled(module)).__name__
        _native.add_layer(module, name, is_compiled(module), self._first_calls is not None)

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


def _as_text(name: str) -> str:
    """Return a name with escapes for what is no text, as spans have them: attributes may have any name."""
    return name.encode("utf-8", "backslashreplace").decode()


def _free_label(entries: list[_Root], class_name: str) -> tuple[int, str]:
    """Return the first number that no living one of the class has, and the label with it."""
    taken = {entry.number for entry in entries if entry.class_name == class_name}
    number = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return number, class_name if number == 1 else f"{class_name}#{number}"


def _leave_out_if_made_by_compiler(module: torch.nn.Module) -> None:
    """Leave a graph out for good. The program's own modules are looked at again when they run."""
    graphs = sys.modules.get("torch.fx.graph_module")
    if graphs is not None and isinstance(module, graphs.GraphModule):
        _native.add_layer(module, "")


def _uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    return (
        vars(module).get("_modules", {}).get("_orig_mod", module) if _is_optimized_module(module) else module
    )


def _parallel_model(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the model inside DistributedDataParallel or DataParallel; None for other modules."""
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is None or not isinstance(module, (parallel.DistributedDataParallel, parallel.DataParallel)):
        return None
    model: torch.nn.Module | None = vars(module).get("_modules", {}).get("module")
    return model


def _is_optimized_module(module: Any) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of a module run compiled code."""
    return _is_optimized_module(module) or getattr(module, "_compiled_call_impl", None) is not None
