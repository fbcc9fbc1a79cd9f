# SPDX-License-Identifier: Apache-2.0
"""The typed facts of a run, read from its meta data, and from what earlier formats wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceState, SourceStatus
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.format import FORMAT_VERSION, check_version
from gpuprof.run.format_1 import from_format_1

_Fact = TypeVar("_Fact")
_NO_SAMPLER = (Reason.INTERPRETER_UNKNOWN, Reason.MEMORY_NOT_READABLE)


def statuses_of(meta: Mapping[str, Any]) -> dict[str, SourceStatus]:
    """Return the status of each source."""
    sources = meta.get("sources")
    if not isinstance(sources, Mapping):
        return {}
    return {
        str(name): _read(SourceStatus.from_plain, each, _unknown_status) for name, each in sources.items()
    }


def lacks_native_sampler(meta: Mapping[str, Any]) -> bool:
    """Whether the native sampler could not read Python's stacks; pyinstrument may have sampled them."""
    status = statuses_of(meta).get("python")
    return status is not None and status.reason in _NO_SAMPLER


def program_of(meta: Mapping[str, Any]) -> str:
    """Return the name of the recorded script's file, or of the module; empty if unknown."""
    command = meta.get("command") or []
    return Path(str(command[1])).name if len(command) > 1 else ""


def work_status(meta: Mapping[str, Any]) -> SourceStatus:
    """Return the status of counted work, also of runs that do not record it."""
    statuses = statuses_of(meta)
    if "work" in statuses:
        return statuses["work"]
    of_profiler = any(each.method is Method.OTHER_PROFILER for each in statuses.values())
    if meta.get("imported") and not of_profiler:
        return SourceStatus.off(Reason.IMPORTED, source=str(meta["imported"]))
    return SourceStatus.off(Reason.NOT_WANTED)


def notes_of(meta: Mapping[str, Any]) -> list[Note]:
    """Return the notes of a run."""
    return [_read(Note.from_plain, each, _unknown_note) for each in _list(meta, "notes")]


def damage_in(meta: Mapping[str, Any]) -> list[Damage]:
    """Return the damage of a run's files."""
    return [_read(Damage.from_plain, each, _unknown_damage) for each in _list(meta, "damage")]


def damage_of(native: Mapping[str, Any]) -> Damage:
    """Return damage as the native reader found it."""
    values = {name: native[name] for name in ("process_id", "error") if native[name]}
    return Damage(DamageCode(native["code"]), native["file"] or None, native["count"] or None, values)


def current_format(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return meta data, or the facts of a recording, in today's format. Raises RunError for a newer one."""
    check_version(facts, path)
    if facts["format_version"] > 1:
        return facts
    return {**from_format_1(facts), "format_version": FORMAT_VERSION}


def _list(meta: Mapping[str, Any], key: str) -> list[Any]:
    found = meta.get(key)
    return found if isinstance(found, list) else []


def _read(read: Callable[[Any], _Fact], plain: Any, otherwise: Callable[[Any], _Fact]) -> _Fact:
    # A later version of gpuprof may have more codes.
    try:
        return read(plain)
    except (KeyError, TypeError, ValueError):
        return otherwise(plain)


def _unknown_status(plain: Any) -> SourceStatus:
    is_on = isinstance(plain, Mapping) and plain.get("state") == SourceState.ON.value
    text = str(plain)
    return SourceStatus.on(Method.TEXT, text=text) if is_on else SourceStatus.off(Reason.TEXT, text=text)


def _unknown_note(plain: Any) -> Note:
    return Note(NoteCode.TEXT, {"text": str(plain)})


def _unknown_damage(plain: Any) -> Damage:
    return Damage(DamageCode.TEXT, values={"text": str(plain)})
