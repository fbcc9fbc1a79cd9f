# SPDX-License-Identifier: Apache-2.0
"""The table `imports`: how long packages were imported, and what caused it."""

from __future__ import annotations

import pytest

from gpuprof.run.import_times import ImportCause, ImportTime, import_cause, import_times
from gpuprof.run.stacks import Stacks, ThreadStacks

MAIN = "<module> (train.py)"
TORCH = "<module> (torch/__init__.py)"
DYNAMO = "<module> (torch/_dynamo/__init__.py)"
SYMPY = "<module> (sympy/core/add.py)"
SGD = "SGD.__init__ (torch/optim/sgd.py:29)"
LOOP = "main (train.py:9)"
RUN = "run (engine/loop.py:3)"
LOAD = "load (data/io.py:7)"
PANDAS = "<module> (pandas/core/frame.py)"
BY_NAME = "import_module (python3.11/importlib/__init__.py:108)"


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([MAIN, LOOP], None),
        ([MAIN, TORCH], ImportCause("torch", "torch", "torch", "")),
        ([MAIN, TORCH, "f (torch/a.py:1)", SYMPY], ImportCause("sympy", "torch", "torch", "")),
        (
            [MAIN, LOOP, SGD, "inner (torch/_compile.py:42)", DYNAMO, SYMPY],
            ImportCause("sympy", "torch", "torch._dynamo", SGD),
        ),
        ([MAIN, LOOP, TORCH], ImportCause("torch", "torch", "torch", LOOP)),
        ([MAIN, LOOP, BY_NAME, SYMPY], ImportCause("sympy", "sympy", "sympy.core", LOOP)),
        # Packages of the program around the function that imports.
        ([MAIN, LOOP, RUN, LOAD, PANDAS], ImportCause("pandas", "pandas", "pandas.core", LOAD)),
        (
            [MAIN, LOOP, RUN, SGD, "inner (torch/_compile.py:42)", DYNAMO],
            ImportCause("torch", "torch", "torch._dynamo", SGD),
        ),
        (
            [MAIN, LOOP, RUN, SGD, "hook (train.py:50)", PANDAS],
            ImportCause("pandas", "pandas", "pandas.core", "hook (train.py:50)"),
        ),
        (
            [MAIN, LOOP, LOAD, "Lazy.__getattr__ (pandas/lazy.py:9)", "get (pandas/lazy.py:20)", PANDAS],
            ImportCause("pandas", "pandas", "pandas.core", LOAD),
        ),
        ([MAIN, BY_NAME, SYMPY], ImportCause("sympy", "sympy", "sympy.core", "")),
        (
            [MAIN, "Lazy.__getattr__ (transformers/utils.py:9)", "<module> (transformers/trainer.py)"],
            ImportCause("transformers", "transformers", "transformers.trainer", ""),
        ),
        ([MAIN, "<module> (python3.11/typing.py)"], ImportCause(*["standard library"] * 2, "typing", "")),
        # A package that is started as a module imports through its own modules.
        (
            ["<module> (mine/train.py)", "<module> (mine/data.py)", TORCH],
            ImportCause("torch", "torch", "torch", ""),
        ),
        (
            ["<module> (mine/train.py)", "<module> (mine/data/a.py)"],
            ImportCause("mine", "mine", "mine.data", ""),
        ),
        ([MAIN, "<module> (/tmp/cell.py)", LOOP], None),
    ],
)
def test_an_import_has_a_package_and_a_cause(frames: list[str], cause: ImportCause | None) -> None:
    assert import_cause(frames) == cause


def test_times_are_summed_by_cause_and_phase() -> None:
    texts = [MAIN, LOOP, SGD, DYNAMO, TORCH]
    thread = ThreadStacks(7, 7, 10)
    for t_ns, frames in ((10, (0, 4)), (20, (0, 4)), (30, (0, 1)), (110, (0, 1, 2, 3)), (260, (0, 1, 3))):
        thread.frames.append(frames)
        thread.t_ns.append(t_ns)
        thread.duration_ns.append(10)
    assert import_times(Stacks(texts, [thread]), {7: (100, 200)}) == [
        ImportTime(7, "torch", "start-up", 20, "torch", "torch", ""),
        ImportTime(7, "torch", "first step", 10, "torch", "torch._dynamo", SGD),
        ImportTime(7, "torch", "later", 10, "torch", "torch._dynamo", LOOP),
    ]
