# SPDX-License-Identifier: Apache-2.0
"""Every text of a typed fact or an error is its code and values in this process: `pytest --texts-as-codes`.

Python imports this at its start where PYTHONPATH has this folder, so processes that a test starts show codes
as well. Nothing of gpuprof is imported for it.
"""

import ast
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "gpuprof"
TEXTS = f"{PACKAGE}.text.messages"
# Their code is the first argument, but for those that have it from their class.
ERRORS = {
    *("GpuprofError", "RecordingError", "RunError", "NotRecordedError", "NothingRecordedError"),
    *("UnavailableError", "WorkError", "BenchmarkError", "UsageError", "BadParameter"),
}
ERRORS_OF_RUNS = {"FailedRunError", "DoesNotFitError", "TimeLimitError"}


class Finder(MetaPathFinder):
    """Finds modules of gpuprof as Python does, and executes them without the words of their errors."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        specs = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        spec = next(filter(None, specs), None)
        if name == TEXTS or (spec is not None and _has_words(Path(spec.origin or ""))):
            # On the loader itself, which also knows where the data of the package is.
            spec.loader.exec_module = execute
        return spec


def _has_words(path: Path) -> bool:
    return path.suffix == ".py" and any(
        f"{each}(" in path.read_text("utf-8") for each in ERRORS | ERRORS_OF_RUNS
    )


def execute(module: ModuleType) -> None:
    """Execute a module from its source: its cached code has the words."""
    path = Path(module.__spec__.origin)
    tree = WithoutWords().visit(ast.parse(path.read_bytes(), path))
    exec(compile(ast.fix_missing_locations(tree), path, "exec"), module.__dict__)
    if module.__name__ == TEXTS:
        module.Messages.text = lambda _messages, code, values: module.code_text(code, values)


class WithoutWords(ast.NodeTransformer):
    """Leaves the code and the values of errors."""

    def visit_Call(self, call: ast.Call) -> ast.AST:
        self.generic_visit(call)
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in ERRORS and len(call.args) > 1:
            call.args[1] = _values(call.args[1], call.args[0])
        elif name in ERRORS_OF_RUNS and call.args:
            call.args[0] = _values(call.args[0], ast.Constant(name))
        else:
            return call
        for each in call.keywords:
            if each.arg == "hint":
                each.value = _values(each.value)
        return call


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
