# SPDX-License-Identifier: Apache-2.0
"""The page of a run of which short calls and rare paths are summed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import cells, state

import gpuprof
from gpuprof.render import flame_page, pruned_tree
from gpuprof.render import timeline as timeline_module
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code

STEPS = 40
LONG, SHORT = 1_000, 100  # ns


def run_of_steps(path: Path, factor: int = 1) -> gpuprof.Run:
    """Return a run of 40 calls of `outer`, each with a long call and two short ones of rare paths in it."""
    start, duration, names = [], [], []
    for step in range(STEPS):
        begin = step * 10_000
        for name, at, length in (
            ("outer", 0, 5_000),
            ("long", 10, LONG),
            ("one", 2_000, SHORT * factor),
            ("two", 3_000, SHORT),
        ):
            start.append(begin + at)
            duration.append(length)
            names.append(name)
    with imported_run(path) as run:
        run.add_spans(
            {
                "process_id": np.full(len(start), 1),
                "thread_id": np.full(len(start), 1),
                "name_id": np.array([run.name_id(name) for name in names]),
                "kind": np.full(len(start), kind_code("operator")),
                "start_ns": np.array(start),
                "duration_ns": np.array(duration),
            }
        )
        run.finish(ImportFacts(source="test"))
    return gpuprof.open(path)


@pytest.fixture(name="html")
def summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a page that draws the long calls and three paths."""
    monkeypatch.setattr(timeline_module, "BUDGET", 2 * STEPS + 5)
    small = pruned_tree.pruned
    monkeypatch.setattr(flame_page, "pruned", lambda *parts: small(*parts, most=3))
    made = run_of_steps(tmp_path / "r.gpuprof").flamegraph(tmp_path / "made.html")
    return made.read_text(encoding="utf-8")


def test_bands_show_the_short_calls(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline")
    assert (state(page, "timeline.count"), state(page, "timeline.merged")) == (2 * STEPS, 2 * STEPS)
    bands = state(page, "timeline.bands")
    assert sum(band["slices"] for band in bands) == 2 * STEPS
    assert sum(band["busy"] for band in bands) == 2 * STEPS * SHORT
    assert "80 longest of 160 calls" in page.locator("#timeline-note").inner_text()


def test_calls_of_equal_length_are_all_bands(
    open_page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 3)
    run = run_of_steps(tmp_path / "r.gpuprof")
    page = open_page(run.flamegraph(tmp_path / "made.html").read_text("utf-8"), fragment="#view=timeline")
    assert (state(page, "timeline.count"), state(page, "timeline.merged")) == (0, 4 * STEPS)
    assert sum(band["slices"] for band in state(page, "timeline.bands")) == 4 * STEPS


def test_totals_of_the_whole_run_are_exact(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline")
    rows = page.evaluate("window.__gpuprof.timeline.totals(0, 1e9)")
    found = {row["name"]: (row["calls"], row["own"], row["total"]) for row in rows}
    assert found == {
        "outer": (STEPS, STEPS * (5_000 - LONG - 2 * SHORT), STEPS * 5_000),
        "long": (STEPS, STEPS * LONG, STEPS * LONG),
        "one": (STEPS, STEPS * SHORT, STEPS * SHORT),
        "two": (STEPS, STEPS * SHORT, STEPS * SHORT),
    }


def test_a_band_has_a_tooltip_and_opens(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline")
    band = state(page, "timeline.bands")[3]
    at = {"x": band["x"] + band["width"] / 2, "y": band["y"] + 4}
    page.locator("#lanes-canvas").hover(position=at)
    assert "shorter than" in page.locator("#tooltip").inner_text()
    before = state(page, "timeline.window")
    page.locator("#lanes-canvas").click(position=at)
    after = state(page, "timeline.window")
    assert after["high"] - after["low"] < before["high"] - before["low"]


def test_the_search_reports_what_is_summed_up(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=both")
    page.locator("#search").fill("one")
    assert "1 path in cells “other” (40 calls, 4.00 us self" in page.locator("#found").inner_text()
    page.locator("#marked").wait_for()
    assert "40 calls too short to draw" in page.locator("#marked").inner_text()


def test_rare_paths_are_one_cell_and_rows_of_the_table(open_page: Any, html: str) -> None:
    page = open_page(html)
    labels = [cell["label"] for cell in cells(page)]
    assert labels.count("other (2 paths)") == 1
    names = page.locator("#rows tr th span").all_inner_texts()
    assert {"outer", "long", "one", "two"} <= set(names)
    assert "of 5 paths" in page.locator("p.left-out[data-view=flame]").inner_text()


def test_rare_paths_of_a_difference_are_one_cell_and_rows_of_the_table(
    open_page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = pruned_tree.pruned_sides
    monkeypatch.setattr(flame_page, "pruned_sides", lambda *parts: small(*parts, most=3))
    old, new = (run_of_steps(tmp_path / f"{factor}.gpuprof", factor) for factor in (1, 5))
    page = open_page(new.flamegraph(tmp_path / "made.html", against=old).read_text(encoding="utf-8"))
    assert [cell["label"] for cell in cells(page)].count("other (2 paths)") == 1
    rows = {
        row.locator("th span").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#rows tr").all()
    }
    assert rows["one"][1:6] == ["+16.0 us", "slower", "4.00 us", "20.0 us", "+400.0%"]
    assert rows["two"][1] == "0 ns"
    assert "other (2 paths)" not in rows
    assert set(page.locator("#hot button .name").all_inner_texts()) == {"one", "outer"}
    page.locator("#search").fill("one")
    assert "1 path in cells “other”" in page.locator("#found").inner_text()
