# SPDX-License-Identifier: Apache-2.0
"""Programs that are run by Python and by `gpuprof run`, to be compared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuprof

RUN = ("-m", "gpuprof", "run")
Files = Callable[..., Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """`files({"name.py": source})` writes programs below the folder that they run in."""

    def write(sources: dict[str, str | bytes]) -> Path:
        for name, source in sources.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return tmp_path

    return write


def without_our_line(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"gpuprof: "))


def readable(text: bytes) -> str:
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text.decode(errors="backslashreplace"))


def as_shell(code: int) -> int:
    return code if code >= 0 else 128 - code


@pytest.fixture
def same_as_python(run_python: Any) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run words with Python and with `gpuprof run`; exit code, output and errors must be equal."""

    def compare(
        *words: str,
        flags: tuple[str, ...] = (),
        between: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        plain = run_python(*flags, *words, text=False, **options)
        between()
        done = run_python(*flags, *RUN, *words, text=False, **options)
        assert readable(without_our_line(done.stderr)) == readable(plain.stderr)
        assert (as_shell(done.returncode), done.stdout) == (as_shell(plain.returncode), plain.stdout)
        assert done.stderr.count(b"\ngpuprof: ") + done.stderr.startswith(b"gpuprof: ") == 1
        completed: subprocess.CompletedProcess[bytes] = done
        return completed

    return compare


def spans_of(run: Path, columns: str = "name") -> list[Any]:
    # Where Python collects garbage is up to the interpreter.
    query = f"SELECT {columns} FROM spans WHERE kind <> 'gc' ORDER BY start_ns"
    return gpuprof.open(run).sql(query).fetchall()
