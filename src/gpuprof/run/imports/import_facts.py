# SPDX-License-Identifier: Apache-2.0
"""What is known of an imported run besides its intervals, and its meta data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpuprof import _native
from gpuprof.record.facts import Method, Note, SourceStatus
from gpuprof.run.damage import Damage
from gpuprof.run.format import FORMAT_VERSION

# Why events are no part of a run: rows of a table that is not read, NVTX events of a type that is no range,
# events of a category or a phase that is no interval, and events that look like work of a device and have a
# category that is not known. A forwarded operator only calls its own overload: both are one call.
NotImportedKind = Literal[
    "table", "nvtx event type", "category", "phase", "unknown device category", "forwarded operator"
]


@dataclass(frozen=True, slots=True)
class NotImported:
    """Events of a trace that the run does not hold: how many, and what the trace calls them."""

    kind: NotImportedKind
    name: str
    events: int


@dataclass(slots=True)
class ImportFacts:
    """What a reader learned besides the intervals themselves."""

    source: str  # in a few words, such as "Kineto JSON"
    unix_ns_at_zero: int = 0  # the Unix time at which the trace's times are 0
    complete: bool = True
    command: list[str] | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)  # as docs/run-format.md describes them
    ranks: dict[int, int] = field(default_factory=dict)  # by process, where the trace has it
    main_rank: int | None = None  # of the process with the most intervals, where the trace has one rank
    not_imported: list[NotImported] = field(default_factory=list)
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def cuda_version(number: int | None) -> str | None:
    """Return CUDA's version of the number that its interface gives: 12090 is 12.9."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def positive(value: Any) -> int | None:
    """Return a number that a trace has, as it is or as text; None for anything that is none above 0."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number > 0 else None


def process_text(facts: ImportFacts, process_id: int) -> str:
    """Return what the call tree calls a process: its rank, where that is known, its name and its id."""
    rank = f"rank {facts.ranks[process_id]}: " if process_id in facts.ranks else ""
    return f"{rank}{facts.process_names.get(process_id, 'process')} ({process_id})"


def imported_meta(
    facts: ImportFacts, processes: list[dict[str, Any]], *, origin_ns: int, gpu: dict[str, int] | None
) -> dict[str, Any]:
    """Return the meta data of an imported run; what the trace does not contain is empty or None."""
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
        "not_imported": [asdict(each) for each in facts.not_imported if each.events],
        "stacks": None,
        "damage": [each.to_plain() for each in facts.damage],
        "notes": [each.to_plain() for each in facts.notes],
        "devices": facts.devices,
        "clock": {"kind": facts.source, "ns_per_tick": 1.0},
        "processes": [_described(process, facts) for process in processes],
        "threads": [
            {"process_id": process_id, "thread_id": thread_id, "name": name}
            for (process_id, thread_id), name in sorted(facts.thread_names.items())
        ],
    }


def _described(process: dict[str, Any], facts: ImportFacts) -> dict[str, Any]:
    told = {key: value for key, value in process.items() if key != "spans"}
    process_id = process["process_id"]
    rank = {"rank": facts.ranks[process_id]} if process_id in facts.ranks else {}
    return {**told, "process_key": "0", "name": facts.process_names.get(process_id), **rank}


BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
_LAYER_PREFIX = "nn.Module: "  # torch.profiler with modules and stacks
_QUALIFIED = re.compile(r"[A-Za-z_]\w*::\w[\w:.]*\Z")


def operator_kind(name: str) -> str:
    """Return the kind of something that is known to be an operator."""
    return "backward" if name.startswith(BACKWARD_PREFIX) else "operator"


def named_kind(name: str) -> str | None:
    """Return `operator` or `backward` for a name that only an operator has, else None."""
    if name.startswith(BACKWARD_PREFIX):
        return "backward"
    return "operator" if _QUALIFIED.match(name) else None


def python_function(name: str) -> tuple[str, str]:
    """Return kind and name of a Python function of torch.profiler: calls of modules are layers."""
    if name.startswith(_LAYER_PREFIX):
        return "layer", name[len(_LAYER_PREFIX) :]
    return "span", name
