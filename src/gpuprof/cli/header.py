# SPDX-License-Identifier: Apache-2.0
"""The few lines about a run that stand above its table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuprof.analyze.text_table import escape_text, format_bytes, format_count, format_duration

LABEL_WIDTH = 9
# What `totals` counts, in words; the first two are lost data, the others spans of uncertain length.
_LOSSES = {
    "dropped_events": "events dropped",
    "damaged_events": "events damaged",
    "unmatched_ends": "ends without a beginning",
    "unfinished_spans": "spans cut off at the end",
}


def header(path: Path, meta: Mapping[str, Any]) -> str:
    """Return the run's facts, a line each; what `meta` does not tell has no line."""
    state = "complete" if meta.get("complete") else "incomplete: it holds what could be recovered"
    facts = [
        ("run", f"{path.name} ({state})"),
        ("recorded", outline(meta)),
        ("machine", _machine(meta.get("machine") or {})),
        ("versions", _versions(meta)),
        ("sources", _sources(meta.get("sources") or {})),
        ("lost", _lost(meta)),
        *(("damage", line) for line in meta.get("damage") or ()),
        *(("note", line) for line in meta.get("notes") or ()),
    ]
    return "\n".join(f"{label:<{LABEL_WIDTH}} {escape_text(text)}" for label, text in facts if text)


def outline(meta: Mapping[str, Any]) -> str:
    """Return in a few words how long was recorded, how much, and whether it is all there."""
    words = [format_duration(meta.get("duration_ns"))]
    processes = len(meta.get("processes") or ())
    spans = (meta.get("totals") or {}).get("spans")
    if spans is not None:
        words.append(_counted(spans, "span"))
    if processes > 1:
        words.append(_counted(processes, "process", "es"))
    if not meta.get("complete"):
        words.append("incomplete")
    return ", ".join(words)


def _counted(count: int, what: str, plural: str = "s") -> str:
    return f"{format_count(count)} {what}{'' if count == 1 else plural}"


def _machine(machine: Mapping[str, Any]) -> str:
    words = [machine.get("processor") or machine.get("architecture")]
    if machine.get("cores"):
        words.append(_counted(machine["cores"], "core"))
    if machine.get("memory_bytes"):
        words.append(f"{format_bytes(machine['memory_bytes'])} memory")
    words.append(machine.get("system"))
    return ", ".join(str(word) for word in words if word)


def _versions(meta: Mapping[str, Any]) -> str:
    versions = {"gpuprof": meta.get("gpuprof"), **(meta.get("versions") or {})}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _sources(sources: Mapping[str, str]) -> str:
    """Name what was on, then what was off with the reason."""
    on = [name for name, method in sources.items() if not method.startswith("off")]
    off = [f"no {name} ({method[len('off: ') :]})" for name, method in sources.items() if name not in on]
    return "; ".join(filter(None, (", ".join(on), *off)))


def _lost(meta: Mapping[str, Any]) -> str:
    totals = meta.get("totals")
    if totals is None:
        return ""
    lost = [f"{format_count(totals[key])} {words}" for key, words in _LOSSES.items() if totals.get(key)]
    return ", ".join(lost) or "nothing"
