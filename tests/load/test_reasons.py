# SPDX-License-Identifier: Apache-2.0
"""Every reason has a text, which has its values."""

from __future__ import annotations

import ast
from pathlib import Path

import gpuprof
from gpuprof.load.reasons import MESSAGES, reason

ROOM = Path(gpuprof.__file__).parent / "load"


def used() -> set[str]:
    return {
        node.args[0].value
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "reason"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_each_code_has_a_text_and_each_text_a_use() -> None:
    assert used() == MESSAGES.codes


def test_a_reason_is_plain_data_with_its_text() -> None:
    found = reason("too_few_queries", queries=1_200, least=24_576)
    assert found.to_dict()["values"] == {"queries": 1_200, "least": 24_576}
    assert "24,576" in str(found)
