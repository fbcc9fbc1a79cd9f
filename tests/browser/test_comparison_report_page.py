# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison in a real browser, and printed by one."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from batches import batch_of
from comparison_documents import HOSTILE, document, everything_failed, failed, typed
from pages import background, check_buttons, next_frames

from gpuprof.bench.compare.document import document_from
from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.report import write_report
from gpuprof.bench.report.benchmark import benchmark_content
from gpuprof.bench.report.pdf import find_chromium
from gpuprof.bench.report.sections import content_of
from gpuprof.bench.report.writers import report_page
from gpuprof.bench.results.session import BenchFinding, SessionResult
from gpuprof.errors import UnavailableError

pytest.importorskip("plotly", reason="no plotly: `pip install 'gpuprof-native[report]'`")
pytest.importorskip("jinja2", reason="no jinja2: `pip install 'gpuprof-native[report]'`")

PLOTS = ["latency", "throughput", "memory", "quality", "accuracy-time", "technique", "cost"]
PLOTS += ["sizes", "size-speed", "layers"]
NAMES = ("original", "int8", "onnx")


def page_of(plain: dict[str, Any], *, for_paper: bool = False) -> str:
    return report_page(content_of(document_from(plain)), for_paper=for_paper)


@pytest.fixture(scope="module", name="usual")
def usual_page() -> str:
    return page_of(document(NAMES, (1, 8)))


def drawn(page: Any, key: str, what: str) -> int:
    count: int = page.locator(f"#plot-{key} {what}").count()
    return count


def widest(page: Any) -> float:
    width: float = page.evaluate("document.documentElement.scrollWidth")
    return width


def test_every_plot_is_drawn_below_the_result_with_a_text(open_page: Any, usual: str) -> None:
    # One page for several things: with its library it takes two seconds to open.
    page = open_page(usual)
    assert page.evaluate("window.__gpuprof.figures") == PLOTS
    assert drawn(page, "latency", ".scatterlayer .trace") == 3
    assert drawn(page, "latency", "path.point") == 6
    assert drawn(page, "quality", "path.point") == 3
    assert drawn(page, "technique", "path.point") == 2
    assert drawn(page, "cost", ".barlayer .point") == 3
    assert drawn(page, "layers", ".barlayer .point") == 8
    assert page.locator("#plot-technique .annotation").count() == 2
    for text in ("Ship int8: 2.31 times as fast as original", "2.306×", "-0.41 pp", "baseline 76.13%"):
        box = page.get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] < 400, text
    for key in PLOTS:
        told = page.locator(f"#plot-{key}").get_attribute("aria-label")
        assert told.endswith("The table below has the same figures.")
        assert page.locator(f"section:has(#plot-{key}) table").count() >= 1
    swatches = page.evaluate(
        "[...document.querySelectorAll(\"[data-variant='1'] th .swatch\")]"
        ".map(each => getComputedStyle(each).color)"
    )
    assert len(set(swatches)) == 1
    for point in ("#plot-latency path.point >> nth=2", "#plot-cost .barlayer .point path >> nth=1"):
        assert page.locator(point).evaluate("each => getComputedStyle(each).fill") == swatches[0]


def test_a_variant_is_hidden_in_all_plots_and_pointing_shows_a_figure(open_page: Any, usual: str) -> None:
    page = open_page(usual)
    button = page.locator("#latency [data-hides='1']")
    button.click()
    assert [drawn(page, key, "path.point") for key in ("latency", "throughput", "quality")] == [4, 4, 2]
    assert page.locator("#memory [data-hides='1']").get_attribute("aria-pressed") == "false"
    button.press("Enter")
    assert drawn(page, "latency", "path.point") == 6
    point = page.locator("#plot-latency .trace").nth(0).locator("path.point").nth(1)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#plot-latency .hovertext").wait_for()
    told = page.locator("#plot-latency .hoverlayer").text_content()
    assert "original" in told
    assert "27.44 ms" in told
    assert "27.22 to 27.70 ms" in told


def test_plots_have_the_colors_of_the_theme(open_page: Any, usual: str) -> None:
    page = open_page(usual, color_scheme="dark")

    def colors() -> list[str]:
        title = page.locator("#plot-latency .xtitle").evaluate("each => getComputedStyle(each).fill")
        return [background(page), title, page.evaluate("getComputedStyle(document.body).color")]

    dark = colors()
    page.locator("#theme").select_option("light")
    light = colors()
    page.locator("#theme").select_option("auto")
    assert colors() == dark
    page.emulate_media(color_scheme="light")
    next_frames(page)
    assert colors() == light
    assert (dark[0], light[0]) == ("rgb(20, 23, 28)", "rgb(255, 255, 255)")
    assert dark[1] == dark[2] != light[1] == light[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_buttons_of_plots_cover_nothing_and_are_visible(open_page: Any, usual: str, theme: str) -> None:
    page = open_page(usual, viewport={"width": 400, "height": 844}, color_scheme=theme)
    check_buttons(page, len(PLOTS))


def test_a_narrow_window_scrolls_down_only(open_page: Any, usual: str) -> None:
    page = open_page(usual, viewport={"width": 900, "height": 780})
    for width in (900, 360):
        page.set_viewport_size({"width": width, "height": 780})
        next_frames(page)
        assert widest(page) == width
        assert page.locator("#plot-latency .main-svg").first.bounding_box()["width"] <= width


def test_a_table_that_is_cut_off_is_marked_until_its_end(open_page: Any, usual: str) -> None:
    page = open_page(usual, viewport={"width": 360, "height": 780})
    table = page.locator("#variants .scroll")

    def cue() -> tuple[str, bool]:
        said = table.locator("caption span").evaluate("each => getComputedStyle(each, '::after').content")
        return said, table.evaluate("each => getComputedStyle(each).maskImage") != "none"

    page.wait_for_selector("#variants .scroll[data-more]")
    assert "scroll →" in cue()[0]
    assert cue()[1]
    table.evaluate("each => { each.scrollLeft = each.scrollWidth; }")
    page.wait_for_selector("#variants .scroll:not([data-more])")
    assert not cue()[1]
    page.set_viewport_size({"width": 1280, "height": 780})
    page.wait_for_selector("#variants .scroll:not([data-scrolls])")
    page.set_viewport_size({"width": 360, "height": 780})
    page.wait_for_selector("#variants .scroll[data-scrolls]")
    page.emulate_media(media="print")
    assert cue() == ("none", False)


def test_names_in_a_plot_do_not_lie_upon_one_another(open_page: Any) -> None:
    page = open_page(page_of(document()), viewport={"width": 360, "height": 780})
    boxes = page.evaluate("""[...document.querySelectorAll('#plot-quality .textpoint text')]
        .filter(each => getComputedStyle(each).visibility === 'visible')
        .map(each => each.getBoundingClientRect())
        .map(({ left, right, top, bottom }) => [left, right, top, bottom])""")
    assert len(boxes) >= 3
    for place, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:place]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
    assert page.locator("#plot-quality .textpoint text", has_text="int8").is_visible()


