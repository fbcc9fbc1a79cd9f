# SPDX-License-Identifier: Apache-2.0
"""The page of a difference, and the switches of weight and color, in a real browser."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np
import pytest
from pages import MS, STEP, Rows, cell_of, cells, make_tree, next_frames, pixel, stage_width, state

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.calls import Blocks
from gpuprof.analyze.difference import Sample, Scaling, compare
from gpuprof.analyze.metrics import Weight
from gpuprof.render.flame_views import Coloring, difference_view, weight_views
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.render.shown_tree import placed_tree

HOSTILE = "</script><img src=x onerror=alert(1)>"
# Self times in ms before and now; None: that side does not have it, 0 repetitions where `is_rare`.
ROWS: Rows = [
    (-1, "process", "python train.py", 1, 0),
    (0, "span", "step", 40, 0),
    (1, "layer", "fc1", 40, 100),
    (1, "layer", "fc2", 40, 100),
    (1, "layer", HOSTILE, 40, 100),
    (1, "layer", "old_norm", 40, 50),
    (1, "layer", "new_norm", 40, 50),
    (1, "span", "checkpoint", 1, 100),
]
STEP_CELL, SAME_CELL, SLOWER_CELL, FASTER_CELL, GONE_CELL, NEW_CELL, RARE_CELL = range(1, 8)
NOW = {SLOWER_CELL: 1.5, FASTER_CELL: 0.5}


def sample(tree: CallTree, seed: int, factors: dict[int, float], missing: int) -> Sample:
    """One side: every node has times with 1% deviation in 20 blocks, but for the one that is called once."""
    random = np.random.default_rng(seed)
    factor = np.array([factors.get(node, 1.0) for node in range(len(tree))])
    factor[missing] = 0
    own_blocks = (tree.own_ns * factor)[:, None] * (1 + 0.01 * random.standard_normal((len(tree), 20)))
    total_blocks = own_blocks.copy()
    for node in range(len(tree) - 1, 0, -1):
        total_blocks[tree.parent[node]] += total_blocks[node]
    exists = np.arange(len(tree)) != missing
    regular = exists & (np.arange(len(tree)) != RARE_CELL)
    return Sample(
        total_ns=total_blocks.mean(axis=1),
        own_ns=own_blocks.mean(axis=1),
        calls=np.where(exists, tree.calls, 0),
        exists=exists,
        repetitions=40,
        whole_ns=float(own_blocks.mean(axis=1).sum()),
        blocks=Blocks(total_blocks, own_blocks, regular),
    )


def difference_html(*, against_itself: bool = False, now: dict[int, float] = NOW) -> str:
    tree = make_tree(ROWS)
    shown = placed_tree(tree)
    old = sample(tree, 1, {}, NEW_CELL)
    new = old if against_itself else sample(tree, 2, now, GONE_CELL)
    views = [
        difference_view("cpu", compare([new], [old], scaling), repeated=HOSTILE)
        for scaling in get_args(Scaling)
    ]
    return flamegraph_page(
        shown, title="b against a", subtitle="new: b · old: a", notes=[HOSTILE], views=views, calls=241
    )


@pytest.fixture(name="page")
def difference_page(open_page: Any) -> Any:
    return open_page(difference_html())


def states(page: Any) -> dict[int, str]:
    return {cell["node"]: cell["state"] for cell in cells(page)}


def resolved(page: Any, variable: str) -> list[int]:
    """A color of the style sheet as a pixel has it."""
    text = page.evaluate(
        """name => {
            const probe = document.createElement("span");
            probe.style.color = `var(--${name})`;
            document.body.append(probe);
            const color = getComputedStyle(probe).color;
            probe.remove();
            return color;
        }""",
        variable,
    )
    return [*map(int, text.removeprefix("rgb(").removesuffix(")").split(",")), 255]


def test_each_cell_shows_its_change(page: Any) -> None:
    assert states(page) == {
        0: "same",
        STEP_CELL: "same",
        SAME_CELL: "same",
        SLOWER_CELL: "slower",
        FASTER_CELL: "faster",
        GONE_CELL: "gone",
        NEW_CELL: "new",
        RARE_CELL: "unknown",
    }
    assert pixel(page, SAME_CELL) == resolved(page, "same")
    assert pixel(page, SLOWER_CELL) == resolved(page, "slower-2")
    assert pixel(page, FASTER_CELL) == resolved(page, "faster-2")


def test_nothing_depends_on_color_alone(page: Any) -> None:
    texts = {cell["node"]: cell["text"] for cell in cells(page)}
    assert texts[SLOWER_CELL].startswith("▲ fc2")
    assert texts[FASTER_CELL].startswith("▼ ")
    assert texts[GONE_CELL].startswith("− ol")
    assert texts[NEW_CELL].startswith("+ n")
    assert texts[SAME_CELL] == "fc1"
    legend = " ".join(page.locator("#legend li").all_inner_texts())
    assert "by less than 5%" not in legend
    for words in (
        "▲ slower by 20% and more",
        "▼ faster by 20% and more",
        "no difference beyond chance",
        "+ new",
        "− gone",
        "not judged",
    ):
        assert words in legend


def test_what_is_new_and_what_is_gone_have_half_their_width(page: Any) -> None:
    width = {cell["node"]: cell["width"] for cell in cells(page)}
    assert width[GONE_CELL] == pytest.approx(width[SAME_CELL] / 4, rel=0.05)
    assert width[NEW_CELL] == pytest.approx(width[SAME_CELL] / 4, rel=0.05)
    assert sum(width[node] for node in range(2, 8)) == pytest.approx(stage_width(page), abs=1)


def test_a_run_against_itself_is_gray(open_page: Any) -> None:
    page = open_page(difference_html(against_itself=True))
    assert set(states(page).values()) == {"same", "unknown"}
    assert page.locator("#hot").inner_text() == "No difference beyond chance."
    assert "No difference beyond chance" in page.locator("#summary").text_content()
    assert pixel(page, SLOWER_CELL) == resolved(page, "same")


def test_details_give_both_sides_the_change_and_the_interval(page: Any) -> None:
    page.evaluate(f"window.__gpuprof.select({SLOWER_CELL})")
    text = page.locator("#details").inner_text()
    assert "self 99.9 ms → 150 ms" in text
    assert "(+50." in text or "(+49." in text
    assert "self interval +" in text
    assert "self verdict slower" in text
    assert "calls 40 → 40" in text
    page.evaluate(f"window.__gpuprof.select({RARE_CELL})")
    text = page.locator("#details").inner_text()
    assert "self interval unavailable" in text
    assert "self verdict not judged" in text


def row_cells(page: Any, name: str) -> list[str]:
    row = page.locator("#rows tr", has=page.locator("th span").get_by_text(name, exact=True))
    texts: list[str] = row.locator("td").all_inner_texts()
    return texts


def test_what_is_too_small_to_be_judged_is_not_called_judged(page: Any) -> None:
    page.evaluate(f"window.__gpuprof.select({STEP_CELL})")
    text = page.locator("#details").inner_text()
    assert "self interval unavailable" in text
    assert "self verdict too small to be judged" in text
    assert row_cells(page, "step")[2] == "too small"
    assert row_cells(page, "fc1")[2] == "no difference"


def test_a_large_ratio_is_shown_as_a_multiple(open_page: Any) -> None:
    page = open_page(difference_html(now={SLOWER_CELL: 1_234.0, FASTER_CELL: 5.0}))
    ratio = row_cells(page, "fc2")[5]
    assert ratio.endswith("×")
    assert float(ratio.rstrip("×").replace(",", "")) == pytest.approx(1_234, rel=0.01)
    assert row_cells(page, HOSTILE)[5].endswith("%")


def test_hostile_names_are_text(page: Any) -> None:
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#scaling").text_content()
    assert page.locator("#rows th span").get_by_text(HOSTILE, exact=True).count() == 1
    page.locator("#canvas").hover(position={"x": cell_of(page, FASTER_CELL)["x"] + 5, "y": 55})
    assert HOSTILE in page.locator("#tooltip").inner_text()


def test_the_table_lists_the_largest_change_first(page: Any) -> None:
    rows = page.locator("#rows tr")
    first = {rows.nth(index).locator("th span").first.inner_text() for index in range(4)}
    assert first == {"fc2", HOSTILE, "old_norm", "new_norm"}
    slow = page.locator("#rows tr", has_text="fc2").first.locator("td").all_inner_texts()
    assert slow[2] == "slower"
    assert slow[1].startswith("+")
    page.get_by_role("button", name="Cells that differ").click()
    assert page.locator("th[aria-sort]").inner_text().startswith("Cells that differ")


def test_scale_and_color_by_keyboard_and_by_address(open_page: Any, page: Any) -> None:
    page.locator("#scaling").focus()
    page.keyboard.press("End")
    assert page.locator("#scaling").input_value() == "total"
    before, now = page.locator("#total").inner_text().split(" → ")
    assert before == now
    page.locator("#color").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#color").input_value() == "own"
    assert states(page)[STEP_CELL] == "same"
    fragment = page.evaluate("location.hash")
    again = open_page(difference_html(), fragment=fragment)
    assert again.locator("#scaling").input_value() == "total"
    assert again.locator("#color").input_value() == "own"
    again.locator("#color").select_option("kind")
    assert states(again)[SLOWER_CELL] == ""
    assert not cell_of(again, SLOWER_CELL)["text"].startswith("▲")


def test_dark_and_forced_colors(open_page: Any) -> None:
    light, dark = (open_page(difference_html(), color_scheme=scheme) for scheme in ("light", "dark"))
    for node in (SAME_CELL, SLOWER_CELL, FASTER_CELL):
        assert pixel(light, node) != pixel(dark, node)
    assert pixel(dark, SLOWER_CELL) != pixel(dark, FASTER_CELL)
    forced = open_page(difference_html(), forced_colors="active")
    assert cell_of(forced, SLOWER_CELL)["text"].startswith("▲")


@pytest.mark.parametrize("deficiency", ["protanopia", "deuteranopia", "tritanopia", "achromatopsia"])
def test_slower_and_faster_differ_for_the_color_blind(page: Any, deficiency: str) -> None:
    # Emulation acts on what is composed: the labels' marks are there in any case, checked above.
    page.context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
    next_frames(page)
    at = {node: cell_of(page, node) for node in (SLOWER_CELL, FASTER_CELL)}
    stage = page.locator("#canvas").bounding_box()
    shots = [
        page.screenshot(
            clip={
                "x": stage["x"] + cell["x"] + cell["width"] - 10,
                "y": stage["y"] + cell["y"] + 14,
                "width": 4,
                "height": 4,
            }
        )
        for cell in at.values()
    ]
    assert shots[0] != shots[1]


def test_a_narrow_screen_holds_the_page(open_page: Any) -> None:
    page = open_page(difference_html(), viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("width", [390, 1280])
def test_how_many_cells_differ_is_not_cut(open_page: Any, width: int) -> None:
    page = open_page(difference_html(), viewport={"width": width, "height": 800})
    page.locator("#rows").scroll_into_view_if_needed()
    next_frames(page)
    page.locator("#rows td.cells").first.evaluate(
        "(cell) => { cell.textContent = '12 slower, 36 gone of 1742'; }"
    )
    cut = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.innerText)"
    assert page.locator("#table td.cells, #table th:nth-child(4)").evaluate_all(cut) == []


# ---- weights and colors of one run ----------------------------------------------------------------


def weighed_html() -> str:
    tree = make_tree(STEP)
    doubled = dataclasses.replace(
        tree, own_ns=np.array(tree.own_ns) * 0, total_ns=np.array(tree.total_ns) * 0
    )
    doubled.own_ns[4] = 3_000_000
    doubled.total_ns[[0, 1, 2, 3, 4]] = 3_000_000
    shown = placed_tree(tree)
    views = weight_views(shown, [Weight("cpu", tree), Weight("flops", doubled, "FLOP", ("a note on FLOPs",))])
    colors = [
        Coloring(
            "type",
            "Class of layer",
            ["Linear", "other layers", "in no layer"],
            [("category-0", 0.0), ("category-1", 0.0), ("category-none", 0.0)],
            np.array([2, 2, 0, 0, 0, 2, 2], "u1"),
        )
    ]
    return flamegraph_page(shown, title="A step", subtitle="test", views=views, colorings=colors, calls=16)


@pytest.mark.parametrize("width", [1280, 901, 360])
def test_amounts_of_flops_have_room_in_the_table(open_page: Any, width: int) -> None:
    tree = make_tree(
        [(-1, "process", "p", 1, 0), (0, "operator", "a", 1, 33.6), (0, "operator", "b", 1, 22.4)]
    )
    views = weight_views(placed_tree(tree), [Weight("flops", tree, "FLOP")])
    html = flamegraph_page(placed_tree(tree), title="FLOPs", subtitle="test", views=views, calls=1)
    page = open_page(html, viewport={"width": width, "height": 900})
    cells_of_row = page.locator("#rows tr").first.locator("td:not(.words)")
    assert cells_of_row.all_inner_texts() == ["33.6 MFLOP", "60.0%", "33.6 MFLOP", "1", "33.6 MFLOP"]
    cut = "cells => cells.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
    assert cells_of_row.evaluate_all(cut) == []


def test_the_weight_is_switched_by_keyboard(open_page: Any) -> None:
    page = open_page(weighed_html())
    assert page.locator("header dd").all_inner_texts() == ["100 ms", "16"]
    page.locator("#weight").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("header dd").all_inner_texts() == ["3.00 MFLOP", "16"]
    assert page.locator("header dt").first.inner_text() == "FLOPs"
    assert {cell["node"] for cell in cells(page)} == {0, 1, 2, 3, 4}  # the backward pass has none
    assert cell_of(page, 4)["width"] == stage_width(page)
    assert "3.00 MFLOP · 100" in cell_of(page, 4)["text"] or cell_of(page, 4)["label"] == "aten::addmm"
    assert page.locator("#view-note").inner_text() == "a note on FLOPs"
    assert page.locator("#rows tr").first.locator("td").nth(1).inner_text() == "3.00 MFLOP"
    fragment = page.evaluate("location.hash")
    assert "weight=flops" in fragment
    again = open_page(weighed_html(), fragment=fragment)
    assert again.locator("#weight").input_value() == "flops"
    again.locator("#weight").select_option("cpu")
    assert again.locator("header dd").first.inner_text() == "100 ms"
    assert again.locator("#view-note").is_hidden()


def test_a_zoom_survives_the_switch_where_there_is_width(open_page: Any) -> None:
    page = open_page(weighed_html())
    page.evaluate("window.__gpuprof.zoom(2)")
    page.locator("#weight").select_option("flops")
    assert state(page, "zoomed") == 2
    page.locator("#weight").select_option("cpu")
    page.evaluate("window.__gpuprof.zoom(6)")
    page.locator("#weight").select_option("flops")
    assert state(page, "zoomed") == -1


def test_the_class_of_layer_as_color(open_page: Any) -> None:
    page = open_page(weighed_html())
    page.locator("#color").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#color").input_value() == "type"
    assert pixel(page, 4) == resolved(page, "category-0")
    assert pixel(page, 1) == resolved(page, "category-none")
    assert page.locator("#legend li").all_inner_texts() == ["Linear 50.0%", "in no layer 50.0%"]
    page.evaluate("window.__gpuprof.select(4)")
    assert "class of layer Linear" in page.locator("#details").inner_text()


def test_one_weight_and_one_color_are_no_choice(open_page: Any) -> None:
    page = open_page(flamegraph_page(make_tree([(-1, "process", "p", 1, MS)]), title="t", subtitle="s"))
    for name in ("weight", "scaling", "color"):
        assert page.locator(f"#{name}").is_hidden()
