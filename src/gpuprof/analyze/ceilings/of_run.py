# SPDX-License-Identifier: Apache-2.0
"""The ceilings of one run: those of this machine, and the drift since they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpuprof.analyze.ceilings.cache import load_ceilings, load_gpu_ceilings
from gpuprof.analyze.ceilings.ceiling import (
    ALL_CORES,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    Ceilings,
    best_of,
)
from gpuprof.analyze.ceilings.cpu import measure_ceilings
from gpuprof.errors import RunError, UnavailableError
from gpuprof.run.work_table import write_ceilings


def add_ceilings(path: Path, work: dict[str, Any], before: Ceilings | None = None) -> None:
    """Add the ceilings of this machine to a run with counted work. Raises RunError.

    `before` is the result of `measure_before()`, right before the recording, where that was requested.
    """
    try:
        write_ceilings(path, *ceilings_for_run(work["page_faults"], before, work.get("gpu")))
    except OSError as error:
        raise RunError(
            "cannot_write", f"cannot write the ceilings of {path}: {error.strerror}", hint="free disk space"
        ) from None


def measure_before() -> Ceilings:
    """Measure the most important ceilings, in two seconds. Raises UnavailableError where that fails."""
    try:
        return measure_ceilings(quick=True)
    except OSError as error:
        raise UnavailableError(
            "cannot_measure",
            f"the ceilings cannot be measured now: {error.strerror or error}",
            hint="free memory, or use ceilings='cached'",
        ) from error


def ceilings_for_run(
    page_faults: Sequence[dict[str, Any]],
    before: Ceilings | None = None,
    gpu: dict[str, Any] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the table `ceilings`, and the facts about them for `meta.json`.

    They are measured where the cache has none. Where it has, the most important ones are measured again:
    the drift is reported, and a better value becomes the ceiling. With `before`, the better of the values
    right before and right after the recording is the ceiling, whatever the cache has: a machine that was
    faster once is no measure of what bound a program today. `page_faults` are the rows
    that the recording itself has measured, `gpu` its facts about the GPUs that were used.
    """
    own = [{"device": ALL_CORES, "dtype": None, "unit": "ns", **row} for row in page_faults]
    gpu_rows, gpu_facts = _gpu_ceilings(gpu)
    try:
        ceilings, fresh = load_ceilings()
        later = None if fresh and before is None else _measure_again()
    except (UnavailableError, OSError, RuntimeError) as error:
        reason = error.message if isinstance(error, UnavailableError) else str(error)
        why = CeilingNote(CeilingNoteCode.NONE, {"error": reason})
        nothing = {"measured_at": None, "drift": [], "notes": [asdict(why)]}
        return [*own, *gpu_rows], _with_gpus(nothing, gpu_facts)
    earlier = ceilings if before is None else before
    drifts = [] if later is None else earlier.drift_to(later)
    facts: dict[str, Any] = {
        "measured_at": earlier.measured_at,
        "around": before is not None,
        "drift": [asdict(drift) for drift in drifts],
        "notes": list(map(asdict, ceilings.notes)),
    }
    rows = _better(ceilings.rows, later) if before is None else _around(ceilings, before, later)
    return [*(asdict(row) for row in rows), *own, *gpu_rows], _with_gpus(facts, gpu_facts)


def _gpu_ceilings(gpu: dict[str, Any] | None) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the rows and facts of the GPUs that a run has used, under the numbers of the run."""
    if not gpu:
        return [], None
    found, notes = load_gpu_ceilings(used=gpu["devices"])
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {"gpus": [], "drift": [], "notes": list(map(asdict, notes))}
    for each in found:
        rows += [asdict(row) for row in _better(each.ceilings.rows, each.later)]
        facts["gpus"].append({**each.ceilings.machine, "device": each.device})
        facts["drift"] += [asdict(drift) for drift in each.drifts]
        facts["notes"] += map(asdict, each.ceilings.notes)
    return rows, facts


def _with_gpus(facts: dict[str, Any], gpus: dict[str, Any] | None) -> dict[str, Any]:
    if gpus is None:
        return facts
    joined = {key: [*facts[key], *gpus[key]] for key in ("drift", "notes")}
    return {**facts, **joined, "gpus": gpus["gpus"]}


def _measure_again() -> Ceilings | None:
    try:
        return measure_ceilings(quick=True)
    except (UnavailableError, OSError):
        return None  # a recording of the whole program continues, or memory is short


def _better(rows: Sequence[Ceiling], later: Ceilings | None) -> list[Ceiling]:
    """Return the rows, each the better of both: a disturbance makes a measurement worse, never better."""
    again = {} if later is None else {row.key: row for row in later.rows}
    return [_better_of(row, again.get(row.key)) for row in rows]


def _better_of(row: Ceiling, other: Ceiling | None) -> Ceiling:
    if other is None:
        return row
    return other if (other.value < row.value) == (row.unit == "ns") else row


def _around(ceilings: Ceilings, before: Ceilings, later: Ceilings | None) -> list[Ceiling]:
    """Return the values around the recording, and from the cache what a quick measurement lacks."""
    near = {row.key: row for row in _better(before.rows, later)}
    rows = [near.get(row.key, row) for row in ceilings.rows]
    return [_compute_ceiling(row, rows) if row.resource == "compute" else row for row in rows]


def _compute_ceiling(row: Ceiling, rows: Sequence[Ceiling]) -> Ceiling:
    """Return the ceiling of a type again: a quick measurement lacks some of its parts."""
    parts = [
        each
        for each in rows
        if (each.device, each.dtype) == (row.device, row.dtype) and each.resource.startswith("compute.")
    ]
    return next(iter(best_of("compute", parts)), row)
