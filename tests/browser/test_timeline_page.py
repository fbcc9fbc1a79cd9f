# SPDX-License-Identifier: Apache-2.0
"""The timeline in a real browser, and what the page saves. GPU work is replayed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from cpu_work import busy
from pages import READ_PIXEL, background, cell_of, click, make_page, next_frames, state
from run_edits import forget_parts, parquet_of
from trace_readers import read_chrome

import gpuprof
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import imported_run, kind_code

US = 1_000
MS = 1_000_000
HOSTILE = "</script><img src=x onerror=alert(1)> & \u2028 a;b\u202e"

# begin and duration in ms, name; of three steps of 30 ms each.
STEP = [
    (0, 28, "step"),
    (1, 12, "forward"),
    (2, 4, "matmul"),
    (7, 5, "relu"),
    (14, 12, "backward pass"),
    (15, 6, "matmul"),
    (22, 3, HOSTILE),
]
STEPS = 3


def write_run(path: Path, rows: list[tuple[float, float, str]], kind: str = "span") -> gpuprof.Run:
    with imported_run(path) as run:
        columns = {
            "process_id": np.full(len(rows), 7),
            "thread_id": np.full(len(rows), 1),
            "kind": np.full(len(rows), kind_code(kind)),
            "name_id": np.array([run.name_id(name) for _, _, name in rows], dtype=np.int64),
            "start_ns": np.array([int(start * MS) for start, _, _ in rows], dtype=np.int64),
            "duration_ns": np.array([int(duration * MS) for _, duration, _ in rows], dtype=np.int64),
        }
        run.add_spans(columns)
        run.finish(ImportFacts(source="test", thread_names={(7, 1): "main"}))
    return gpuprof.open(path)


def steps() -> list[tuple[float, float, str]]:
    return [(30 * step + start, duration, name) for step in range(STEPS) for start, duration, name in STEP]


def page_text(run: gpuprof.Run, **options: Any) -> str:
    return run.flamegraph(run.path.parent / "page.html", **options).read_text(encoding="utf-8")


@pytest.fixture(name="html", scope="module")
def steps_html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_text(write_run(tmp_path_factory.mktemp("steps") / "steps.gpuprof", steps()))


@pytest.fixture(name="page")
def steps_page(open_page: Any, html: str) -> Any:
    return open_page(html, fragment="#view=timeline")


def timeline(page: Any, expression: str) -> Any:
    return page.evaluate(f"window.__gpuprof.timeline.{expression}")


def slices(page: Any) -> list[dict[str, Any]]:
    return [timeline(page, f"slice({number})") for number in range(timeline(page, "count"))]


def find(page: Any, name: str, step: int = 0) -> int:
    """The place of a step's slice of this name; of two of the name, the first."""
    starts = {i: each["start"] for i, each in enumerate(slices(page)) if each["name"] == name}
    return min((i for i in starts if starts[i] >= step * 30 * MS), key=lambda i: starts[i])


def block_of(page: Any, number: int) -> dict[str, Any]:
    return next(each for each in timeline(page, "blocks") if each["slice"] == number)


def middle(block: dict[str, Any]) -> dict[str, float]:
    return {"x": block["x"] + block["width"] / 2, "y": block["y"] + block["height"] / 2}


def click_slice(page: Any, number: int) -> None:
    page.locator("#lanes-canvas").click(position=middle(block_of(page, number)))


def focus(page: Any) -> None:
    page.locator("#lanes-canvas").focus()


def press_at_once(page: Any, key: str, times: int) -> None:
    """One movement, also where a loaded machine lets the page's own timer run out between two presses."""
    focus(page)
    page.evaluate(
        """([key, times]) => {
            for (let pressed = 0; pressed < times; pressed++)
                document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        }""",
        [key, times],
    )


def selected_name(page: Any) -> str:
    name: str = timeline(page, f"slice({timeline(page, 'selected')})")["name"]
    return name


