# SPDX-License-Identifier: Apache-2.0
"""Trees to show, and what the tests ask of a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.run.format import KINDS

Rows = list[tuple[int, str, str, int, int]]

MS = 1_000_000

# parent, kind, name, calls, self time in ms. The self times add up to 100 ms, so they are percents.
STEP = [
    (-1, "process", "python train.py", 1, 0),
    (0, "span", "step", 2, 10),
    (1, "layer", "fc (Linear)", 2, 5),
    (2, "operator", "aten::linear", 2, 5),
    (3, "operator", "aten::addmm", 4, 40),
    (1, "backward", "autograd::engine::evaluate_function: AddmmBackward0", 2, 10),
    (5, "operator", "aten::mm", 4, 30),
]
ADDMM, BACKWARD, MM = 4, 5, 6

# From a copy: reading the page's own canvas often makes Chromium print advice about it.
READ_PIXEL = """([x, y]) => {
    const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    copy.drawImage(document.getElementById("canvas"), -Math.round(x), -Math.round(y));
    return [...copy.getImageData(0, 0, 1, 1).data];
}"""


def make_tree(rows: Rows) -> CallTree:
    names = sorted({row[2] for row in rows})
    index = {name: i for i, name in enumerate(names)}
    parent = np.array([row[0] for row in rows], dtype=np.int32)
    own = np.array([row[4] * MS for row in rows], dtype=np.int64)
    total = own.copy()
    for node in range(len(rows) - 1, -1, -1):
        if parent[node] >= 0:
            total[parent[node]] += total[node]
    return CallTree(
        parent=parent,
        kind=np.array([KINDS.index(row[1]) for row in rows], dtype=np.uint8),
        name=np.array([index[row[2]] for row in rows], dtype=np.int32),
        calls=np.array([row[3] for row in rows], dtype=np.int64),
        total_ns=total,
        own_ns=own,
        threads=np.ones(len(rows), dtype=np.int32),
        process_id=np.ones(len(rows), dtype=np.int64),
        names=names,
    )


def make_page(rows: Rows, **options: Any) -> str:
    return flamegraph_page(make_tree(rows), **({"title": "A step", "subtitle": "test"} | options))


# JavaScript: WCAG's contrast of two colors.
CONTRAST = """((one, other) => {
    const light = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number)
        .map(value => value / 255)
        .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const [dark, bright] = [light(one), light(other)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05);
})"""


def cells(page: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate("window.__gpuprof.visibleCells")
    return found


def cell_of(page: Any, node: int) -> dict[str, Any]:
    return next(cell for cell in cells(page) if cell["node"] == node)


def click(page: Any, node: int, *, times: int = 1) -> None:
    cell = cell_of(page, node)
    position = {"x": cell["x"] + cell["width"] / 2, "y": cell["y"] + cell["height"] / 2}
    page.locator("#canvas").click(position=position, click_count=times)


def state(page: Any, name: str) -> Any:
    return page.evaluate(f"window.__gpuprof.{name}")


def stage_width(page: Any) -> float:
    width: float = page.evaluate("document.getElementById('stage').clientWidth")
    return width


def pixel(page: Any, node: int) -> list[int]:
    """The color in the lower right of a cell, where no label is."""
    cell = cell_of(page, node)
    at = [cell["x"] + cell["width"] - 6, cell["y"] + cell["height"] - 5]
    return pixel_at(page, at)


def pixel_at(page: Any, at: list[float]) -> list[int]:
    color: list[int] = page.evaluate(READ_PIXEL, at)
    return color


def next_frames(page: Any) -> None:
    """Let the browser notify the page of new media or sizes, and the page draw."""
    for _ in range(3):
        page.evaluate("new Promise(done => requestAnimationFrame(done))")


def background(page: Any) -> str:
    color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return color


# For each plot of plotly what its buttons cover, and their contrast with the page.
BUTTONS = r"""() => {
    const box = (each) => each.getBoundingClientRect();
    const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = (color) => {
        const [r, g, b] = color.match(/[\d.]+/g).map((each) => linear(each / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const page = light(getComputedStyle(document.body).backgroundColor);
    const drawn = ".legend, .nsewdrag, .xtick text, .ytick text, .annotation, .textpoint";
    return [...document.querySelectorAll(".js-plotly-plot")].map((plot) => {
        const buttons = box(plot.querySelector(".modebar"));
        const covered = [...plot.querySelectorAll(drawn)].filter((each) => meets(buttons, box(each)));
        const symbols = [...plot.querySelectorAll(".modebar-btn path")];
        const lights = symbols.map((each) => light(getComputedStyle(each).fill));
        return {
            height: buttons.height,
            covered: covered.map((each) => each.classList.value),
            contrast: Math.min(...lights.map((each) => Math.max(each, page) / Math.min(each, page))),
        };
    });
}"""
LEAST_CONTRAST = 3  # of symbols, by WCAG


def check_buttons(page: Any, plots: int) -> None:
    """Fail where buttons of a plot cover what it draws, or can hardly be seen."""
    found = page.evaluate(BUTTONS)
    assert len(found) == plots
    assert [each["covered"] for each in found] == [[]] * plots
    assert all(each["height"] > 0 and each["contrast"] >= LEAST_CONTRAST for each in found), found
