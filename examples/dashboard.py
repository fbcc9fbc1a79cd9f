# SPDX-License-Identifier: Apache-2.0
"""A folder for `gpuprof dashboard`: runs of two versions of a program, to mark and compare on the page.

python examples/dashboard.py results
gpuprof dashboard results
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import gpuprof


def multiply(size: int) -> float:
    with gpuprof.span("multiply"):
        return float((np.ones((size, size)) @ np.ones((size, size))).sum())


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    folder.mkdir(exist_ok=True)
    for name, size in (("before", 100), ("after", 200)):
        with gpuprof.profile(out=folder / f"{name}.gpuprof", python=False):
            for _ in range(50):
                with gpuprof.span("step"):
                    multiply(size)
    print(f"gpuprof dashboard {folder}")


if __name__ == "__main__":
    main()
