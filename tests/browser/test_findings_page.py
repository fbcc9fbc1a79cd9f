# SPDX-License-Identifier: Apache-2.0
"""The cards of findings in a real browser: a click leads to the cell and to the time range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_training import Planted, TrainingHost, settings, train

import gpuprof


@pytest.fixture(name="html", scope="module")
def page_of_causes(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("findings")
    host = TrainingHost(settings=settings(fused=False))
    planted = Planted(load=20, collect=20, sleep=9, is_fused=False)
    run = gpuprof.open(train(host, planted).write(folder / "r.gpuprof"))
    return run.flamegraph(folder / "page.html").read_text("utf-8")


def card(page: Any, text: str) -> Any:
    return page.locator(".findings li", has_text=text)


def selected_name(page: Any) -> str:
    name: str = page.locator("#details b").inner_text()
    return name


def test_the_cards_count_the_steps_alone(open_page: Any, tmp_path: Path) -> None:
    host = TrainingHost()
    host.operator("aten::load", 900_000_000)
    run = gpuprof.open(train(host, Planted()).write(tmp_path / "r.gpuprof"))
    page = open_page(run.flamegraph(tmp_path / "page.html").read_text("utf-8"))
    assert page.locator("#hot-title").inner_text() == "Where the wall time of 12 steps goes: most self time"
    texts = [each.split() for each in page.locator("#hot li").all_inner_texts()]
    assert texts == [["aten::mm", "83.3%", "300", "ms"], ["aten::_fused_adamw_", "16.7%", "60.0", "ms"]]
    page.locator("#hot button").first.click()
    assert page.evaluate("window.__gpuprof.visibleCells.filter(cell => cell.marked).length") == 2
    page.locator("#weight").select_option("cpu")
    assert page.locator("#hot-title").inner_text() == "Where the time goes: most self time"
    assert "aten::load" in page.locator("#hot").inner_text()


def test_the_title_leads_to_the_cell(open_page: Any, html: str) -> None:
    page = open_page(html)
    card(page, "AdamW").locator("h3 button").click()
    assert page.evaluate("window.__gpuprof.timeline.view") == "flame"
    assert selected_name(page) == "Optimizer.step#AdamW.step"
    assert page.evaluate("document.activeElement.id") == "canvas"
    assert page.locator("#range").is_hidden()


def test_the_timeline_shows_the_time_of_the_cause(open_page: Any, html: str) -> None:
    page = open_page(html)
    card(page, "gc.collect").get_by_role("button", name="Timeline").click()
    timeline = page.evaluate(
        "(({ view, window, chosen, marked }) => ({ view, window, chosen, marked }))"
        "(window.__gpuprof.timeline)"
    )
    assert timeline["view"] == "timeline"
    assert timeline["chosen"]["high"] - timeline["chosen"]["low"] == 20_000_000
    assert timeline["window"]["low"] < timeline["chosen"]["low"]
    assert timeline["chosen"]["high"] < timeline["window"]["high"]
    assert timeline["marked"] == 12
    assert page.locator("#range").is_visible()


def test_a_cause_without_a_cell_leads_to_its_time(open_page: Any, html: str) -> None:
    page = open_page(html)
    page.locator(".findings summary").first.click()
    of_sleep = card(page, "time.sleep")
    assert of_sleep.get_by_role("button", name="Flame graph").is_hidden()
    of_sleep.locator("h3 button").click()
    assert page.evaluate("window.__gpuprof.timeline.view") == "timeline"
    chosen = page.evaluate("window.__gpuprof.timeline.chosen")
    assert chosen["high"] - chosen["low"] == 9_000_000


def test_the_other_rules_open(open_page: Any, html: str) -> None:
    page = open_page(html)
    rules = page.locator(".findings details").last
    assert rules.locator("dd").first.is_hidden()
    rules.locator("summary").click()
    assert rules.locator("dd").first.is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_cards_fit_the_window(open_page: Any, html: str, width: int) -> None:
    page = open_page(html, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for each in page.locator(".findings li:visible").all():
        box = each.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_a_collection_is_called_what_it_is(open_page: Any, html: str) -> None:
    page = open_page(html)
    card(page, "gc.collect").locator("h3 button").click()
    label = "garbage collection, generation 2"
    assert selected_name(page) == label
    assert label in page.locator("#rows tr th span").all_inner_texts()
    assert page.evaluate("window.__gpuprof.search('garbage').calls") == 12
    page.evaluate("window.__gpuprof.timeline.show('timeline')")
    texts = {block["text"] for block in page.evaluate("window.__gpuprof.timeline.blocks")}
    assert label in texts
