# SPDX-License-Identifier: Apache-2.0
"""What a command printed, and the folders of fixed inputs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprof.cli.main import execute

HERE = Path(__file__).parent
INPUTS = HERE / "inputs"


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    command: str
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        errors = "--- standard error\n" + self.err if self.err else ""
        return f"$ {self.command}\n{self.out}{errors}--- exit code {self.code}\n"


Run = Callable[..., Done]


def run_command(words: Sequence[str], capture: pytest.CaptureFixture[str]) -> Done:
    """Run a command line in this process."""
    capture.readouterr()
    code = execute(words)
    printed = capture.readouterr()
    return Done(shlex.join(("gpuprof", *words)), code, printed.out, printed.err)


def break_python(workplace: Path) -> None:
    """Have every process that is started from now on fail: results can only come from files."""
    (workplace / "python").write_text("#!/bin/sh\nexit 99\n", encoding="utf-8")
