# SPDX-License-Identifier: Apache-2.0
"""The code and the words of every error that the package raises; other tests compare codes and values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from golden_files import GoldenFiles

import gpuprof

ROOT = Path(gpuprof.__file__).parent
WITH_CODE = {
    *("GpuprofError", "RecordingError", "RunError", "NotRecordedError", "NothingRecordedError"),
    *("UnavailableError", "WorkError", "BenchmarkError", "UsageError", "BadParameter"),
}
# Their class is their code.
OF_RUNS = {"FailedRunError", "DoesNotFitError", "TimeLimitError"}


class Raised(NamedTuple):
    """One place that makes an error."""

    place: str
    error: str
    code: ast.expr | None
    message: ast.expr | None
    hint: ast.expr | None


def raised() -> Iterator[Raised]:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                arguments = [None, None, *node.args] if node.func.id in OF_RUNS else [None, *node.args, None]
                if node.func.id in WITH_CODE | OF_RUNS:
                    hints = [each.value for each in node.keywords if each.arg == "hint"]
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield Raised(place, node.func.id, arguments[1], arguments[2], next(iter(hints), None))


def words(text: ast.expr | None) -> str:
    """Return a text with {} for its values."""
    if isinstance(text, ast.JoinedStr):
        return "".join(map(words, text.values))
    if isinstance(text, ast.IfExp):
        return f"{words(text.body)} | {words(text.orelse)}"
    return str(text.value) if isinstance(text, ast.Constant) else "{}"


def test_every_error_names_its_code() -> None:
    found = [each for each in raised() if each.error in WITH_CODE]
    assert len(found) > 300
    of_constants = (each for each in found if isinstance(each.code, ast.Constant))
    assert not [each for each in of_constants if not re.fullmatch(r"[a-z0-9_]+", words(each.code))]
    # What carries another error's code is not a message of its own.
    others = [each.code for each in found if each.code and not isinstance(each.code, ast.Constant)]
    assert all(isinstance(each, ast.Name) or ast.unparse(each).endswith(".code") for each in others)


def test_words_of_errors(golden: GoldenFiles) -> None:
    lines = {
        f"{each.error} {words(each.code) if each.code else ''}: {words(each.message)}"
        f"{f'; hint: {words(each.hint)}' if each.hint else ''}"
        for each in raised()
    }
    golden.check("errors.txt", "".join(f"{each}\n" for each in sorted(lines)))
