# SPDX-License-Identifier: Apache-2.0
"""The lines about a run above its table."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.record.facts import Method, SourceStatus
from gpuprof.run.facts import damage_in, lacks_native_sampler, notes_of, statuses_of
from gpuprof.run.messages import (
    damage_text,
    incomplete_text,
    losses_text,
    method_text,
    not_imported_text,
    note_text,
    reason_text,
)
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import TABLE_WIDTH, wrapped
from gpuprof.text.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from gpuprof.analyze.call_tree import ProcessShare
    from gpuprof.analyze.devices import DeviceUse
    from gpuprof.analyze.phases import Phases
    from gpuprof.api import Run

LABEL_WIDTH = 9

MOST_PROCESSES = 16
MOST_FINDINGS = 3


def header(
    path: Path,
    meta: Mapping[str, Any],
    devices: Sequence[DeviceUse] = (),
    processes: Sequence[ProcessShare] = (),
    phases: Phases | None = None,
    findings: Sequence[tuple[str, str]] = (),
) -> str:
    """Return facts about the run, one line each; a fact missing in `meta` has no line.

    `processes` are those of a capture; if there are several, each has a line. `phases` and `findings`,
    labels and texts, are the first lines.
    """
    # Not above, where it would delay the end of `gpuprof run`, which prints only the outline.
    from gpuprof.render.phases import phase_lines

    state = "complete" if meta.get("complete") else "incomplete: contains what could be recovered"
    facts = [
        *(phase_lines(phases) if phases is not None else ()),
        *findings,
        ("run", f"{path.name} ({state})"),
        ("recorded", _extent(meta, after="" if _has_ranks(meta) else " wall time")),
        ("machine", _machine(meta.get("machine") or {})),
        ("versions", _versions(meta)),
        ("sources", _sources(statuses_of(meta))),
        ("python", _stacks(meta.get("stacks"))),
        ("python", without_sampler(meta) or ""),
        *((f"device {use.device}", _device(use)) for use in devices),
        *(_described(each) for each in ([] if devices else meta.get("devices") or ())),
        *_processes(processes),
        ("lost", _lost(meta)),
        ("left out", not_imported_text(meta.get("not_imported") or ())),
        *(("damage", damage_text(each)) for each in damage_in(meta)),
        *(("note", note_text(each)) for each in notes_of(meta)),
    ]
    return _labelled(facts)


def first_findings(run: Run, phases: Phases | None) -> list[tuple[str, str]]:
    """Return labels and texts: the largest findings of a run with steps or ranks, or how to get them."""
    if phases is None or (phases.steps is None and not phases.ranks):
        return []
    from gpuprof.analyze.findings.engine import is_searched

    name = shlex.quote(str(run.path))
    if not is_searched(run.meta):
        return [("finding", f"not searched, the run is large: gpuprof explain {name}")]
    from gpuprof.analyze.findings.text import short_lines

    return short_lines(run.findings(), MOST_FINDINGS, name)


def first_lines(run: Run) -> list[str]:
    """Return the wall time of a run with five steps or more, and its largest findings; empty for another."""
    if not (run.meta.get("totals") or {}).get("spans"):
        return []  # and the tables need not be opened
    phases = run.phases()
    if phases is None or (not phases.ranks and (phases.steps is None or phases.steps.interval_ns is None)):
        return []
    from gpuprof.render.phases import phase_lines

    return _labelled([*phase_lines(phases), *first_findings(run, phases)]).splitlines()


def phases_header(phases: Phases | None) -> str:
    """Return the lines about the wall time; empty without phases."""
    from gpuprof.render.phases import phase_lines

    return _labelled(phase_lines(phases)) if phases is not None else ""


def incomplete_line(meta: Mapping[str, Any]) -> str:
    """Return the line that a run is incomplete, empty for a complete one."""
    text = incomplete_text(meta)
    return "" if text is None else _labelled([("warning", escape_text(text))])


def _labelled(facts: Sequence[tuple[str, str]]) -> str:
    lines = (f"{label:<{LABEL_WIDTH}} {text}" for label, text in facts if text)
    return "\n".join(wrapped(line, TABLE_WIDTH, " " * (LABEL_WIDTH + 1)) for line in lines)


def outline(meta: Mapping[str, Any]) -> str:
    """Return duration, number of spans, and what is missing, in a few words."""
    found = ("recorded " if _has_ranks(meta) else "") + _extent(meta)
    if meta.get("complete"):
        return found
    lost = losses_text(meta)
    return f"{found}, incomplete: {lost}" if lost else f"{found}, incomplete"


def _has_ranks(meta: Mapping[str, Any]) -> bool:
    """Whether the run has several wall times: those of ranks, and of the program that launched them."""
    return any("rank" in each for each in meta.get("processes") or ())


def _extent(meta: Mapping[str, Any], after: str = "") -> str:
    duration_ns = meta.get("duration_ns")
    words = [format_duration(duration_ns) + (after if duration_ns is not None else "")]
    processes = _process_count(meta)
    spans = (meta.get("totals") or {}).get("spans")
    if spans is not None:
        words.append(_counted(spans, "span"))
    if processes > 1:
        words.append(_counted(processes, "process", "es"))
    return ", ".join(words)


def _process_count(meta: Mapping[str, Any]) -> int:
    # A process that stopped for a recording of its own is listed once for each part.
    return len({process.get("process_id") for process in meta.get("processes") or ()})


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


def _sources(statuses: Mapping[str, SourceStatus]) -> str:
    """List the sources that were on, then those that were off with the reason."""
    named = {name.replace("_", " "): status for name, status in statuses.items()}
    on = [
        f"{name} ({method_text(status)})" if status.method in _SHOWN_METHODS else name
        for name, status in named.items()
        if status.is_on
    ]
    reasons: dict[str, list[str]] = {}
    for name, status in named.items():
        if not status.is_on:
            reasons.setdefault(reason_text(status), []).append(name)
    off = [f"no {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return "; ".join(filter(None, (", ".join(on), *off)))


def _stacks(stacks: Mapping[str, Any] | None) -> str:
    if not stacks:
        return ""
    words = f"{_counted(stacks['samples'], 'stack sample')} of {_counted(stacks['threads'], 'thread')}"
    return f"{words}, at most one every {format_duration(stacks['interval_ns'])}"


def without_sampler(meta: Mapping[str, Any]) -> str | None:
    """Return why the native sampler could not read Python's stacks, and what replaces it, or None."""
    if not lacks_native_sampler(meta):
        return None
    status = statuses_of(meta)["python"]
    if status.is_on:
        return f"Python stacks were sampled with pyinstrument, which slows down calls: {reason_text(status)}"
    return (
        f"Python stacks were not sampled: {reason_text(status)}; hint: record with gpuprof run --python, "
        "which uses pyinstrument and slows down calls"
    )


