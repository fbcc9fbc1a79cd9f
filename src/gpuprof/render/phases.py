# SPDX-License-Identifier: Apache-2.0
"""The first lines about a run: its wall time by phase, and a step by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuprof.render.page import escaped
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import format_duration, format_share

if TYPE_CHECKING:
    from gpuprof.analyze.phases import Phases, StepFigures

_SHOWN_PACKAGES = 3
_SHOWN_IMPORTS_NS = 50_000_000
_PART_TEXTS = {"data": "waiting for data", "other": "other Python"}
_STEP_TEXTS = {"training": "step", "forward": "forward call", "unknown": "step"}


def phases_html(phases: Phases | None) -> str:
    """Return the lines as HTML; empty without phases."""
    lines = phase_lines(phases) if phases is not None else []
    return "".join(f'<p class="phases"><b>{label}</b> {escaped(text)}</p>' for label, text in lines)


def phase_lines(phases: Phases) -> list[tuple[str, str]]:
    """Return label and text of each line."""
    lines = [("wall time", f"{format_duration(phases.wall_ns)}{_by_phase(phases)}")]
    if phases.steps is not None and (parts := _parts(phases.steps.parts)):
        lines.append(("a step", parts))
    return lines


def _by_phase(phases: Phases) -> str:
    imports = _imports(phases.imports_ns)
    if phases.steps is None:
        return f": {imports}" if imports else ""
    words = [f"start-up {format_duration(phases.startup_ns)}" + (f" ({imports})" if imports else "")]
    words.append(_steps(phases.steps))
    if phases.between_ns > 0:
        words.append(f"between steps {format_duration(phases.between_ns)}")
    words.append(f"after the last step {format_duration(phases.closing_ns)}")
    return ": " + ", ".join(words)


def _imports(imports_ns: Mapping[str, int] | None) -> str:
    total_ns = sum((imports_ns or {}).values())
    if not imports_ns or total_ns < _SHOWN_IMPORTS_NS:
        return ""
    largest = list(imports_ns.items())[:_SHOWN_PACKAGES]
    packages = ", ".join(f"{escape_text(name)} {format_duration(time_ns)}" for name, time_ns in largest)
    return f"imports {format_duration(total_ns)}: {packages}"


def _steps(steps: StepFigures) -> str:
    what = _STEP_TEXTS[steps.kind]
    text = f"{steps.count:,} {what}{'' if steps.count == 1 else 's'} {format_duration(steps.total_ns)}"
    if steps.count == 1:
        return text
    each = f"median {format_duration(steps.median_ns)}"
    if steps.interval_ns is not None:
        low, high = map(format_duration, steps.interval_ns)
        each += f", 90% CI {low} to {high}"
    if steps.warm_up_steps:
        each += ", without the first"
    return f"{text} ({each})"


def _parts(parts: Mapping[str, float | None]) -> str:
    known = [(name, share) for name, share in parts.items() if share is not None]
    if len(known) < 2:
        return ""
    ordered = sorted(known, key=lambda each: (each[0] == "other", -each[1]))
    return ", ".join(f"{_PART_TEXTS.get(name, name)} {format_share(share)}" for name, share in ordered)
