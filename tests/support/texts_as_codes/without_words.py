# SPDX-License-Identifier: Apache-2.0
"""Compile a module with the codes and the values of its errors, without their words."""

import ast
from types import CodeType

# Their code is the first argument, but for those that have it from their class.
ERRORS = {
    *("GpuprofError", "RecordingError", "RunError", "NotRecordedError", "NothingRecordedError"),
    *("UnavailableError", "WorkError", "BenchmarkError", "UsageError", "BadParameter"),
}
ERRORS_OF_RUNS = {"FailedRunError", "DoesNotFitError", "TimeLimitError"}


def compile_module(source: bytes, path: str) -> CodeType:
    """Return the code of a module whose errors have no words."""
    tree = WithoutWords().visit(ast.parse(source, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


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
