# SPDX-License-Identifier: Apache-2.0
"""The contents of `meta.json`: where a run comes from, what it holds and what it lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.record.facts import Note, Reason, SourceStatus
from gpuprof.record.recording_folder import RECORDING_FILE
from gpuprof.run.facts import statuses_of
from gpuprof.run.format import FORMAT_VERSION
from gpuprof.run.losses import gpu_losses
from gpuprof.run.machine import describe_machine
from gpuprof.run.samples import SampledDevices


def meta_of(
    facts: dict[str, Any], decoded: dict[str, Any], sampled: SampledDevices, path: Path
) -> dict[str, Any]:
    """Return the meta data of the recording at `path`, from its own facts and what was read of it.

    Raises RunError where the recording's file is damaged.
    """
    processes = decoded["processes"]
    origin = decoded["origin_monotonic_ns"]
    return {
        "format_version": FORMAT_VERSION,
        "gpuprof": facts.get("gpuprof"),
        "complete": is_complete(facts, decoded),
        "origin_unix_ns": str(origin + _clock_difference(facts, path)),
        "duration_ns": max((process["end_ns"] for process in processes), default=0),
        "command": facts.get("command"),
        "process_id": facts.get("process_id"),
        "machine": describe_machine(),
        "versions": {"python": facts.get("python"), "torch": facts.get("torch")},
        "sources": _sources(facts, sampled),
        "totals": decoded["totals"],
        "gpu": facts.get("gpu"),
        "stacks": decoded["stacks"],
        "layer_types": facts.get("layer_types"),
        "settings": facts.get("settings"),
        "machine_busy_ns": facts.get("machine_busy_ns"),
        "machine_steal_ns": facts.get("machine_steal_ns"),
        "work": decoded["work"],
        "counters": decoded["counters"],
        "ceilings": None,
        "damage": [each.to_plain() for each in decoded["damage"]],
        "notes": _notes(facts, sampled, decoded["gpu_notes"]),
        "devices": sampled.devices,
        "clock": {"kind": facts.get("clock"), "ns_per_tick": decoded["ns_per_tick"]},
        "processes": [{**process, "process_key": str(process["process_key"])} for process in processes],
        "threads": decoded["threads"],
    }


def _notes(facts: dict[str, Any], sampled: SampledDevices, gpu_notes: list[Note]) -> Any:
    notes = facts.get("notes", [])
    more = [each.to_plain() for each in (*gpu_notes, *sampled.notes)]
    return [*notes, *more] if isinstance(notes, list) else notes


def _sources(facts: dict[str, Any], sampled: SampledDevices) -> Any:
    """Return the methods in use. Only the readings show whether the devices respond."""
    samples = statuses_of(facts).get("samples")
    sources = facts.get("sources", {})
    if samples is None or not samples.is_on or sampled.readings:
        return sources
    return {**sources, "samples": (sampled.off or SourceStatus.off(Reason.NO_READING)).to_plain()}


def _clock_difference(facts: dict[str, Any], path: Path) -> int:
    try:
        return int(facts["realtime_minus_monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        raise RunError(
            "damaged",
            f"{path / RECORDING_FILE} is damaged: its clock is not a number",
            hint="restore it from a copy",
        ) from None


def is_complete(facts: dict[str, Any], decoded: dict[str, Any]) -> bool:
    """Whether the recording was ended in order, also that of each rank, and nothing that it wrote is missing.

    Other child processes may be killed at their end, as workers are.
    """
    totals = decoded["totals"]
    lost = totals["dropped_events"] + totals["damaged_events"] + len(decoded["damage"])
    lost += len(gpu_losses(facts.get("gpu")))
    ranks_ended = all(process.get("closed", True) for process in decoded["processes"] if "rank" in process)
    return bool(facts.get("closed")) and ranks_ended and lost == 0
