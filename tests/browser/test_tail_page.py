# SPDX-License-Identifier: Apache-2.0
"""The flame graph of slow requests against those around the median, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import cells
from simulated_load import layer, operator, with_rare

from gpuprof.analyze.requests.slowest import ProfiledRequests
from gpuprof.render.tail_page import tail_page
from gpuprof.run.folder import RunFolder

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def page(open_page: Any, tmp_path: Path) -> Any:
    load = with_rare([layer(HOSTILE, 1, operator("aten::conv2d", 20))], requests=200, every=100)
    requests = ProfiledRequests(RunFolder(load.write(tmp_path / "profile.gpuprof")))
    return open_page(tail_page(requests, target=HOSTILE))


def test_only_the_tail_has_the_planted_layer(page: Any) -> None:
    # Of the largest changes, a card each: the layer has 1 ms, the operator in it 20 ms.
    cards = page.locator("#hot").inner_text()
    assert "aten::conv2d" in cards
    assert HOSTILE in cards
    assert [cell["state"] for cell in cells(page)].count("new") == 2
    assert page.locator("h1").inner_text().endswith(HOSTILE)
    assert page.locator("img").count() == 0


def test_the_caption_of_the_table_wraps_in_a_narrow_window(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#caption").scroll_into_view_if_needed()
    box = page.locator("#caption").bounding_box()
    assert page.locator("#table").bounding_box()["width"] > 390
    assert box["x"] + box["width"] <= 390


def test_the_table_names_both_sides(page: Any) -> None:
    heads = page.locator("thead th").all_inner_texts()
    assert {"Median", "Tail"} <= {head.split()[0] for head in heads if head.strip()}
    assert not {"Before", "Now"} & {head.split()[0] for head in heads if head.strip()}
    first = page.locator("#rows tr").first.inner_text()
    assert "aten::conv2d" in first
    assert "8.00 ms" in first  # two of the five slowest have 20 ms
