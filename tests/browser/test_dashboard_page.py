# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: live cards, history, panel, comparison, keys, hostile names."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dashboard_folders import record_run, result_text, write_history, write_load
from pages import next_frames

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.needs("starlette", "uvicorn", "playwright")

from dashboard_server import Served, serving  # noqa: E402 - needs the packages
from simulated_feed import SimulatedFeed  # noqa: E402

from gpuprof.live.dashboard.live_runs import LiveRuns  # noqa: E402

HOSTILE = "<img src=x onerror=alert(1)>"
LONGEST_MS = 180_000


class SimulatedRuns(LiveRuns):
    """Two simulated runs; `recorded` are those that have not ended."""

    def __init__(self, root: Path) -> None:
        self.feeds: dict[str, SimulatedFeed] = {}
        self.recorded = {"1": "a", "2": HOSTILE}
        super().__init__(root, self._open_simulated)

    def _open_simulated(self, path: Path | None) -> SimulatedFeed:
        return self.feeds.setdefault("" if path is None else path.name, SimulatedFeed())

    def poll(self, recording: Any) -> dict[str, Any]:
        return super().poll(self.recorded)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dashboard")
    record_run(root / "one.gpuprof")
    record_run(root / f"two {HOSTILE}.gpuprof")
    write_history(root / "slower", 12, change_at=6)
    write_history(root / "other", 12, framework="onnxruntime")
    (root / "half.json").write_text('{"kind": "comparison", ')
    (root / "hostile.json").write_text(result_text(3, 10.0, 5, model=f"</script>{HOSTILE}"))
    return root


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[Served, SimulatedRuns]]:
    live = SimulatedRuns(folder)
    with serving(folder, live=live, interval_s=0.05) as found:
        found.read(28)
        yield found, live


