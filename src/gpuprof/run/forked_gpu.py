# SPDX-License-Identifier: Apache-2.0
"""Adding what forked children tell of their GPU records to what the recording process knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.record.facts import Note, NoteCode
from gpuprof.record.forked_gpu import read_told
from gpuprof.run.facts import statuses_of
from gpuprof.run.gpu_records import find_files


def with_forked(
    facts: dict[str, Any], segments: Path, *, joined: frozenset[int] = frozenset()
) -> dict[str, Any]:
    """Return a recording's facts with the counts and notes of the children that it forked.

    `joined` are processes that have told already, since they were started anew and joined the run.
    """
    told = {int(each["process_id"]): each for each in read_told(segments)}
    merged = {**facts, "notes": list(facts.get("notes", [])), "sources": dict(facts.get("sources", {}))}
    for process_id, each in told.items():
        merged["gpu"] = sum_of_gpu(merged.get("gpu"), each["gpu"])
        merged["notes"] += [{**found, "processes": [process_id]} for found in each["notes"]]
        kernels = statuses_of(merged).get("kernels")
        if kernels is None or not kernels.is_on:
            merged["sources"]["kernels"] = each["status"]
    recorded = {file.process_id for file in find_files(segments)[0]}
    merged["notes"] += [
        Note(NoteCode.GPU_COUNTS_UNKNOWN, processes=(process_id,)).to_plain()
        for process_id in sorted(recorded - told.keys() - joined - {facts.get("process_id")})
    ]
    return merged


def sum_of_gpu(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Add counts, and keep the largest error and the first problem. Two methods are not added up.

    A recording process that was killed told no counts: what its children did is not the whole.
    """
    if ours is None or theirs is None:
        return ours if ours is not None else theirs
    if ("method" in ours) != ("method" in theirs) or "unfinished" not in ours:
        return ours
    told = {key: number for key, number in theirs.items() if type(number) is int}
    counts = {key: ours.get(key, 0) + number for key, number in told.items() if key != "clock_error_ns"}
    errors = [each["clock_error_ns"] for each in (ours, theirs) if each.get("clock_error_ns") is not None]
    merged = {**ours, **counts, "clock_error_ns": max(errors, default=None)}
    if "clock" in theirs and merged.get("clock") in (None, "steady"):
        merged["clock"] = theirs["clock"]
    merged["holder"] = ours.get("holder") or theirs.get("holder")
    return {**merged, "problem": ours.get("problem") or theirs.get("problem")}
