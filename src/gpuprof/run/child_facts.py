# SPDX-License-Identifier: Apache-2.0
"""What processes that joined a run, and forked children, know of themselves, added to the run's facts."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from gpuprof.record.children import FACTS_SUFFIX
from gpuprof.record.facts import Note, NoteCode, note
from gpuprof.record.kernels import read_reports
from gpuprof.record.program_settings import ProgramSettings
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.facts import notes_of, statuses_of

_EXPECTED: dict[str, type] = {"notes": list, "layer_types": dict, "sources": dict, "gpu": dict}
_EXPECTED |= {"settings": dict, "rank": int, "world_size": int, "torch": str, "joined": bool}


def read_child_facts(segments: Path) -> tuple[list[dict[str, Any]], list[Damage]]:
    """Return the facts of the processes that joined, and what of them is damaged."""
    children, damage = [], []
    for path in sorted(segments.glob(f"*{FACTS_SUFFIX}")):
        try:
            children.append(_checked(json.loads(path.read_bytes())))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "damaged"
            damage.append(Damage(DamageCode.PROCESS_FACTS, str(path), values={"error": str(reason)}))
    return children, damage


def _checked(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("process_id"), int):
        raise ValueError("no facts of a process")
    return {"process_id": content["process_id"], **_known(content)}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key, kind in _EXPECTED.items() if isinstance(facts.get(key), kind)}


def name_processes(decoded: dict[str, Any], children: list[dict[str, Any]]) -> None:
    """Name the processes that a launcher has numbered, in their list and in the tree."""
    ranks = {child["process_id"]: child for child in children if "rank" in child}
    if not ranks:
        return
    tree = decoded["tree"]
    roots = (row for row, parent in enumerate(tree["parent"]) if parent < 0)
    for process, root in zip(decoded["processes"], roots, strict=True):
        child = ranks.get(process["process_id"])
        if child is not None:
            rank = child["rank"]
            process |= {"rank": rank, "name": f"rank {rank}"}
            process |= {"world_size": child["world_size"]} if "world_size" in child else {}
            tree["name"][root] = len(decoded["names"])
            decoded["names"].append(f"rank {rank} (process {process['process_id']})")


def with_child_facts(
    facts: dict[str, Any], children: list[dict[str, Any]], decoded: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts of a run with those of the processes that left events in it, or could not join it."""
    recorded = {process["process_id"] for process in decoded["processes"]}
    facts = _with_missing_ranks(facts, children, recorded)
    children = [each for each in children if each["process_id"] in recorded or not each.get("joined", True)]
    if not children:
        return facts
    own = _known(facts)
    told = [own, *children]
    return {
        **facts,
        "torch": next((each["torch"] for each in told if "torch" in each), None),
        "notes": [*own.get("notes", ()), *_new_notes(own, children)],
        "layer_types": _joined_types(told),
        "sources": _joined_sources(own, children),
        "gpu": _joined_gpu(told),
        "settings": _joined_settings(told),
    }


def _with_missing_ranks(
    facts: dict[str, Any], children: list[dict[str, Any]], recorded: set[int]
) -> dict[str, Any]:
    """Return the facts with a note of the ranks that are in none of the recorded processes."""
    ranks = [each for each in children if "rank" in each]
    missing = {each["rank"] for each in ranks} - {
        each["rank"] for each in ranks if each["process_id"] in recorded
    }
    if not missing:
        return facts
    added = note(NoteCode.RANKS_WITHOUT_EVENTS, ranks=[str(rank) for rank in sorted(missing)])
    return {**facts, "notes": [*facts.get("notes", ()), added.to_plain()]}


def _new_notes(facts: dict[str, Any], children: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = notes_of(facts)
    found: list[Note] = []
    processes: list[set[int]] = []
    # One that replaced its program by another (`exec`) has facts of both.
    for child in children:
        for each in notes_of(child):
            if each in known:
                continue
            if each not in found:
                found.append(each)
                processes.append(set())
            processes[found.index(each)].add(child["process_id"])
    return [
        each._replace(processes=tuple(sorted(who))).to_plain()
        for each, who in zip(found, processes, strict=True)
    ]


def _joined_types(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    joined: dict[str, Any] = {}
    for each in told:
        for root, types in each.get("layer_types", {}).items():
            if isinstance(types, dict):
                joined[root] = {**types, **joined.get(root, {})}
    return joined or told[0].get("layer_types")


def _joined_sources(facts: dict[str, Any], children: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the statuses of the sources: those of children where the program itself had none."""
    statuses = statuses_of(facts)
    for child in children:
        for source, status in statuses_of(child).items():
            own = statuses.get(source)
            if status.is_on and (own is None or not own.is_on):
                values = {**status.values, "in_children": True}
                statuses[source] = status._replace(values=values)
    return {source: status.to_plain() for source, status in statuses.items()}


def _joined_settings(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the settings of all processes, the program's own first; None where none has recorded any."""
    found: list[ProgramSettings] = []
    for each in told:
        # One that was killed has recorded none.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found.append(ProgramSettings.from_plain(each["settings"]))
    if not found:
        return None
    loaders = dict.fromkeys(each for settings in found for each in settings.loaders)
    optimizers = dict.fromkeys(each for settings in found for each in settings.optimizers)
    threads = next((settings.threads for settings in found if settings.threads is not None), None)
    return ProgramSettings(tuple(loaders), tuple(optimizers), threads).to_plain()


def processes_with_gpu_counts(children: list[dict[str, Any]]) -> frozenset[int]:
    """Return the processes that reported the counts of their GPU records."""
    return frozenset(child["process_id"] for child in children if _has_counts(child))


def _has_counts(child: dict[str, Any]) -> bool:
    return "unfinished" in child.get("gpu", {})


def _joined_gpu(told: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the GPU's totals of the program and its processes. One that was killed has no counts to add."""
    program, *children = told
    by_counts = sorted(children, key=_has_counts, reverse=True)
    return functools.reduce(sum_of_gpu, [each.get("gpu") for each in (program, *by_counts)])


# ---- GPU records of forked children ---------------------------------------------------------


def with_forked(
    facts: dict[str, Any], segments: Path, *, joined: frozenset[int] = frozenset()
) -> dict[str, Any]:
    """Return a recording's facts with the counts and notes of the children that it forked.

    `joined` are processes that have reported already: they executed a new program and joined the run.
    """
    told = {int(each["process_id"]): each for each in read_reports(segments)}
    merged = {**facts, "notes": list(facts.get("notes", [])), "sources": dict(facts.get("sources", {}))}
    for process_id, each in told.items():
        merged["gpu"] = sum_of_gpu(merged.get("gpu"), each["gpu"])
        merged["notes"] += [{**found, "processes": [process_id]} for found in each["notes"]]
        kernels = statuses_of(merged).get("kernels")
        if kernels is None or not kernels.is_on:
            merged["sources"]["kernels"] = each["status"]
    from gpuprof.run.gpu_records import find_files

    recorded = {file.process_id for file in find_files(segments)[0]}
    merged["notes"] += [
        Note(NoteCode.GPU_COUNTS_UNKNOWN, processes=(process_id,)).to_plain()
        for process_id in sorted(recorded - told.keys() - joined - {facts.get("process_id")})
    ]
    return merged


def sum_of_gpu(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Add counts, and keep the largest error and the first problem. Two methods are not added up.

    A recording process that was killed has no counts, and those of its children are not the total.
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
