# SPDX-License-Identifier: Apache-2.0
"""Every reason has a text, which has its values."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.texts
def test_figures_are_plain_numbers() -> None:
    values = {"meter": "memory", "unit": "bytes", "low": 4_112.0, "high": 4_112.4, "margin": 64.0}
    for code in ("grows", "wide_interval"):
        assert "4,112 to 4,112 bytes" in str(reason(code, **values))
    assert "at most 4,112 bytes" in str(reason("within_margin", **values))


@pytest.mark.texts
def test_a_throttled_service_that_took_less_time_is_not_longer() -> None:
    values = {"cause": "CPU clock", "throttled": 3, "intervals": 96, "margin": 0.01}
    less = str(reason("throttled_harmless", low=-0.3, high=-0.163, **values))
    assert less.endswith("in which service was not slower: it took 16.3% to 30.0% less time (95% CI)")
    more = str(reason("throttled_harmless", low=-0.3, high=0.005, **values))
    assert more.endswith("in which service took at most 0.5% longer (95% CI)")


def test_a_reason_is_plain_data_with_its_text() -> None:
    found = reason("too_few_queries", queries=1_200, least=24_576)
    assert found.to_dict()["values"] == {"queries": 1_200, "least": 24_576}
    assert "24,576" in str(found)
