# SPDX-License-Identifier: Apache-2.0
"""Python imports this at its start, before the program, where `gpuprof run` put this folder on its path.

So Python itself runs the program, and nothing of ours stands between the two.
"""

import os
import sys


def _begin() -> None:
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is not imported for this
    this_module = sys.modules.pop("sitecustomize")
    from gpuprof.record.launch import begin

    begin()
    try:
        # The one that Python would have found without us.
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this_module


_begin()
