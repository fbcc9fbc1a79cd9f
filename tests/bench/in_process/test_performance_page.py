# SPDX-License-Identifier: Apache-2.0
"""`generate_performance_report` and `plot_benchmark_results`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from batches import batch_of

from gpuprof.bench import generate_performance_report, plot_benchmark_results
from gpuprof.errors import BenchmarkError

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

FIGURES = {
    "FP32 Baseline": {"p50": 3.0, "p95": 4.0, "p99": 5.0, "accuracy": 0.9, "memory_mb": 40.0},
    "<b>INT8</b>": {"p50": 1.0, "p95": 1.5, "p99": 2.0, "accuracy": 0.8, "memory_mb": 10.0},
}


def cells(page: str) -> list[list[str]]:
    """Return the text of the table rows of a page."""
    body = page[page.index("<body>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_the_page_has_the_asked_columns_and_sections(tmp_path: Path) -> None:
    path = generate_performance_report(FIGURES, tmp_path / "performance_report.html", price_per_hour=3.6)
    page = path.read_text(encoding="utf-8")
    head, baseline, variant, *_ = cells(page)
    assert head == ["Model", "Batch size", "p50 (ms)", "p95 (ms)", "p99 (ms)", "Speedup"]
    assert baseline == ["FP32 Baseline", "1", "3.000", "4.000", "5.000", "1.0x"]
    assert variant == ["&lt;b&gt;INT8&lt;/b&gt;", "1", "1.000", "1.500", "2.000", "3.0x"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "Latency", "Throughput", "Memory", "Accuracy and speed-up", "Speed-up by technique", "Cost",
        "Recommendations",
    ]  # fmt: skip
    assert "<b>INT8" not in page


def test_throughput_over_batch_sizes_is_a_line_for_each_technique(tmp_path: Path) -> None:
    rows = {
        name: [
            {"batch_size": size, "p50": 1.0, "samples_per_s": size * rate, "memory_mb": None}
            for size in (1, 4)
        ]
        for name, rate in (("eager", 100.0), ("compiled", 200.0))
    }
    page = generate_performance_report(rows, tmp_path / "p.html", price_per_hour=3.6).read_text("utf-8")
    costs = [row for row in cells(page) if len(row) == 3][1:]
    # 3.6 an hour is 0.001 a second: 10 a million at 100 samples/s.
    assert costs[0] == ["eager", "1", "10"]
    assert costs[-1] == ["compiled", "4", "1.25"]
    assert "<section><h2>Memory</h2><p>unavailable</p>" in page
    body = page[page.index("<body>") :]
    assert body.count('"lines+markers"') == 2


def test_results_of_a_benchmark_are_read(tmp_path: Path) -> None:
    page = generate_performance_report([batch_of([2.0] * 40)], tmp_path / "p.html").read_text("utf-8")
    assert cells(page)[1][2] == "2.000"


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ({}, "no_results"),
        ([], "no_results"),
        ({"a": {"mean": 1}}, "invalid_results"),
        ([3], "invalid_results"),
    ],
)
def test_results_that_are_none(tmp_path: Path, results: Any, code: str) -> None:
    with pytest.raises(BenchmarkError) as raised:
        generate_performance_report(results, tmp_path / "p.html")
    assert raised.value.code == code
    assert not list(tmp_path.iterdir())


def result(latencies: Any, throughput: float = 1.0, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(latencies=latencies, throughput=throughput, **more)


def test_the_plots_of_the_scenarios(tmp_path: Path) -> None:
    arrivals = [0.3, 0.1, 0.2]
    single = np.linspace(0.1, 0.2, 400)
    figure = plot_benchmark_results(
        {
            "single_stream": result(single),
            "mine": result(arrivals, scenario="server"),
            "offline": result([9.0], throughput=250.0),
        },
        tmp_path / "plots.html",
    )
    histogram, line, bar = figure.data
    assert (histogram.type, histogram.nbinsx, len(histogram.x)) == ("histogram", 50, 400)
    assert list(line.y) == arrivals  # in the order of arrival
    assert (bar.type, list(bar.y)) == ("bar", [250.0])
    assert figure.layout.width / figure.layout.height == pytest.approx(18 / 5)
    titles = [figure.layout[name].title.text for name in ("xaxis", "yaxis", "xaxis2", "yaxis2", "yaxis3")]
    assert titles == ["latency (s)", "frequency", "query index", "latency (s)", "samples/s"]
    assert (tmp_path / "plots.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("results", "code"), [({}, "no_results"), ({"multi": result([1.0])}, "unknown_scenario")]
)
def test_scenarios_that_are_none(results: Any, code: str) -> None:
    with pytest.raises(BenchmarkError) as raised:
        plot_benchmark_results(results)
    assert raised.value.code == code
