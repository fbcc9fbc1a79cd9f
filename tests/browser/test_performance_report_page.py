# SPDX-License-Identifier: Apache-2.0
"""The page of `generate_performance_report` in a real browser: its policy lets its own scripts run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import check_buttons

from gpuprof.bench import generate_performance_report

pytest.importorskip("plotly", reason="no plotly: `pip install 'gpuprof-native[report]'`")
pytest.importorskip("jinja2", reason="no jinja2: `pip install 'gpuprof-native[report]'`")

RESULTS = {
    "<script>document.title = 'hostile'</script>": {"p50": 3.0, "samples_per_s": 300.0, "accuracy": 0.9},
    "int8": {"p50": 1.0, "samples_per_s": 900.0, "accuracy": 0.8, "memory_mb": 12.0},
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1100])
def test_buttons_of_plots_cover_nothing_and_are_visible(
    browser: Any, tmp_path: Path, theme: str, width: int
) -> None:
    named = {f"{name} with a longer name": figures for name, figures in RESULTS.items()}
    path = generate_performance_report(named, tmp_path / "performance_report.html")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    page.goto(path.as_uri())
    page.locator("svg.main-svg").first.wait_for()
    check_buttons(page, 4)
    page.close()


def test_plots_are_drawn_and_names_are_text(browser: Any, tmp_path: Path) -> None:
    path = generate_performance_report(RESULTS, tmp_path / "performance_report.html")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    page.locator("svg.main-svg").first.wait_for()
    assert page.locator(".plotly-graph-div").count() == 4
    assert page.title() == "Performance report"
    assert "<script>document.title" in page.locator("table").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.close()
    assert problems == []
