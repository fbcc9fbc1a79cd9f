# SPDX-License-Identifier: Apache-2.0
"""Python imports this at its start, before the program, where `gpuprof run` put this folder on its path.

So Python itself runs the program, and nothing of ours is between the two. With `--children` any Python
that the program starts comes here, of whatever version: so what follows is kept to what all of them read.
"""

import os
import sys


def _begin():  # type: () -> None
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is not imported for this
    this_module = sys.modules.pop("sitecustomize")
    if "GPUPROF_RUN" in os.environ:
        from gpuprof.record.launch import begin

        begin()
    elif "GPUPROF_CHILDREN" in os.environ:
        _join()
    try:
        # The one that Python would have found without us.
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this_module


def _join():  # type: () -> None
    try:
        from gpuprof.record.children import join_run
    except Exception:
        return  # a Python that has no gpuprof, or one that does not fit: it runs unrecorded
    join_run()


_begin()
