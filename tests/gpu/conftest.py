# SPDX-License-Identifier: Apache-2.0
"""Tests on a GPU. Each runs its program in a process of its own; without a GPU they are skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("expectations")

from start_program import Ran, start_program  # noqa: E402

_ASK = """
import json
try:
    import torch
except ImportError as error:
    print(json.dumps({"reason": f"torch cannot be imported: {error}"}))
    raise SystemExit
if torch.version.cuda is None:
    print(json.dumps({"reason": "this build of torch has no CUDA"}))
elif not torch.cuda.is_available():
    print(json.dumps({"reason": "torch finds no CUDA device"}))
else:
    print(json.dumps({"reason": None, "name": torch.cuda.get_device_name(0)}))
"""


RunProgram = Callable[..., Ran]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-run", action="store_true", help="tests/gpu: ten million kernels in full")


@pytest.fixture(scope="session")
def cuda() -> str:
    """Return the GPU's name, or skip."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no GPU: torch could not be asked ({done.stderr.strip()[-200:]})")
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["reason"] is not None:
        pytest.skip(f"no GPU: {answer['reason']}")
    return str(answer["name"])


@pytest.fixture
def program(cuda: str, tmp_path: Path) -> RunProgram:
    """`program(name, *arguments)` runs a program of programs.py on the GPU."""

    def run(name: str, *arguments: object, **options: Any) -> Ran:
        return start_program(name, tmp_path, *arguments, **options)

    return run