def test_hostile_names_are_text(open_page: Any) -> None:
    name = '<img src=x onerror="alert(1)">'
    plain = document(("original", name, HOSTILE), (1, 8))
    plain["name"], plain["summary"]["choice"] = HOSTILE, HOSTILE
    plain["variants"].append(failed("a" * 5_000, HOSTILE * 50))
    page = open_page(page_of(plain))
    assert page.locator("img").count() == 0
    assert page.locator("svg image").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE
    assert name in page.locator("#plot-cost .annotation").nth(1).text_content()
    assert widest(page) == 1280


def test_everything_failed(open_page: Any) -> None:
    page = open_page(page_of(everything_failed()))
    assert page.evaluate("window.__gpuprof.figures") == []
    assert "models/int8.pt2 cannot be read" in page.locator(".notes").inner_text()


def test_without_scripts_the_tables_are_there(open_page: Any, usual: str) -> None:
    page = open_page(usual, java_script_enabled=False)
    assert "3.067 ms" in page.locator("#latency table").first.inner_text()


def test_paper_is_light_and_cuts_nothing(open_page: Any, usual: str) -> None:
    page = open_page(usual, color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    width = page.locator("#plot-latency .main-svg").first.bounding_box()["width"]
    assert width == 680
    page.set_viewport_size({"width": 680, "height": 990})
    tables = page.evaluate(
        "[...document.querySelectorAll('table')].map(each => each.getBoundingClientRect().right)"
    )
    assert max(tables) <= 681
    opening = page.locator("#throughput .opening")
    assert opening.evaluate("each => getComputedStyle(each).breakInside") == "avoid"
    assert opening.locator("h2, #plot-throughput").count() == 2
    # What is laid out as a block may break over sheets; an inline block may not.
    displays = "all => all.map(each => getComputedStyle(each).display)"
    assert set(page.locator("#method .scroll").evaluate_all(displays)) == {"block"}
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.hasAttribute('data-print')") is False


def test_a_pdf_is_printed(tmp_path: Path, browser: Any) -> None:
    try:
        find_chromium()
    except UnavailableError as error:
        pytest.skip(str(error))
    (path,) = write_report(typed(NAMES, (1, 8)), ["pdf"], tmp_path, "report")
    raw = path.read_bytes()
    assert raw.startswith(b"%PDF-")
    assert raw.count(b"/Type /Page\n") >= 3
    assert raw.count(b"/MediaBox [0 0 594.95") >= 3 or b"/MediaBox [0 0 595" in raw  # A4
    assert len(raw) > 50_000


def test_the_report_of_a_benchmark_is_drawn_and_fits_a_narrow_window(open_page: Any) -> None:
    samples = [10 + 0.01 * (number % 100) for number in range(2000)] + [100.0] * 3
    batches = [batch_of(samples, batch_size=size) for size in (1, 8)]
    for each in batches:
        each.description = dataclasses.replace(each.description, model=HOSTILE)
    finding = BenchFinding(SessionResult(SystemSpec(HOSTILE), JobSettings(), batches))
    at = datetime.datetime(2026, 11, 23, tzinfo=datetime.timezone.utc)
    page = open_page(report_page(benchmark_content(finding, at)), viewport={"width": 390, "height": 844})
    keys = page.evaluate("window.__gpuprof.figures")
    assert keys == ["latency", "distribution-1", "distribution-8", "throughput"]
    assert drawn(page, "latency", ".scatterlayer .trace") == 3
    assert drawn(page, "distribution-8", ".barlayer .point") > 10
    assert widest(page) <= 390
    # Titles of axes are in view as a whole: on the left, too.
    ends = page.locator(".xtitle").evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect()).map(({left, right}) => [left, right])"
    )
    assert "longer samples" in page.locator(".xtitle").nth(1).inner_html()
    assert all(0 <= left < right <= 390 for left, right in ends)
    # Long warnings, which are beyond the edge, leave the rows low.
    page.locator(".figures td.words:last-child:not(:nth-child(2))").first.evaluate(
        "(cell) => { cell.textContent = 'heat and clock changed during the measurement, '.repeat(4); }"
    )
    assert (
        max(page.locator(".figures tbody tr").evaluate_all("(all) => all.map((each) => each.offsetHeight)"))
        < 130
    )
