# SPDX-License-Identifier: Apache-2.0
"""What a refusal looks like: one line, raised or printed. Tests compare codes and values, not words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
import pytest

from gpuprof.cli import main
from gpuprof.errors import GpuprofError


@contextmanager
def refused(
    kind: type[GpuprofError], code: str, *values: object
) -> Iterator[pytest.ExceptionInfo[GpuprofError]]:
    """Check that the block raises an error of this code, whose text has these values."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    for value in values:
        assert str(value) in str(caught.value)


def refused_command(arguments: Sequence[str], code: str, *values: object) -> None:
    """Check that a command line is refused with an error of this code, whose text has these values."""
    with pytest.raises((GpuprofError, click.UsageError)) as caught:
        main._invoke(arguments)
    assert getattr(caught.value, "code", None) == code, caught.value
    for value in values:
        assert str(value) in str(caught.value)


def check_message(error: BaseException, *words: str) -> None:
    """Check that the error is one line with these values, without the traceback of another library."""
    text = str(error)
    assert len(text.splitlines()) == 1, text
    for word in words:
        assert word in text, text
    # Of a chain Python would print the traceback of another library above it.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def check_refusal(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that the command printed one line with these values, and returned 2."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gpuprof: error: ")
    for word in words:
        assert word in done.stderr