def pixel_of(page: Any, number: int) -> list[int]:
    """The color in the lower right of a slice, where no label is, above the bar of a marked call."""
    block = block_of(page, number)
    at = [block["x"] + block["width"] - 5, block["y"] + block["height"] - 7]
    color: list[int] = page.evaluate(READ_LANES, at)
    return color


READ_LANES = """([x, y]) => {
    window.__gpuprof.timeline.redraw();
    const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    copy.drawImage(document.getElementById("lanes-canvas"), -Math.round(x), -Math.round(y));
    return [...copy.getImageData(0, 0, 1, 1).data];
}"""


# ---- the picture --------------------------------------------------------------------------------


def test_slices_are_where_their_times_are(page: Any) -> None:
    width = page.evaluate("document.getElementById('lanes').clientWidth")
    whole = timeline(page, "whole")
    assert whole == {"low": 0, "high": 88 * MS}
    for number, each in enumerate(slices(page)):
        block = block_of(page, number)
        assert block["hidden"] == 0
        assert block["x"] == pytest.approx(width * each["start"] / whole["high"], abs=0.01)
        assert block["width"] == pytest.approx(width * each["duration"] / whole["high"], abs=0.01)
    rows = {each["level"]: block_of(page, number)["y"] for number, each in enumerate(slices(page))}
    assert sorted(rows.values()) == [rows[level] for level in sorted(rows)]


def test_slices_know_what_is_around_them(page: Any) -> None:
    relu = slices(page)[find(page, "relu", 1)]
    assert (relu["depth"], relu["level"], relu["kind"]) == (2, 2, "span")
    assert relu["parent"] == find(page, "forward", 1)


def test_slices_too_short_to_draw_are_counted(open_page: Any, tmp_path: Path) -> None:
    rows = [(0.0, 100.0, "all")] + [(i / 100, 0.005, f"short {i % 7}") for i in range(1, 9_900)]
    page = open_page(page_text(write_run(tmp_path / "many.gpuprof", rows)), fragment="#view=timeline")
    top = block_of(page, 0)["y"]
    blocks = [each for each in timeline(page, "blocks") if each["y"] > top]
    assert sum(each["hidden"] or 1 for each in blocks) == 9_899
    assert len(blocks) <= page.evaluate("document.getElementById('lanes').clientWidth") + 1
    block = max(blocks, key=lambda each: each["hidden"])
    page.locator("#lanes-canvas").hover(position=middle(block))
    assert page.locator("#tooltip b").inner_text() == f"{block['hidden']} slices too short to draw"
    page.locator("#lanes-canvas").click(position=middle(block))
    window = timeline(page, "window")
    assert window["high"] - window["low"] < 2 * MS
    assert window["low"] <= timeline(page, f"slice({block['slice']})")["start"] <= window["high"]


def test_hostile_names_are_text(page: Any) -> None:
    number = find(page, HOSTILE.replace("\u2028", r"\u2028").replace("\u202e", r"\u202e"))
    page.locator("#lanes-canvas").hover(position=middle(block_of(page, number)))
    assert page.locator("#tooltip b").inner_text().startswith("</script><img")
    click_slice(page, number)
    timeline(page, "range(0, 30e6)")
    assert page.locator("#details b").inner_text().startswith("</script><img")
    assert page.locator("img").count() == 0
    assert page.locator("#range-rows th b, #tooltip b *").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_reaches_the_timeline(open_page: Any, html: str, scheme: str) -> None:
    page = open_page(html, fragment="#view=timeline", color_scheme=scheme)
    color = pixel_of(page, find(page, "step"))
    page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    next_frames(page)
    assert pixel_of(page, find(page, "step")) != color
    assert background(page) == ("rgb(20, 23, 28)" if scheme == "light" else "rgb(255, 255, 255)")


