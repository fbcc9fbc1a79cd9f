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
from gpuprof.analyze.gpu_ceilings_cache import load_gpu_ceilings
from gpuprof.errors import RunError, UnavailableError
from gpuprof.run.work_table import write_ceilings


def add_ceilings(path: Path, work: dict[str, Any]) -> None:
    """Add to a run with counted work what this machine can do. Raises RunError."""
    try:
        write_ceilings(path, *ceilings_for_run(work["page_faults"], work.get("gpu")))
    except OSError as error:
        raise RunError(f"cannot write the ceilings of {path}: {error.strerror}; make room") from error


def ceilings_for_run(
    page_faults: Sequence[dict[str, Any]], gpu: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the table `ceilings`, and what `meta.json` says of them.

    They are measured where the cache has none. Where it has, the most important ones are measured again:
    what drifted is named, and what is better than before becomes the roof. `page_faults` are the rows
    that the recording itself has measured, `gpu` what it knows of the GPUs that were used.
    """
    own = [{"device": ALL_CORES, "dtype": None, "unit": "ns", **row} for row in page_faults]
    gpu_rows, gpu_facts = _gpu_ceilings(gpu)
    try:
        ceilings, fresh = load_ceilings()
        later = None if fresh else _look_again()
    except (UnavailableError, OSError, RuntimeError) as error:
        facts: dict[str, Any] = {"measured_at": None, "drift": [], "notes": [f"no ceilings: {error}"]}
        return [*own, *gpu_rows], _with_gpus(facts, gpu_facts)
    drifts = [] if later is None else ceilings.drift_to(later)
    facts = {
        "measured_at": ceilings.measured_at,
        "drift": [asdict(drift) for drift in drifts],
        "notes": list(ceilings.notes),
    }
    rows = [*(asdict(row) for row in _best(ceilings, later)), *own, *gpu_rows]
    return rows, _with_gpus(facts, gpu_facts)


def _gpu_ceilings(gpu: dict[str, Any] | None) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the rows and facts of the GPUs that a run has used, under the numbers that it knows them by."""
    if not gpu:
        return [], None
    found, notes = load_gpu_ceilings(used=gpu["devices"])
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {"gpus": [], "drift": [], "notes": notes}
    for each in found:
        rows += [asdict(row) for row in _best(each.ceilings, each.later)]
        facts["gpus"].append({**each.ceilings.machine, "device": each.device})
        facts["drift"] += [asdict(drift) for drift in each.drifts]
        facts["notes"] += each.ceilings.notes
    return rows, facts


def _with_gpus(facts: dict[str, Any], gpus: dict[str, Any] | None) -> dict[str, Any]:
    if gpus is None:
        return facts
    joined = {key: [*facts[key], *gpus[key]] for key in ("drift", "notes")}
    return {**facts, **joined, "gpus": gpus["gpus"]}


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
