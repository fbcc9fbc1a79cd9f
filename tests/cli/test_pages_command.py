# SPDX-License-Identifier: Apache-2.0
"""What the commands print that write a file: its path."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuprof.cli.pages import echo_path

HOSTILE = Path("a\x1b[2J\nb.html")


def test_a_path_in_a_pipe_has_its_own_bytes() -> None:
    command = click.Command("write", callback=lambda: echo_path(HOSTILE))
    assert CliRunner().invoke(command).stdout_bytes == os.fsencode(HOSTILE) + b"\n"


@pytest.mark.parametrize("name", [HOSTILE, Path(os.fsdecode(b"\xff.html"))])
def test_a_path_on_a_terminal_does_not_move_the_cursor(name: Path) -> None:
    master, terminal = pty.openpty()
    source = f"import pathlib; from gpuprof.cli import pages; pages.echo_path(pathlib.Path({str(name)!r}))"
    subprocess.run([sys.executable, "-c", source], stdout=terminal, check=True, timeout=60)
    os.close(terminal)
    printed = os.read(master, 4096).decode()
    os.close(master)
    assert printed.endswith("\r\n")
    assert printed[:-2].isprintable()
