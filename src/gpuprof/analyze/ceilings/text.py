# SPDX-License-Identifier: Apache-2.0
"""Ceilings for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gpuprof.analyze.ceilings.ceiling import (
    ALL_CORES,
    GPU,
    MOST_DRIFT,
    ONE_CORE,
    Ceiling,
    CeilingNote,
    Ceilings,
    Drift,
    best_part,
)
from gpuprof.text.messages import Messages
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import format_change, format_duration, format_share

WIDTH = 100
MOST_LISTED = 5
LEGEND = (
    "A ceiling is the best of the indented measurements below it. spread: relative IQR of the repeats. "
    "memory.dram counts traffic, including the lines that a store reads before it writes them "
    "(write-allocate); the other levels count the bytes that a program names. method: on all cores; that "
    "of one core follows where it differs."
)
NOTES = Messages(
    {
        "quota": (
            "the control group limits this process to {processors:.3g} processors: ceilings are of the quota"
        ),
        "threads_not_pinned": ("not all threads could be pinned: the system moved them between processors"),
        "instruction_set_denied": "the system does not permit this process to use {instruction_set}",
        "no_torch": "torch is not installed: no ceilings of its products and dispatch",
        "products_not_measured": "PyTorch's products could not be measured: {error}",
        "dispatch_not_measured": "the dispatch of an operator could not be measured: {error}",
        "small_arrays": (
            "free memory allows arrays of {array_bytes:MB} where {needed_bytes:MB} are needed: memory.dram "
            "may include the last cache"
        ),
        "cache_without_folder": "no cache folder: {error}",
        "cache_not_readable": "the cache cannot be read: {file}: {error}",
        "cache_damaged": "the cache was damaged and is replaced: {file}",
        "not_cached": lambda values: (
            f"the ceilings are not cached: {': '.join(filter(None, (values.get('file'), values['error'])))}"
        ),
        "none": "no ceilings: {error}",
        "imported_gpus": (
            "GPUs are of an imported capture: their ceilings are theoretical, by clocks and widths"
        ),
        "gpus_during_recording": "GPUs cannot be measured during a recording: each would disturb the other",
        "gpu_not_shown": "its ceilings were not measured: CUDA does not show it here",
        "gpu_timeout": "the GPU was not measured: no result within {limit_s:.0f} s",
        "gpu_no_process": "the GPU was not measured: no process: {error}",
        "gpu_exit_code": "the GPU was not measured: exit code {exit_code}: {error}",
        "gpu_invalid_output": "the GPU was not measured: invalid output {output!r}",
        "gpu_invalid_ceilings": "its ceilings are invalid: {error}",
        "gpu_refused": "the GPU was not measured: {error}",
        "gpu_without_own_kernels": "no kernels of our own: {error}",
        "gpu_part_not_measured": "not measured: {error}",
        "gpu_launches_too_slow": (
            "not measured: the launches were slower than the GPU, so no kernel was queued"
        ),
        "gpu_small_arrays": (
            "free memory allows arrays of {array_bytes:MB}, less than {caches} times the L2 cache: "
            "memory.dram may include the cache's rate"
        ),
        "gpu_no_torch": "torch is not installed: no ceilings of its products",
        "gpu_products_calculated": "calculated from its clocks, not measured: products in {types:list}",
        "gpu_memory_calculated": "calculated from its clocks, not measured: {resource}",
        "text": "{text}",
    },
    {"MB": lambda size_bytes: f"{size_bytes / 1e6:,.0f} MB"},
)
_RATE_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ceiling_note_text(note: CeilingNote) -> str:
    """Return a note, with the GPU that it is about."""
    device = note.values.get("device")
    text = NOTES.text(note.code, note.values)
    return text if device is None else f"{device}: {text}"


def ceilings_table(ceilings: Ceilings, width: int = WIDTH) -> str:
    """Return the ceilings as a table with its legend and notes, without a final newline."""
    processors = ceilings.machine.get("processors") or []
    columns = [
        Column("", right=False),
        Column(f"all {len(processors)} cores"),
        Column("spread"),
        Column("one core"),
        Column("spread"),
        Column("method", right=False),
    ]
    lines = [
        escape_text(
            f"{ceilings.machine.get('processor') or 'unknown processor'}, measured {ceilings.measured_at}"
        ),
        "",
        text_table(columns, list(_rows(ceilings)), width),
        "",
        *textwrap.wrap(LEGEND, width),
    ]
    for note in ceilings.notes:
        lines += textwrap.wrap(f"note: {ceiling_note_text(note)}", width, subsequent_indent="      ")
    return "\n".join(lines)


def gpu_ceilings_table(ceilings: Ceilings, device: str, width: int = WIDTH) -> str:
    """Return the ceilings of a GPU as a table with its notes, without a final newline."""
    columns = [Column("", right=False), Column(device), Column("spread"), Column("method", right=False)]
    rows = [(_label(row), format_ceiling(row), format_share(row.spread), row.method) for row in ceilings.rows]
    name = ceilings.machine.get("gpu") or "unknown GPU"
    lines = [escape_text(f"{device}: {name}, measured {ceilings.measured_at}"), ""]
    lines += [text_table(columns, rows, width)]
    for note in ceilings.notes:
        lines += textwrap.wrap(
            escape_text(f"note: {ceiling_note_text(note)}"), width, subsequent_indent="      "
        )
    return "\n".join(lines)


def drift_text(drifts: Sequence[Drift], width: int = WIDTH) -> str:
    """Return how a quick measurement compares with the cached one, in a few lines."""
    if not drifts:
        return "drift: no measurement could be compared"
    large = [drift for drift in drifts if drift.is_large]
    if not large:
        most = max(drifts, key=lambda drift: abs(drift.change))
        return f"drift: {len(drifts)} measured again, largest change {_change(most)}"
    large.sort(key=lambda drift: -abs(drift.change))
    listed = ", ".join(map(_change, large[:MOST_LISTED])) + (", ..." if len(large) > MOST_LISTED else "")
    text = (
        f"drift: {len(large)} of {len(drifts)} measured again differ by more than {MOST_DRIFT:.0%}: "
        f"{listed}. The machine is busy or has changed; when it is idle: gpuprof doctor --ceilings --refresh"
    )
    return "\n".join(textwrap.wrap(text, width, subsequent_indent="       "))


def operation_unit(dtype: str | None) -> str:
    """Return the unit of a peak: int8 numbers are no floating-point numbers."""
    return "OP/s" if dtype == "int8" else "FLOP/s"


def format_ceiling(row: Ceiling | None) -> str:
    """Return a ceiling's value with its unit; None is `-`."""
    if row is None:
        return "-"
    if row.unit == "ns":
        return format_duration(row.value)
    unit = operation_unit(row.dtype) if row.unit == "flop_per_s" else "B/s"
    size, prefix = next((pair for pair in _RATE_UNITS if row.value >= 0.9995 * pair[0]), (1.0, ""))
    value = row.value / size
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f} {prefix}{unit}"


