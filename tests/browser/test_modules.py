# SPDX-License-Identifier: Apache-2.0
"""The modules of the pages in a real browser: scopes, globals, and the formatters that all pages share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import STEP, make_page

import gpuprof.render
from gpuprof.render.page import amount, bundled_script, duration

FORMATTERS = Path(gpuprof.render.__file__).parent / "assets" / "kit" / "format.js"
VALUES = [0, 1, 9, 10, 99, 100, 999, 1000, 1234, 9_994, 9_996, 99_940, 99_960, 999_499, 999_500, 10**6]
LARGE = [5 * 10**digits for digits in range(7, 20)]


@pytest.fixture(name="blank")
def blank_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "blank.html"
    file.write_text("<!doctype html>", encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    yield page
    page.close()


def run_module(page: Any, folder: Path, *lines: str) -> Any:
    """Return what a module passes to `show`."""
    entry = folder / "main.js"
    entry.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    start = "let shown; const show = (value) => { shown = value; };"
    return page.evaluate(f"() => {{ {start}\n{bundled_script(entry)}return shown; }}")


def formatted(page: Any, folder: Path, *calls: str) -> list[str]:
    shutil.copy(FORMATTERS, folder)
    names = ", ".join(sorted({call.partition("(")[0] for call in calls}))
    texts: list[str] = run_module(
        page, folder, f'import {{ {names} }} from "./format.js";', f"show([{', '.join(calls)}]);"
    )
    return texts


def test_private_names_of_modules_do_not_meet(blank: Any, tmp_path: Path) -> None:
    (tmp_path / "one.js").write_text("const name = 1;\nexport const one = () => name;\n", encoding="utf-8")
    (tmp_path / "two.js").write_text("const name = 2;\nexport const two = () => name;\n", encoding="utf-8")
    imports = ('import { one } from "./one.js";', 'import { two } from "./two.js";')
    found = run_module(blank, tmp_path, *imports, "const name = 3;", "show([one(), two(), name]);")
    assert found == [1, 2, 3]


def test_a_page_has_one_global(open_page: Any, blank: Any) -> None:
    page = open_page(make_page(STEP))
    # An element with an id is a property of the window as well.
    names = "Object.keys(window).filter(name => !document.getElementById(name))"
    assert set(page.evaluate(names)) - set(blank.evaluate(names)) == {"__gpuprof"}


@pytest.mark.parametrize("unit", ["ns", "launches", "B", "FLOP"])
def test_amounts_are_written_as_in_python(blank: Any, tmp_path: Path, unit: str) -> None:
    values = [value for value in (*VALUES, *LARGE) if unit != "ns" or value < 10**18]
    found = formatted(blank, tmp_path, *(f'formatAmount({value}, "{unit}")' for value in values))
    assert found == [amount(value, unit) for value in values]


def test_durations_are_written_as_in_python(blank: Any, tmp_path: Path) -> None:
    values = [*VALUES, 999.4, 999_499_999, 999_500_000, 61_600_000_000, 10**15]
    found = formatted(blank, tmp_path, *(f"formatDuration({value})" for value in values))
    assert found == [duration(value) for value in values]


def test_a_difference_of_times_has_its_sign(blank: Any, tmp_path: Path) -> None:
    calls = (f"formatTimeChange({ns})" for ns in (-24_239_703_827, -1, 0, 34_398_680))
    assert formatted(blank, tmp_path, *calls) == ["−24.2 s", "−1 ns", "0 ns", "+34.4 ms"]


def test_the_unavailable_is_a_value(blank: Any, tmp_path: Path) -> None:
    texts = {
        'formatAmount(null, "B/s")': "–",
        'formatAmount(0.5, "FLOP/s")': "0.50 FLOP/s",
        'formatAmount(2.5e12, "FLOP/s")': "2.50 TFLOP/s",
        "formatPercent(null)": "–",
        "formatPercent(0)": "0.00%",
        "formatPercent(0.00001)": "<0.01%",
        "formatPercent(0.0042)": "0.42%",
        "formatPercent(0.5)": "50.0%",
        "formatFraction(1, 0)": "–",
        "formatFraction(1, 3)": "33.3%",
    }
    assert formatted(blank, tmp_path, *texts) == [*texts.values()]
