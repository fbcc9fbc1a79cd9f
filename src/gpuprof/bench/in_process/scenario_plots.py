# SPDX-License-Identifier: Apache-2.0
"""The plots of load scenarios: latencies of single-stream, queries of server, throughput of offline."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuprof.bench.in_process.validation import latencies_of
from gpuprof.bench.report.plot_parts import label
from gpuprof.bench.report.writers import required_packages
from gpuprof.bench.results.files import write_whole
from gpuprof.errors import BenchmarkError

SCENARIOS = ("single_stream", "server", "offline")
_TITLES = ("single-stream: latency", "server: latency by arrival", "offline: throughput")
_BINS = 50
_WIDTH, _HEIGHT = 1800, 500  # 18 x 5 inches of 100 pixels


def plot_benchmark_results(
    benchmark_results: Mapping[str, Any] | Iterable[Any], path: str | os.PathLike[str] | None = None
) -> Any:
    """Return a figure of plotly with three plots next to each other, and write it to `path` as HTML.

    A result has a `scenario`, or its scenario as its key; `latencies` in seconds, those of server in order of
    arrival; and `throughput` in samples per second. Single-stream is a histogram of 50 bins, server a line
    over the index of the query, offline a bar. A plot without a result is empty. Raises BenchmarkError
    without any result, UnavailableError without plotly.
    """
    found = _by_scenario(benchmark_results)
    figure = _figure(found)
    if path is not None:
        try:
            write_whole(Path(path), figure.to_html(include_plotlyjs=True))
        except OSError as error:
            raise BenchmarkError(
                "cannot_write", f"{path}: it cannot be written ({error.strerror})", hint="use another folder"
            ) from error
    return figure


def _by_scenario(results: Mapping[str, Any] | Iterable[Any]) -> dict[str, list[tuple[str, Any]]]:
    """Return the named results of each scenario. Raises BenchmarkError where there are none."""
    pairs = (
        [*results.items()]
        if isinstance(results, Mapping)
        else [(str(number), each) for number, each in enumerate(results, 1)]
    )
    found: dict[str, list[tuple[str, Any]]] = {name: [] for name in SCENARIOS}
    for name, result in pairs:
        scenario = getattr(result, "scenario", name)
        scenario = str(getattr(scenario, "value", scenario))
        if scenario not in found:
            raise BenchmarkError(
                "unknown_scenario", f"{scenario!r} is no scenario", hint=f"use {', '.join(SCENARIOS)}"
            )
        found[scenario].append((name, result))
    if not any(found.values()):
        raise BenchmarkError("no_results", "there are no results to plot", hint="measure first")
    return found


def _figure(found: Mapping[str, list[tuple[str, Any]]]) -> Any:
    required_packages()
    graph = importlib.import_module("plotly.graph_objects")
    figure = importlib.import_module("plotly.subplots").make_subplots(rows=1, cols=3, subplot_titles=_TITLES)
    for name, result in found["single_stream"]:
        histogram = graph.Histogram(x=latencies_of(result).tolist(), nbinsx=_BINS, name=label(name))
        figure.add_trace(histogram, row=1, col=1)
    for name, result in found["server"]:
        line = graph.Scatter(y=latencies_of(result).tolist(), mode="lines", name=label(name))
        figure.add_trace(line, row=1, col=2)
    of_offline = found["offline"]
    if of_offline:
        names, rates = [label(name) for name, _ in of_offline], [each.throughput for _, each in of_offline]
        figure.add_trace(graph.Bar(x=names, y=rates, name="offline"), row=1, col=3)
    for place, (x, y) in enumerate(
        (("latency (s)", "frequency"), ("query index", "latency (s)"), ("", "samples/s")), 1
    ):
        figure.update_xaxes(title_text=x, row=1, col=place)
        figure.update_yaxes(title_text=y, row=1, col=place)
    figure.update_layout(width=_WIDTH, height=_HEIGHT, bargap=0.02)
    return figure