def missing_counters(meta: Mapping[str, Any]) -> str | None:
    """Return why requested hardware counters are missing, or None."""
    status = statuses_of(meta).get("counters")
    if status is None:
        return "no hardware counters: the program did not end normally"
    return None if status.is_on else escape_text(f"no hardware counters: {reason_text(status)}")


def _device(use: DeviceUse) -> str:
    """Summarize one device; values without a reading are left out."""
    words = [use.name]
    if use.utilization_mean_percent is not None:
        words.append(
            f"{use.utilization_mean_percent:.0f}% used on average, {use.utilization_max_percent:.0f}% at most"
        )
    if use.power_mean_w is not None:
        words.append(f"{use.power_mean_w:.0f} W on average")
    if use.energy_j is not None:
        words.append(f"{use.energy_j:,.1f} J in {format_duration(use.window_s * 1e9)} ({use.energy_method})")
    if use.memory_peak_bytes is not None:
        total = f" of {format_bytes(use.memory_bytes)}" if use.memory_bytes else ""
        words.append(f"at most {format_bytes(use.memory_peak_bytes)}{total} memory used")
    words += [f"throttled by {reason} in {share:.0%} of readings" for reason, share in use.throttled.items()]
    return ", ".join(word for word in words if word)


def _described(device: Mapping[str, Any]) -> tuple[str, str]:
    """Describe a device without readings, as in an imported capture."""
    words = [device.get("name")]
    if device.get("memory_bytes"):
        words.append(f"{format_bytes(device['memory_bytes'])} memory")
    if device.get("multiprocessors"):
        words.append(_counted(device["multiprocessors"], "multiprocessor"))
    if device.get("compute_capability"):
        words.append(f"compute capability {device['compute_capability']}")
    return f"device {device.get('index')}", ", ".join(str(word) for word in words if word)


def _processes(processes: Sequence[ProcessShare]) -> Iterator[tuple[str, str]]:
    if len(processes) < 2:
        return
    for each in processes[:MOST_PROCESSES]:
        on_gpu = "" if each.gpu_ns is None else f", {format_duration(each.gpu_ns)} on GPUs"
        calls = _counted(each.calls, "call")
        yield "process", f"{each.name}: {calls}, {format_duration(each.total_ns)} on threads{on_gpu}"
    if len(processes) > MOST_PROCESSES:
        yield "process", f"... and {len(processes) - MOST_PROCESSES:,} more"


# Methods of recording that the header shows.
_SHOWN_METHODS = (Method.TORCH_PROFILER, Method.CUPTI, Method.CUDA_EVENTS, Method.TEXT)


def _lost(meta: Mapping[str, Any]) -> str:
    if meta.get("totals") is None:
        return ""
    if lost := losses_text(meta):
        return lost
    return "no events" if meta.get("complete") else "unknown, since the run is incomplete"
