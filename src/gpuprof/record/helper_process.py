# SPDX-License-Identifier: Apache-2.0
"""Commands of processes that run gpuprof's own code, and find no modules in the current folder."""

from __future__ import annotations

import sys

# `python -m` and `python -c` search the current folder first, where a user's file may be called `html.py`.
# `-P` does not exist in Python 3.10, and programs that gpuprof starts would inherit it.
# The beginning of a program for `python -c`.
WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = [each for each in sys.path if each]; "
_RUN_MODULE = (
    f"{WITHOUT_CURRENT_FOLDER}import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of gpuprof."""
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]
