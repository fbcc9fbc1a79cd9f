# SPDX-License-Identifier: Apache-2.0
"""Columns of a run's tables, by queries with values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

Value = int | str | Sequence[int] | Sequence[str]


def fetch(folder: RunFolder, query: str, **values: Value) -> dict[str, Any]:
    """Return the columns of a query whose `{name}` are replaced by the values, quoted. Raises RunError."""
    written = query.format(**{name: _literal(value) for name, value in values.items()})
    with folder.reading():
        return dict(folder.sql(written).fetchnumpy())


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(value)
    return "[" + ", ".join(_literal(each) for each in value) + "]"
