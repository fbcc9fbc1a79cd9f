# SPDX-License-Identifier: Apache-2.0
"""What a refusal looks like: one clear line, whether raised or printed."""

from __future__ import annotations

import subprocess


def check_message(error: BaseException, *words: str) -> None:
    text = str(error)
    assert len(text.splitlines()) == 1, text
    for word in words:
        assert word in text, text
    # Of a chain Python would print the traceback of another library above it.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def check_refusal(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that the command printed one line with what is wrong, and returned 2."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gpuprof: error: ")
    for word in words:
        assert word in done.stderr
