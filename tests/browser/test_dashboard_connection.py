# SPDX-License-Identifier: Apache-2.0
"""What a page of the dashboard shows of its connection: hidden, refused, lost; the ends of a run; heads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dashboard_folders import record_run, result_text, write_history
from pages import CONTRAST

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.needs("starlette", "uvicorn", "playwright")

from dashboard_server import serving  # noqa: E402 - needs the packages
from simulated_feed import SimulatedFeed  # noqa: E402

from gpuprof.live.dashboard import server  # noqa: E402
from gpuprof.live.dashboard.live_runs import LiveRuns  # noqa: E402

HIDDEN = """
window.isHidden = true;
Object.defineProperty(document, 'hidden', {get: () => window.isHidden});
"""
SHOWN = "window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))"


class OneRun(LiveRuns):
    """One simulated run that is recorded."""

    def __init__(self, root: Path, *, has_steps: bool = True) -> None:
        self.feed = SimulatedFeed(has_steps=has_steps)
        super().__init__(root, lambda path: SimulatedFeed() if path is None else self.feed)

    def poll(self, recording: Any) -> dict[str, Any]:
        return super().poll({"1": "a"})


def opened(browser: Any, address: str, script: str = "") -> Any:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(180_000)
    if script:
        context.add_init_script(script)
    page = context.new_page()
    page.goto(address)
    page.locator("html[data-ready]").wait_for(state="attached")
    return page


def test_a_page_that_is_opened_hidden_has_no_stream_until_it_is_shown(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        page = opened(browser, served.address, HIDDEN)
        assert page.locator("#status").get_attribute("data-state") == "connecting"
        assert served.dashboard.broadcast.streams == 0
        page.evaluate(SHOWN)
        page.locator("#status[data-state=live]").wait_for()
        assert served.dashboard.broadcast.streams == 1
        page.context.close()


def test_a_page_too_many_has_the_reason_of_the_server(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 0)
    with serving(tmp_path) as served:
        page = opened(browser, served.address)
        page.locator("#problem", has_text="too many pages are open").wait_for()
        assert page.locator("#status").get_attribute("data-state") == "refused"
        # There is a connection: a page that has no figures has one reason for it.
        assert not page.locator("#no-runs").is_visible()
        assert not page.locator("#lost").is_visible()
    page.locator("#status[data-state=lost]").wait_for()
    page.locator("#lost").wait_for()
    assert not page.locator("#problem").is_visible()
    page.context.close()


@pytest.mark.texts
def test_an_entry_that_is_opened_after_the_end_of_the_server_has_the_reason(
    browser: Any, tmp_path: Path
) -> None:
    write_history(tmp_path / "results", 1)
    with serving(tmp_path) as served:
        served.read(1)
        page = opened(browser, served.address)
        page.locator("#rows tr").wait_for()
    page.locator("#status[data-state=lost]").wait_for()
    page.locator("#rows tr").click()
    page.locator("#drill .notes", has_text="The server does not respond").wait_for()
    head, note = (page.locator(f"#drill {each}").bounding_box() for each in (".drill-head", ".notes"))
    assert note["y"] >= head["y"] + head["height"] + 8
    page.context.close()


def test_a_run_without_its_program_is_closing_until_it_is_closed(browser: Any, tmp_path: Path) -> None:
    record_run(tmp_path / "a.gpuprof")
    live = OneRun(tmp_path)
    with serving(tmp_path, live=live) as served:
        served.read(1)
        page = opened(browser, served.address)
        page.locator("#runs .card .share-list li").first.wait_for()
        recorded = served.items()["a.gpuprof"] | {"state": "recording"}
        catalog = {"version": 1, "whole": False, "removed": [], "pending": 0, "cut": None}
        asked = {"entry": recorded | {"id": "1"}}

        def fulfill(route: Any) -> None:
            route.fulfill(json=catalog | {"items": [asked["entry"]]})

        page.route("**/api/catalog?*", fulfill)
        found = served.json(f"/api/items/{recorded['id']}") | {"id": "1", "state": "recording", "pages": []}
        page.route("**/api/items/1", lambda route: route.fulfill(json=found))
        (tmp_path / "new.json").write_text(result_text(1, 10.0, 1))
        page.locator("#rows tr[data-id='1'] .badge", has_text="recording").wait_for()
        live.feed.is_over = True
        page.locator("#runs .badge", has_text="closing").wait_for()
        page.locator("#rows tr[data-id='1'] .badge", has_text="closing").wait_for()
        # The rows are made again with each tick, since its version is not that of the simulated catalog.
        page.locator("#rows tr[data-id='1']").dispatch_event("click")
        page.locator("#drill dd", has_text=re.compile("^closing$")).wait_for()
        page.keyboard.press("Escape")
        asked["entry"] |= {"state": "ready"}
        (tmp_path / "newer.json").write_text(result_text(2, 10.0, 2))
        page.locator("#runs .badge", has_text="ended").wait_for()
        page.context.close()


def test_figures_are_unknown_after_the_end_of_the_server(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, live=OneRun(tmp_path)) as served:
        page = opened(browser, served.address)
        page.locator("#runs .card .share-list li").first.wait_for()
        assert not page.locator("#lost").is_visible()
    page.locator("#status[data-state=lost]").wait_for()
    page.locator("#lost").wait_for()
    page.locator("#machine dd", has_text="–").nth(3).wait_for()
    assert page.locator("#runs .badge").inner_text() == "unknown"
    assert page.locator("#runs .figure").inner_text() == "–"
    page.context.close()


def test_the_card_of_a_run_that_has_ended_keeps_its_last_whole_interval(browser: Any, tmp_path: Path) -> None:
    live = OneRun(tmp_path)
    with serving(tmp_path, live=live) as served:
        page = opened(browser, served.address)
        page.locator("#runs .card .share-list li").nth(1).wait_for()
        live.feed.is_over = True
        page.locator("#runs .badge", has_text="ended").wait_for()
        figure = page.locator("#runs .figure").inner_text()
        assert 10.0 <= float(figure.removesuffix(" ms")) <= 12.0
        bars = page.locator("#runs .bars > section")
        assert [bars.nth(place).is_visible() for place in range(2)] == [True, True]
        page.context.close()


@pytest.mark.texts
def test_the_chart_of_a_run_without_steps_has_no_axis(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path, live=OneRun(tmp_path, has_steps=False)) as served:
        page = opened(browser, served.address, TEXTS)
        page.wait_for_function("window.texts.has('no steps yet')")
        assert not any(text.endswith(" ns") for text in page.evaluate("[...window.texts]"))
        page.context.close()


# What is drawn on canvases, and by CSS: the texts of cards, and how opaque those with texts are.
TEXTS = """window.texts = new Set();
const all = CanvasRenderingContext2D.prototype;
const draw = all.fillText;
all.fillText = function (text, ...more) { window.texts.add(text); draw.call(this, text, ...more); };"""
OPAQUE = """(card) => [card, card.querySelector('.chart')].map((each) => getComputedStyle(each).opacity)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_card_of_a_run_that_has_ended_can_be_read(browser: Any, tmp_path: Path, scheme: str) -> None:
    live = OneRun(tmp_path)
    with serving(tmp_path, live=live) as served:
        page = opened(browser, served.address)
        page.emulate_media(color_scheme=scheme)
        card = page.locator("#runs .card")
        card.locator(".share-list li").first.wait_for()
        keys = card.locator(".tile dt i")
        colors = keys.evaluate_all("(all) => all.map((each) => getComputedStyle(each).backgroundColor)")
        assert len(colors) == len(set(colors)) == 2
        live.feed.is_over = True
        page.locator("#runs .card.over").wait_for()
        contrasts = card.evaluate(
            f"""(card) => [...card.querySelectorAll('*')].filter((each) => each.innerText).map((each) =>
            {CONTRAST}(getComputedStyle(each).color, getComputedStyle(card).backgroundColor))"""
        )
        assert min(contrasts) >= 4.5
        assert card.evaluate(OPAQUE) == ["1", "1"]
        page.context.close()


