# SPDX-License-Identifier: Apache-2.0
"""The call tree of a run, from its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.errors import RunError
from gpuprof.run.database import reason_of
from gpuprof.run.folder import RunFolder
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt


def load_tree(run: RunFolder) -> CallTree:
    """Read the merged call tree. Raises RunError when the run lacks it or it is damaged."""
    import duckdb

    if "call_tree" not in run.tables:
        raise RunError(f"{run.path} has no call_tree table: record it again, or ask its tables with run.sql")
    try:
        columns = run.sql(
            "SELECT coalesce(parent_id, -1) AS parent, kind, name, coalesce(calls, 0) AS calls, "
            "total_ns, own_ns, threads, process_id, gpu_ns FROM call_tree ORDER BY node_id"
        ).fetchnumpy()
    except duckdb.Error as error:
        raise RunError(
            f"the table call_tree of {run.path} is damaged ({reason_of(error)}): restore it from a copy"
        ) from None
    places: dict[str, int] = {}
    name = np.array([places.setdefault(text, len(places)) for text in columns["name"]], dtype=np.int32)
    codes = {kind: code for code, kind in enumerate(KINDS)}
    return CallTree(
        parent=columns["parent"].astype(np.int32),
        kind=np.array([codes.get(kind, 1) for kind in columns["kind"]], dtype=np.uint8),
        name=name,
        calls=columns["calls"].astype(np.int64),
        total_ns=columns["total_ns"].astype(np.int64),
        own_ns=columns["own_ns"].astype(np.int64),
        threads=columns["threads"].astype(np.int32),
        process_id=columns["process_id"].astype(np.int64),
        names=list(places),
        gpu_ns=_known(columns["gpu_ns"]),
    )


def _known(column: npt.NDArray[np.int64] | np.ma.MaskedArray[Any, Any]) -> npt.NDArray[np.int64] | None:
    """Return the column, or None where the run does not know it."""
    if np.ma.getmaskarray(column).any():
        return None
    return np.asarray(column, dtype=np.int64)
