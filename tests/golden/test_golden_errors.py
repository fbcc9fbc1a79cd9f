# SPDX-License-Identifier: Apache-2.0
"""The code and the words of every error that the package raises; other tests compare codes and values."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from golden_files import GoldenFiles

import gpuprof

ROOT = Path(gpuprof.__file__).parent
WITH_CODE = {
    *("GpuprofError", "RecordingError", "RunError", "NotRecordedError", "NothingRecordedError"),
    *("UnavailableError", "WorkError", "BenchmarkError", "UsageError", "BadParameter", "DiskFullError"),
}
# Their class is their code.
OF_RUNS = {"FailedRunError", "DoesNotFitError", "TimeLimitError"}
# click shows their message alone, so the hint is in it.
OF_CLICK = {"UsageError", "BadParameter"}
# What needs no hint of its own, by place, and why.
WITHOUT_HINT = {
    "bench/failures.py:joined": "has the texts of several errors, each with its hint",
}
# Exceptions that the package itself catches; users never see them.
CAUGHT_INSIDE = {
    *("DeviceGoneError", "MeasuringError", "PassError", "ReplicaError", "UnreadableCallError"),
    *("_UnprovenError", "EndOfDataError", "EventTooLongError", "RequestError"),
    "TargetStoppedError",
}


class Raised(NamedTuple):
    """One place that makes an error, in a function of a module."""

    place: str
    function: str
    error: str
    code: ast.expr | None
    message: ast.expr | None
    hint: ast.expr | None


@functools.cache
def modules() -> dict[str, ast.Module]:
    paths = sorted(ROOT.rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def calls(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield all calls below a node, with the function that each is in."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Call):
            yield function, each
        is_function = isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from calls(each, each.name if is_function else function)


@functools.cache
def raised() -> tuple[Raised, ...]:
    return tuple(_raised())


def _raised() -> Iterator[Raised]:
    for path, tree in modules().items():
        for function, node in calls(tree):
            if isinstance(node.func, ast.Name) and node.func.id in WITH_CODE | OF_RUNS:
                arguments = [None, None, *node.args] if node.func.id in OF_RUNS else [None, *node.args, None]
                hints = [each.value for each in node.keywords if each.arg == "hint"]
                place = f"{path}:{node.lineno}"
                hint = next(iter(hints), None)
                yield Raised(place, f"{path}:{function}", node.func.id, arguments[1], arguments[2], hint)


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


def test_every_error_has_a_hint() -> None:
    found = [each for each in raised() if each.function not in WITHOUT_HINT]
    of_click = [each for each in found if each.error in OF_CLICK]
    others = [each for each in found if each.error not in OF_CLICK]
    without = [each.place for each in of_click if not re.search(r"; hint: \S.*\.$", words(each.message))]
    without += [each.place for each in others if not each.hint or not words(each.hint)]
    assert not without, "name what to do next"
    in_message = [each.place for each in others if "hint: " in words(each.message)]
    assert not in_message, "a hint is the argument hint="
    # The list of exceptions has none that is no longer one.
    assert WITHOUT_HINT.keys() <= {each.function for each in raised() if not each.hint}


def test_no_error_has_two_lines() -> None:
    assert not [each.place for each in raised() if "\n" in words(each.message) + words(each.hint)]


def test_line_breaks_of_names_and_of_other_libraries_are_escaped() -> None:
    breaks = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
    error = gpuprof.RunError("damaged", f"a{breaks}b: first\nsecond\n", hint="restore\nit")
    assert error.message == r"a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b: first\nsecond"
    assert str(error) == rf"{error.message}; hint: restore\nit"
    assert str(error).splitlines() == [str(error)]


def test_no_error_is_left_out() -> None:
    """Errors are made by the names of their classes, or by functions that do so: the checks above see all."""
    known = {*WITH_CODE, *OF_RUNS, *CAUGHT_INSIDE, "SuiteError", *dir(builtins)}
    made: dict[str, str] = {}
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                known.add(node.name)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                made[f"{path}:{node.lineno}"] = ast.unparse(node.exc.func).rpartition(".")[2]
    assert not {place: name for place, name in made.items() if name not in known}


def test_words_of_errors(golden: GoldenFiles) -> None:
    lines = {
        f"{each.error} {words(each.code) if each.code else ''}: {words(each.message)}"
        f"{f'; hint: {words(each.hint)}' if each.hint else ''}"
        for each in raised()
    }
    golden.check("errors.txt", "".join(f"{each}\n" for each in sorted(lines)))
