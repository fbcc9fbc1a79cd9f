# SPDX-License-Identifier: Apache-2.0
"""Processes that run modules of gpuprof, in a folder with files of a user that have the names of modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpuprof.record.helper_process import module_command


def test_files_of_the_current_folder_are_no_modules(tmp_path: Path) -> None:
    for name in ("html", "json", "selectors", "gpuprof"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user')\n")
    done = subprocess.run(
        module_command("gpuprof", "--version"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpuprof")


def test_arguments_are_those_of_the_module(tmp_path: Path) -> None:
    command = module_command("gpuprof", "summary", "no -such;run")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no -such;run" in done.stderr
