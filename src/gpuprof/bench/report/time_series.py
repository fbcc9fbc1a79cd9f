# SPDX-License-Identifier: Apache-2.0
"""The section of a report with latency and resources over time, and what loading data took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument, TimeSeries
from gpuprof.bench.report import formatting
from gpuprof.bench.report.plot_parts import Figure, Look, Plain, axis, label, layout
from gpuprof.bench.report.table import Table, figure, table_of, whole

KEY, TITLE = "series", "Latency and resources over time"
LEAD = "The first process run of each variant at its largest batch size. Times before 0 are the warm-up."
_ROW_HEIGHT, _GAP = 190, 0.06


def series_figure(document: ComparisonDocument, looks: Mapping[str, Look]) -> Figure | None:
    """Return latency, processor, memory and disk over time, one below the other; None without any series."""
    found = [
        (each.name, batch.series)
        for each in document.measured
        if (batch := _largest(each.batches)) is not None and batch.series is not None
    ]
    rows: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for name, series in found:
        for title, times, values in _lines(series):
            rows.setdefault(title, []).append((name, times, values))
    if not rows:
        return None
    traces = [
        _trace(looks[name], name, times, values, number, title)
        for number, (title, drawn) in enumerate(rows.items(), 1)
        for name, times, values in drawn
    ]
    x_axis = axis("time since the warm-up (s)", anchor=f"y{len(rows)}" if len(rows) > 1 else "y")
    body = layout(_ROW_HEIGHT * len(rows), xaxis=x_axis, **_y_axes(list(rows)))
    shown = ", ".join(rows)
    alternative = f"Over time, of {len(found)} variants: {shown}; as lines, one below the other."
    return Figure(KEY, alternative, traces, body)


def loading_table(document: ComparisonDocument) -> Table | None:
    """Return what loading took of each variant that was streamed; None without any."""
    subjects = [
        (each.name, batch)
        for each in document.measured
        for batch in each.batches
        if batch.data_loading_s is not None
    ]
    columns: dict[str, Any] = {
        "Batch size": lambda batch: whole(batch.batch_size),
        "Loading a batch": lambda batch: figure(batch.data_loading_s, formatting.time),
        "Of the wall time": lambda batch: figure(batch.data_loading_share, formatting.share),
        "I/O wait": lambda batch: figure(batch.io_wait_share, formatting.share),
    }
    return table_of("Loading of data, next to the calls of the model.", columns, subjects)


def _largest(batches: Sequence[BatchFigures]) -> BatchFigures | None:
    return max(batches, key=lambda each: each.batch_size, default=None)


def _lines(series: TimeSeries) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield title, times and values of what was read."""
    if series.latency_s:
        yield "latency (ms)", [*series.latency_time_s], [each * 1e3 for each in series.latency_s]
    read = series.resources
    if read is None or not read.time_s:
        return
    yield "CPU (% of one)", read.time_s, read.cpu_percent
    if read.memory_bytes is not None:
        yield "memory (MB)", read.time_s, [each / 1e6 for each in read.memory_bytes]
    for title, counts in (
        ("read (MB)", read.read_bytes),
        ("written (MB)", read.written_bytes),
        ("received (MB)", read.network_received_bytes),
    ):
        if counts is not None and any(counts):
            yield title, read.time_s, [each / 1e6 for each in counts]
    for device in read.devices:
        if device.metric == "utilization_percent":
            yield f"GPU {device.device} (%)", device.time_s, device.values


def _trace(look: Look, name: str, times: list[float], values: list[float], number: int, title: str) -> Plain:
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": {"variant": look.number},
        "name": label(name),
        "x": times,
        "y": values,
        "yaxis": "y" if number == 1 else f"y{number}",
        "line": {"color": look.color, "width": 1.5, "dash": look.dash},
        "hoverinfo": "text",
        "hovertext": [
            f"<b>{label(name)}</b><br>{title}: {value:.4g}<br>at {at:.2f} s"
            for at, value in zip(times, values, strict=True)
        ],
    }


def _y_axes(titles: Sequence[str]) -> Plain:
    """Return an axis for each row, the first one on top."""
    height = 1 / len(titles)
    return {
        "yaxis" if number == 1 else f"yaxis{number}": axis(
            title,
            rangemode="tozero",
            domain=[round(1 - number * height + (_GAP if number < len(titles) else 0) / 2, 4),
                    round(1 - (number - 1) * height - (_GAP if number > 1 else 0) / 2, 4)],
        )
        for number, title in enumerate(titles, 1)
    }  # fmt: skip
