# SPDX-License-Identifier: Apache-2.0
"""Doing something right after a module was imported for the first time, and nothing during imports."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # Python asks for the methods only. `importlib.abc` imports twenty modules, into each recorded program.
    Loader = MetaPathFinder = object


class _NotifyingLoader(Loader):
    """Runs the module's own loader, restores it in the module, and reports the import."""

    def __init__(self, loader: Loader, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported()


class ImportHook(MetaPathFinder):
    """Calls `imported` once, after the module `name` was imported. Remove it with `remove()`."""

    def __init__(self, name: str, imported: Callable[[], None]) -> None:
        self._name = name
        self._callback = imported
        self._searching = threading.local()

    def install(self) -> None:
        """Begin to watch. The module must not have been imported yet."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; harmless when it was removed before."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find the module as everybody else would, and wrap its loader."""
        if fullname != self._name or getattr(self._searching, "active", False):
            return None
        self._searching.active = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.active = False
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        self.remove()
        self._callback()


def is_importing(packages: Collection[str]) -> bool:
    """Whether a thread runs the body of a module of these packages, so that others find it half imported."""
    for frame in sys._current_frames().values():
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_name == "<module>":
                name = str(current.f_globals.get("__name__", ""))
                if name.partition(".")[0] in packages:
                    return True
            current = current.f_back
    return False
