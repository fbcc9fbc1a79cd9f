# SPDX-License-Identifier: Apache-2.0
"""What a reader of the flame graph page sees: names, narrow screens, search, the saved picture."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pages import (
    ADDMM,
    CONTRAST,
    STEP,
    Rows,
    background,
    cell_of,
    cells,
    click,
    make_page,
    make_tree,
    next_frames,
    pixel,
    state,
)

from gpuprof.analyze.kernel_labels import kernel_labels
from gpuprof.analyze.metrics import Weight
from gpuprof.render.flame_views import weight_views
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.render.shown_tree import placed_tree

ENGINE = "autograd::engine::evaluate_function: "
FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
VECTORIZED = "at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >"
ADD = f"void {VECTORIZED.format('CUDAFunctor_add<float>')}(int, at::native::CUDAFunctor_add<float>)"
MUL = f"void {VECTORIZED.format('BinaryFunctor<float, MulFunctor<float> >')}(int, char*)"
ADD_LABEL = "vectorized_elementwise_kernel<CUDAFunctor_add>"
GEMM = "ampere_sgemm_128x64_tn"

MODEL: Rows = [
    (-1, "process", "process 1", 1, 0),
    (0, "layer", "LanguageModel", 2, 1),
    (1, "layer", "layers.0", 2, 1),
    (2, "layer", "layers.0.mlp", 2, 1),
    (3, "layer", "layers.0.mlp.gate_proj", 2, 1),
    (4, "operator", FORWARD, 2, 10),
    (3, "layer", "layers.0.mlp.down_proj", 2, 1),
    (6, "operator", f"{FORWARD}_backward", 2, 11),
    (0, "backward", "backward", 2, 3),
    (8, "backward", f"{ENGINE}MmBackward0", 6, 4),
    (9, "operator", "MmBackward0", 6, 5),
    (10, "operator", "aten::mm", 12, 40),
    (9, "operator", "aten::add_", 3, 2),
]
DOWN, ENGINE_SPAN = 6, 9

ON_GPU: Rows = [
    (-1, "process", "process 1", 1, 0),
    (0, "layer", "model", 2, 0),
    (1, "operator", "aten::add", 4, 0),
    (2, "kernel", ADD, 4, 30),
    (1, "operator", "aten::mul", 4, 0),
    (4, "kernel", MUL, 4, 20),
    (1, "operator", "aten::mm", 4, 0),
    (6, "kernel", GEMM, 4, 30),
    (0, "transfer", "copy pageable to device", 4, 20),
]
ADD_KERNEL = 3


@pytest.fixture(name="page")
def model_page(open_page: Any) -> Any:
    return open_page(make_page(MODEL))


def drawn(page: Any, node: int) -> str:
    """The text in a cell, as far as it had room."""
    text: str = cell_of(page, node)["text"]
    return text


def overflowing(page: Any, selector: str) -> list[str]:
    """The text of the elements whose text is cut off."""
    found: list[str] = page.locator(selector).evaluate_all(
        """elements => elements
            .filter(one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight + 1)
            .map(one => one.textContent)"""
    )
    return found


# ---- narrow screens --------------------------------------------------------------------------


def right_edges(page: Any, selector: str) -> list[float]:
    boxes = [one.bounding_box() for one in page.locator(selector).all()]
    return [box["x"] + box["width"] for box in boxes if box is not None]


@pytest.mark.parametrize("width", [320, 400, 640])
def test_a_narrow_screen_needs_no_sideways_scrolling(open_page: Any, width: int) -> None:
    notes = ["3 events were dropped", "x" * 200]
    page = open_page(make_page(MODEL, notes=notes), viewport={"width": width, "height": 800})
    click(page, ENGINE_SPAN)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    parts = "header dd, #hot button, .toolbar button, .toolbar select, #search, #stage, #legend li, .table"
    assert max(right_edges(page, parts)) <= width
    assert page.evaluate("document.getElementById('stage').clientWidth") >= width - 40


@pytest.mark.parametrize("width", [320, 390])
def test_large_figures_of_the_heading_fit(open_page: Any, width: int) -> None:
    tree = make_tree(STEP)
    shown = placed_tree(tree)
    views = weight_views(shown, [Weight("main", tree, ranks=(0, 1))])
    counts = {"calls": 1_234_567_890, "old_calls": 1_234_567_890}
    html = flamegraph_page(shown, title="A step", subtitle="test", views=views, **counts)
    page = open_page(html, viewport={"width": width, "height": 800})
    assert max(right_edges(page, "header dt, header dd")) <= width - 16


@pytest.mark.parametrize("width", [320, 400])
def test_a_narrow_table_shows_name_self_time_and_percent_first(open_page: Any, width: int) -> None:
    page = open_page(make_page(MODEL), viewport={"width": width, "height": 800})
    row = page.locator("#rows tr").first
    row.scroll_into_view_if_needed()
    # What is far below the window is rendered when it is seen.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    for text in ("aten::mm", "operator"):
        assert text in row.locator("th").inner_text()
    for text in ("40.0 ms", "50.0%"):
        cell = row.get_by_text(text, exact=True).first.bounding_box()
        assert cell["x"] + cell["width"] <= width
    scrolled = "(box => { box.scrollLeft = 999; return box.scrollLeft; })(document.querySelector('.table'))"
    assert page.evaluate(scrolled) > 0


def test_a_narrow_screen_shows_all_facts_of_a_selection(open_page: Any) -> None:
    page = open_page(make_page(MODEL), viewport={"width": 320, "height": 800})
    click(page, ENGINE_SPAN)
    assert "threads 1" in page.locator("#details").inner_text()
    assert overflowing(page, "#details, #details b, #details span") == []


def test_without_javascript_a_narrow_screen_scrolls_the_table_alone(open_page: Any) -> None:
    page = open_page(make_page(MODEL), viewport={"width": 400, "height": 800}, java_script_enabled=False)
    edges = right_edges(page, "header dd, .static, .static > p")
    assert max(edges) <= 400
    name = page.locator(".static tbody th").nth(1).bounding_box()
    assert name["width"] > 120  # not a column of syllables


# ---- names -----------------------------------------------------------------------------------


def test_cards_and_table_show_names_whole(page: Any) -> None:
    cards = page.locator("#hot .name").all_inner_texts()
    assert cards[:3] == ["aten::mm", f"{FORWARD}_backward", FORWARD]
    assert overflowing(page, "#hot .name") == []
    assert FORWARD in page.locator("#rows th").all_inner_texts()
    assert overflowing(page, "#rows th") == []


def test_a_layer_in_a_narrow_cell_keeps_the_end_of_its_path(open_page: Any) -> None:
    page = open_page(make_page(MODEL), viewport={"width": 700, "height": 800})
    assert cell_of(page, DOWN)["label"] == "layers.0.mlp.down_proj"
    assert drawn(page, DOWN) == "…down_proj"
    page.evaluate(f"window.__gpuprof.zoom({DOWN})")
    assert drawn(page, DOWN) == "layers.0.mlp.down_proj"


def test_an_operator_in_a_narrow_cell_keeps_both_ends(open_page: Any) -> None:
    page = open_page(make_page(MODEL), viewport={"width": 900, "height": 800})
    forward, backward = drawn(page, 5), drawn(page, 7)
    assert forward != backward
    assert backward.startswith("_")
    assert backward.endswith("ward")
    assert "…" in backward


def test_no_text_is_wider_than_its_cell(page: Any) -> None:
    page.evaluate(
        """window.measured = document.createElement("canvas").getContext("2d");
           window.measured.font = document.getElementById("canvas").getContext("2d").font;
        """
    )
    for width in range(330, 1300, 70):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("window.__gpuprof.redraw()")
        for cell in cells(page):
            text_width = page.evaluate("text => window.measured.measureText(text).width", cell["text"])
            assert text_width <= max(cell["width"] - 9, 0)


def test_half_of_a_surrogate_pair_is_never_drawn(open_page: Any) -> None:
    page = open_page(make_page([(-1, "process", "p", 1, 0), (0, "span", "😀" * 400, 1, 5)]))
    for width in (330, 331, 335, 341, 500):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("window.__gpuprof.redraw()")
        assert set(drawn(page, 1)) == {"😀", "…"}


# ---- the engine's span around a backward node ------------------------------------------------


def test_the_engine_s_span_and_its_node_are_one_cell(page: Any) -> None:
    labels = [cell["label"] for cell in cells(page)]
    assert labels.count("MmBackward0") == 1
    click(page, ENGINE_SPAN)
    facts = page.locator("#details").inner_text()
    assert "total 51.0 ms · self 9.00 ms · calls 6 " in facts
    children = [cell["label"] for cell in cells(page) if cell["y"] == cell_of(page, ENGINE_SPAN)["y"] + 22]
    assert children == ["aten::mm", "aten::add_"]
    assert page.locator("#rows th", has_text="MmBackward0").count() == 1


def test_a_backward_node_is_found_by_the_name_that_is_shown(page: Any) -> None:
    assert page.evaluate("window.__gpuprof.search('/^MmBackward0$/').count") == 1
    assert page.evaluate("window.__gpuprof.search('evaluate_function').count") == 1


# ---- search ----------------------------------------------------------------------------------


def test_search_shows_cells_calls_and_percent(page: Any) -> None:
    page.locator("#search").fill("flash")
    assert page.locator("#found").inner_text() == "2 cells, 4 calls, 26.3% of the time"
    page.locator("#search").fill("/^aten::mm$/")
    assert page.locator("#found").inner_text() == "1 cell, 12 calls, 50.0% of the time"
    page.locator("#search").fill("process 1")
    assert page.locator("#found").inner_text() == "1 cell, 100.0% of the time"  # a process is not a call


def test_search_filters_the_table(page: Any) -> None:
    rows = page.locator("#rows th")
    everything = rows.all_inner_texts()
    page.locator("#search").fill("flash")
    assert rows.all_inner_texts() == [f"{FORWARD}_backward", FORWARD]
    assert page.locator("#caption").inner_text().startswith("2 of 12 names match “flash”.")
    page.get_by_role("button", name="Name").click()  # sorting keeps the filter
    assert rows.all_inner_texts() == [FORWARD, f"{FORWARD}_backward"]
    page.locator("#search").fill("nowhere")
    assert rows.count() == 0
    assert "No name matches “nowhere”." in page.locator("#caption").inner_text()
    page.locator("#search").fill("/[/")  # no valid pattern, so not a filter either
    assert rows.count() == len(everything)
    page.locator("#search").fill("")
    assert sorted(rows.all_inner_texts()) == sorted(everything)


def test_search_finds_rows_beyond_the_largest(open_page: Any) -> None:
    rows: Rows = [(-1, "process", "p", 1, 0)]
    rows += [(0, "operator", f"op{index:03}", 1, 1000 - index) for index in range(400)]
    page = open_page(make_page(rows))
    assert page.locator("#rows tr").count() == 200
    page.locator("#search").fill("op39")
    assert page.locator("#rows th").all_inner_texts() == [f"op{index}" for index in range(390, 400)]


def test_a_card_marks_its_own_name_alone(page: Any) -> None:
    page.locator("#hot button").nth(2).click()  # another name begins with this one
    assert [cell["label"] for cell in cells(page) if cell["marked"]] == [FORWARD]


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("text", ["/[/", "MmBackward0"])
def test_what_was_found_does_not_lie_on_the_field(open_page: Any, width: int, text: str) -> None:
    page = open_page(make_page(MODEL), viewport={"width": width, "height": 800})
    page.locator("#search").fill(text)
    field, found = (page.locator(one).bounding_box() for one in ("#search", "#found"))
    assert found["y"] >= field["y"] + field["height"] or found["x"] >= field["x"] + field["width"]
    assert found["x"] + found["width"] <= width
    assert overflowing(page, "#found") == []


# ---- runs without calls, and time outside of them --------------------------------------------


def test_a_process_without_calls_and_time_holds_no_calls(open_page: Any) -> None:
    page = open_page(make_page([(-1, "process", "process 1", 1, 0)]))
    assert "contains no calls" in page.locator("#sentence").inner_text()
    page = open_page(make_page([(-1, "process", "process 1", 1, 0)]), java_script_enabled=False)
    assert "contains no calls" in page.locator(".static").inner_text()


def test_untracked_time_is_a_cell_of_its_own(open_page: Any) -> None:
    rows = [(-1, "process", "process 1", 1, 25), *STEP[1:], (-1, "process", "process 2", 1, 0)]
    page = open_page(make_page(rows))
    outside = next(cell for cell in cells(page) if cell["label"] == "untracked")
    assert outside["y"] == cell_of(page, 1)["y"]
    assert outside["x"] + outside["width"] == pytest.approx(cell_of(page, 0)["width"])
    assert outside["text"] == "untracked"
    page.locator("#canvas").hover(position={"x": outside["x"] + 20, "y": outside["y"] + 10})
    tooltip = page.locator("#tooltip").inner_text()
    assert "in no span, layer or operator" in tooltip
    assert "20.0%" in tooltip
    assert "Calls" not in tooltip
    assert page.locator("#hot button").count() == 5
    assert page.locator("#hot button", has_text="untracked").count() == 0
    assert "untracked" in page.locator("#legend").inner_text()
    row = page.locator("#rows tr", has_text="untracked").locator("td").all_inner_texts()
    assert row[:6] == ["process", "25.0 ms", "20.0%", "25.0 ms", "–", "–"]


@pytest.mark.parametrize("wait", [0, 25])
def test_the_cards_have_no_waits_and_report_that(open_page: Any, wait: int) -> None:
    page = open_page(make_page([*STEP, (1, "waiting", "join", 0, wait)]))
    assert page.locator("#hot button", has_text="join").count() == 0
    assert ("without waits" in page.locator("#hot-title").inner_text()) == (wait > 0)


# ---- the legend ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_legend_is_above_the_picture_and_names_what_is_drawn(open_page: Any, scheme: str) -> None:
    rows = [*STEP, (1, "python", "main", 0, 25), (1, "waiting", "join", 0, 0)]
    page = open_page(make_page(rows), color_scheme=scheme)
    legend, stage = (page.locator(each).bounding_box() for each in (".legends", "#stage"))
    assert legend["y"] + legend["height"] <= stage["y"]
    texts = [each.rsplit(" ", 1) for each in page.locator("#legend li").all_inner_texts()]
    kinds = ["process", "span", "layer", "operator", "backward", "Python"]
    assert [text for text, _ in texts] == kinds
    assert [share for _, share in texts] == ["0.00%", "8.0%", "4.0%", "60.0%", "8.0%", "20.0%"]
    colors = page.locator("#legend i").evaluate_all(
        "all => all.map(i => getComputedStyle(i).backgroundColor)"
    )
    assert len(set(colors)) == len(kinds)
    assert page.locator("#legend-small").is_hidden()
    assert page.locator("#legend-whole").inner_text() == "Self time, of 125 ms:"


def test_the_legend_explains_gray_cells_where_there_are_any(open_page: Any) -> None:
    many = [(0, "operator", f"op {number}", 1, 1) for number in range(5000)]
    page = open_page(make_page([STEP[0], *many, (0, "layer", "fc", 1, 5000)]))
    assert page.locator("#legend-small").is_visible()
    page.evaluate("window.__gpuprof.zoom(5001)")
    next_frames(page)
    assert page.locator("#legend-small").is_hidden()


# ---- narrow controls -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1400, 1000, 390])
def test_the_chosen_text_of_a_control_is_not_cut_off(open_page: Any, width: int) -> None:
    tree = make_tree(STEP)
    shown = placed_tree(tree)
    views = weight_views(shown, [Weight("main", tree), Weight("cpu", tree)])
    html = flamegraph_page(shown, title="A step", subtitle="test", views=views, calls=9)
    page = open_page(html, viewport={"width": width, "height": 900})
    assert page.locator("#weight option:checked").inner_text() == "Width: Main process, wall time"
    # A copy that nothing limits has the room that the longest text needs.
    needed = """select => {
        const copy = select.cloneNode(true);
        copy.removeAttribute("id");
        copy.style.maxWidth = "none";
        copy.style.position = "absolute";
        select.after(copy);
        const { width } = copy.getBoundingClientRect();
        copy.remove();
        return width;
    }"""
    for select in page.locator(".toolbar select:visible").all():
        assert select.bounding_box()["width"] >= select.evaluate(needed)
    assert page.evaluate("document.documentElement.scrollWidth") == width


# ---- the saved picture -----------------------------------------------------------------------

WATCH_TEXT = """() => {
    window.texts = [];
    const fill = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.texts.push(text);
        return fill.call(this, text, ...rest);
    };
}"""
SIZE_OF_IMAGE = """async (bytes) => {
    const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
    return [image.width, image.height];
}"""


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.slow
def test_the_saved_picture_has_title_total_and_legend(open_page: Any, tmp_path: Any, width: int) -> None:
    html = make_page(MODEL, title="ResNet", notes=["3 events were dropped."])
    page = open_page(html, viewport={"width": width, "height": 800})
    page.locator("#search").fill("flash")
    page.evaluate(f"window.__gpuprof.zoom({DOWN})")
    page.evaluate(WATCH_TEXT)
    with page.expect_download() as download:
        page.locator("#png").click()
    texts = page.evaluate("window.texts")
    assert {"ResNet", "test", "3 events were dropped."} <= set(texts)
    said = " ".join(texts)
    assert "Total time 80.0 ms, 43 calls" in said
    assert "zoomed to layers.0.mlp.down_proj" in said
    assert "“flash”: 2 cells, 4 calls, 26.3% of the time" in said
    for kind in ("process", "layer", "operator", "backward"):
        assert any(text.startswith(kind) for text in texts)
    download.value.save_as(tmp_path / "a.png")
    size = page.evaluate(SIZE_OF_IMAGE, list((tmp_path / "a.png").read_bytes()))
    assert size[0] >= 2 * 900
    levels = 7
    assert size[1] > 2 * (levels * 22 + 60)


# ---- the GPU's time --------------------------------------------------------------------------


def gpu_page(open_page: Any, **options: Any) -> Any:
    return open_page(make_page(ON_GPU, measure="GPU time"), **options)


def test_cells_show_labels_of_kernels(open_page: Any) -> None:
    page = gpu_page(open_page)
    page.evaluate(f"window.__gpuprof.zoom({ADD_KERNEL})")
    seen = []
    for width in (1280, 300, 200):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("window.__gpuprof.redraw()")
        seen.append(drawn(page, ADD_KERNEL))
    assert seen[0] == ADD_LABEL
    assert seen[1] == "vectorized_elementwise_kernel"
    assert re.fullmatch(r"vec\w+…\w+", seen[2])


def test_full_names_of_kernels_are_in_tooltip_details_and_titles(open_page: Any) -> None:
    page = gpu_page(open_page)
    click(page, ADD_KERNEL)
    assert page.locator("#tooltip b").text_content() == ADD
    assert page.locator("#details b").text_content() == ADD
    assert page.locator("#crumbs button").last.inner_text() == "vectorized_elementwise_kernel"
    assert page.locator("#crumbs button").last.get_attribute("title") == ADD
    titles = {head.inner_text(): head.get_attribute("title") for head in page.locator("#rows th").all()}
    assert titles[ADD_LABEL] == ADD
    assert titles["vectorized_elementwise_kernel<MulFunctor>"] == MUL
    assert titles[GEMM] == GEMM
    page.locator("#hot button").first.click()
    assert page.locator("#found").inner_text() == "1 cell, 4 calls, 30.0% of the GPU time"


def test_search_finds_kernels_by_label_and_by_full_name(open_page: Any) -> None:
    page = gpu_page(open_page)
    for query in (
        ADD_LABEL,
        ADD,
        "kernel<MulFunctor>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::Bin",
    ):
        page.locator("#search").fill(query)
        page.wait_for_function("document.getElementById('found').textContent.startsWith('1 cell')")


def test_labels_of_kernels_are_distinct_in_the_table(open_page: Any) -> None:
    names = [f"void copy_kernel<at::Pair<at::Loader<{kind}> > >(int)" for kind in ("float", "c10::Half")]
    page = open_page(make_page([(-1, "process", "p", 1, 0), *[(0, "kernel", name, 1, 5) for name in names]]))
    labels = kernel_labels(names)
    assert len(set(labels.values())) == 2
    assert set(labels.values()) <= set(page.locator("#rows th").all_inner_texts())


def test_an_operator_with_the_name_of_a_kernel_keeps_its_name(open_page: Any) -> None:
    rows = [(-1, "process", "p", 1, 0), (0, "operator", ADD, 1, 5), (0, "kernel", ADD, 1, 5)]
    page = open_page(make_page(rows))
    shown = page.locator("#rows tr").all_inner_texts()
    assert [ADD in text for text in shown if "operator" in text] == [True]
    assert [ADD_LABEL in text and ADD not in text for text in shown if "\tkernel" in text] == [True]


@pytest.mark.parametrize(
    "name",
    [
        "(unknown kernel)",
        "f(",
        "a<b",
        "x>>y(",
        "void (anonymous namespace)::k<1>(int)",
        "<",
        "operator()(int)",
    ],
)
def test_names_that_are_hardly_signatures_are_shown(open_page: Any, name: str) -> None:
    page = open_page(make_page([(-1, "process", "p", 1, 0), (0, "kernel", name, 1, 5)]))
    assert drawn(page, 1) != ""
    assert page.locator("#rows th").first.inner_text() != ""


def test_the_words_are_those_of_gpu_time(open_page: Any) -> None:
    page = gpu_page(open_page)
    assert page.locator("#hot-title").inner_text() == "Where the GPU time goes: most self time"
    assert "GPU time" in page.locator("#caption").inner_text()
    assert page.locator("#legend li").all_inner_texts()[-2:] == ["kernel 80.0%", "transfer 20.0%"]


OF_LABELS = f"""() => {{
    const {{ ink, kinds }} = window.__gpuprof.palette;
    return kinds.map(shades => Math.min(...shades.map(shade => {CONTRAST}(shade, ink))));
}}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_has_a_color_on_which_its_label_is_readable(open_page: Any, scheme: str) -> None:
    page = gpu_page(open_page, color_scheme=scheme)
    assert min(page.evaluate(OF_LABELS)) >= 4.5
    middles = page.evaluate("window.__gpuprof.palette.kinds.map(shades => shades[2])")
    assert len(set(middles)) == len(middles)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_of_the_callers_of_a_zoomed_cell_are_readable(open_page: Any, scheme: str) -> None:
    page = open_page(make_page(STEP), color_scheme=scheme)
    click(page, ADDMM)
    text = page.evaluate("window.__gpuprof.palette.text")
    behind = [int(part) for part in re.findall(r"\d+", background(page))]
    for caller in (0, 1, 2, 3):
        *color, alpha = pixel(page, caller)
        mixed = [(a * alpha + b * (255 - alpha)) / 255 for a, b in zip(color, behind, strict=True)]
        fill = "rgb({}, {}, {})".format(*mixed)
        assert page.evaluate(f"{CONTRAST}('{fill}', '{text}')") >= 4.5


def test_forced_colors_show_kinds_as_text(open_page: Any) -> None:
    page = gpu_page(open_page, forced_colors="active")
    click(page, ADD_KERNEL)
    assert page.locator("#details").inner_text().splitlines()[1].startswith("kernel · ")
    assert "kernel" in page.locator("#legend").inner_text()
    assert state(page, "selected") == ADD_KERNEL


def test_a_selection_moves_nothing(page: Any) -> None:
    table = page.locator("#table").bounding_box()
    click(page, ADDMM)
    page.locator("#search").fill("layers")
    page.locator("#search").fill("/[/")
    after = page.locator("#table").bounding_box()
    assert (after["x"], after["y"]) == (table["x"], table["y"])
