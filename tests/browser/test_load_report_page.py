# SPDX-License-Identifier: Apache-2.0
"""The report of a load in a real browser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparison_documents import HOSTILE
from pages import background, check_buttons

from gpuprof.bench.report.writers import report_page
from gpuprof.load.report import load_content
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.several_report import sweep_content
from gpuprof.load.several_runs import SweepResult
from gpuprof.load.sweep import ConcurrencyRun, sweep_of

pytest.importorskip("plotly", reason="no plotly: `pip install 'gpuprof-native[report]'`")
pytest.importorskip("jinja2", reason="no jinja2: `pip install 'gpuprof-native[report]'`")


@pytest.fixture(scope="module", name="page_text")
def report_of_a_load() -> str:
    generator = np.random.default_rng(0)
    rows = np.zeros(2_000, REQUEST)
    rows["planned_ns"] = 10**12 + np.arange(2_000) * 5_000_000
    rows["sent_ns"] = rows["planned_ns"]
    rows["end_ns"] = rows["planned_ns"] + generator.exponential(3e6, 2_000).astype(np.int64)
    rows["status"] = np.where(np.arange(2_000) % 500 == 7, RequestStatus.TIMEOUT, RequestStatus.OK)
    settings = LoadSettings(HOSTILE, "server", "poisson", rate=200.0, slo="p99<20ms")
    return report_page(load_content(LoadResult(settings, LoadRun(10**12, int(rows["end_ns"].max())), rows)))


@pytest.mark.parametrize("width", [1280, 390])
def test_all_plots_are_drawn_and_fit(open_page: Any, page_text: str, width: int) -> None:
    page = open_page(page_text, viewport={"width": width, "height": 900})
    plots = ["latency-over-time", "tail", "heat-map", "rates-over-time"]
    assert page.evaluate("window.__gpuprof.figures") == plots
    assert page.locator(".plot .main-svg").count() >= 4
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_buttons(page, len(plots))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_plots_of_a_sweep_fit_with_their_intervals(open_page: Any, width: int) -> None:
    runs = [
        ConcurrencyRun(each, 100.0 * min(each, 4), each / (100.0 * min(each, 4))) for each in (1, 2, 4, 8)
    ]
    ends = {each.concurrency: (0.9 * each.throughput, 1.1 * each.throughput) for each in runs}
    p99 = {each.concurrency: each.mean_latency_s * 2 for each in runs}
    settings = LoadSettings(HOSTILE, "closed-loop")
    result = SweepResult(settings, sweep_of(runs), dict(p99), False, dict(ends), {1: (0.01, 0.03)})
    page = open_page(report_page(sweep_content(result)), viewport={"width": width, "height": 900})
    assert page.evaluate("window.__gpuprof.figures") == ["throughput", "quantile"]
    assert page.locator(".errorbars").count() >= 4
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_buttons(page, 2)


def test_the_dark_theme_is_that_of_the_page_and_its_plots(open_page: Any, page_text: str) -> None:
    page = open_page(page_text)
    light = background(page)
    page.locator("#theme").select_option("dark")
    assert background(page) != light
