# SPDX-License-Identifier: Apache-2.0
"""Which module a module is part of: a model is not always what a program calls."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

from gpuprof import _native

# Any module of PyTorch: this needs none of its functions.
Module = TypeVar("Module")


def outermost_owner(module: Module, module_type: type[Module]) -> Module:
    """Return the largest module that owns `module` and that no other one owns, else `module` itself.

    A module owns those that are assigned to it and those that they own. The owner need not be called: a
    LightningModule never is. What a compiler made to trace a module owns nothing. All living objects are
    looked at, which takes tens of milliseconds.
    """
    owners: dict[int, list[Module]] = defaultdict(list)
    for each in _native.instances_of(module_type):
        for child in () if _is_of_compiler(type(each)) else _children(each):
            owners[id(child)].append(each)
    outermost = []
    seen, pending = {id(module)}, [module]
    while pending:
        each = pending.pop()
        above = owners.get(id(each), [])
        if not above and each is not module:
            outermost.append(each)
        pending += [owner for owner in above if id(owner) not in seen]
        seen.update(map(id, above))
    # Of several, one that does not depend on where they are in memory.
    return max(outermost, key=lambda owner: (_size(owner), type(owner).__name__), default=module)


def _is_of_compiler(kind: type) -> bool:
    module = str(kind.__module__)
    return module.startswith(("torch._", "torch.fx.", "torch.export.")) and kind.__name__ != "OptimizedModule"


def _children(module: Any) -> list[Any]:
    # Not by `children()`, which a class may have overridden.
    parts = object.__getattribute__(module, "__dict__").get("_modules")
    return [each for each in parts.values() if each is not None] if isinstance(parts, dict) else []


def _size(module: Any) -> int:
    """Return the number of modules in a module, itself included."""
    seen, pending = {id(module)}, [module]
    while pending:
        found = [each for each in _children(pending.pop()) if id(each) not in seen]
        seen.update(map(id, found))
        pending += found
    return len(seen)