def _rows(ceilings: Ceilings) -> Iterator[tuple[str, ...]]:
    """Yield a line for each resource; whatever a single core alone has comes last."""
    for resource, dtype in dict.fromkeys((row.resource, row.dtype) for row in ceilings.rows):
        every = ceilings.find(resource, dtype, ALL_CORES)
        one = ceilings.find(resource, dtype, ONE_CORE)
        shown = every or one
        if shown is not None:
            yield (
                _label(shown),
                format_ceiling(every),
                format_share(every.spread if every else None),
                format_ceiling(one),
                format_share(one.spread if one else None),
                shown.method,
            )
            if every and one and one.is_best and one.method != every.method:
                part = best_part(one, ceilings.rows)
                best = one.method if part is None else part.resource.removeprefix(f"{one.resource}.")
                yield (*[""] * 5, f"one core: {best}")


def _label(row: Ceiling) -> str:
    if row.is_best:
        return f"{row.resource} {row.dtype}" if row.dtype else row.resource
    return "  " + row.resource.rpartition(".")[2]


def _change(drift: Drift) -> str:
    name = drift.resource if drift.dtype is None else f"{drift.resource} {drift.dtype}"
    where = f"{drift.device} " if drift.device.startswith(GPU) else ""
    return f"{where}{name} {format_change(drift.change)}"
