# SPDX-License-Identifier: Apache-2.0
"""Statistics against the recorded results of the implementation that SciPy replaced.

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
# Where the implementation by hand was less exact.
_ROUNDED_FREEDOM = 1e-4  # it rounded degrees of freedom to three decimals
_MANY_DEGREES = 1e-8  # it lost digits at a million degrees of freedom
TOLERANCES = {
    "welch": _ROUNDED_FREEDOM,
    "log_ratio": _ROUNDED_FREEDOM,
    "compare": _ROUNDED_FREEDOM,
    "compare_many": _ROUNDED_FREEDOM,
    "student_p_value": _MANY_DEGREES,
    "student_quantile": _MANY_DEGREES,
}
TRENDS = ("theil_sen", "relative_drift")


def cases_of(name: str) -> list[tuple[Any, Any]]:
    return [(arguments, expected) for each, arguments, expected in CASES if each == name]


def agrees(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether plain data is equal, numbers up to a relative or absolute tolerance."""
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(agrees(*each, tolerance) for each in zip(found, expected, strict=True))
        )
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            agrees(found[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, float) and isinstance(found, float):
        both_nan = math.isnan(found) and math.isnan(expected)
        return both_nan or math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == expected)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in TRENDS])
def test_results_are_those_that_were_kept(name: str) -> None:
    cases = cases_of(name)
    assert cases
    wrong = []
    for arguments, expected in cases:
        found = plain(FUNCTIONS[name](*arguments))
        if not agrees(found, expected, TOLERANCES.get(name, TOLERANCE)):
            wrong.append(f"{name}{tuple(arguments)}: {found}, expected {expected}"[:400])
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)} differ", *wrong[:5]])


@pytest.mark.parametrize("name", TRENDS)
def test_slopes_are_those_that_were_kept_and_their_intervals_no_wider(name: str) -> None:
    """SciPy rounds Sen's ranks to the nearest, and knows of ties; they were rounded outwards."""
    for arguments, expected in cases_of(name):
        found = plain(FUNCTIONS[name](*arguments))
        if expected is None:
            assert found is None
            continue
        low, value, high = found
        assert value == pytest.approx(expected[1], rel=TOLERANCE, abs=TOLERANCE)
        assert expected[0] - TOLERANCE <= low <= high <= expected[2] + TOLERANCE
