# SPDX-License-Identifier: Apache-2.0
"""Repeated layers are one row of the page's table, which opens into its members."""

from __future__ import annotations

from typing import Any

from pages import Rows, make_page

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


def test_the_search_finds_a_row_by_any_of_its_members(open_page: Any) -> None:
    page = open_page(make_page(LAYERS, classes=CLASSES))
    page.evaluate("text => window.__gpuprof.search(text)", "layers.0.fc")
    assert names_of(page) == ["layers.*.fc x2"]


def test_without_classes_each_layer_has_a_row(open_page: Any) -> None:
    page = open_page(make_page(LAYERS))
    assert {"layers.0.fc", "layers.1.fc"} <= set(names_of(page))