@pytest.mark.texts
@pytest.mark.parametrize("width", [390, 1280])
def test_the_chart_of_a_lost_run_has_its_title_and_its_end(browser: Any, tmp_path: Path, width: int) -> None:
    with serving(tmp_path, live=OneRun(tmp_path)) as served:
        page = opened(browser, served.address, TEXTS)
        page.set_viewport_size({"width": width, "height": 844})
        page.locator("#runs .card .share-list li").first.wait_for()
    page.locator("#runs .badge", has_text="unknown").wait_for()
    page.wait_for_function("window.texts.has('last figures')")
    assert page.evaluate("window.texts.has('Median step time')")
    assert page.locator("#runs .card").evaluate(OPAQUE) == ["1", "1"]
    page.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_heads_and_states_of_entries_are_not_cut(browser: Any, tmp_path: Path, width: int) -> None:
    write_history(tmp_path / "a-folder-of-results", 2, framework="onnxruntime")
    with serving(tmp_path) as served:
        served.read(2)
        page = opened(browser, served.address)
        page.set_viewport_size({"width": width, "height": 844})
        page.locator("#rows tr").nth(1).wait_for()
        cut = (
            "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText)"
        )
        assert page.locator("#heads th").evaluate_all(cut) == []
        box = page.locator("#rows .badge").first.bounding_box()
        assert box["x"] + box["width"] <= width
        page.context.close()
