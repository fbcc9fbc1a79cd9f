# SPDX-License-Identifier: Apache-2.0
"""Statistics against results that were kept: those of an implementation by hand, before SciPy took its place.

Of each case `statistics_oracle.json` has the function, its arguments and the result.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from statistics_cases import FUNCTIONS, plain

CASES = json.loads(Path(__file__).with_name("statistics_oracle.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-9


def cases_of(name: str) -> list[tuple[Any, Any]]:
    return [(arguments, expected) for each, arguments, expected in CASES if each == name]


def agrees(found: Any, expected: Any, relative: float = TOLERANCE, absolute: float = TOLERANCE) -> bool:
    """Whether plain data is equal, numbers up to a tolerance."""
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(agrees(*each, relative, absolute) for each in zip(found, expected, strict=True))
        )
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            agrees(found[key], expected[key], relative, absolute) for key in expected
        )
    if isinstance(expected, float) and isinstance(found, float):
        both_nan = math.isnan(found) and math.isnan(expected)
        return both_nan or math.isclose(found, expected, rel_tol=relative, abs_tol=absolute)
    return bool(found == expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_that_were_kept(name: str) -> None:
    cases = cases_of(name)
    assert cases
    wrong = []
    for arguments, expected in cases:
        found = plain(FUNCTIONS[name](*arguments))
        if not agrees(found, expected):
            wrong.append(f"{name}{tuple(arguments)}: {found}, expected {expected}"[:400])
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)} differ", *wrong[:5]])
