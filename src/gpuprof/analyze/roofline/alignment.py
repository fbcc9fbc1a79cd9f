# SPDX-License-Identifier: Apache-2.0
"""Aligning two sequences of names by their longest common subsequence."""

from __future__ import annotations

from collections.abc import Sequence

# Rows of bits are kept for the way back: at most so many bits, 64 MB.
_MOST_BITS = 1 << 29


def align(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return index pairs of equal names, rising on both sides, as many as there can be.

    Sequences that are too long for that are aligned piece by piece, which may find fewer.
    """
    head = 0
    while head < min(len(left), len(right)) and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    inner_left, inner_right = left[head : len(left) - tail], right[head : len(right) - tail]
    middle = [(head + i, head + j) for i, j in _pieces(inner_left, inner_right)]
    ends = [(len(left) - at, len(right) - at) for at in range(tail, 0, -1)]
    return [*((at, at) for at in range(head)), *middle, *ends]


def _pieces(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    if len(left) * len(right) <= _MOST_BITS:
        return _longest(left, right)
    half_left, half_right = len(left) // 2, len(right) // 2
    first = _pieces(left[:half_left], right[:half_right])
    second = _pieces(left[half_left:], right[half_right:])
    return [*first, *((half_left + i, half_right + j) for i, j in second)]


def _longest(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Bit-parallel dynamic programming (Hyyro 2004): a row of the table is one number, a column one bit."""
    if not left or not right:
        return []
    everything = (1 << len(right)) - 1
    where: dict[str, int] = {}
    for at, name in enumerate(right):
        where[name] = where.get(name, 0) | 1 << at
    rows, row = [everything], everything
    for name in left:
        hit = row & where.get(name, 0)
        row = ((row + hit) | (row - hit)) & everything
        rows.append(row)
    return _way_back(rows, left, right)


def _way_back(rows: list[int], left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Walk from the last corner. A bit that is 0 says that the length grows by one in that column."""
    pairs = []
    i, j = len(left), len(right)
    while i > 0 and j > 0:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
