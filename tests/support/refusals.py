# SPDX-License-Identifier: Apache-2.0
"""What a refusal looks like: a line with a hint, raised or printed. Tests compare codes and values."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from gpuprof.cli import main
from gpuprof.errors import GpuprofError

# With --texts-as-codes an error has no words, and so no hint.
HAS_WORDS = "texts_as_codes" not in os.environ.get("PYTHONPATH", "")


def check_form(text: str) -> None:
    """Check that the text of an error is one line with a hint."""
    assert len(text.splitlines()) == 1, text
    assert not HAS_WORDS or text.partition("; hint: ")[2], text


@contextmanager
def refused(
    kind: type[GpuprofError], code: str, *values: object
) -> Iterator[pytest.ExceptionInfo[GpuprofError]]:
    """Check that the block raises an error of this code, whose text has these values."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    check_form(str(caught.value))
    for value in values:
        assert str(value) in str(caught.value)


def refused_command(arguments: Sequence[str | Path], code: str, *values: object) -> None:
    """Check that a command line is refused with an error of this code, whose text has these values.

    It prints one line to standard error, nothing to standard output, and exits with 2.
    """
    raised: list[BaseException] = []

    def keep(arguments: Sequence[str]) -> int:
        try:
            return invoke(arguments)
        except Exception as error:
            raised.append(error)
            raise

    invoke = main._invoke
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(main, "_invoke", keep), redirect_stdout(out), redirect_stderr(err):
        exit_code = main.execute([str(word) for word in arguments])
    printed = err.getvalue()
    assert (exit_code, out.getvalue()) == (2, ""), printed
    (error,) = raised
    assert getattr(error, "code", None) == code, error
    assert printed.splitlines()[-1].startswith("gpuprof: error: "), printed
    check_form(printed.splitlines()[-1])
    for value in values:
        assert str(value) in str(error), error


def check_message(error: BaseException, *words: str) -> None:
    """Check that the error is one line with these values, without the traceback of another library."""
    text = str(error)
    check_form(text)
    for word in words:
        assert word in text, text
    # Of a chain Python would print the traceback of another library above it.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def check_refusal(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that the command printed one line with these values, and returned 2."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    check_form(done.stderr)
    assert done.stderr.startswith("gpuprof: error: ")
    for word in words:
        assert word in done.stderr