def test_forced_colors_are_kept(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline", forced_colors="active")
    canvas = page.evaluate(
        "(() => { const probe = document.createElement('i'); probe.style.color = 'Canvas';"
        "document.body.append(probe); return getComputedStyle(probe).color.match(/\\d+/g).map(Number); })()"
    )
    assert pixel_of(page, find(page, "step"))[:3] == canvas


def test_three_hundred_and_sixty_pixels_are_enough(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=both", viewport={"width": 360, "height": 800})
    timeline(page, "range(0, 30e6)")
    timeline(page, "select(3)")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


# ---- moving -------------------------------------------------------------------------------------


def test_the_wheel_zooms_at_the_pointer(page: Any) -> None:
    box = page.locator("#lanes-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 30)
    page.mouse.wheel(0, -300)
    next_frames(page)
    window = timeline(page, "window")
    assert window["high"] - window["low"] < 50 * MS
    assert window["low"] + (window["high"] - window["low"]) / 4 == pytest.approx(22 * MS, rel=0.02)


def test_dragging_moves_the_window(page: Any) -> None:
    timeline(page, "zoom(20e6, 40e6)")
    box = page.locator("#lanes-canvas").bounding_box()
    page.mouse.move(box["x"] + 800, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 800 - box["width"] / 4, box["y"] + 40, steps=3)
    page.mouse.up()
    assert timeline(page, "window") == pytest.approx({"low": 25 * MS, "high": 45 * MS}, rel=0.01)
    assert timeline(page, "selected") == -1


def test_the_window_stays_in_the_run(page: Any) -> None:
    timeline(page, "zoom(-50e6, 20e6)")
    assert timeline(page, "window") == {"low": 0, "high": 70 * MS}
    timeline(page, "zoom(5e6, 5e6)")
    window = timeline(page, "window")
    assert window["high"] - window["low"] == 20


def test_keys_zoom_move_and_reset(page: Any) -> None:
    focus(page)
    page.keyboard.press("+")
    zoomed = timeline(page, "window")
    assert zoomed["low"] > 0
    page.keyboard.press("Shift+ArrowRight")
    assert timeline(page, "window")["low"] > zoomed["low"]
    page.keyboard.press("a")
    assert timeline(page, "window")["low"] == pytest.approx(zoomed["low"])
    page.keyboard.press("Home")
    assert timeline(page, "window") == timeline(page, "whole")
    page.keyboard.press("w")
    page.keyboard.press("s")
    page.keyboard.press("w")
    page.keyboard.press("0")
    assert timeline(page, "window") == timeline(page, "whole")


def test_arrows_walk_from_slice_to_slice(page: Any) -> None:
    focus(page)
    names = []
    keys = [
        "Enter",
        "ArrowDown",
        "ArrowDown",
        "ArrowRight",
        "ArrowUp",
        "ArrowRight",
        "ArrowDown",
        "ArrowUp",
        "ArrowUp",
    ]
    for key in keys:
        page.keyboard.press(key)
        names.append(selected_name(page))
    assert names == [
        "step", "forward", "matmul", "relu", "forward", "backward pass", "matmul", "backward pass", "step",
    ]  # fmt: skip
    page.keyboard.press("ArrowUp")
    assert selected_name(page) == "step"


def test_a_slice_out_of_sight_is_brought_into_it(page: Any) -> None:
    timeline(page, "zoom(1e6, 2e6)")
    last = find(page, "relu", 2)
    timeline(page, f"select({last})")
    window, relu = timeline(page, "window"), slices(page)[last]
    assert window["low"] <= relu["start"] <= window["high"]


def test_escape_lets_go_of_one_thing_after_the_other(page: Any) -> None:
    focus(page)
    timeline(page, "zoom(1e6, 40e6)")
    timeline(page, "select(4)")
    timeline(page, "range(2e6, 9e6)")
    for expected in [(None, 4, False), (None, -1, False), (None, -1, True)]:
        page.keyboard.press("Escape")
        is_whole = timeline(page, "window") == timeline(page, "whole")
        assert (timeline(page, "chosen"), timeline(page, "selected"), is_whole) == expected


# ---- what a selection shows ----------------------------------------------------------------------


def test_the_selection_is_described_for_all(page: Any) -> None:
    click_slice(page, find(page, "relu", 1))
    text = page.locator("#details").inner_text()
    for part in (
        "relu",
        "start 37.000000 ms",
        "duration 5.00 ms (5,000,000 ns)",
        "depth 2",
        "parent forward",
    ):
        assert part in text
    assert "main, process 7" in text
    assert page.locator("#details").get_attribute("aria-live") == "polite"
    canvas = page.locator("#lanes-canvas")
    assert canvas.get_attribute("aria-label").startswith("Timeline: ")
    assert "21 slices on 1 thread" in page.locator("#timeline-summary").text_content()


def test_a_range_has_its_totals_by_name(page: Any) -> None:
    box = page.locator("#ruler").bounding_box()
    scale = box["width"] / (88 * MS)
    page.mouse.move(box["x"] + 3 * MS * scale, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 16 * MS * scale, box["y"] + 10, steps=4)
    page.mouse.up()
    chosen = timeline(page, "chosen")
    assert chosen == pytest.approx({"low": 3 * MS, "high": 16 * MS}, rel=0.01)
    found = {each["name"]: each for each in timeline(page, "totals(3e6, 16e6)")}
    figures = {name: (each["total"] / MS, each["own"] / MS, each["calls"]) for name, each in found.items()}
    assert figures == {
        "step": (13, 1, 1),
        "forward": (10, 2, 1),
        "matmul": (4, 4, 2),
        "relu": (5, 5, 1),
        "backward pass": (2, 1, 1),
    }
    assert page.locator("#range-rows tr").count() == 5
    assert page.locator("#range-rows th").first.inner_text() == "relu"
    page.locator("#range-zoom").click()
    assert timeline(page, "window") == pytest.approx(chosen)
    page.locator("#range-close").click()
    assert page.locator("#range").is_hidden()


@pytest.mark.slow
def test_functions_and_the_spans_inside_them_keep_their_times(open_page: Any, tmp_path: Path) -> None:
    """Sampled for real: functions are on one track, spans on another."""
    pytest.importorskip("pyinstrument")

    def between_spans() -> None:
        busy(0.1)
        with gpuprof.span("inner"):
            busy(0.1)
        busy(0.1)

    with gpuprof.profile(python=True, out=tmp_path / "sampled.gpuprof") as recording:
        for _ in range(3):
            with gpuprof.span("step"):
                busy(0.1)
                between_spans()
    page = open_page(page_text(recording.run), fragment="#view=timeline")
    shown = slices(page)
    totals = timeline(page, "totals(0, 1e12)")
    for kind in ("python", "span"):
        outermost = sum(each["duration"] for each in shown if each["kind"] == kind and each["depth"] == 0)
        assert sum(each["own"] for each in totals if each["kind"] == kind) == pytest.approx(outermost)
    assert {shown[each["parent"]]["name"] for each in shown if each["name"] == "inner"} == {"step"}
    inner = find(page, "inner")
    click_slice(page, inner)
    assert selected_name(page) == "inner"
    assert shown[inner]["node"] >= 0


def test_shift_and_drag_choose_a_range(page: Any) -> None:
    box = page.locator("#lanes-canvas").bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 400, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    expected = {"low": 88 * MS * 200 / box["width"], "high": 88 * MS * 400 / box["width"]}
    assert timeline(page, "chosen") == pytest.approx(expected, rel=0.01)
    assert timeline(page, "window") == timeline(page, "whole")


def test_totals_count_a_name_inside_itself_once(open_page: Any, tmp_path: Path) -> None:
    rows = [(0.0, 10.0, "again"), (1.0, 8.0, "between"), (2.0, 5.0, "again")]
    page = open_page(page_text(write_run(tmp_path / "again.gpuprof", rows)))
    found = {each["name"]: each for each in timeline(page, "totals(0, 10e6)")}
    assert (found["again"]["total"], found["again"]["own"], found["again"]["calls"]) == (10 * MS, 7 * MS, 2)


# ---- from one picture to the other ------------------------------------------------------------------


def test_a_slice_selects_its_cell(page: Any) -> None:
    click_slice(page, find(page, "relu", 1))
    page.locator("#view-both").click()
    cell = cell_of(page, state(page, "selected"))
    assert cell["label"] == "relu"


def test_a_slice_reveals_its_cell_where_the_flame_graph_is_zoomed(page: Any) -> None:
    page.locator("#view-both").click()
    relu = slices(page)[find(page, "relu")]["node"]
    page.evaluate(f"window.__gpuprof.zoom({relu})")
    timeline(page, f"select({find(page, 'backward pass')})")
    assert cell_of(page, state(page, "selected"))["label"] == "backward pass"


def test_a_cell_marks_its_calls(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=both")
    node = slices(page)[find(page, "relu")]["node"]
    click(page, node)
    assert timeline(page, "marked") == STEPS
    assert {each["name"] for each in slices(page) if each["marked"]} == {"relu"}
    next_frames(page)
    assert page.locator("#marked").inner_text() == "3 slices of relu are marked"
    assert pixel_of(page, find(page, "relu"))[3] == 255
    assert pixel_of(page, find(page, "step"))[3] < 255
    for step in range(STEPS):
        page.locator("#mark-after").click()
        assert timeline(page, "selected") == find(page, "relu", step)
    page.locator("#mark-before").click()
    assert timeline(page, "selected") == find(page, "relu", 1)


def test_cells_of_one_name_are_separate(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=both")
    matmul = slices(page)[find(page, "matmul")]
    page.evaluate(f"window.__gpuprof.select({matmul['node']})")
    assert timeline(page, "marked") == STEPS
    parents = {slices(page)[each["parent"]]["name"] for each in slices(page) if each["marked"]}
    assert parents == {"forward"}


def test_layers_of_one_backward_pass_are_marked_together(open_page: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with gpuprof.profile(model, out=tmp_path / "backward.gpuprof") as recording:
        model(torch.ones(2, 4)).sum().backward()
    page = open_page(page_text(recording.run), fragment="#view=both")
    addmm = [each for each in slices(page) if each["name"].endswith(": AddmmBackward0")]
    assert len(addmm) == 2
    page.evaluate(f"window.__gpuprof.select({addmm[0]['node']})")
    # The operator of that name inside each of them is in the same cell.
    assert timeline(page, "marked") == 4
    next_frames(page)
    assert "does not distinguish them" in page.locator("#marked").inner_text()
    number = next(i for i, each in enumerate(slices(page)) if each["start"] == addmm[1]["start"])
    timeline(page, f"select({number})")
    assert "one of 2 cells of the flame graph" in page.locator("#details").inner_text()


def test_search_marks_slices(page: Any) -> None:
    page.locator("#search").fill("matmul")
    assert timeline(page, "marked") == 2 * STEPS
    plain = pixel_of(page, find(page, "relu"))
    marked = pixel_of(page, find(page, "matmul"))
    assert marked == [122, 31, 162, 255]
    assert plain[3] < 255
    focus(page)
    page.keyboard.press("n")
    assert selected_name(page) == "matmul"
    page.locator("#search").fill("/(/")
    assert timeline(page, "marked") == 0
    page.locator("#search").fill("")
    assert pixel_of(page, find(page, "relu"))[3] == 255


GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluFunctor<float>, Array<char*, 2> >"


# ---- GPU work and readings, replayed -----------------------------------------------------------------


@pytest.fixture
def gpu_html(tmp_path: Path) -> str:
    def event(name: str, ts: float, dur: float, cat: str, tid: int = 1, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}

    where = {"device": 0, "context": 1, "stream": 7}
    events = [
        event("aten::mm", 10, 30, "cpu_op"),
        event("cudaLaunchKernel", 12, 3, "cuda_runtime", correlation=1),
        event("gemm<float>", 45, 40, "kernel", 7, correlation=1, **where),
        event(GELU, 90, 40, "kernel", 7, correlation=2, **where),
    ]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    run = gpuprof.import_trace(path, tmp_path / "gpu.gpuprof")
    import duckdb

    part = parquet_of(run.path, "samples")
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE samples AS "
        "SELECT (i * 5000)::BIGINT AS t_ns, 0::INTEGER AS device, 'power_w' AS metric, "
        "(100 + i)::DOUBLE AS value FROM range(10) AS readings(i)"
    )
    part.unlink()
    forget_parts(run.path)
    connection.execute(f"COPY samples TO '{part}' (FORMAT parquet)")
    connection.close()
    return page_text(gpuprof.open(run.path))


def test_a_kernel_leads_to_what_launched_it_and_back(open_page: Any, gpu_html: str) -> None:
    page = open_page(gpu_html, fragment="#view=timeline")
    assert [each["stream"] for each in timeline(page, "tracks")] == [False, True]
    kernel = find(page, "gemm<float>")
    click_slice(page, kernel)
    assert "launched by aten::mm · after its start 35.0 us" in page.locator("#details").inner_text()
    focus(page)
    page.keyboard.press("ArrowUp")
    assert selected_name(page) == "aten::mm"
    timeline(page, f"select({find(page, 'cudaLaunchKernel')})")
    assert "another weight" in page.locator("#details").inner_text()


def test_slices_show_labels_of_kernels_and_details_their_names(open_page: Any, gpu_html: str) -> None:
    page = open_page(gpu_html, fragment="#view=timeline")
    kernel = find(page, GELU)
    assert block_of(page, kernel)["text"] == "vectorized_elementwise_kernel<GeluFunctor>"
    click_slice(page, kernel)
    assert page.locator("#details b").inner_text() == GELU
    timeline(page, "range(90e3, 130e3)")
    head = page.locator("#range-rows th").first
    assert head.inner_text() == "vectorized_elementwise_kernel<GeluFunctor>"
    assert head.get_attribute("title") == GELU
    page.locator("#search").fill("kernel<Gelu")
    assert timeline(page, "marked") == 1


def test_readings_are_charts_with_values(open_page: Any, gpu_html: str) -> None:
    page = open_page(gpu_html, fragment="#view=timeline")
    box = page.locator("#lanes-canvas").bounding_box()
    page.locator("#lanes-canvas").hover(position={"x": 1, "y": box["height"] - 8})
    assert page.locator("#tooltip b").inner_text() == "Power"
    assert page.locator("#tooltip dd").inner_text() == "100 W"
    assert "1 chart of readings" in page.locator("#timeline-summary").text_content()


# ---- the address --------------------------------------------------------------------------------------


def test_back_and_forward_go_over_the_views(open_page: Any, html: str) -> None:
    page = open_page(html)
    page.locator("#view-timeline").click()
    assert "view=timeline" in page.url
    page.locator("#view-both").click()
    page.go_back()
    assert timeline(page, "view") == "timeline"
    page.go_back()
    assert timeline(page, "view") == "flame"
    assert page.locator("#lanes").is_hidden()
    page.go_forward()
    assert timeline(page, "view") == "timeline"


def test_back_goes_over_a_movement_as_one_step(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline")
    press_at_once(page, "+", 3)
    page.wait_for_url("**#*time=*")
    zoomed = timeline(page, "window")
    page.go_back()
    assert timeline(page, "window") == timeline(page, "whole")
    page.go_forward()
    assert timeline(page, "window") == pytest.approx(zoomed, rel=1e-6)


def test_back_and_forward_go_over_the_flame_graphs_zoom(open_page: Any, html: str) -> None:
    page = open_page(html)
    page.evaluate("window.__gpuprof.zoom(2)")
    page.evaluate("window.__gpuprof.zoom(3)")
    page.go_back()
    assert state(page, "zoomed") == 2
    page.go_back()
    assert state(page, "zoomed") == -1
    page.go_forward()
    assert state(page, "zoomed") == 2


def test_a_link_leads_to_what_its_sender_saw(open_page: Any, html: str) -> None:
    page = open_page(html, fragment="#view=timeline&search=matmul")
    timeline(page, "zoom(10e6, 50e6)")
    timeline(page, "range(12e6, 20e6)")
    timeline(page, "select(4)")
    page.wait_for_url("**#*slice=4*")
    again = open_page(html, fragment=page.evaluate("location.hash"))
    for name in ("view", "window", "chosen", "selected", "marked"):
        assert timeline(again, name) == timeline(page, name), name
    assert again.locator("#details").inner_text() == page.locator("#details").inner_text()
    again.reload()
    again.locator("html[data-ready]").wait_for(state="attached")
    assert timeline(again, "window") == {"low": 10 * MS, "high": 50 * MS}


@pytest.mark.parametrize(
    "fragment",
    [
        "#view=x",
        "#view=timeline&time=9-3",
        "#time=a-b&range=1",
        "#slice=99999",
        "#slice=-1",
        "#view=both&time=-5-99999999999",
    ],
)
def test_a_broken_address_is_ignored(open_page: Any, html: str, fragment: str) -> None:
    page = open_page(html, fragment=fragment)
    assert timeline(page, "window") == timeline(page, "whole")
    assert timeline(page, "selected") == -1


# ---- extremes --------------------------------------------------------------------------------------------


def test_a_stack_of_twenty_thousand(open_page: Any, tmp_path: Path) -> None:
    count = 20_000
    rows = [(i * 1e-5, (2 * count - 2 * i) * 1e-5, f"f{i % 7}") for i in range(count)]
    page = open_page(page_text(write_run(tmp_path / "deep.gpuprof", rows)), fragment="#view=timeline")
    timeline(page, f"select({count - 1})")
    assert timeline(page, f"slice({count - 1})")["depth"] == count - 1
    assert block_of(page, count - 1)["hidden"] == 0
    assert timeline(page, "totals(0, 1e9)")[0]["calls"] > 2_000


@pytest.mark.slow
def test_two_hundred_thousand_siblings(open_page: Any, tmp_path: Path) -> None:
    count = 200_000
    rows = [(i * 1e-4, 9e-5, f"name {i}") for i in range(count)]
    page = open_page(page_text(write_run(tmp_path / "wide.gpuprof", rows)), fragment="#view=timeline")
    assert sum(each["hidden"] or 1 for each in timeline(page, "blocks")) == count
    timeline(page, f"select({count - 1})")
    assert selected_name(page) == f"name {count - 1}"


def test_no_spans_at_all(open_page: Any, tmp_path: Path) -> None:
    page = open_page(page_text(write_run(tmp_path / "empty.gpuprof", [])))
    assert "contains no calls" in page.locator("#sentence").inner_text()


def test_a_tree_alone_has_no_timeline(open_page: Any) -> None:
    page = open_page(make_page([(-1, "process", "p", 1, 1), (0, "span", "s", 1, 5)]))
    assert page.locator("#views").is_hidden()
    assert state(page, "timeline") is None


@pytest.mark.parametrize("way", ["#view-flame", "#view-both"])
def test_the_flame_graph_is_drawn_after_the_timeline_alone(open_page: Any, html: str, way: str) -> None:
    page = open_page(html, fragment="#view=timeline")
    next_frames(page)
    page.locator(way).click()
    next_frames(page)
    light = page.evaluate(READ_PIXEL, [5, 5])
    assert light[3] == 255
    page.locator("#theme").select_option("dark")
    next_frames(page)
    assert page.evaluate(READ_PIXEL, [5, 5]) != light
    page.evaluate(f"window.__gpuprof.zoom({slices(page)[find(page, 'relu')]['node']})")
    next_frames(page)
    below = page.evaluate(READ_PIXEL, [5, 3 * 22 + 5])
    assert below[3] == 255  # the callers and the cell now begin at the left edge


def test_a_missing_timeline_has_a_reason(open_page: Any) -> None:
    rows = [(-1, "process", "p", 1, 1), (0, "span", "s", 1, 5)]
    page = open_page(make_page(rows, slices="Too many: gpuprof export RUN -o trace.pftrace <b>"))
    assert page.locator("#left-out").inner_text() == "Too many: gpuprof export RUN -o trace.pftrace <b>"
    assert page.locator("#canvas").is_visible()


def test_without_javascript_the_table_is_there(open_page: Any, html: str) -> None:
    page = open_page(html, java_script_enabled=False)
    assert "relu" in page.locator("noscript, .static").all_inner_texts()[0]


# ---- saving ------------------------------------------------------------------------------------------------


def saved(page: Any, button: str) -> Path:
    page.locator("#more-saves").click()
    with page.expect_download() as download:
        page.locator(button).click()
    path: Path = Path(download.value.path())
    return path


def test_folded_stacks_are_saved(open_page: Any, html: str) -> None:
    page = open_page(html)
    found = {}
    for line in saved(page, "#folded").read_text(encoding="utf-8").splitlines():
        path, _, weight = line.rpartition(" ")
        found[tuple(path.split(";")[1:])] = int(weight)
    assert found[("step", "forward", "relu")] == STEPS * 5 * MS
    assert sum(found.values()) == 84 * MS
    hostile = [path[-1] for path in found if path[-1].startswith("</script>")]
    assert len(hostile) == 1
    assert ";" not in hostile[0]


def test_speedscope_is_saved(open_page: Any, html: str) -> None:
    content = json.loads(saved(open_page(html), "#speedscope").read_text(encoding="utf-8"))
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = [frame["name"] for frame in content["shared"]["frames"]]
    (profile,) = content["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
    assert len(profile["samples"]) == len(profile["weights"])
    assert profile["endValue"] == sum(profile["weights"]) == 84 * MS
    paths = {
        tuple(frames[frame] for frame in sample[1:]): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert paths[("step", "forward", "matmul")] == STEPS * 4 * MS


def test_a_trace_is_saved_with_every_slice(open_page: Any, html: str) -> None:
    page = open_page(html)
    trace = read_chrome(saved(page, '#saves [data-saves="trace"]'))
    assert len(trace.slices) == timeline(page, "count")
    found = Counter((each.name, each.around) for each in trace.slices)
    assert found[("relu", ("step", "forward"))] == STEPS
    first = min((each for each in trace.slices if each.name == "relu"), key=lambda each: each.start_ns)
    number = find(page, "relu")
    assert timeline(page, f"slice({number})")["duration"] == first.duration_ns
    assert timeline(page, f"slice({number})")["start"] == first.start_ns
    assert any(each.name.startswith("</script>") for each in trace.slices)


def test_a_trace_has_launches_and_readings(open_page: Any, gpu_html: str) -> None:
    page = open_page(gpu_html, fragment="#view=timeline")
    with page.expect_download() as download:
        page.locator('.timebar [data-saves="trace"]').click()
    trace = read_chrome(Path(download.value.path()))
    assert trace.flows == [("aten::mm", "gemm<float>")]
    assert [value for _, value in trace.counters["Power"]] == [100.0 + i for i in range(10)]


def test_svg_is_saved_with_names_as_text(open_page: Any, html: str) -> None:
    page = open_page(html)
    text = saved(page, "#svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert {each.tag.removeprefix(space) for each in root.iter()} == {"svg", "title", "rect", "g", "text"}
    titles = [each.text or "" for each in root.iter(f"{space}title")]
    assert any(title.startswith("</script><img src=x") for title in titles)
    assert any(title.startswith("relu: 15.0 ms, 17.9%") for title in titles)
    shapes = root.iter(f"{space}rect")
    assert all("on" not in key[:2] for each in shapes for key in each.attrib)


def test_svg_opens_in_the_browser(open_page: Any, html: str, tmp_path: Path) -> None:
    page = open_page(html)
    picture = tmp_path / "picture.svg"
    picture.write_bytes(saved(page, "#svg").read_bytes())
    other = page.context.new_page()
    other.goto(picture.as_uri())
    assert other.locator("svg > g > g").count() == len(state(page, "visibleCells"))
    assert other.locator("text", has_text="relu").count() == 1
