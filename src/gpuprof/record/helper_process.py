# SPDX-License-Identifier: Apache-2.0
"""The command of a process that runs one of gpuprof's own modules."""

from __future__ import annotations

import sys

# `python -m` and `python -c` search the current folder first, where a user's file may be called `html.py`.
# `-P` does not exist in Python 3.10, and programs that gpuprof starts would inherit it.
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module and finds no modules in the current folder."""
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]
