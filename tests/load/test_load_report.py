# SPDX-License-Identifier: Apache-2.0
"""The report of a load, from made requests whose figures are known by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_documents import HOSTILE

from gpuprof.errors import BenchmarkError
from gpuprof.load.plots import (
    heat_map,
    latency_over_time,
    rates_over_time,
    tail,
)
from gpuprof.load.report import csv_rows, load_content, write_report
from gpuprof.load.requests import REQUEST, RequestStatus, Rows
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings

ORIGIN_NS = 10**12
MS = 1_000_000


def requests(latencies_ms: list[float], every_ms: float = 10.0) -> Rows:
    """Return requests that are sent as planned, of which those without a latency failed."""
    rows = np.zeros(len(latencies_ms), REQUEST)
    rows["planned_ns"] = ORIGIN_NS + np.arange(len(rows)) * every_ms * MS
    rows["sent_ns"] = rows["planned_ns"]
    rows["end_ns"] = rows["planned_ns"] + np.nan_to_num(np.array(latencies_ms), nan=1.0) * MS
    rows["status"] = np.where(np.isnan(latencies_ms), RequestStatus.HTTP_ERROR, RequestStatus.OK)
    rows["units"] = 1
    return rows


def result(rows: Rows, target: str = "model.py:build", slo: str | None = None) -> LoadResult:
    settings = LoadSettings(target, "server", "poisson", rate=100.0, slo=slo)
    return LoadResult(settings, LoadRun(ORIGIN_NS, int(rows["end_ns"].max())), rows)


def drawn(figure: Any) -> dict[str, list[float]]:
    return {each["name"]: each["y"] for each in figure.traces}


def test_the_lines_over_time_are_the_figures_of_each_interval() -> None:
    rows = requests([*([1.0] * 150), *([2.0] * 50), *([8.0] * 199), 40.0])
    figure = latency_over_time(rows, limit_s=0.02)
    assert figure is not None
    lines = drawn(figure)
    # Intervals of four requests, in milliseconds.
    assert lines["median"][0] == pytest.approx(1.0)
    assert lines["median"][-1] == pytest.approx(8.0)
    assert lines["p95"][-1] == pytest.approx(40.0)
    assert lines["maximum"] == pytest.approx([*[1.0] * 37, *[2.0] * 13, *[8.0] * 49, 40.0], rel=1)
    assert lines["target"] == pytest.approx([20.0, 20.0])


def test_rates_add_up_to_the_requests() -> None:
    rows = requests([1.0] * 90 + [float("nan")] * 10)
    end_ns = int(rows["end_ns"].max())
    figure = rates_over_time(rows, end_ns)
    assert figure is not None
    length_s = (end_ns - ORIGIN_NS) / 1e9 / 100
    totals = {name: sum(line) * length_s for name, line in drawn(figure).items()}
    assert totals == pytest.approx({"planned": 100, "succeeded": 90, "failed": 10})


def test_the_tail_reaches_the_slowest_request() -> None:
    figure = tail(requests([float(each) for each in range(1, 1001)]))
    assert figure is not None
    (latency, service) = figure.traces
    assert (latency["x"][-1], latency["y"][-1]) == pytest.approx((1.0, 0.001))
    by_share = dict(zip(latency["y"], latency["x"], strict=True))
    assert by_share[0.01] == pytest.approx(0.991)
    assert service["x"] == latency["x"]


def test_the_heat_map_has_each_request_once() -> None:
    figure = heat_map(requests([float(1 + each % 30) for each in range(500)]))
    assert figure is not None
    (trace,) = figure.traces
    cells = np.array(trace["z"])
    assert np.rint(10 ** (cells[cells > 0] - 1)).sum() == 500
    assert len(trace["hovertext"]) == len(trace["y"])
    key = trace["colorbar"]
    counts = [int(text) for text in key["ticktext"]]
    assert counts == pytest.approx([10 ** (place - 1) for place in key["tickvals"]])
    assert counts[0] == 1
    assert counts[-1] == round(10 ** (cells.max() - 1))
    assert len(counts) >= 3
    assert trace["zmin"] < key["tickvals"][0] <= key["tickvals"][-1] <= trace["zmax"]


@pytest.mark.parametrize("rows", [requests([]), requests([1.0]), requests([float("nan")] * 5)])
def test_too_few_responses_have_no_plot(rows: Rows) -> None:
    assert (latency_over_time(rows), tail(rows), heat_map(rows)) == (None, None, None)


def test_failed_requests_leave_the_quantiles_that_they_decide_unavailable() -> None:
    content = load_content(result(requests([1.0] * 150 + [float("nan")] * 10)))
    (section,) = [each for each in content.sections if each.key == "latency"]
    (table,) = section.tables
    cells = dict(zip(table.heads, table.rows[0].cells, strict=True))
    assert cells["p50"].value == pytest.approx(0.001)
    assert cells["p95"].tone == "missing"


def test_files_have_the_figures(tmp_path: Path) -> None:
    found = result(requests([1.0] * 300), slo="p99<20ms")
    paths = write_report(found, ["md", "csv", "json"], tmp_path)
    assert sorted(path.name for path in paths) == ["report.csv", "report.json", "report.md"]
    with (tmp_path / "report.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["latency_p50_ms"]) == pytest.approx(1.0)
    assert row["verdict"] == str(found.verdict)
    assert json.loads((tmp_path / "report.json").read_text())["requests"] == 300
    assert "| p50 |" in (tmp_path / "report.md").read_text()


def test_a_format_that_no_report_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError) as refused:
        write_report(result(requests([1.0] * 9)), ["docx"], tmp_path)
    assert refused.value.code == "unknown_format"
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_target_is_escaped(tmp_path: Path) -> None:
    found = result(requests([1.0] * 9), target=HOSTILE)
    write_report(found, ["md"], tmp_path)
    assert "<script>" not in (tmp_path / "report.md").read_text()
    (row,) = csv_rows(found)
    assert row["requests"] == 9
