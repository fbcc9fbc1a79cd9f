# SPDX-License-Identifier: Apache-2.0
"""What a label rests on, in one short line."""

from __future__ import annotations

from gpuprof.analyze.ceilings.text import operation_unit
from gpuprof.analyze.roofline.device_work import HostDelay
from gpuprof.analyze.roofline.labels import IMPOSSIBLE, Label, Resource
from gpuprof.analyze.roofline.use import Use
from gpuprof.analyze.text_table import format_bytes, format_count, format_duration

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WORTH_SAYING = 0.005
WORK_UNKNOWN = "its work is not known"


def evidence(
    found: Label,
    use: Use,
    *,
    flops: int | None,
    faults: int | None,
    time_ns: float,
    delay: HostDelay | None = None,
) -> str:
    """Return the figures of the nearest resource, and the share of the next; `delay` is known on GPUs."""
    if found.nearest is None:
        return "neither its work nor a ceiling for it is known"
    line = _line(found.nearest, use, flops=flops, faults=faults, time_ns=time_ns)
    if found.nearest == "latency" and delay is not None:
        floor = format_duration(use.latency_ns)
        line = f"{format_duration(time_ns)}, floor {floor}, {_waiting(delay)}"
    if found.bound == "unknown" and (found.used or 0) > IMPOSSIBLE:
        return f"{line}: its calls did not do what was counted"
    if found.bound == "balanced" and found.next is not None:
        return f"{line}; {_line(found.next, use, flops=flops, faults=faults, time_ns=time_ns)}"
    if found.next is not None and (found.next_used or 0) >= _WORTH_SAYING:
        line += f"; {found.next} {found.next_used:.0%}"
    return line


def _line(resource: Resource, use: Use, *, flops: int | None, faults: int | None, time_ns: float) -> str:
    if resource == "compute" and use.peak is not None and flops is not None:
        reached = _rate((use.operations or flops) / time_ns * 1e9, use.peak.value)
        known = "" if use.peak_is_sure else ", if it may use TF32"
        unit = operation_unit(use.peak.dtype)
        return f"{reached}{unit} {use.peak.dtype}{' measured' if use.operations else ''}{known}"
    if resource == "memory" and use.traffic is not None:
        level = use.traffic.level
        reached = _rate(use.traffic.bytes / time_ns * 1e9, level.ceiling.value)
        return f"{reached}B/s {level.name}, {format_bytes(use.traffic.bytes)} {use.traffic.source}".rstrip()
    if resource == "latency":
        return _dispatch(use.latency_ns or 0, time_ns)
    return _faults(faults, use.fault_ns or 0, time_ns) if faults else resource


def _dispatch(latency_ns: float, time_ns: float) -> str:
    """Name a part of the time only where it is shorter than the whole."""
    if latency_ns >= time_ns:
        return f"{format_duration(time_ns)}; an empty dispatch takes {format_duration(latency_ns)}"
    return f"{format_duration(time_ns)} of which dispatch {format_duration(latency_ns)}"


def _faults(faults: int, fault_ns: float, time_ns: float) -> str:
    each = f"{format_count(faults)} fault{'s' if faults != 1 else ''} x {format_duration(fault_ns / faults)}"
    whole = format_duration(time_ns)
    return f"{each}, worth all of {whole}" if fault_ns >= time_ns else f"{each} of {whole}"


def _waiting(delay: HostDelay) -> str:
    """Say how often the GPU had to wait for the host's launch."""
    return (
        f"host late {delay.late:,} of {delay.known:,}" if delay.known else "whether the host was late unknown"
    )


def _rate(reached: float, roof: float) -> str:
    """Return both in the unit of the roof: `31.0 of 39.4 G`."""
    size, prefix = next((pair for pair in _PREFIXES if roof >= 0.9995 * pair[0]), (1.0, ""))
    return f"{reached / size:.3g} of {roof / size:.3g} {prefix}"


def roof_name(resource: Resource | None, use: Use) -> str | None:
    """Return the ceiling that a share is of, as the table `ceilings` names it."""
    if resource == "compute" and use.peak is not None:
        return f"compute {use.peak.dtype}"
    if resource == "memory" and use.traffic is not None:
        return f"memory.{use.traffic.level.name}"
    return {"latency": "launch", "page faults": "page_fault"}.get(resource or "")
