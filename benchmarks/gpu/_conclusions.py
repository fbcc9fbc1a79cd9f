# SPDX-License-Identifier: Apache-2.0
"""Turn figures into conclusions, with one function for each question."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu._statistics import describe

Figures = Mapping[str, Any]
_LONGEST_LIST = 12
_SAME_CLOCK_NS = 1e6


def summarize(figures: Figures) -> dict[str, Any]:
    """Return the figures with long lists of numbers as their quartiles."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(each) for key, each in value.items()}
        is_long = isinstance(value, list) and len(value) > _LONGEST_LIST
        return describe(value) if is_long and isinstance(value[0], int | float) else value

    return {key: short(value) for key, value in figures.items()}


def _median(figures: Figures, key: str) -> float:
    return float(statistics.median(figures[key]))


def _correlation_cost(figures: Figures) -> str:
    records = _median(figures, "kernel_records_ns")
    callback = _median(figures, "launch_callback_ns") - records
    external = _median(figures, "external_ids_ns") - records
    noise = describe(figures["kernel_records_ns"])
    iqr = noise["third_quartile"] - noise["first_quartile"]
    cheaper = "callbacks at the launch" if callback < external else "external ids"
    significance = "" if abs(callback - external) > iqr else ", less than the interquartile range"
    return (
        f"{cheaper}: over kernel records alone, a callback adds {callback:,.0f} ns a launch and external ids "
        f"{external:,.0f} ns{significance}; kernel records themselves add "
        f"{records - _median(figures, 'nothing_ns'):,.0f} ns to {_median(figures, 'nothing_ns'):,.0f} ns"
    )


def _residual_cost(figures: Figures) -> str:
    bare = _median(figures, "without_cupti_ns")
    phases = {"loaded": "before", "recording": "recording", "stopped": "stopped", "finalized": "finalized"}
    added = {name: _median(figures, f"{key}_ns") - bare for name, key in phases.items()}
    parts = ", ".join(f"{name} {value:+,.0f} ns" for name, value in added.items())
    return (
        f"against {bare:,.0f} ns a launch without CUPTI: {parts}; "
        f"cuptiFinalize took {figures['finalize_took_ns'] / 1e6:,.1f} ms"
    )


def _clock_error(figures: Figures) -> str:
    low, high = max(figures["ahead_at_least_ns"]), min(figures["ahead_at_most_ns"])
    differences = figures["clock_difference_ns"]
    moved = f"; CUPTI's clock moved by {max(differences) - min(differences):,.0f} ns against the CPU's"
    if low <= high:
        return (
            f"the GPU's times are between {low:,.0f} and {high:,.0f} ns ahead of the CPU's: "
            f"an error of at most {max(abs(low), abs(high)):,.0f} ns{moved}"
        )
    drift_ns = low - high
    return f"no constant difference fits: it drifts over the seconds by at least {drift_ns:,.0f} ns{moved}"


def _timestamp_clock(figures: Figures) -> str:
    shift = figures["shift_ns"]
    reading = abs(figures["ahead_after_ns"] - shift) < _SAME_CLOCK_NS
    record = abs(figures["record_ahead_ns"] - shift) < 1e9
    before = figures["ahead_before_ns"]
    plain = "the monotonic clock" if abs(before) < _SAME_CLOCK_NS else "another clock"
    if abs(before - figures["realtime_ahead_ns"]) < _SAME_CLOCK_NS:
        plain = "the real-time clock"
    return (
        f"cuptiGetTimestamp {'follows' if reading else 'does not follow'} the registered clock, records "
        f"{'do' if record else 'do not'}; without registration it is {plain}"
    )


def _empty_buffers(figures: Figures) -> str:
    kept = figures["idle_flushes_requested"] - figures["idle_flushes_returned"]
    empty = figures["idle_flushes_returned_empty"]
    end = figures["forced_requested"] - figures["forced_returned"]
    return (
        f"after idle flushes CUPTI holds {kept:.0f} buffers and has returned {empty:.0f} empty ones; "
        f"at the end, forced, it holds {end:.0f}"
    )


def _dropped_records(figures: Figures) -> str:
    missing = figures["launched"] - figures["recorded"]
    verdict = "is exact" if missing == figures["dropped"] else "is not exact"
    return (
        f"it {verdict}: {missing:,.0f} records are missing, {figures['dropped']:,.0f} are reported as dropped"
    )


def _flush_while_running(figures: Figures) -> str:
    def parts(flush: str) -> str:
        took = figures[f"{flush}_flush_took_ns"] / 1e6
        return f"{flush}: {figures[f'{flush}_flush_kernels']:.0f} finished kernels in {took:,.1f} ms"

    return f"{parts('plain')}; {parts('forced')}; afterwards {figures['afterwards_kernels']:.0f}"


def _graph_clones(figures: Figures) -> str:
    phases = ("capture", "instantiate", "clone", "launch")
    parts = ", ".join(
        f"{phase} {figures[f'{phase}_created']:.0f} created {figures[f'{phase}_cloned']:.0f} cloned"
        for phase in phases
    )
    return (
        f"callbacks: {parts}; of {figures['kernels']:.0f} replayed kernels, "
        f"{figures['kernels_of_created_nodes']:.0f} carry the id of a node that was reported as created and "
        f"{figures['kernels_of_cloned_nodes']:.0f} one that was reported as cloned"
    )


def _torch_profiler(figures: Figures) -> str:
    parts = []
    for case, found in figures.items():
        name = case.replace("_", " ")
        part = [f"torch {found['torch_kernels']} of {found['torch_expected']}"]
        if "gpuprof_kernels" in found:
            part.insert(0, f"gpuprof {found['gpuprof_kernels']} of {found['gpuprof_expected']}")
        if "started" in found:
            part.insert(0, f"the start: {found['started']['reason'] or 'yes'!r}")
        parts.append(f"{name}: {', '.join(part)}")
    return "; ".join(parts)


def _runtime_copies(figures: Figures) -> str:
    found = figures["copies"]
    return (
        f"{found['with_launch']} of {found['count']} transfers have the id of a launch callback, "
        f"{found['in_their_span']} are in their span; {found['spans']} were asked for"
    )


JUDGES: dict[str, Callable[[Figures], str]] = {
    "correlation_cost": _correlation_cost,
    "residual_cost": _residual_cost,
    "clock_error": _clock_error,
    "timestamp_clock": _timestamp_clock,
    "empty_buffers": _empty_buffers,
    "dropped_records": _dropped_records,
    "flush_while_running": _flush_while_running,
    "graph_clones": _graph_clones,
    "torch_profiler": _torch_profiler,
    "runtime_copies": _runtime_copies,
}
