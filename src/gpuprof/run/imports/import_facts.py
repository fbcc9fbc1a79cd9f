# SPDX-License-Identifier: Apache-2.0
"""What is known of an imported run beside its intervals, and its meta data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuprof import _native
from gpuprof.record.facts import Damage, DamageCode, Method, Note, NoteCode, SourceStatus
from gpuprof.run.format import FORMAT_VERSION


@dataclass(slots=True)
class ImportFacts:
    """What a reader learned beside the intervals themselves."""

    source: str  # in a few words, such as "Kineto JSON"
    unix_ns_at_zero: int = 0  # what stands on the wall's clock where the trace's times are 0
    complete: bool = True
    command: list[str] | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def imported_meta(
    facts: ImportFacts, processes: list[dict[str, Any]], *, origin_ns: int, gpu: dict[str, int] | None
) -> dict[str, Any]:
    """Return the meta data of an imported run; what the trace does not tell is empty or None."""
    totals = {"events": 0, "dropped_events": 0, "damaged_events": 0, "unmatched_ends": 0}
    totals |= {"unfinished_spans": 0, **facts.totals}
    complete = facts.complete and not facts.damage and totals["damaged_events"] == 0
    return {
        "format_version": FORMAT_VERSION,
        "gpuprof": _native.build_info()["version"],
        "complete": complete,
        "imported": facts.source,
        "origin_unix_ns": str(facts.unix_ns_at_zero + origin_ns),
        "duration_ns": max((process["end_ns"] for process in processes), default=0),
        "command": facts.command,
        "process_id": processes[0]["process_id"] if processes else None,
        "machine": facts.machine,
        "versions": facts.versions,
        "sources": {"import": SourceStatus.on(Method.IMPORTED, source=facts.source).to_plain()},
        "totals": totals,
        "gpu": gpu,
        "stacks": None,
        "damage": [Damage(DamageCode.IMPORT, values={"text": line}).to_plain() for line in facts.damage],
        "notes": [Note(NoteCode.IMPORT, {"text": line}).to_plain() for line in facts.notes],
        "devices": [],
        "clock": {"kind": facts.source, "ns_per_tick": 1.0},
        "processes": [_described(process, facts) for process in processes],
        "threads": [
            {"process_id": process_id, "thread_id": thread_id, "name": name}
            for (process_id, thread_id), name in sorted(facts.thread_names.items())
        ],
    }


def _described(process: dict[str, Any], facts: ImportFacts) -> dict[str, Any]:
    told = {key: value for key, value in process.items() if key != "spans"}
    return {**told, "process_key": "0", "name": facts.process_names.get(process["process_id"])}