@contextlib.contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """The page once it can be used; the test fails on any error, dialog, or request to another server."""
    problems: list[str] = []
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(LONGEST_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on(
        "request",
        lambda asked: (
            None if asked.url.startswith((address, "data:", "blob:")) else problems.append(asked.url)
        ),
    )
    page.goto(address)
    page.locator("html[data-ready]").wait_for(state="attached")
    yield page
    context.close()
    assert problems == []


def test_runs_are_shown_while_they_are_recorded_and_as_ended_after(
    browser: Any, served: tuple[Served, SimulatedRuns]
) -> None:
    found, live = served
    with opened(browser, found.address) as page:
        cards = page.locator("#runs .card")
        cards.nth(1).locator(".share-list li").first.wait_for()
        assert cards.count() == 2
        assert page.locator("#status").inner_text() == "Live"
        figure = cards.first.locator(".figure").inner_text()
        assert figure.endswith(" ms")
        assert 10.0 <= float(figure.removesuffix(" ms")) <= 12.0
        assert cards.first.locator(".share-list li").last.locator(".name").inner_text() == "others"
        assert page.evaluate("document.querySelector('#runs .chart').getContext('2d') !== null")
        live.feeds[HOSTILE].is_over = True
        page.locator("#runs .card.over").wait_for()
        assert page.locator("#runs .card.over .badge").inner_text() == "ended"
        assert cards.first.locator(".badge").inner_text() == "recording"


def test_the_history_has_its_change_point_and_leads_to_the_result(
    browser: Any, served: tuple[Served, SimulatedRuns]
) -> None:
    with opened(browser, served[0].address) as page:
        rows = page.locator("#changes tbody tr")
        rows.first.wait_for()
        assert rows.count() == 1
        cells = rows.first.locator("th, td").all_inner_texts()
        assert cells[1] == "pytorch float32"
        assert float(cells[2].removeprefix("+").removesuffix("%")) == pytest.approx(10, abs=1)
        assert cells[4] == "worse"
        chart = page.locator("#history-chart")
        page.locator("#history-legend button").nth(1).click()
        assert page.locator("#history-legend button").nth(1).get_attribute("aria-pressed") == "false"
        chart.focus()
        for key in ("End", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        page.locator("#drill dt").first.wait_for()
        assert page.locator("#drill-title").inner_text().endswith("benchmark_results_0010.json")
        page.keyboard.press("Escape")
        assert not page.locator("#drill").is_visible()


DRAWN = """() => {
    window.texts = []; window.dots = new Set();
    const all = CanvasRenderingContext2D.prototype;
    const [fillText, arc] = [all.fillText, all.arc];
    all.fillText = function (text, x, ...more) {
        window.texts.push([text, x, x + this.measureText(text).width]);
        fillText.call(this, text, x, ...more);
    };
    all.arc = function (x, ...more) { window.dots.add(x); arc.call(this, x, ...more); };
}"""


@pytest.mark.texts
@pytest.mark.parametrize("width", [390, 1280])
def test_days_of_the_history_are_at_midnight_and_no_label_is_on_another(
    browser: Any, tmp_path: Path, width: int
) -> None:
    write_history(tmp_path / "slower", 24, change_at=12)
    write_history(tmp_path / "other", 24, change_at=14, framework="onnxruntime")
    size = {"viewport": {"width": width, "height": 844}, "timezone_id": "UTC"}
    with serving(tmp_path) as served:
        served.read(48)
        with opened(browser, served.address, **size) as page:
            page.evaluate(DRAWN)
            page.locator("#by-order").click()
            page.locator("#by-time").click()
            next_frames(page)
            texts = page.evaluate("window.texts")
            dots = page.evaluate("[...window.dots]")
    days = [(left + right) / 2 for text, left, right in texts if re.fullmatch(r"Feb \d+", text)]
    assert len(days) >= 2
    # The last one ends where the chart does.
    assert all(min(abs(dot - day) for dot in dots) < 1 for day in sorted(days)[:-1])
    sizes = sorted({(left, right) for text, left, right in texts if re.match(r"\+[\d.]+%", text)})
    assert len(sizes) == 2
    assert all(one[1] <= other[0] for one, other in pairwise(sizes))


@pytest.mark.texts
@pytest.mark.parametrize("apart_s", [6, 0.01])
def test_times_of_results_of_one_minute_have_different_labels(
    browser: Any, tmp_path: Path, apart_s: float
) -> None:
    for number in range(8):
        text = result_text((5 + apart_s * number) / 86_400, 10.0, number)
        (tmp_path / f"benchmark_results_{number}.json").write_text(text, encoding="utf-8")
    size = {"viewport": {"width": 1280, "height": 844}, "timezone_id": "UTC"}
    with serving(tmp_path) as served:
        served.read(8)
        with opened(browser, served.address, **size) as page:
            page.locator("#by-order").click()
            page.evaluate(DRAWN)
            page.locator("#by-time").click()
            next_frames(page)
            texts = [text for text, *_ in page.evaluate("window.texts")]
    times = [text for text in texts if re.fullmatch(r"2026-02-01 00:00(:\d\d)?", text)]
    assert len(times) == len(set(times))
    assert len(times) > 2 if apart_s > 1 else times == ["2026-02-01 00:00:05"]


def test_the_picture_of_the_history_is_a_png(browser: Any, served: tuple[Served, SimulatedRuns]) -> None:
    with opened(browser, served[0].address) as page:
        page.locator("#changes tbody tr").first.wait_for()
        with page.expect_download() as download:
            page.locator("#history-png").click()
        picture = Path(download.value.path()).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(set(picture)) > 200
        assert base64.b64encode(picture[-8:-4]) == b"SUVORA=="  # IEND


def test_two_runs_are_compared_by_the_keyboard(browser: Any, served: tuple[Served, SimulatedRuns]) -> None:
    with opened(browser, served[0].address) as page:
        page.locator("#search").fill(".gpuprof")
        rows = page.locator("#rows tr")
        page.locator("#found", has_text="2 of").wait_for()
        for place in range(2):
            rows.nth(place).focus()
            page.keyboard.press("c")
        page.locator("#selected button", has_text="Compare").click()
        page.locator("#drill table").first.wait_for()
        assert "span" in page.locator("#drill caption").first.inner_text()
        chosen = {each["path"]: each["id"] for each in served[0].items().values()}
        names = page.locator("#drill dd").all_inner_texts()[:2]
        expected = served[0].json(f"/api/compare?old={chosen[names[0]]}&new={chosen[names[1]]}")["tables"][0]
        for number, row in enumerate(expected["rows"]):
            cells = page.locator("#drill tbody tr").nth(number).locator("th, td").all_inner_texts()
            change, part = cells[2].removesuffix("%)").replace("−", "-").split(" (")
            shown = float(part)
            assert change.startswith("-") is (row["change_ns"] < 0)
            verdicts = {"unknown": "not judged", "same": "not significant"}
            if row["low_ns"] is not None and (row["low_ns"] > 0 or row["high_ns"] < 0):
                verdicts["same"] = "below the threshold"
            assert not re.search(r"\d{4}", cells[3])
            if row["low_ns"] is None:
                assert cells[3] == "–"
                verdicts["same"] = "too small to judge"
            assert (cells[0], cells[1]) == (row["name"], verdicts.get(row["state"], row["state"]))
            assert shown == pytest.approx(100 * row["ratio"], abs=0.06)
            assert cells[6] == f"{row['calls_old']:,.0f}" == f"{row['calls_new']:,.0f}"
        with page.expect_popup() as popup:
            page.locator("#drill a", has_text="Flame graph of the difference").click()
        popup.value.locator("html[data-ready]").wait_for(state="attached")
        assert popup.value.evaluate("window.origin") == "null"  # sandboxed: it can ask this server nothing


def test_two_load_tests_are_compared_with_a_report(browser: Any, tmp_path: Path) -> None:
    for seed, name in enumerate(("old", "new")):
        write_load(tmp_path / name, 1.0 - 0.4 * seed, seed)
    with serving(tmp_path) as served:
        items = served.read(2)
        with opened(browser, served.address) as page:
            for name in ("old", "new"):
                page.locator(f"#rows tr[data-id='{items[name]['id']}'] input").check()
            page.locator("#selected button", has_text="Compare").click()
            page.locator("#drill table").wait_for()
            assert page.locator("#drill .outcome").inner_text() == "B is better"
            assert page.locator("#drill tbody tr").count() >= 4
            with page.expect_popup() as popup:
                page.locator("#drill a", has_text="Report of the comparison").click()
            popup.value.locator("h1", has_text="Load on").wait_for()


def test_long_paths_wrap_in_the_panel_of_a_narrow_window(browser: Any, tmp_path: Path) -> None:
    write_history(tmp_path, 2)
    long = f"/{'results_' * 8}.json: measured under load"

    def with_note(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"notes": [long]})

    narrow = {"viewport": {"width": 390, "height": 844}}
    with serving(tmp_path) as served:
        served.read(2)
        with opened(browser, served.address, **narrow) as page:
            page.route("**/api/compare?*", with_note)
            for place in range(2):
                page.locator("#rows tr").nth(place).focus()
                page.keyboard.press("c")
            page.locator("#selected button", has_text="Compare").click()
            page.locator("#drill p.quiet", has_text=long).wait_for()
            assert page.locator("#drill").evaluate("(panel) => panel.scrollWidth") == 390


def test_the_caption_of_a_wide_table_wraps_in_a_narrow_window(browser: Any, tmp_path: Path) -> None:
    for seed, name in enumerate(("old", "new")):
        write_load(tmp_path / name, 1.0, seed, count=500)
    narrow = {"viewport": {"width": 390, "height": 844}}
    with serving(tmp_path) as served:
        served.read(2)
        with opened(browser, served.address, **narrow) as page:
            for place in range(2):
                page.locator("#rows tr").nth(place).focus()
                page.keyboard.press("c")
            page.locator("#selected button", has_text="Compare").click()
            page.locator("#drill table").wait_for()
            table, caption = (
                page.locator(f"#drill {each}").bounding_box() for each in ("table", "caption > span")
            )
            assert table["width"] > 390
            assert caption["x"] + caption["width"] <= 390


def test_the_panel_of_a_load_test_has_its_quantiles(browser: Any, tmp_path: Path) -> None:
    write_load(tmp_path / "load", 1.0, 0, count=500)
    with serving(tmp_path) as served:
        (item,) = served.read(1).values()
        with opened(browser, served.address) as page:
            page.locator("#rows tr").click()
            page.locator("#drill dt", has_text="p99").wait_for()
            names = page.locator("#drill dl").first.locator("dt").all_inner_texts()
            values = page.locator("#drill dl").first.locator("dd").all_inner_texts()
    shown = dict(zip(names, values, strict=True))
    p50_us = item["summary"]["p50_s"][1] * 1e6
    assert float(shown["p50"].removesuffix(" us")) == pytest.approx(p50_us, rel=0.01)
    assert names.index("p50") < names.index("p99")


def test_an_interval_that_reads_like_its_figure_is_left_out(browser: Any, tmp_path: Path) -> None:
    write_history(tmp_path, 2)

    def narrowed(route: Any) -> None:
        found = route.fetch().json()
        for point in found["series"][0]["points"]:
            point["low"] = point["high"] = point["value"]
        route.fulfill(json=found)

    with serving(tmp_path) as served:
        served.read(2)
        context = browser.new_context()
        page = context.new_page()
        page.route("**/api/history?*", narrowed)
        page.goto(served.address)
        page.locator("#history-legend button").first.wait_for()
        page.locator("#history-chart").focus()
        page.keyboard.press("End")
        details = page.locator("#history-details")
        details.locator("b").wait_for()
        assert " to " not in details.inner_text()
        context.close()


def test_an_alert_of_the_machine_names_it_once(browser: Any, tmp_path: Path) -> None:
    alert = {
        "run": None,
        "rule": "memory",
        "severity": "critical",
        "subject": {"kind": "machine", "key": ""},
        "text": "memory_used_share is 95.0%, above 90.0%",
        "begin_unix_ns": 1,
    }

    class Alerting(LiveRuns):
        def poll(self, recording: Any) -> dict[str, Any]:
            return {**super().poll(recording), "alerts": [alert]}

    with serving(tmp_path, live=Alerting(tmp_path)) as served, opened(browser, served.address) as page:
        page.locator("#alert-list li").wait_for()
        assert page.locator("#alert-list li .quiet").inner_text() == "machine"


def test_no_step_is_above_the_last_label_of_its_axis(
    browser: Any, served: tuple[Served, SimulatedRuns]
) -> None:
    found, _ = served
    with opened(browser, found.address) as page:
        page.locator("#runs .card").first.locator(".share-list li").first.wait_for()
        page.evaluate(
            """() => {
                window.drawn = [];
                const all = CanvasRenderingContext2D.prototype;
                const [fillText, lineTo] = [all.fillText, all.lineTo];
                all.fillText = function (text, x, y) {
                    if (this.canvas.matches(".steps")) window.drawn.push([text, y]);
                    fillText.call(this, text, x, y);
                };
                all.lineTo = function (x, y) {
                    if (this.canvas.matches(".steps")) window.drawn.push(["", y]);
                    lineTo.call(this, x, y);
                };
            }"""
        )
        while page.evaluate("window.drawn.length") < 200:
            next_frames(page)
        drawn = page.evaluate("window.drawn")
    labels = [y for text, y in drawn if re.fullmatch(r"[\d.]+ (ms|us|ns|s)", text)]
    assert labels
    assert min(y for text, y in drawn if not text) >= min(labels) - 1


def test_a_page_of_a_run_works_in_its_sandbox(browser: Any, served: tuple[Served, SimulatedRuns]) -> None:
    one = served[0].items()["one.gpuprof"]["id"]
    with opened(browser, f"{served[0].address}/view/{one}/flamegraph") as page:
        assert page.evaluate("window.__gpuprof.ready") is True


def test_hostile_names_are_text(browser: Any, served: tuple[Served, SimulatedRuns]) -> None:
    with opened(browser, served[0].address) as page:
        page.locator("#search").fill("img src")
        row = page.locator("#rows tr", has_text="two")
        row.wait_for()
        assert HOSTILE in row.inner_text()
        row.click()
        page.locator("#drill dt").first.wait_for()
        assert HOSTILE in page.locator("#drill-title").inner_text()
        assert page.locator("img").count() == 0


def test_what_is_damaged_has_its_reason(browser: Any, served: tuple[Served, SimulatedRuns]) -> None:
    with opened(browser, served[0].address) as page:
        page.locator("#kind").select_option("damaged")
        row = page.locator("#rows tr")
        assert row.count() == 1
        assert row.locator("td").last.inner_text() == "damaged"  # the reason is in its own column, once
        title = row.locator("td.title").inner_text()
        assert "half.json" in title
        assert title in page.locator("#rows tr").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_does_not_scroll_sideways(
    browser: Any, served: tuple[Served, SimulatedRuns], scheme: str
) -> None:
    narrow = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    with opened(browser, served[0].address, **narrow) as page:
        page.locator("#changes tbody tr").first.wait_for()
        next_frames(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.locator("#rows tr").first.click()
        page.locator("#drill dt").first.wait_for()
        assert page.locator("#drill").bounding_box()["width"] == 390


def test_a_folder_without_runs_shows_how_to_make_one(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as served, opened(browser, served.address) as page:
        assert "gpuprof run train.py" in page.locator("#no-runs").inner_text()
        assert page.locator("#no-entries").is_visible()
        assert not page.locator("#history").is_visible()
        write_history(tmp_path / "results", 3)
        page.locator("#rows tr").nth(2).wait_for()
        page.locator("#history-legend button").first.wait_for()


def test_a_folder_with_more_than_is_listed_reports_it(browser: Any, tmp_path: Path) -> None:
    write_history(tmp_path / "results", 5)
    with serving(tmp_path, most_entries=4) as served, opened(browser, served.address) as page:
        page.locator("#cut", has_text="Not listed: 3 files").wait_for()
        for path in sorted((tmp_path / "results").iterdir())[:3]:
            path.unlink()
        page.locator("#cut").wait_for(state="hidden")


@pytest.mark.slow
def test_memory_of_the_page_does_not_grow_with_updates(browser: Any, tmp_path: Path) -> None:
    live = SimulatedRuns(tmp_path)
    with serving(tmp_path, live=live, interval_s=0.002) as served, opened(browser, served.address) as page:
        session = page.context.new_cdp_session(page)

        def held_after(ticks: int) -> tuple[int, int]:
            page.evaluate(
                "(ticks) => new Promise((done) => { const look = () => window.__gpuprof.ticks >= ticks"
                " ? done() : setTimeout(look, 20); look(); })",
                ticks,
            )
            readings = []
            # A collection frees what the one before has found detached, on a busy machine not at once.
            for _ in range(6):
                session.send("HeapProfiler.collectGarbage")
                used: int = session.send("Runtime.getHeapUsage")["usedSize"]
                readings.append((used, session.send("Memory.getDOMCounters")["nodes"]))
            return min(used for used, _ in readings), min(nodes for _, nodes in readings)

        heap, nodes = held_after(1000)  # more than a ring holds
        later_heap, later_nodes = held_after(2500)
        # The points of 1,500 updates, if they were retained, would be 5 MB.
        assert later_heap < heap + 1_000_000
        # One node an update, if it were retained with its text, would be 3,000. Some wait for the collector.
        assert later_nodes < nodes + 2_500
