# SPDX-License-Identifier: Apache-2.0
"""The roofline page in a real browser."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.build import Roofline
from gpuprof.analyze.roofline.evidence import (
    ComputeFigures,
    DispatchFigures,
    Evidence,
    Fix,
    MemoryFigures,
    NoLabel,
    RooflineAdvice,
    RooflineNote,
    RooflineNoteCode,
)
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.analyze.roofline.rows import RooflineDevice, RooflineRow, Unmatched
from gpuprof.record.facts import Note, NoteCode
from gpuprof.render.roofline import roofline_page

HOSTILE = "</script><img src=x onerror=alert(1)>"
HOSTILE_NOTE = Note(NoteCode.TEXT, {"text": f"a note {HOSTILE}"})
CEILINGS = (
    Ceiling("cpu", "compute", "fp32", 100e9, "flop_per_s", 0.0, "best: fma"),
    Ceiling("cpu", "compute", "int8", 900e9, "flop_per_s", 0.0, "best: dot"),
    Ceiling("cpu", "memory.l2", None, 100e9, "bytes_per_s", 0.0, "best: read"),
    Ceiling("cpu", "memory.dram", None, 10e9, "bytes_per_s", 0.0, "best: read"),
)


def row(name: str, **values: Any) -> RooflineRow:
    usual: dict[str, Any] = {
        "kind": "operator",
        "name": name,
        "root": "Net",
        "layer": "fc",
        "operator": "aten::mm",
        "ordinal": 0,
        "phase": "forward",
        "dtype": "float32",
        "calls": 3,
        "time_ns": 1e6,
        "total_ns": 3_000_000,
        "time_share": 0.3,
        "timing_spread": 0.1,
        "flops": 80_000_000,
        "bytes": 1_000_000,
        "exactness": "exact",
        "bound": Bound.COMPUTE,
        "nearest": Resource.COMPUTE,
        "roof": "compute fp32",
        "roof_share": 0.8,
        "used": dict(zip(Resource, (0.8, 0.1, 0.0, None), strict=True)),
        "memory_level": "dram",
        "memory_bytes": 1_000_000.0,
        "confidence": 0.9,
        "evidence": Evidence((ComputeFigures(80e9, 100e9, "fp32", False, False),)),
        "advice": RooflineAdvice(Fix.FASTER_TYPE, per_s=80e9, speedup=4.0),
    }
    return RooflineRow(**{**usual, **values})


MEMORY = {
    "bound": Bound.MEMORY,
    "nearest": Resource.MEMORY,
    "roof": "memory.dram",
    "flops": 1_000_000,
    "memory_bytes": 8_000_000.0,
    "total_ns": 2_000_000,
    "time_share": 0.2,
    "advice": None,
    "phase": "backward",
    "evidence": Evidence((MemoryFigures(8e9, 10e9, "dram", 8e6, ""),)),
}
OPERATORS = (
    row("mm @ fc"),
    row("add @ fc", **MEMORY),
    row(
        HOSTILE,
        total_ns=1_000_000,
        time_share=0.1,
        bound=Bound.UNDERUTILIZED,
        advice=None,
        flops=10_000_000,
    ),
    row(
        "copy @ fc",
        total_ns=500_000,
        time_share=0.05,
        flops=0,
        advice=None,
        bound=Bound.LATENCY,
        nearest=Resource.LATENCY,
    ),
)
LAYER = dataclasses.replace(OPERATORS[0], kind="layer", name="Net/fc")


def make_page(operators: tuple[RooflineRow, ...] = OPERATORS, **options: Any) -> str:
    usual: dict[str, Any] = {
        "operators": operators,
        "layers": (LAYER,) if operators else (),
        "unmatched": (Unmatched(HOSTILE, "", 2, 1_000_000, 0.1, NoLabel.OUTSIDE_MODELS),),
        "ceilings": CEILINGS,
        "device": "cpu",
        "total_ns": 10_000_000,
        "matched_share": 0.65,
        "notes": (RooflineNote(RooflineNoteCode.RECORDING, recording=HOSTILE_NOTE),),
    }
    return roofline_page(Roofline(**{**usual, **options}), title=HOSTILE, subtitle="a machine")


@pytest.fixture(name="page")
def usual_page(open_page: Any) -> Any:
    return open_page(make_page())


def selected(page: Any) -> int:
    index: int = page.evaluate("window.__gpuprof.selected")
    return index


def circle(page: Any, index: int) -> Any:
    return page.locator(f"circle[data-row='{index}']")


def lit_rows(page: Any) -> list[str]:
    names: list[str] = page.locator("#rows tr.lit th").all_inner_texts()
    return names


def test_points_are_at_their_work_and_as_large_as_their_time(page: Any) -> None:
    assert page.locator("circle.point").count() == 3  # a copy calculates nothing
    at = page.evaluate("window.__gpuprof.rows.map(row => row.at)")
    assert at[0] == {"intensity": 80, "rate": pytest.approx(80e9)}
    assert at[1] == {"intensity": 0.125, "rate": pytest.approx(1e9)}
    assert at[3] is None
    first, second = (float(circle(page, index).get_attribute("r")) for index in (0, 1))
    assert first / second == pytest.approx(math.sqrt(1.5), rel=0.01)
    assert float(circle(page, 0).get_attribute("cx")) > float(circle(page, 1).get_attribute("cx"))
    assert float(circle(page, 0).get_attribute("cy")) < float(circle(page, 1).get_attribute("cy"))


def test_ceilings_of_the_types_and_levels_in_use(page: Any) -> None:
    names = page.locator(".ceiling-name").all_text_contents()
    assert names == ["fp32 100 GFLOP/s", "L2 100 GB/s", "DRAM 10.0 GB/s"]


@pytest.mark.parametrize("width", [360, 1280])
def test_names_of_ceilings_do_not_overlap(open_page: Any, width: int) -> None:
    def level(name: str, value: float) -> Ceiling:
        return Ceiling("cpu", f"memory.{name}", None, value, "bytes_per_s", 0.0, "by hand")

    close = (level("l1", 110e9), level("l2", 100e9), level("l3", 90e9), level("dram", 40e9))
    page = open_page(make_page(ceilings=(*CEILINGS[:2], *close)))
    page.set_viewport_size({"width": width, "height": 700})
    page.wait_for_function("width => document.querySelector('#plot').clientWidth < width", arg=width)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    below = page.locator("#unnamed").inner_text()
    names = page.locator("text.ceiling-name").all_text_contents()
    assert len(names) == len(set(names))
    for name in ("L1 110 GB/s", "L2 100 GB/s", "L3 90.0 GB/s", "DRAM 40.0 GB/s"):
        assert (name in names) != (name in below)
    if width == 1280:
        peak = page.locator("text[data-ceiling='compute fp32']").bounding_box()
        dram = page.locator("text[data-ceiling='memory.dram']").bounding_box()
        assert dram["y"] >= peak["y"] + peak["height"]


def test_whole_numbers_have_operations_and_times_one_unit(open_page: Any) -> None:
    dispatch = Evidence((DispatchFigures(30e3, 1.06e3),))
    quantised = row("q @ fc", dtype="int8", roof="compute int8", evidence=dispatch)
    page = open_page(make_page((quantised,)))
    assert "int8 900 GOP/s" in page.locator("text.ceiling-name").all_text_contents()
    assert page.locator("#rows td").last.inner_text() == "30.0 us, dispatch 1.06 us"
    assert "µs" not in page.content()


def test_on_a_narrow_screen_tables_scroll_and_words_stay(open_page: Any) -> None:
    name = "aten::scaled_dot_product_attention"
    attention = Unmatched(name, "fc", 2, 1_000_000, 0.1, NoLabel.NOT_IN_COUNTED_CALL)
    page = open_page(make_page(unmatched=(attention,)))
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    caption = page.locator("#caption").bounding_box()
    assert caption["x"] + caption["width"] <= 360
    assert page.locator(".table #caption").count() == 0
    assert page.locator(".unmatched table").bounding_box()["width"] >= 640
    assert page.locator(".unmatched th wbr").count() == 3


def test_the_head_names_the_base_of_the_time(page: Any) -> None:
    assert page.locator("#base-name").inner_text() == "In calls"
    assert "Python between them" in page.locator("#base").get_attribute("title")


def test_a_point_below_its_memory_ceiling_is_drawn_below_it(page: Any) -> None:
    def number(selector: str, name: str) -> float:
        return float(page.locator(selector).get_attribute(name))

    line = "line[data-ceiling='memory.dram']"
    x1, y1, x2, y2 = (number(line, name) for name in ("x1", "y1", "x2", "y2"))
    x, y = number("circle[data-row='1']", "cx"), number("circle[data-row='1']", "cy")
    ceiling = y1 + (x - x1) / (x2 - x1) * (y2 - y1)
    # At 80% of the ceiling: log10(1 / 0.8) of a decade below.
    decade = abs(x2 - x1) and abs(y2 - y1) / math.log10((100e9 / 10e9) / 10 ** math.floor(math.log10(0.125)))
    assert 0 < y - ceiling < 0.2 * decade


def test_pointing_shows_the_evidence_and_highlights_the_ceiling(page: Any) -> None:
    circle(page, 1).hover()
    assert "8 of 10 GB/s dram" in page.locator("#tooltip").inner_text()
    assert page.locator("line.ceiling.lit").get_attribute("data-ceiling") == "memory.dram"
    page.locator("h1").hover()
    assert page.locator("#tooltip").is_hidden()
    assert page.locator("line.ceiling.lit").count() == 0


def test_a_point_chooses_its_row_and_a_row_its_point(page: Any) -> None:
    circle(page, 1).click()
    assert lit_rows(page) == ["← add @ fc"]
    assert "add @ fc: memory (dram)" in page.locator("#details").inner_text()
    page.locator("#rows tr").first.click()
    assert selected(page) == 0
    assert "lit" in circle(page, 0).get_attribute("class")
    page.keyboard.press("Escape")
    assert (selected(page), lit_rows(page)) == (-1, [])


def test_keys_walk_through_the_rows_in_the_order_of_the_table(page: Any) -> None:
    page.locator("#plot").focus()
    for expected in (0, 1, 2, 3, 3):
        page.keyboard.press("ArrowRight")
        assert selected(page) == expected
    page.keyboard.press("ArrowUp")
    assert selected(page) == 2
    page.locator("#rows tr").first.focus()
    page.keyboard.press("Enter")
    assert selected(page) == 0
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.row") == "1"


def test_the_table_sorts(page: Any) -> None:
    def names() -> list[str]:
        return [str(text) for text in page.locator("#rows th").all_inner_texts()]

    assert [name[:4] for name in names()] == ["mm @", "← ad", "</sc", "copy"]
    page.locator("#heads button", has_text="Time").click()
    assert [name[:4] for name in names()] == ["copy", "</sc", "← ad", "mm @"]
    assert page.locator("#heads th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_a_bottleneck_can_be_hidden(page: Any) -> None:
    button = page.locator("#legend button", has_text="memory")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("circle.point").count() == 2
    assert page.locator("#rows tr").count() == 3
    button.click()
    assert page.locator("circle.point").count() == 3


def test_layers_instead_of_operators(page: Any) -> None:
    page.locator("#by-layer").click()
    assert page.locator("#rows th").all_inner_texts() == ["Net/fc"]
    assert page.locator("circle.point").count() == 1
    assert "1 of 1 layers" in page.locator("#caption").inner_text()


def test_hostile_names_are_text(page: Any) -> None:
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == f"Roofline · {HOSTILE}"
    assert HOSTILE in page.locator("#rows").inner_text()
    assert HOSTILE in page.locator(".unmatched").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_contrast(open_page: Any, scheme: str) -> None:
    page = open_page(make_page(), color_scheme=scheme)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]
    page.locator("#theme").select_option("dark" if scheme == "light" else "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != back


def test_a_narrow_window_draws_again(page: Any) -> None:
    wide = float(circle(page, 0).get_attribute("cx"))
    page.set_viewport_size({"width": 700, "height": 700})
    page.wait_for_selector("#plot[viewBox^='0 0 6']", state="attached")
    assert float(circle(page, 0).get_attribute("cx")) < wide


def test_an_empty_roofline_has_a_message(open_page: Any) -> None:
    page = open_page(make_page(()))
    assert "nothing to draw" in page.locator("#sentence").inner_text()
    assert page.locator("#main").is_hidden()


def test_without_scripts_there_is_a_table(open_page: Any) -> None:
    page = open_page(make_page(), java_script_enabled=False)
    assert "80 of 100 GFLOP/s fp32" in page.locator(".static").inner_text()
    assert page.locator("img").count() == 0


def test_advice_is_above_the_plot(page: Any) -> None:
    (advice,) = page.locator(".advice li").all_inner_texts()
    assert advice.startswith("mm @ fc (30.0%)")


def page_of_two_devices(open_page: Any) -> Any:
    """A host and a simulated GPU, with a kernel."""
    on_gpu = [
        dataclasses.replace(each, device="cuda:0", name=f"{each.name} on the GPU", bound="launch")
        for each in OPERATORS[:2]
    ]
    roofs = [dataclasses.replace(each, device="cuda:0", value=each.value * 1000) for each in CEILINGS]
    html = make_page(
        (*OPERATORS, *on_gpu),
        ceilings=(*CEILINGS, *roofs),
        kernels=(dataclasses.replace(on_gpu[0], kind="kernel", name=HOSTILE),),
        devices=(
            RooflineDevice("cuda:0", HOSTILE, 3_000_000, 0.5),
            RooflineDevice("cpu", None, 10_000_000, 0.65),
        ),
    )
    return open_page(html)


def test_each_device_has_its_own_rows_and_ceilings(open_page: Any) -> None:
    page = page_of_two_devices(open_page)
    assert page.evaluate("window.__gpuprof.device") == "cuda:0"
    assert page.locator("#rows tr").count() == 2
    assert "fp32 100 TFLOP/s" in page.locator(".ceiling-name").all_text_contents()
    assert (page.locator("#total").inner_text(), page.locator("#matched").inner_text()) == (
        "3.00 ms",
        "50.0%",
    )
    assert HOSTILE in page.locator("#device option").first.inner_text()
    page.locator("#device").select_option(label="cpu: 10.0 ms in recorded calls")
    assert page.locator("#rows tr").count() == 4
    assert "fp32 100 GFLOP/s" in page.locator(".ceiling-name").all_text_contents()
    assert page.locator("#total").inner_text() == "10.0 ms"
    assert page.locator("#by-kernel").is_hidden()


def test_kernels_instead_of_operators(open_page: Any) -> None:
    page = page_of_two_devices(open_page)
    page.locator("#by-kernel").click()
    assert page.locator("#rows th").all_inner_texts() == [HOSTILE]
    assert "1 of 1 kernels" in page.locator("#caption").inner_text()
    # The host has none: its operators are shown.
    page.locator("#device").select_option(index=1)
    assert page.locator("#by-operator").get_attribute("aria-pressed") == "true"


def test_a_run_of_the_host_alone_asks_for_no_device(page: Any) -> None:
    assert page.locator("#device").is_hidden()
    assert page.locator("#by-kernel").is_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_names_of_ceilings_meet_no_circle_and_no_other_ceiling(open_page: Any, width: int) -> None:
    large = row("large", flops=95_000_000, total_ns=10**12)
    page = open_page(make_page((large, *OPERATORS)))
    page.set_viewport_size({"width": width, "height": 700})
    page.wait_for_function("width => document.querySelector('#plot').clientWidth < width", arg=width)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    meets = """() => [...document.querySelectorAll('.ceiling-name')].flatMap((name) => {
      const box = name.getBoundingClientRect();
      return [...document.querySelectorAll('.point')].filter((point) => {
        const other = point.getBoundingClientRect();
        return name.getAttribute('transform') === null && box.left < other.right && other.left < box.right
          && box.top < other.bottom && other.top < box.bottom;
      }).map(() => name.textContent);
    })"""
    assert page.evaluate(meets) == []
