# SPDX-License-Identifier: Apache-2.0
"""The benchmark of profiled loads in short: every target runs in every way that it has."""

from __future__ import annotations

import pytest

from benchmarks.load_profile import WAYS, measure_rounds, targets


@pytest.mark.parametrize("name", targets())
def test_each_way_is_measured(name: str) -> None:
    found = measure_rounds(targets()[name], requests=20, rounds=2)
    assert set(found) == {"profile"} if name.startswith("task") else set(WAYS[1:])
    for ratio, _, size in found.values():
        assert (ratio.repeats, ratio.median > 0, size > 0) == (2, True, True)
