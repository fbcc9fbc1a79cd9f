# SPDX-License-Identifier: Apache-2.0
"""A snapshot as plain text."""

from __future__ import annotations

from collections.abc import Callable

from gpuprof.live.snapshot import Snapshot, Unavailable
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import format_bytes, format_count, format_duration, format_share

ROWS = 10


def snapshot_text(snapshot: Snapshot) -> str:
    """Return the figures of an interval; - for an unavailable one."""
    machine = snapshot.machine
    used, total = (
        _shown(each, format_bytes) for each in (machine.memory_used_bytes, machine.memory_total_bytes)
    )
    lines = [
        f"machine: CPU {_shown(machine.cpu_share, format_share)}, I/O wait "
        f"{_shown(machine.io_wait_share, format_share)}, memory {used} of {total}"
    ]
    if snapshot.run is not None and snapshot.state is not None:
        lines.append(f"run: {escape_text(snapshot.run)} ({snapshot.state.value})")
    if isinstance(snapshot.steps, tuple):
        lines += [
            f"steps of process {each.process_id}: {len(each.durations_ns)}, mean "
            f"{format_duration(each.mean_ns)}, median {format_duration(each.p50_ns)}, last "
            f"{format_duration(each.durations_ns[-1])}"
            for each in snapshot.steps
        ]
    return "\n\n".join(["\n".join(lines), *_tables(snapshot)])


def _tables(snapshot: Snapshot) -> list[str]:
    tables = []
    if snapshot.processes:
        columns = [Column("process", right=False), *map(Column, ("id", "CPU", "RSS", "threads", "spans"))]
        rows = [
            (
                each.name,
                str(each.process_id),
                _shown(each.cpu_cores, "{:.2f}".format),
                _shown(each.rss_bytes, format_bytes),
                _shown(each.threads, format_count),
                _shown(each.spans, format_count),
            )
            for each in snapshot.processes
        ]
        tables.append(text_table(columns, rows))
    if isinstance(snapshot.layers, tuple) and snapshot.layers:
        whole = sum(each.self_ns for each in snapshot.layers) or 1
        layers = [
            (
                each.name,
                format_count(each.calls),
                format_duration(each.self_ns),
                format_share(each.self_ns / whole),
            )
            for each in snapshot.layers[:ROWS]
        ]
        columns = [Column("layer", right=False), *map(Column, ("calls", "self time", "fraction"))]
        tables.append(text_table(columns, layers))
    if operators := snapshot.calls_of("operator"):
        shown = [
            (
                each.name,
                format_count(each.calls),
                format_duration(each.self_ns),
                format_duration(each.total_ns),
            )
            for each in operators[:ROWS]
        ]
        columns = [Column("operator", right=False), *map(Column, ("calls", "self time", "total time"))]
        tables.append(text_table(columns, shown))
    return tables


def _shown(value: float | Unavailable, form: Callable[..., str]) -> str:
    return "-" if isinstance(value, Unavailable) else form(value)
