# SPDX-License-Identifier: Apache-2.0
"""Calls that do other work than the first are recognized by their durations."""

from __future__ import annotations

import pytest

from gpuprof.analyze.roofline.similar_calls import similar_to_first


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], ""),
        ([5], "x"),
        ([5, 5, 6], "xxx"),
        ([0, 0], "xx"),
        # Steps of training, then tokens one by one.
        ([100, 110, 4, 5, 4], "xx..."),
        ([4, 5, 100, 110], "xx.."),
        # The first call of many is a warm-up.
        ([300, 100, 110, 4], "xxx."),
        # It is too long for that, and represents only itself.
        ([1000, 100, 110], "x.."),
        # However many times faster the others are, tens of milliseconds are a warm-up.
        ([4, 0.01, 0.01], "xxx"),
        # Less than a millisecond is inconclusive.
        ([0.01, 0.05, 0.001], "xxx"),
        # From call to call no step is large.
        ([10, 18, 30, 55, 90], "xxxxx"),
    ],
)
def test_similar_calls(durations: list[float], expected: str) -> None:
    assert similar_to_first([each * 1e7 for each in durations]) == [mark == "x" for mark in expected]
