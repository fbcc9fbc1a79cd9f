# SPDX-License-Identifier: Apache-2.0
"""The slowest requests as text."""

from __future__ import annotations

from gpuprof.analyze.kernel_labels import label_of
from gpuprof.analyze.requests.slow_request import Cause, SlowRequest, TailWait, TimePart
from gpuprof.text.sanitize import shorten
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import counted, format_duration, format_share

TITLES = {
    TimePart.LAYERS: "layers",
    TimePart.OPERATORS: "operators",
    TimePart.PYTHON: "Python",
    TimePart.WAITING: "waiting",
    TimePart.GC: "GC",
    TimePart.COMPILATION: "compiling",
    TimePart.OUTSIDE: "outside",
    TimePart.PARALLEL: "other threads",
}
_LONGEST = 60
UNKNOWN_TEXT = "-"


def requests_text(slow: list[SlowRequest], count: int, wait: TailWait | None) -> str:
    """Return the table of the slowest of `count` requests, and how much of the tail waits for sending."""
    parts = parts_of(slow)
    columns = [
        *(Column(name, right=True) for name in ("request", "latency", "queued", "service")),
        *(Column(TITLES[part], right=True) for part in parts),
        Column("longer than around the median", right=False),
    ]
    lines = [
        f"slowest {len(slow):,} of {counted(count, 'request')} by service time",
        text_table(columns, [_cells(each, parts) for each in slow]),
    ]
    return "\n".join([*lines, *notes_of(slow, wait)])


def parts_of(slow: list[SlowRequest]) -> list[TimePart]:
    """Return the parts that a table shows: those that are not 0 everywhere."""
    used = {part for each in slow for part, time_ns in (each.parts_ns or {}).items() if time_ns}
    return [part for part in TimePart if part in used]


def notes_of(slow: list[SlowRequest], wait: TailWait | None) -> list[str]:
    """Return what a reader of the table must know."""
    found = []
    if wait is not None:
        which = "maximum latency" if wait.is_maximum else "latency above p99"
        found.append(
            f"{which} ({format_duration(wait.latency_ns)}): "
            f"{format_share(wait.queued_fraction)} is waiting before sending"
        )
    if any(each.batch_size > 1 for each in slow):
        found.append("x: the size of a batch, whose service time is that of each of its requests")
    if any(each.parts_ns is None for each in slow):
        found.append("-: the spans of the request were not recorded")
    return found


def request_text(each: SlowRequest) -> str:
    """Return the number of a request, with the size of its batch."""
    return f"#{each.index}" + (f" x{each.batch_size}" if each.batch_size > 1 else "")


def time_text(time_ns: int) -> str:
    """Return a time; 0 for none."""
    return format_duration(time_ns) if time_ns else "0"


def cause_text(cause: Cause | None) -> str:
    """Return what took longer than in the requests around the median, as it is in the run."""
    if cause is None:
        return ""
    name = label_of(cause.name, cause.kind) or cause.name
    if cause.kind not in ("python", "layer", "span") and cause.inside:
        name += f" in {cause.inside}"
    return f"+{format_duration(cause.excess_ns)} {shorten(name, _LONGEST)}"


def _cells(each: SlowRequest, parts: list[TimePart]) -> list[str]:
    times = (each.latency_ns, each.queued_ns, each.service_ns)
    known = each.parts_ns
    shown = [UNKNOWN_TEXT if known is None else time_text(known[part]) for part in parts]
    cause = UNKNOWN_TEXT if known is None else cause_text(each.cause)
    return [request_text(each), *map(time_text, times), *shown, cause]
