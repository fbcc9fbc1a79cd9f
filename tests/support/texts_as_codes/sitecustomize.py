# SPDX-License-Identifier: Apache-2.0
"""Every text of a typed fact or an error is its code and values in this process: `pytest --texts-as-codes`.

Python imports this at its start where PYTHONPATH has this folder, so processes that a test starts show codes
as well. Nothing of gpuprof is imported for it.
"""

import contextlib
import gc
import hashlib
import marshal
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "gpuprof"
TEXTS = f"{PACKAGE}.text.messages"
CACHE = Path(__file__).parent / "__pycache__" / f"codes-{sys.hexversion:x}"
COMPILER = Path(__file__).with_name("without_words.py")
_OWN_SOURCE = COMPILER.read_bytes()


class Finder:
    """Finds modules of gpuprof as Python does, and executes them without the words of their errors."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        specs = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and str(spec.origin).endswith(".py"):
            # On the loader itself, which also knows where the data of the package is.
            spec.loader.exec_module = execute
        return spec


def execute(module: ModuleType) -> None:
    """Execute a module without words."""
    exec(_code_of(module.__spec__.origin), module.__dict__)
    if module.__name__ == TEXTS:
        module.Messages.text = lambda _messages, code, values: module.code_text(code, values)


def _code_of(path: str) -> CodeType:
    """Return the compiled module, which is kept in a cache of its own: Python's has the words."""
    source = Path(path).read_bytes()
    kept = CACHE / hashlib.sha256(b"\0".join((_OWN_SOURCE, path.encode(), source))).hexdigest()
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        return marshal.loads(kept.read_bytes())
    code = _compile(source, path)
    with contextlib.suppress(OSError):  # a folder that cannot be written
        CACHE.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}")
        draft.write_bytes(marshal.dumps(code))
        draft.replace(kept)
    return code


def _compile(source: bytes, path: str) -> CodeType:
    """Compile without a collection of garbage, which would be a span where a program is recorded."""
    import runpy

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        code: CodeType = runpy.run_path(str(COMPILER))["compile_module"](source, path)
        return code
    finally:
        if was_enabled:
            gc.enable()


if PACKAGE not in sys.modules:
    sys.meta_path.insert(0, Finder())
