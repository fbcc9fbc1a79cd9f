# SPDX-License-Identifier: Apache-2.0
"""Reading counted work."""

from __future__ import annotations

from typing import Any


def flops_of(work: Any, phase: str, *operators: str) -> int:
    """Return the FLOPs of a phase; every operator of it must be known."""
    rows = [row for row in work.operators if row.phase == phase]
    rows = [row for row in rows if not operators or row.operator in operators]
    assert all(row.flops is not None for row in rows)
    return sum(row.flops for row in rows)


def one(work: Any, operator: str) -> Any:
    """Return the only row of an operator."""
    rows = [row for row in work.operators if row.operator == operator]
    assert len(rows) == 1, [row.operator for row in work.operators]
    return rows[0]
