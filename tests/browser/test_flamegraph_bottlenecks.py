# SPDX-License-Identifier: Apache-2.0
"""The flame graph in the colors of the bottlenecks."""

from __future__ import annotations

from typing import Any

import pytest
from pages import CONTRAST, make_tree, next_frames, pixel

from gpuprof.analyze.metrics import Weight
from gpuprof.analyze.roofline.labels import Bound
from gpuprof.analyze.tree_work import NOT_CLASSIFIED
from gpuprof.render.flame_views import bound_coloring, weight_views
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.render.shown_tree import placed_tree

LABELS = (NOT_CLASSIFIED, *map(str, Bound))
# A call for each bottleneck, side by side.
ROWS = [(-1, "process", "p", 1, 0.0), *((0, "operator", str(bound), 1, 10.0) for bound in Bound)]
SWATCHES = "items => items.map(item => getComputedStyle(item).backgroundColor)"


def bottleneck_page(open_page: Any, **options: Any) -> Any:
    tree = make_tree(ROWS)
    shown = placed_tree(tree)
    html = flamegraph_page(
        shown,
        title="Bottlenecks",
        subtitle="test",
        views=weight_views(shown, [Weight("cpu", tree)]),
        colorings=[bound_coloring(shown, LABELS)],
        calls=9,
    )
    page = open_page(html, **options)
    page.locator("#color").select_option("bound")
    return page


def swatches(page: Any) -> list[str]:
    found: list[str] = page.locator("#legend i").evaluate_all(SWATCHES)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_bottleneck_has_a_color_of_its_own_on_which_text_is_readable(
    open_page: Any, scheme: str
) -> None:
    page = bottleneck_page(open_page, color_scheme=scheme)
    cells = ["rgb({}, {}, {})".format(*pixel(page, 1 + number)) for number in range(len(Bound))]
    assert len({*cells, "rgb({}, {}, {})".format(*pixel(page, 0))}) == len(LABELS)
    assert swatches(page)[:-1] == cells
    assert [each.rsplit(" ", 1)[0] for each in page.locator("#legend li").all_inner_texts()] == [
        *map(str, Bound),
        NOT_CLASSIFIED,
    ]
    ink = page.evaluate("window.__gpuprof.palette.ink")
    assert min(page.evaluate(f"{CONTRAST}('{cell}', '{ink}')") for cell in cells) >= 4.5


def test_the_legend_has_the_colors_of_the_theme(open_page: Any) -> None:
    page, dark = (
        bottleneck_page(open_page, color_scheme="light"),
        bottleneck_page(open_page, color_scheme="dark"),
    )
    light = swatches(page)
    page.locator("#theme").select_option("dark")
    next_frames(page)
    assert swatches(page) == swatches(dark) != light


def test_forced_colors_leave_one_color(open_page: Any) -> None:
    page = bottleneck_page(open_page, forced_colors="active")
    assert len({tuple(pixel(page, 1 + number)) for number in range(len(Bound))}) == 1
