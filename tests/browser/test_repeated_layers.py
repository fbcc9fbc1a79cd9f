# SPDX-License-Identifier: Apache-2.0
"""Repeated layers are one row of the page's table, which opens into its members."""

from __future__ import annotations

from typing import Any

import pytest
from pages import CONTRAST, Rows, cells, click, make_page, state

LAYERS: Rows = [
    (-1, "process", "python train.py", 1, 0),
    (0, "layer", "Net", 2, 5),
    (1, "layer", "layers.0", 2, 0),
    (2, "layer", "layers.0.fc", 2, 30),
    (1, "layer", "layers.1", 2, 0),
    (4, "layer", "layers.1.fc", 2, 50),
    (1, "layer", "head", 2, 15),
]
CLASSES = {
    "Net": "Net",
    **{f"layers.{number}": "Block" for number in range(2)},
    **{f"layers.{number}.fc": "Linear" for number in range(2)},
    "head": "Linear",
}


def names_of(page: Any) -> list[str]:
    found: list[str] = page.locator("#rows tr th span").all_inner_texts()
    return found


def test_repeated_layers_are_one_row_that_opens(open_page: Any) -> None:
    page = open_page(make_page(LAYERS, classes=CLASSES))
    folded = ["layers.*.fc x2", "head", "Net"]
    assert [name for name in names_of(page) if name != "layers.* x2"][:3] == folded
    first = page.locator("#rows tr").first
    assert "80.0%" in first.inner_text()
    toggle = page.get_by_role("button", name="Layers of layers.*.fc x2")
    toggle.click()
    assert names_of(page)[:3] == ["layers.*.fc x2", "layers.1.fc", "layers.0.fc"]
    assert toggle.get_attribute("aria-expanded") == "true"
    toggle.click()
    assert [name for name in names_of(page) if name != "layers.* x2"][:3] == folded
    page.emulate_media(color_scheme="dark")
    colors = "(button) => [getComputedStyle(button).color, getComputedStyle(button).backgroundColor]"
    ink, fill = toggle.evaluate(colors)
    assert page.evaluate(f"{CONTRAST}('{ink}', '{fill}')") >= 4.5


def test_the_search_finds_a_row_by_any_of_its_members(open_page: Any) -> None:
    page = open_page(make_page(LAYERS, classes=CLASSES))
    page.evaluate("text => window.__gpuprof.search(text)", "layers.0.fc")
    assert names_of(page) == ["layers.*.fc x2"]


def test_without_classes_each_layer_has_a_row(open_page: Any) -> None:
    page = open_page(make_page(LAYERS))
    assert {"layers.0.fc", "layers.1.fc"} <= set(names_of(page))


# ---- cells ---------------------------------------------------------------------------------------

BLOCKS: Rows = [
    (-1, "process", "python train.py", 1, 0),
    (0, "layer", "Net", 2, 5),
    (1, "layer", "layers.0", 2, 1),
    (2, "layer", "layers.0.fc", 2, 10),
    (3, "operator", "aten::linear", 2, 20),
    (1, "layer", "layers.1", 2, 2),
    (5, "layer", "layers.1.fc", 4, 15),
    (6, "operator", "aten::linear", 4, 25),
    (6, "operator", "aten::add", 4, 7),
    (1, "layer", "head", 2, 15),
]


@pytest.fixture
def page(open_page: Any) -> Any:
    return open_page(make_page(BLOCKS, classes=CLASSES))


def drawn(page: Any) -> dict[str, int]:
    """Return the width of each cell in ms, of cells of equal names the sum; all add up to 100 ms."""
    found = cells(page)
    whole = max(cell["width"] for cell in found)
    widths: dict[str, int] = {}
    for cell in found:
        widths[cell["label"]] = widths.get(cell["label"], 0) + round(100 * cell["width"] / whole)
    return widths


FOLDED = {
    "python train.py": 100,
    "Net": 100,
    "layers.* x2": 80,
    "layers.*.fc x2": 77,
    "aten::linear": 45,
    "aten::add": 7,
    "head": 15,
}


def test_repeated_layers_are_one_cell_with_their_sums(page: Any) -> None:
    assert drawn(page) == FOLDED
    assert len(cells(page)) == len(FOLDED)
    fc = next(cell["node"] for cell in cells(page) if cell["label"] == "layers.*.fc x2")
    click(page, fc)
    text = page.locator("#details").inner_text()
    assert "total 77.0 ms" in text
    assert "self 25.0 ms" in text
    assert "calls 6" in text


def test_the_button_draws_each_layer(page: Any) -> None:
    page.locator("#fold-layers").click()
    assert page.locator("#fold-layers").get_attribute("aria-pressed") == "false"
    widths = drawn(page)
    assert (widths["layers.0"], widths["layers.0.fc"], widths["layers.1"], widths["layers.1.fc"]) == (
        31,
        30,
        49,
        47,
    )
    assert "layers.* x2" not in widths
    page.locator("#fold-layers").click()
    assert drawn(page) == FOLDED


def test_one_group_unfolds_and_a_link_leads_back_to_it(page: Any, open_page: Any) -> None:
    outer = next(cell["node"] for cell in cells(page) if cell["label"] == "layers.* x2")
    page.evaluate("node => window.__gpuprof.select(node)", outer)
    page.get_by_role("button", name="Unfold").click()
    widths = drawn(page)
    assert {"layers.0", "layers.1", "layers.0.fc", "layers.1.fc"} <= set(widths)
    fragment = page.evaluate("location.hash")
    again = open_page(make_page(BLOCKS, classes=CLASSES), fragment=fragment)
    assert {"layers.0", "layers.1"} <= set(drawn(again))


def test_the_search_finds_a_cell_by_any_of_its_layers(page: Any) -> None:
    page.locator("#search").fill("layers.1.fc")
    assert page.locator("#found").inner_text() == "1 cell, 4 calls, 47.0% of the time"
    assert [cell["label"] for cell in cells(page) if cell["marked"]] == ["layers.*.fc x2"]


def test_a_flat_page_begins_with_each_layer(open_page: Any) -> None:
    page = open_page(make_page(BLOCKS, classes=CLASSES, is_flat=True))
    assert "layers.1.fc" in drawn(page)
    page.locator("#fold-layers").click()
    assert drawn(page) == FOLDED


def test_a_row_of_a_layer_leads_to_its_cell(page: Any) -> None:
    page.get_by_role("button", name="Layers of layers.*.fc x2").click()
    page.locator("#rows tr", has_text="layers.0.fc").first.locator("td.path button").click()
    selected = state(page, "selected")
    assert next(cell["label"] for cell in cells(page) if cell["node"] == selected) == "layers.*.fc x2"


def test_without_classes_no_layer_folds(open_page: Any) -> None:
    page = open_page(make_page(BLOCKS))
    assert page.locator("#fold-layers").is_hidden()
    assert "layers.1.fc" in drawn(page)
