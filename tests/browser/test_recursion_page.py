# SPDX-License-Identifier: Apache-2.0
"""Folded recursion: the cells, and what the rest of the page shows of them."""

from __future__ import annotations

from typing import Any

import pytest
from pages import STEP, cell_of, cells, click, make_page, state

# parent, kind, name, calls, self time in ms: 100 ms in all
FIBONACCI = [
    (-1, "process", "python numbers.py", 1, 0),
    (0, "span", "fib", 1, 10),
    (1, "operator", "mul", 1, 5),
    (1, "span", "fib", 2, 20),
    (3, "operator", "mul", 2, 7),
    (4, "operator", "copy", 2, 3),
    (3, "span", "fib", 4, 30),
    (6, "operator", "mul", 4, 4),
    (7, "operator", "copy", 4, 1),
    (1, "operator", "add", 1, 8),
    (0, "span", "other", 1, 2),
    (10, "operator", "mul", 1, 4),
    (10, "operator", "mul", 1, 6),
]


@pytest.fixture
def page(open_page: Any) -> Any:
    return open_page(make_page(FIBONACCI))


def drawn(page: Any) -> list[tuple[str, int, int]]:
    """Return label, level and width in ms of each cell."""
    found = cells(page)
    top, whole = min(cell["y"] for cell in found), max(cell["width"] for cell in found)
    return [
        (cell["label"], round((cell["y"] - top) / found[0]["height"]), round(100 * cell["width"] / whole))
        for cell in found
    ]


def test_a_call_in_itself_is_one_cell_with_all_that_it_calls(page: Any) -> None:
    page.locator("#fold").click()
    assert sorted(drawn(page)) == [
        ("add", 2, 8),
        ("copy", 3, 4),
        ("fib", 1, 88),
        ("mul", 2, 4),  # two calls that are separate in the run stay separate
        ("mul", 2, 6),
        ("mul", 2, 20),
        ("other", 1, 12),
        ("python numbers.py", 0, 100),
    ]


def test_the_folded_cell_has_the_sums(page: Any) -> None:
    page.locator("#fold").click()
    click(page, 1)
    text = page.locator("#details").inner_text()
    assert "total 88.0 ms" in text
    assert "self 60.0 ms" in text
    assert "calls 7" in text


def test_folding_and_unfolding_keep_what_is_selected(page: Any) -> None:
    click(page, 6)
    page.locator("#fold").click()
    assert state(page, "zoomed") == state(page, "selected") == 1
    page.locator("#fold").click()
    assert page.locator("#fold").get_attribute("aria-pressed") == "false"
    assert state(page, "selected") == 1
    assert cell_of(page, 6)["label"] == "fib"


def test_the_table_stays_as_it_was(page: Any) -> None:
    rows = "#rows tr td:nth-child(3)"
    before = page.locator(rows).all_inner_texts()
    page.locator("#fold").click()
    assert page.locator(rows).all_inner_texts() == before


def test_the_search_counts_folded_cells(page: Any) -> None:
    page.locator("#search").fill("fib")
    page.locator("#fold").click()
    assert page.locator("#found").inner_text() == "1 cell, 7 calls, 88.0% of the time"


def test_a_link_leads_to_the_folded_picture(open_page: Any) -> None:
    page = open_page(make_page(FIBONACCI), fragment="#fold=1&zoom=1")
    assert page.locator("#fold").get_attribute("aria-pressed") == "true"
    assert [label for label, level, _ in drawn(page) if level == 1] == ["fib"]


def test_a_run_without_recursion_has_no_such_button(open_page: Any) -> None:
    page = open_page(make_page(STEP), fragment="#fold=1")
    assert page.locator("#fold").is_hidden()
    assert cell_of(page, 1)["label"] == "step"


def test_a_recursion_of_twenty_thousand(open_page: Any) -> None:
    depth = 20_000
    rows = [(-1, "process", "deep", 1, 0), *((node, "span", "again", 1, 1) for node in range(depth))]
    page = open_page(make_page(rows))
    page.locator("#fold").click()
    assert [label for label, _, _ in drawn(page)] == ["deep", "again"]
