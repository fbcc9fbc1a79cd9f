# SPDX-License-Identifier: Apache-2.0
"""Every text of a typed fact is its code and values in this process: `pytest --texts-as-codes`.

Python imports this at its start where PYTHONPATH has this folder, so processes that a test starts show codes
as well. Nothing of gpuprof is imported for it.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

TEXTS = "gpuprof.text.messages"


class Finder(MetaPathFinder):
    """Finds the module of texts as Python does, and replaces what it makes once it was executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != TEXTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            show_codes(module)

        spec.loader.exec_module = exec_module
        return spec


def show_codes(module: Any) -> None:
    """Replace what makes the text of a code."""
    module.Messages.text = lambda _messages, code, values: module.code_text(code, values)


if TEXTS in sys.modules:
    show_codes(sys.modules[TEXTS])
else:
    sys.meta_path.insert(0, Finder())
