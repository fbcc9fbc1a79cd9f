# SPDX-License-Identifier: Apache-2.0
"""How a Python function is called in a run: its name, a short path, and its first line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from gpuprof._native import FrameNaming

# The frame that represents a call of a module: `torch.nn.Module.__call__` is this function.
MODULE_CALL = "Module._wrapped_call_impl (torch/nn/modules/module.py)"
CUT_OFF = "(outer frames left out)"
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")  # noqa: PTH118 - code objects hold texts
_MODULE_CALLS = {"_wrapped_call_impl": MODULE_CALL}

# As an import names its files, links and all.
OWN_FOLDER = os.path.join(str(Path(__file__).absolute().parents[1]), "")  # noqa: PTH118
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")  # noqa: PTH118, PTH120
_LIBRARY_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}/"
_QUALIFIED_NAME: Any = type.__dict__["__qualname__"]  # what no metaclass has changed


_HIDDEN = (OWN_FOLDER, "<frozen runpy>", "<frozen importlib", "<frozen zipimport>", "<frozen site>")
_MARKS = ("/site-packages/", "/dist-packages/")


def is_hidden(code: CodeType) -> bool:
    """Whether a function is gpuprof's own, or only starts programs and imports modules."""
    return code.co_filename.startswith(_HIDDEN)


def is_of_package(code: CodeType) -> bool:
    """Whether a function is of the standard library or of an installed package."""
    path = code.co_filename
    return path.startswith((_LIBRARY, "<frozen")) or any(mark in path for mark in _MARKS)


def frame_text(code: CodeType) -> str:
    """Return for example `train (train.py:12)`; the line is the function's first."""
    name = getattr(code, "co_qualname", code.co_name)
    if code.co_filename.endswith(_MODULE_FILE) and code.co_name in _MODULE_CALLS:
        return _MODULE_CALLS[code.co_name]
    path = short_path(code.co_filename)
    return f"{name} ({path})" if code.co_name == "<module>" else f"{name} ({path}:{code.co_firstlineno})"


def short_path(path: str) -> str:
    """Return the path as an import would find it, or below the current folder, else as it is."""
    for mark in _MARKS:
        if mark in path:
            return path.rpartition(mark)[2]
    for prefix, shown in _prefixes():
        if path.startswith(prefix):
            return shown + path.removeprefix(prefix)
    return path


def frame_naming() -> FrameNaming:
    """Return for the native sampler how frames are named, by the `sys.path` of this moment."""
    return FrameNaming(
        hidden=_HIDDEN,
        marks=_MARKS,
        prefixes=[*_prefixes(), *_program_folder()],
        module_call=(_MODULE_FILE, *next(iter(_MODULE_CALLS.items()))),
        cut_off=CUT_OFF,
    )


def _prefixes() -> list[tuple[str, str]]:
    folders = {folder.rstrip(os.sep) + os.sep for folder in sys.path if type(folder) is str and folder}
    return [(_LIBRARY, _LIBRARY_NAME), *((folder, "") for folder in sorted(folders, key=len, reverse=True))]


def _program_folder() -> list[tuple[str, str]]:
    # Python puts it into `sys.path` after a recording of the whole program began.
    script = sys.argv[0] if getattr(sys, "argv", None) and type(sys.argv[0]) is str else ""
    path = Path(script if script not in ("", "-c", "-m") else "program").absolute()
    return [(os.path.join(folder, ""), "") for folder in (path.parent, path.resolve().parent)]  # noqa: PTH118


def builtin_text(function: Any) -> str:
    """Return for example `time.sleep (built-in)`. Calls nothing of the program's, as asking a class might."""
    if not issubclass(type(function), BuiltinFunctionType):
        return "? (built-in)"
    name, owner, module = function.__name__, function.__self__, function.__module__
    if owner is not None and not issubclass(type(owner), ModuleType):
        of = owner if issubclass(type(owner), type) else type(owner)
        name = f"{_QUALIFIED_NAME.__get__(of)}.{name}"
    return f"{module}.{name} (built-in)" if type(module) is str else f"{name} (built-in)"
