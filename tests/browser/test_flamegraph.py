# SPDX-License-Identifier: Apache-2.0
"""The flame graph page in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pages import (
    ADDMM,
    BACKWARD,
    MM,
    STEP,
    background,
    cell_of,
    cells,
    click,
    make_page,
    make_tree,
    next_frames,
    pixel,
    pixel_at,
    stage_width,
    state,
)

from gpuprof.render.flamegraph import flamegraph_page

WIDTHS = [100, 100, 50, 45, 40, 40, 30]
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<b>bold</b>\u2028&amp;",
    "right\u202eto left",
    "nul\x00 and\nline",
    "{{title}} __proto__",
]


@pytest.fixture(name="page")
def step_page(open_page: Any) -> Any:
    return open_page(make_page(STEP))


# ---- loading ---------------------------------------------------------------------------------


def test_header_notes_and_state(open_page: Any) -> None:
    page = open_page(make_page(STEP, title="ResNet", notes=["3 events were dropped"]))
    assert page.locator("h1").inner_text() == "ResNet"
    assert page.locator("header dd").all_inner_texts() == ["100 ms", "16"]
    assert page.locator(".notes li").all_inner_texts() == ["3 events were dropped"]
    assert state(page, "nodes") == len(STEP)
    assert state(page, "selected") == -1


@pytest.mark.parametrize("own_ms", [1, 9, 10, 999, 1000, 12_345, 1_234_567])
def test_the_script_and_the_header_write_times_alike(open_page: Any, own_ms: int) -> None:
    page = open_page(make_page([(-1, "process", "p", 1, 0), (0, "span", "s", 1, own_ms)]))
    page.evaluate("window.__gpuprof.select(1)")
    written = page.locator("header dd").first.inner_text()
    assert f"self {written} " in page.locator("#details").inner_text()


def test_an_empty_tree_has_a_message(open_page: Any) -> None:
    page = open_page(make_page([]))
    assert "contains no calls" in page.locator("#sentence").inner_text()
    assert page.locator("#main").is_hidden()


def test_a_tree_without_time_has_a_message(open_page: Any) -> None:
    page = open_page(make_page([(-1, "process", "p", 1, 0), (0, "span", "s", 1, 0)]))
    assert "no measurable time" in page.locator("#sentence").inner_text()


def test_hostile_names_are_text(open_page: Any) -> None:
    rows = [(-1, "process", "p", 1, 1)] + [(0, "span", name, 1, 100) for name in HOSTILE]
    page = open_page(make_page(rows, title=HOSTILE[0], subtitle=HOSTILE[1], notes=HOSTILE))
    assert page.locator("img, h1 b, td b, th b").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE[0]
    for node in range(1, len(rows)):
        page.evaluate(f"window.__gpuprof.zoom({node})")
    click(page, len(rows) - 1)
    page.locator("#canvas").hover(position={"x": 200, "y": 30})
    assert page.locator("#tooltip b").inner_text() == HOSTILE[-1]
    assert page.locator("#tooltip > b > *").count() == 0
    in_table = page.locator("#rows th").all_inner_texts()
    assert HOSTILE[0] in in_table
    assert r"right\u202eto left" in in_table
    assert r"nul\x00 and\nline" in in_table


def test_a_name_of_a_megabyte_is_shortened(open_page: Any) -> None:
    html = make_page([(-1, "process", "x" * 1_000_000, 1, 5)])
    assert len(html) < len(make_page([(-1, "process", "x", 1, 5)])) + 20_000
    page = open_page(html)
    page.locator("#canvas").hover(position={"x": 50, "y": 10})
    assert "(1,000,000 characters)" in page.locator("#tooltip b").text_content()
    assert page.locator("#tooltip").bounding_box()["height"] < 500
    assert page.locator("#rows tr").last.bounding_box()["height"] < 100


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_shown(open_page: Any, name: str) -> None:
    html = make_page([(-1, "process", "p", 1, 0), (0, "span", name, 1, 50), (1, "span", "in", 1, 20)])
    page, shown = open_page(html), f'"{name}"'
    assert page.locator("#rows th span").all_inner_texts() == [shown, "in", "p"]
    assert page.locator("#rows td.path").all_inner_texts() == ["p", f"p › {shown}", "top level"]
    assert page.locator("#hot .name").all_inner_texts() == [shown, "in"]
    click(page, 1)
    assert page.locator("#details b").inner_text() == shown
    without_script = open_page(html, java_script_enabled=False)
    assert without_script.locator(".static tbody th").all_inner_texts() == [shown, "in", "p"]


# ---- the picture -----------------------------------------------------------------------------


def test_widths_are_proportional_to_self_time_beneath(page: Any) -> None:
    width = stage_width(page)
    for node, percent in enumerate(WIDTHS):
        assert cell_of(page, node)["width"] == pytest.approx(width * percent / 100)


def test_backward_names_lose_the_prefix_all_share(page: Any) -> None:
    assert cell_of(page, BACKWARD)["label"] == "AddmmBackward0"
    click(page, BACKWARD)
    assert "evaluate_function" in page.locator("#tooltip b").inner_text()


def test_totals_of_overlapping_calls_do_not_widen_a_cell(open_page: Any) -> None:
    tree = make_tree(STEP)
    tree.total_ns[BACKWARD] *= 5
    page = open_page(flamegraph_page(tree, title="t", subtitle="s"))
    assert cell_of(page, BACKWARD)["width"] == pytest.approx(stage_width(page) * 0.4)
    click(page, BACKWARD)
    assert "calls overlap" in page.locator("#tooltip").inner_text()


def test_tooltip_shows_where_the_time_went(page: Any) -> None:
    cell = cell_of(page, ADDMM)
    page.locator("#canvas").hover(position={"x": cell["x"] + 20, "y": cell["y"] + 10})
    terms = page.locator("#tooltip dt").all_inner_texts()
    values = page.locator("#tooltip dd").all_inner_texts()
    assert dict(zip(terms, values, strict=True)) == {
        "Total": "40.0 ms",
        "Self": "40.0 ms",
        "Calls": "4",
        "Mean per call": "10.0 ms",
        "Percent of the total": "40.0%",
        "Percent of the parent": "88.9%",
        "Threads": "1",
    }
    path = page.locator("#tooltip p").inner_text()
    assert path == "operator in python train.py › step › fc (Linear) › aten::linear"


def test_flame_turns_the_picture_over(page: Any) -> None:
    root_first = cell_of(page, 0)["y"]
    page.locator("#flame").click()
    assert root_first == 0
    assert cell_of(page, 0)["y"] > cell_of(page, 1)["y"] > cell_of(page, ADDMM)["y"]


def test_largest_first_moves_the_widest_sibling_to_the_left(open_page: Any) -> None:
    page = open_page(
        make_page([(-1, "process", "p", 1, 0), (0, "span", "small", 1, 1), (0, "span", "big", 1, 9)])
    )
    assert cell_of(page, 1)["x"] == 0
    page.locator("#order").select_option("largest")
    assert cell_of(page, 2)["x"] == 0
    assert cell_of(page, 1)["x"] == pytest.approx(stage_width(page) * 0.9)


# ---- zoom ------------------------------------------------------------------------------------


def test_click_zooms_and_keeps_ancestors_in_sight(page: Any) -> None:
    before = page.locator("#stage").bounding_box()
    click(page, MM)
    width = stage_width(page)
    for node in (0, 1, BACKWARD, MM):
        assert cell_of(page, node)["width"] == pytest.approx(width)
    assert ADDMM not in {cell["node"] for cell in cells(page)}
    crumbs = page.locator("#crumbs button").all_inner_texts()
    assert crumbs == ["All calls", "python train.py", "step", "AddmmBackward0", "aten::mm"]
    assert page.locator("#stage").bounding_box() == before  # nothing jumps


@pytest.mark.parametrize("way", ["Escape", "button", "double click", "crumb"])
def test_ways_to_zoom_out(page: Any, way: str) -> None:
    click(page, ADDMM)
    assert state(page, "zoomed") == ADDMM
    if way == "Escape":
        page.keyboard.press("Escape")
    elif way == "button":
        page.locator("#reset").click()
    elif way == "crumb":
        page.locator("#crumbs button").first.click()
    else:
        click(page, ADDMM, times=2)
    assert state(page, "zoomed") == -1
    assert cell_of(page, ADDMM)["width"] == pytest.approx(stage_width(page) * 0.4)
    assert page.locator("#reset").is_disabled()


def test_keys_walk_and_zoom(page: Any) -> None:
    page.locator("#canvas").focus()
    walked = []
    for key in ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp"]:
        page.keyboard.press(key)
        walked.append(state(page, "selected"))
    # There is nothing right of the backward call, so the second ArrowRight stays.
    assert walked == [0, 1, 2, BACKWARD, BACKWARD, 2, 1]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert state(page, "zoomed") == 2
    page.keyboard.press("ArrowRight")  # out of sight: the view follows
    assert state(page, "selected") == BACKWARD
    assert cell_of(page, BACKWARD)["width"] == pytest.approx(stage_width(page) * 0.4)


def test_help_opens_and_escape_closes_only_it(page: Any) -> None:
    click(page, ADDMM)
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="How to read and move").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog").is_hidden()
    assert state(page, "zoomed") == ADDMM


def test_control_and_wheel_zoom_around_the_pointer(page: Any) -> None:
    page.locator("#canvas").hover(position={"x": 5, "y": 10})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.locator("#reset:enabled").wait_for()
    assert cell_of(page, 2)["width"] > stage_width(page) * 0.6


def test_the_address_restores_the_view(open_page: Any, page: Any) -> None:
    click(page, 2)
    page.evaluate("window.__gpuprof.search('addmm')")
    page.locator("#flame").click()
    fragment = page.evaluate("location.hash")
    again = open_page(make_page(STEP), fragment=fragment)
    assert state(again, "zoomed") == 2
    assert again.locator("#search").input_value() == "addmm"
    assert again.locator("#flame").get_attribute("aria-pressed") == "true"
    assert cells(again) == cells(page)


def test_the_address_restores_a_stretch_that_no_cell_fills(open_page: Any, page: Any) -> None:
    click(page, 2)
    page.locator("#canvas").hover(position={"x": 300, "y": 10})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_url(re.compile("window="))
    fragment = page.evaluate("location.hash")
    again = open_page(make_page(STEP), fragment=fragment)
    for mine, sent in zip(cells(again), cells(page), strict=True):
        assert (mine["node"], mine["x"], mine["width"]) == (
            sent["node"],
            pytest.approx(sent["x"]),
            pytest.approx(sent["width"]),
        )
    page.locator("#reset").click()
    assert "window=" not in page.evaluate("location.hash")
    page.go_back()
    page.wait_for_url(re.compile("window="))


def test_an_address_may_select_a_cell_outside_of_what_it_zooms_to(open_page: Any) -> None:
    page = open_page(make_page(STEP), fragment="#zoom=3&window=0.2_0.3&cell=6")
    assert state(page, "zoomed") == 3
    assert [cell["node"] for cell in cells(page)][-1] < 5


def test_the_address_restores_a_short_stretch_of_a_long_run(open_page: Any) -> None:
    """Two cells of a millisecond in a run of a day."""
    rows: Any = [(-1, "process", "p", 1, 0), (0, "span", "day", 1, 86_400_000)]
    rows += [(0, "span", "short", 1, 0), (2, "span", "a", 1, 1), (2, "span", "b", 1, 1)]
    page = open_page(make_page(rows), fragment="#zoom=2")
    page.locator("#canvas").hover(position={"x": 300, "y": 10})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_url(re.compile("window="))
    sent = [(cell["node"], round(cell["width"])) for cell in cells(page)]
    again = open_page(make_page(rows), fragment=page.evaluate("location.hash"))
    assert [(cell["node"], round(cell["width"])) for cell in cells(again)] == sent


@pytest.mark.parametrize(
    "fragment",
    [
        *("#zoom=99999", "#zoom=-5", "#zoom=1.5", "#zoom=x", "#%%%", "#search=/(/"),
        *("#window=x", "#window=0.5", "#window=0.5_0.1", "#window=0.5_7", "#window=-1_1", "#window="),
    ],
)
def test_a_broken_address_is_ignored(open_page: Any, page: Any, fragment: str) -> None:
    again = open_page(make_page(STEP), fragment=fragment)
    assert state(again, "zoomed") == -1
    assert cells(again) == cells(page)


# ---- search ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count", "calls", "percent"),
    [
        ("LINEAR", 2, 4, 50),  # one match inside the other: its time is counted once
        ("addmm", 2, 6, 80),  # finds the full name of the backward call too
        ("/mm$/", 2, 8, 70),
        ("/ADDMM/", 0, 0, 0),
        ("/ADDMM/i", 2, 6, 80),
        ("step", 1, 2, 100),
        ("nowhere", 0, 0, 0),
        ("/(/", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_search_counts_and_fractions(page: Any, text: str, count: int, calls: int, percent: int) -> None:
    result = page.evaluate("text => window.__gpuprof.search(text)", text)
    assert result == {"count": count, "calls": calls, "share": pytest.approx(percent / 100)}
    assert sum(cell["marked"] for cell in cells(page)) == count


def test_slash_focuses_the_search_and_typing_highlights(page: Any) -> None:
    plain = pixel(page, ADDMM), pixel(page, 1)
    page.keyboard.press("/")
    page.keyboard.type("linear")
    assert page.locator("#found").inner_text() == "2 cells, 4 calls, 50.0% of the time"
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""
    page.keyboard.type("::addmm")
    assert pixel(page, ADDMM) != plain[0]
    assert pixel(page, 1) != plain[1]  # dimmed
    page.keyboard.press("Control+A")
    page.keyboard.type("/(/")
    assert page.locator("#found").inner_text() == "not a regular expression"
    assert page.locator("#search").get_attribute("aria-invalid") == "true"


def test_a_card_highlights_its_name(page: Any) -> None:
    first = page.locator("#hot button").first
    assert "aten::addmm" in first.inner_text()
    first.click()
    assert page.locator("#found").inner_text() == "1 cell, 4 calls, 40.0% of the time"
    first.click()
    assert page.locator("#found").inner_text() == ""


# ---- the table -------------------------------------------------------------------------------


def test_table_is_sorted_by_self_time_and_can_be_sorted(page: Any) -> None:
    names = page.locator("#rows th")
    assert names.all_inner_texts()[:2] == ["aten::addmm", "aten::mm"]
    page.get_by_role("button", name="Name").click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), key=str.lower)
    page.get_by_role("button", name="Total").click()
    assert set(names.all_inner_texts()[:2]) == {"python train.py", "step"}
    page.get_by_role("button", name="Total").click()
    assert names.all_inner_texts()[0] == "aten::mm"
    assert page.locator("th[aria-sort]").all_inner_texts() == ["Total"]


def test_table_counts_a_recursive_call_once_in_its_total(open_page: Any) -> None:
    rows = [(-1, "process", "p", 1, 0), (0, "span", "f", 1, 10), (1, "span", "f", 1, 20)]
    page = open_page(make_page(rows))
    texts = page.locator("#rows tr", has_text="f").first.locator("td").all_inner_texts()
    assert texts[:6] == ["span", "30.0 ms", "100.0%", "30.0 ms", "2", "15.0 ms"]


def test_table_leads_to_the_hottest_call(page: Any) -> None:
    page.locator("#rows tr").nth(1).get_by_role("button").click()
    assert state(page, "selected") == MM
    assert state(page, "zoomed") == BACKWARD


def test_without_javascript_there_is_a_table(open_page: Any) -> None:
    page = open_page(make_page(STEP), java_script_enabled=False)
    rows = page.locator(".static tbody tr")
    assert rows.count() == len(STEP)
    assert rows.first.inner_text().split("\t")[:4] == ["aten::addmm", "operator", "40.0 ms", "40.0%"]
    assert rows.first.is_visible()
    assert page.locator("#main").is_hidden()


# ---- themes and access -----------------------------------------------------------------------


def test_dark_follows_the_system_and_the_choice(open_page: Any) -> None:
    light = open_page(make_page(STEP), color_scheme="light")
    dark = open_page(make_page(STEP), color_scheme="dark")
    light_colors = [pixel(light, ADDMM), background(light)]
    dark_colors = [pixel(dark, ADDMM), background(dark)]
    assert all(one != other for one, other in zip(light_colors, dark_colors, strict=True))
    light.locator("#theme").select_option("dark")
    assert [pixel(light, ADDMM), background(light)] == dark_colors
    light.locator("#theme").select_option("auto")
    light.emulate_media(color_scheme="dark")
    next_frames(light)
    assert [pixel(light, ADDMM), background(light)] == dark_colors


def test_forced_colors_leave_a_picture(open_page: Any) -> None:
    page = open_page(make_page(STEP), forced_colors="active")
    cell = cell_of(page, ADDMM)
    inside = pixel(page, ADDMM)
    assert inside != pixel_at(page, [cell["x"], cell["y"] + 10])  # the border
    assert background(page) == f"rgb({inside[0]}, {inside[1]}, {inside[2]})"


def test_print_is_light_and_has_no_controls(open_page: Any) -> None:
    page = open_page(make_page(STEP), color_scheme="dark")
    before = pixel(page, ADDMM)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert pixel(page, ADDMM) != before
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert pixel(page, ADDMM) == before
    page.emulate_media(media="print")
    assert page.locator(".toolbar").is_hidden()
    assert background(page) == "rgb(255, 255, 255)"


def test_paper_of_another_width_keeps_the_picture(page: Any) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    height = page.evaluate("document.getElementById('canvas').height")
    page.set_viewport_size({"width": 700, "height": 900})
    next_frames(page)
    assert page.evaluate("document.getElementById('canvas').height") == height > 0


def test_picture_can_be_saved(page: Any, tmp_path: Any) -> None:
    with page.expect_download() as download:
        page.locator("#png").click()
    assert download.value.suggested_filename == "A-step.png"
    download.value.save_as(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_names_for_assistive_technology(page: Any) -> None:
    picture = page.get_by_role("application", name="Flame graph: A step")
    assert picture.get_attribute("tabindex") == "0"
    summary = page.locator(f"#{picture.get_attribute('aria-describedby')}").text_content()
    assert "aten::addmm (operator) 40.0%" in summary
    assert page.get_by_role("searchbox", name="Search names").count() == 1
    assert page.get_by_role("navigation", name="Zoom path").count() == 1
    assert page.get_by_role("combobox", name="Color theme").count() == 1
    details = page.locator("#details")
    assert details.get_attribute("aria-live") == "polite"
    picture.focus()
    page.keyboard.press("ArrowDown")
    assert "python train.py" in details.inner_text()


def test_six_hundred_pixels_are_enough(open_page: Any) -> None:
    page = open_page(make_page(STEP), viewport={"width": 600, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 600
    for control in page.locator(":is(.toolbar button, .toolbar select, #search):visible").all():
        box = control.bounding_box()
        assert box["x"] + box["width"] <= 600


def test_a_resize_keeps_the_picture_sharp(page: Any) -> None:
    page.set_viewport_size({"width": 900, "height": 900})
    next_frames(page)
    assert page.evaluate("document.getElementById('canvas').width") == stage_width(page) < 900
    assert cell_of(page, 0)["width"] == stage_width(page)


# ---- extremes --------------------------------------------------------------------------------


def test_depth_of_twenty_thousand(open_page: Any) -> None:
    depth = 20_000
    rows = [(node - 1, "span" if node else "process", f"f{node % 7}", 1, 1) for node in range(depth)]
    page = open_page(make_page(rows))
    page.evaluate(f"window.__gpuprof.select({depth - 1})")  # scrolls down to it
    deepest = cells(page)
    assert depth - 1 in {cell["node"] for cell in deepest}
    assert len(deepest) < 100
    page.evaluate(f"window.__gpuprof.zoom({depth - 1})")
    assert cell_of(page, depth - 1)["width"] == stage_width(page)
    assert page.evaluate("document.getElementById('canvas').height") < 32_767
    page.evaluate("window.__gpuprof.zoom(10_000)")
    assert cell_of(page, 10_000)["y"] == 3 * 22  # room for what is beneath
    page.evaluate(f"window.__gpuprof.zoom({depth - 1})")
    assert page.locator("#crumbs").text_content().startswith("All calls › … › ")
    assert page.evaluate("window.__gpuprof.search('f3').share") == pytest.approx((depth - 3) / depth)
    page.locator("#flame").click()
    assert len(cells(page)) > 0


@pytest.mark.slow
def test_two_hundred_thousand_siblings(open_page: Any) -> None:
    count = 200_000
    rows = [(-1, "process", "p", 1, 0)] + [(0, "operator", f"op{i}", 1, 1) for i in range(count)]
    page = open_page(make_page(rows))
    grey = [cell for cell in cells(page) if cell["hidden"]]
    assert [cell["hidden"] for cell in grey] == [count]
    assert grey[0]["label"] == "200,000 more"
    position = {"x": stage_width(page) / 2, "y": grey[0]["y"] + 10}
    page.locator("#canvas").hover(position=position)
    assert "200,000 cells too narrow to draw" in page.locator("#tooltip").inner_text()
    for _ in range(3):
        page.locator("#canvas").click(position=position)
    assert [cell for cell in cells(page) if cell["hidden"]] == []  # opened, a tenth at a time
    page.evaluate(f"window.__gpuprof.zoom({count})")
    assert cell_of(page, count)["width"] == pytest.approx(stage_width(page))
    assert page.locator("#rows tr").count() == 200


def test_ten_processes_are_side_by_side(open_page: Any) -> None:
    page = open_page(make_page([(-1, "process", f"rank {i}", 1, 1) for i in range(10)]))
    ranks = [cell for cell in cells(page) if cell["label"].startswith("rank")]
    assert {cell["y"] for cell in ranks} == {0}
    assert sum(cell["width"] for cell in ranks) == pytest.approx(stage_width(page))
