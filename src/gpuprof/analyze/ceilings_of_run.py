# SPDX-License-Identifier: Apache-2.0
"""The ceilings that belong to one run: this machine's, with a look at how busy it is right now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuprof.analyze.ceiling_rows import ALL_CORES, Ceilings
from gpuprof.analyze.ceilings import measure_ceilings
from gpuprof.analyze.ceilings_cache import load_ceilings
from gpuprof.errors import RunError, UnavailableError
from gpuprof.run.work_table import write_ceilings


def add_ceilings(path: Path, work: dict[str, Any]) -> None:
    """Add to a run with counted work what this machine can do. Raises RunError."""
    try:
        write_ceilings(path, *ceilings_for_run(work["page_faults"]))
    except OSError as error:
        raise RunError(f"cannot write the ceilings of {path}: {error.strerror}; make room") from error


def ceilings_for_run(page_faults: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the table `ceilings`, and what `meta.json` says of them.

    They are measured where the cache has none. Where it has, the most important ones are measured again:
    what drifted is named, and what is better than before becomes the roof. `page_faults` are the rows
    that the recording itself has measured.
    """
    own = [{"device": ALL_CORES, "dtype": None, "unit": "ns", **row} for row in page_faults]
    try:
        ceilings, fresh = load_ceilings()
        later = None if fresh else _look_again()
    except (UnavailableError, OSError, RuntimeError) as error:
        return own, {"measured_at": None, "drift": [], "notes": [f"no ceilings: {error}"]}
    drifts = [] if later is None else ceilings.drift_to(later)
    facts = {
        "measured_at": ceilings.measured_at,
        "drift": [asdict(drift) for drift in drifts],
        "notes": list(ceilings.notes),
    }
    return [*(asdict(row) for row in _best(ceilings, later)), *own], facts


def _look_again() -> Ceilings | None:
    try:
        return measure_ceilings(quick=True)
    except (UnavailableError, OSError):
        return None  # a recording of the whole program goes on, or there is no memory for it


def _best(ceilings: Ceilings, later: Ceilings | None) -> list[Any]:
    """Return the rows, each the better of both: a measurement can be disturbed, not flattered."""
    again = {} if later is None else {row.key: row for row in later.rows}
    rows = []
    for row in ceilings.rows:
        other = again.get(row.key)
        better = other is not None and (
            other.value < row.value if row.unit == "ns" else other.value > row.value
        )
        rows.append(other if other is not None and better else row)
    return rows
