# SPDX-License-Identifier: Apache-2.0
"""Reports of a search and of a sweep: plots with intervals, tables, CSV and JSON."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from gpuprof.bench.results.target import parse_target
from gpuprof.load.rate_plots import PlotMark, RatePoint, quantile_plot, throughput_plot
from gpuprof.load.result import LoadSettings
from gpuprof.load.search import find_max_rate
from gpuprof.load.several_report import search_content, sweep_content, sweep_rows, write_several
from gpuprof.load.several_runs import MaxRateResult, SweepResult
from gpuprof.load.sweep import ConcurrencyRun, sweep_of

LIMIT_S = 0.05


def searched(highest: float = 100.0) -> MaxRateResult:
    """Return a search on latencies that are exponential, with a p90 of the limit at the highest rate."""

    def measure(rate: float, seed: int) -> np.ndarray:
        mean_s = LIMIT_S / math.log(10) * (rate / highest) ** 2
        return np.random.default_rng(seed).exponential(mean_s, 400)

    target = parse_target("p90<50ms")
    found = find_max_rate(measure, target, 40.0, runs=6, precision=0.2)
    achieved = {each.rate: (each.rate, 0.9 * each.rate, 1.1 * each.rate) for each in found.probes}
    settings = LoadSettings("m.py:build", "server", "poisson", rate=40.0, slo="p90<50ms")
    return MaxRateResult(settings, found, achieved=achieved)


def swept() -> SweepResult:
    """Return a sweep that saturates at 400 per second, at a concurrency of 4."""
    runs = [
        ConcurrencyRun(level, min(100.0 * level, 400.0), level / min(100.0 * level, 400.0))
        for level in (1, 2, 4, 8)
    ]
    p99 = {1: 0.011, 2: 0.012, 4: 0.02, 8: None}
    throughputs = {each.concurrency: (0.9 * each.throughput, 1.1 * each.throughput) for each in runs}
    return SweepResult(
        LoadSettings("m.py:build", "closed-loop"), sweep_of(runs), p99, False, throughputs,
        {1: (0.01, 0.013), 2: None, 4: (0.015, 0.03)},
    )  # fmt: skip


def test_points_have_intervals_and_marks() -> None:
    points = [RatePoint(20, 19.0, 18.0, 21.0, "20/s"), RatePoint(10, 10.0, None, None, "10/s")]
    figure = throughput_plot(points, "rate", [PlotMark("saturation point", 15.0, "15/s")], is_offered=True)
    assert figure is not None
    offered, mark, trace = figure.traces
    assert (offered["x"], offered["y"]) == ([0.0, 20], [0.0, 20])
    assert mark["x"] == [15.0, 15.0]
    assert (trace["x"], trace["y"]) == ([10, 20], [10.0, 19.0])
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == ([0.0, 2.0], [0.0, 1.0])
    assert "no interval" in trace["hovertext"][0]
    assert throughput_plot(points[:1], "rate") is None


def test_a_quantile_has_the_unit_of_its_axis_and_the_line_of_its_target() -> None:
    points = [RatePoint(1, 0.002, 0.001, 0.003, "1"), RatePoint(2, 0.004, 0.003, 0.006, "2")]
    figure = quantile_plot(points, "p99", "rate", limit_s=0.005)
    assert figure is not None
    target, trace = figure.traces
    assert target["y"] == pytest.approx([5.0, 5.0])
    assert trace["y"] == pytest.approx([2.0, 4.0])
    assert trace["error_y"]["array"] == pytest.approx([1.0, 2.0])


def test_the_report_of_a_search(tmp_path: Path) -> None:
    result = searched()
    content = search_content(result)
    assert [each.key for each in content.figures] == ["throughput", "quantile"]
    found = result.found
    assert found.low is not None
    assert found.high is not None
    assert found.low < 100 < found.high
    paths = write_several(result, ("md", "csv", "json"), tmp_path)
    assert [path.name for path in paths] == ["report.md", "report.csv", "report.json"]
    with (tmp_path / "report.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["rate"]) for row in rows] == [each.rate for each in found.probes]
    assert float(rows[0]["quantile_low_ms"]) < float(rows[0]["quantile_ms"])
    assert {float(row["highest_rate_low"]) for row in rows} == {found.low}
    plain = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert plain["rates"][0]["achieved"] == list(result.achieved[found.probes[0].rate])


def test_the_report_of_a_sweep_has_the_saturation_point() -> None:
    content = sweep_content(swept())
    throughput, quantile = content.figures
    mark = next(each for each in throughput.traces if each["name"] == "saturation point")
    assert mark["x"] == [4, 4]
    # The concurrency whose p99 failed requests decide has no point.
    assert next(each for each in quantile.traces if "error_y" in each)["x"] == [1, 2, 4]
    last = list(sweep_rows(swept()))[-1]
    assert (last["concurrency"], last["p99_ms"], last["saturation"]) == (8, None, 4)
    assert (last["throughput_low"], last["throughput_high"]) == pytest.approx((360.0, 440.0))
