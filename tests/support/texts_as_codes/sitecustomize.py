# SPDX-License-Identifier: Apache-2.0
"""Every text of a typed fact or an error is its code and values in this process: `pytest --texts-as-codes`.

Python imports this at its start where PYTHONPATH has this folder, so processes that a test starts show codes
as well. Nothing of gpuprof is imported for it.
"""

import ast
import contextlib
import hashlib
import marshal
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "gpuprof"
TEXTS = f"{PACKAGE}.text.messages"
# Their code is the first argument, but for those that have it from their class.
ERRORS = {
    *("GpuprofError", "RecordingError", "RunError", "NotRecordedError", "NothingRecordedError"),
    *("UnavailableError", "WorkError", "BenchmarkError", "UsageError", "BadParameter"),
}
ERRORS_OF_RUNS = {"FailedRunError", "DoesNotFitError", "TimeLimitError"}
CACHE = Path(__file__).parent / "__pycache__" / f"codes-{sys.hexversion:x}"
_OWN_SOURCE = Path(__file__).read_bytes()


class Finder(MetaPathFinder):
    """Finds modules of gpuprof as Python does, and executes them without the words of their errors."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        specs = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        spec = next(filter(None, specs), None)
        if spec is not None and str(spec.origin).endswith(".py"):
            # On the loader itself, which also knows where the data of the package is.
            spec.loader.exec_module = execute
        return spec


def execute(module: ModuleType) -> None:
    """Execute a module without words."""
    exec(_code_of(module.__spec__.origin), module.__dict__)
    if module.__name__ == TEXTS:
        module.Messages.text = lambda _messages, code, values: module.code_text(code, values)


def _code_of(path: str) -> CodeType:
    """Return the compiled module, which is kept in a cache of its own: Python's has the words."""
    source = Path(path).read_bytes()
    kept = CACHE / hashlib.sha256(b"\0".join((_OWN_SOURCE, path.encode(), source))).hexdigest()
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        return marshal.loads(kept.read_bytes())
    tree = WithoutWords().visit(ast.parse(source, path))
    code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    with contextlib.suppress(OSError):  # a folder that cannot be written
        CACHE.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}")
        draft.write_bytes(marshal.dumps(code))
        draft.replace(kept)
    return code


class WithoutWords(ast.NodeTransformer):
    """Leaves the code and the values of errors."""

    def __init__(self) -> None:
        self._variables: set[str] = set()

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.AST:
        outer, self._variables = self._variables, set()
        for each in ast.walk(function):
            message = isinstance(each, ast.Call) and _message_of(each)
            if message and isinstance(each.args[message[0]], ast.Name):
                self._variables.add(each.args[message[0]].id)
        self.generic_visit(function)
        self._variables = outer
        return function

    def visit_Assign(self, assignment: ast.Assign) -> ast.AST:
        (*_, target) = assignment.targets
        if isinstance(target, ast.Name) and target.id in self._variables:
            assignment.value = _values(assignment.value)
        return assignment

    def visit_Call(self, call: ast.Call) -> ast.AST:
        self.generic_visit(call)
        message = _message_of(call)
        if message:
            index, code = message
            call.args[index] = _values(call.args[index], code)
            for each in call.keywords:
                if each.arg == "hint":
                    each.value = _values(each.value)
        return call


def _message_of(call: ast.Call) -> tuple[int, ast.expr] | None:
    """Return the index of an error's message among its arguments, and its code."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name in ERRORS and len(call.args) > 1:
        return 1, call.args[0]
    return (0, ast.Constant(name)) if name in ERRORS_OF_RUNS and call.args else None


def _values(text: ast.expr, *parts: ast.expr) -> ast.expr:
    """Return an expression of what is no literal in a text, after `parts`."""
    if isinstance(text, ast.IfExp):
        return ast.IfExp(text.test, _values(text.body, *parts), _values(text.orelse, *parts))
    found = text.values if isinstance(text, ast.JoinedStr) else [text]
    shown = [*map(_shown, parts), *(_shown(each) for each in found if not isinstance(each, ast.Constant))]
    separated = [each for one in shown for each in (one, ast.Constant(", "))]
    return ast.JoinedStr(separated[:-1])


def _shown(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.FormattedValue) else ast.FormattedValue(value, -1)


if PACKAGE not in sys.modules:
    sys.meta_path.insert(0, Finder())
