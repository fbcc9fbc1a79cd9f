# SPDX-License-Identifier: Apache-2.0
"""The stub of the native module describes all of the module."""

from __future__ import annotations

import ast
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

import gpuprof
from gpuprof import _native

STUB = Path(gpuprof.__file__).with_name("_native.pyi")
DEFINITIONS = [
    node
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body
    if isinstance(node, (ast.FunctionDef, ast.ClassDef))
]
FUNCTIONS = {node.name: node for node in DEFINITIONS if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in DEFINITIONS if isinstance(node, ast.ClassDef)}


def is_special(name: str) -> bool:
    return name.startswith("_pybind11_") or (name.startswith("__") and name.endswith("__"))


def test_names_agree_both_ways() -> None:
    there = {name for name in dir(_native) if not is_special(name)}
    assert there == {node.name for node in DEFINITIONS}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_are_functions_with_those_parameters(name: str) -> None:
    function = getattr(_native, name)
    assert isinstance(function, types.BuiltinFunctionType)
    wanted = FUNCTIONS[name].args
    parameters = parameters_of(function)
    if parameters is None:
        # Those of the hot path have no signature to read: they must take positional arguments only.
        assert not wanted.args
        assert not wanted.kwonlyargs
    else:
        assert parameters == [
            argument.arg for argument in (*wanted.posonlyargs, *wanted.args, *wanted.kwonlyargs)
        ]


def parameters_of(function: Any) -> list[str] | None:
    """Return the parameter names from the function's own signature, None where it has none."""
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        head = re.match(rf"{function.__name__}\((.*)\) ->", function.__doc__ or "")
    if head is None:
        return None
    return re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^\]]*\]", "", head[1]))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_refuse_more_arguments_than_the_stub_has(name: str) -> None:
    wanted = FUNCTIONS[name].args
    most = len(wanted.posonlyargs) + len(wanted.args)
    with pytest.raises(TypeError):
        getattr(_native, name)(*[object()] * (most + 1))
    with pytest.raises(TypeError):
        getattr(_native, name)(no_such_parameter=1)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes_have_the_members_of_the_stub(name: str) -> None:
    there = getattr(_native, name)
    assert isinstance(there, type)
    members = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    assert {member for member in members if not hasattr(there, member)} == set()
    public = {member for member in vars(there) if not is_special(member)}
    assert public <= set(members)
    is_final = any("final" in ast.unparse(decorator) for decorator in CLASSES[name].decorator_list)
    assert is_final
    with pytest.raises(TypeError):
        type("Child", (there,), {})


def test_the_marks_of_contexts_cannot_be_made() -> None:
    with pytest.raises(TypeError):
        _native.ContextMark()


def test_everything_is_of_the_module_that_can_be_imported() -> None:
    assert _native.__name__ == "gpuprof._native"
    assert {_native.SliceLanes.__module__, _native.start_recording.__module__} == {"gpuprof._native"}


def test_what_the_functions_return() -> None:
    assert set(_native.clock_info()) == {"clock", "monotonic_ns", "realtime_ns"}
    assert _native.build_info()["version"] == gpuprof.__version__
    assert _native.is_recording() is False
    assert isinstance(_native.itt_attached(), bool)
    assert _native.stop_recording()["dropped_events"] == 0
