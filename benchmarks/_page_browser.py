# SPDX-License-Identifier: Apache-2.0
"""A page's times and memory in a headless Chromium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

VIEWPORT = {"width": 1600, "height": 1000}
# Milliseconds of each of n calls; the first is thrown away, since it compiles. A canvas may put drawing off,
# so a pixel of what was drawn is asked for, from a copy: reading the page's own canvas would change it.
_TIMED = """([what, repeats]) => {
    const { timeline, search, redraw } = window.__gpuprof;
    const { low, high } = timeline.whole;
    const zoomed = what === "zoomed";
    timeline.zoom(zoomed ? low + (high - low) * 0.4 : low, zoomed ? low + (high - low) * 0.5 : high);
    const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const painted = (canvas) => {
        copy.drawImage(document.getElementById(canvas), 0, 0);
        copy.getImageData(0, 0, 1, 1);
    };
    const drawTimeline = () => { timeline.redraw(); painted("lanes-canvas"); };
    const actions = {
        whole: drawTimeline,
        zoomed: drawTimeline,
        flame: () => { redraw(); painted("canvas"); },
        search: (i) => { search(`operation_${100 + i}`); void timeline.marked; },
        range: () => timeline.totals(low, low + (high - low) / 2),
    };
    const times = [];
    for (let i = 0; i <= repeats; i++) {
        const begin = performance.now();
        actions[what](i);
        times.push(performance.now() - begin);
    }
    search("");
    return times.slice(1);
}"""


def measure_page(page: Path, repeats: int) -> dict[str, list[float]]:
    """Return the figures of the page, a list of repeats each; nothing where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    path = (
        os.environ.get("GPUPROF_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-headless-shell")
    )
    with sync_playwright() as playwright:
        if path is None and not Path(playwright.chromium.executable_path).exists():
            return {}
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        )
        try:
            found = {"ready_ms": [_time_to_ready(browser, page) for _ in range(repeats)]}
            found.update(_measure_opened(browser, page, repeats))
        finally:
            browser.close()
    return found


def _opened(browser: Any, page: Path, fragment: str = "") -> tuple[Any, Any]:
    context = browser.new_context(viewport=VIEWPORT)
    opened = context.new_page()
    opened.goto(page.as_uri() + fragment)
    opened.locator("html[data-ready]").wait_for(state="attached")
    return context, opened


def _time_to_ready(browser: Any, page: Path) -> float:
    """Milliseconds from the navigation to ready, by the page's own clock: reading the file is in it."""
    context, opened = _opened(browser, page)
    ready: float = opened.evaluate("window.__gpuprof.readyAt")
    context.close()
    return ready


def _measure_opened(browser: Any, page: Path, repeats: int) -> dict[str, list[float]]:
    context, opened = _opened(browser, page, "#view=timeline")
    names = {"whole": "redraw_ms", "zoomed": "zoomed_redraw_ms", "search": "search_ms", "range": "range_ms"}
    found = {name: opened.evaluate(_TIMED, [what, repeats]) for what, name in names.items()}
    session = context.new_cdp_session(opened)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    total = usage["usedSize"] + usage.get("backingStorageSize", 0) + usage.get("embedderHeapUsedSize", 0)
    found["heap_mb"] = [total / 1e6]
    context.close()
    context, opened = _opened(browser, page)
    found["flame_redraw_ms"] = opened.evaluate(_TIMED, ["flame", repeats])
    context.close()
    return found
