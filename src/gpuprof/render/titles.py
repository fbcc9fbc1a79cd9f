# SPDX-License-Identifier: Apache-2.0
"""The words above a page: which run it shows, on what, and what is missing from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gpuprof.record.facts import Reason
from gpuprof.run.facts import damage_in, notes_of, statuses_of
from gpuprof.run.losses import gpu_losses
from gpuprof.text.facts import damage_text, not_imported_text, note_text, reason_text


def page_title(path: Path, meta: dict[str, Any]) -> str:
    """Return the run's name and the program that it recorded."""
    command = meta.get("command") or []
    program = Path(str(command[1])).name if len(command) > 1 else ""
    return f"{path.stem} · {program}" if program and program != "-c" else path.stem


def page_subtitle(meta: dict[str, Any]) -> str:
    """Return the machine and the versions, as far as they are known."""
    machine = meta.get("machine", {})
    versions = meta.get("versions", {})
    cores = machine.get("cores")
    parts = [machine.get("processor") or machine.get("architecture"), f"{cores} cores" if cores else None]
    parts += _gpu_names(meta)
    parts += [f"{name} {version}" for name, version in versions.items() if version]
    return " · ".join(str(part) for part in parts if part)


def _gpu_names(meta: dict[str, Any]) -> list[str]:
    """Return the names of the devices, each once, with how many there are."""
    counts = Counter(str(each["name"]) for each in meta.get("devices", []) if each.get("name"))
    return [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]


def page_notes(meta: dict[str, Any]) -> list[str]:
    """Return a line for each thing that a reader of the picture must know."""
    notes = []
    totals = meta.get("totals", {})
    for key, text in _LOSSES.items():
        count = int(totals.get(key, 0))
        if count:
            notes.append(f"{count:,} {text}")
    explained = notes or meta.get("damage") or gpu_losses(meta.get("gpu"))
    if not meta.get("complete", False) and not explained:
        notes.append("The recording was not ended in order: it shows what was recorded until then.")
    statuses = statuses_of(meta)
    # A machine without a GPU lacks nothing when it records none; `gpuprof summary` reports it all the same.
    samples = statuses.get("samples")
    silent = _GPU_SOURCES if samples is not None and samples.reason is Reason.NO_DRIVER else ()
    for source, status in statuses.items():
        if not status.is_on and status.reason is not Reason.NOT_WANTED and source not in silent:
            notes.append(f"No {source.replace('_', ' ')}: {reason_text(status.to_plain())}.")
    if left_out := not_imported_text(meta.get("not_imported") or ()):
        notes.append(f"Not imported: {left_out}.")
    notes += [damage_text(each.to_plain()) for each in damage_in(meta)]
    return [*notes, *(note_text(each.to_plain()) for each in notes_of(meta))]


_GPU_SOURCES = ("samples", "kernels")
_LOSSES = {
    "dropped_events": "events were dropped, since the disk was full or failed.",
    "damaged_events": "events are damaged and were repaired or left out.",
    "unfinished_spans": "spans had not ended and are cut off at the end of the recording.",
}
