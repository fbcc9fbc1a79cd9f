# SPDX-License-Identifier: Apache-2.0
"""The Python half of the flame graph page: what is embedded, and that it cannot get out."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.metrics import Weight
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus
from gpuprof.render.flame_views import weight_views
from gpuprof.render.flamegraph import flamegraph_page
from gpuprof.render.page import asset, page_notes, readable
from gpuprof.render.shown_tree import OUTSIDE, placed_tree, shown_tree
from gpuprof.render.tree_shape import OTHER
from gpuprof.run.format import KINDS
from gpuprof.text.sanitize import escape_text

HOSTILE = "</script></noscript><img src=x onerror=alert(1)><!--\u2028\u2029\x00\n\ud800\u202e"


def make_tree(
    parent: list[int], names: list[str], own: list[int], kinds: list[str] | None = None
) -> CallTree:
    count = len(parent)
    own_ns = np.array(own, dtype=np.int64)
    total = own_ns.copy()
    for node in range(count - 1, -1, -1):
        if parent[node] >= 0:
            total[parent[node]] += total[node]
    return CallTree(
        parent=np.array(parent, dtype=np.int32),
        kind=np.array([KINDS.index(kind) for kind in kinds or ["span"] * count], dtype=np.uint8),
        name=np.arange(count, dtype=np.int32),
        calls=np.arange(1, count + 1, dtype=np.int64),
        total_ns=total,
        own_ns=own_ns,
        threads=np.full(count, 3, dtype=np.int32),
        process_id=np.zeros(count, dtype=np.int64),
        names=names,
    )


def make_page(tree: CallTree, **options: Any) -> str:
    return flamegraph_page(tree, **({"title": "Title", "subtitle": "Subtitle"} | options))


class Elements(HTMLParser):
    """Collects tags and the text of each script, as a browser without scripting would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: dict[str, str] = {}
        self.policy = ""
        self._script: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self._script = (values.get("id") or "code") if tag == "script" else None
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._script = None


def decoded(page: str) -> tuple[dict[str, Any], dict[str, Any]]:
    scripts = Elements(page).scripts
    head = json.loads(scripts["head"])
    raw = base64.b64decode(scripts.get("columns", ""))
    if head["gzip"]:
        raw = gzip.decompress(raw)
    columns = {}
    offset = 0
    for name, kind in head["columns"]:
        column = np.frombuffer(
            raw, dtype=np.dtype(kind).newbyteorder("<"), count=head["count"], offset=offset
        )
        columns[name] = column
        offset += column.nbytes
    # Padded to whole numbers of 8 bytes, in which the page reads its columns.
    assert len(raw) == -(-offset // 8) * 8
    assert not any(raw[offset:])
    return head, columns


@pytest.mark.parametrize("chain", [0, 30_000], ids=["plain", "gzipped"])
def test_columns_come_back(chain: int) -> None:
    parent = [-1, 0, 1, 0, -1, *range(4, 4 + chain)]
    count = len(parent)
    tree = make_tree(parent, [f"name {i}" for i in range(count)], [0, 5, 2**52, 7, 1] + [2] * chain)
    head, columns = decoded(make_page(tree))
    assert head["count"] == count
    assert head["gzip"] == (chain > 0)
    assert head["kinds"] == list(KINDS)
    assert head["names"] == tree.names
    assert np.array_equal(columns["time.own"], tree.own_ns)
    assert np.array_equal(columns["time.own"] + columns["time.inside"], tree.total_ns)
    assert np.array_equal(columns["calls"], tree.calls)
    assert np.array_equal(columns["threads"], tree.threads)
    assert np.array_equal(columns["kind"], tree.kind)
    up = columns["up"]
    assert np.array_equal(np.where(up == 0, -1, np.arange(count) - up), tree.parent)


def test_only_names_in_use_are_embedded() -> None:
    tree = make_tree([-1, 0], ["process", "span"], [1, 2])
    tree.names.append("unused secret")
    tree.name[:] = [1, 1]
    page = make_page(tree)
    head, columns = decoded(page)
    assert head["names"] == ["span"]
    assert columns["name"].tolist() == [0, 0]
    assert "unused secret" not in page


def test_hostile_text_adds_no_element() -> None:
    plain = Elements(make_page(make_tree([-1, 0], ["p", "x"], [1, 2]), notes=["n"]))
    page = make_page(
        make_tree([-1, 0], ["p", HOSTILE], [1, 2]), title=HOSTILE, subtitle=HOSTILE, notes=[HOSTILE]
    )
    assert Elements(page).tags == plain.tags
    assert decoded(page)[0]["names"][1].startswith("</script></noscript><img src=x onerror=alert(1)><!--")
    assert "\u2028" not in page
    assert "\u202e" not in page
    assert "\x00" not in page
    page.encode("utf-8")  # half a surrogate pair in a name must not make the page unwritable


def test_invisible_characters_are_escaped_as_in_a_terminal() -> None:
    hidden = [
        *map(chr, (*range(0x20), 0x7F, 0x85)),
        "\u202a",
        "\u202e",
        "\u2066",
        "\u2069",
        "\u200b",
        "\ufeff",
    ]
    names = [f"a{character}b" for character in hidden]
    page = make_page(make_tree([-1] * len(names), names, [1] * len(names)), title=names[-3])
    assert decoded(page)[0]["names"] == [escape_text(name) for name in names]
    assert r"<title>a\u2069b" in page
    for shown in (r"a\nb", r"a\x07b", r"a\x7fb", r"a\u202eb", r"a\u2066b"):
        assert f'<th scope="row">{shown}</th>' in page
    # These join what is seen.
    assert readable("👩\u200d🚀 می\u200cخواهم") == "👩\u200d🚀 می\u200cخواهم"


def test_text_that_looks_like_a_field_is_not_filled() -> None:
    page = make_page(make_tree([-1], ["{{script}}"], [1]), title="{{subtitle}}", subtitle="secret")
    assert "<h1>{{subtitle}}</h1>" in page
    assert decoded(page)[0]["names"] == ["{{script}}"]


def test_long_names_are_cut() -> None:
    page = make_page(make_tree([-1], ["a" * 500_000 + "z" * 500_000], [1]))
    name = decoded(page)[0]["names"][0]
    assert len(name) < 2_000
    assert name.startswith("aaa")
    assert name.endswith("zzz (1,000,000 characters)")


def test_only_the_page_s_own_code_may_run() -> None:
    found = Elements(make_page(make_tree([-1], ["p"], [1])))
    digest = base64.b64encode(hashlib.sha256(found.scripts["code"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in found.policy
    assert found.policy.startswith("default-src 'none';")
    assert "unsafe" not in found.policy


def test_the_page_names_no_other_address() -> None:
    page = make_page(make_tree([-1], ["p"], [1]))
    # Two are names, of SVG and of a schema, in what the page saves.
    addresses = set(re.findall(r"https?://[^\s\"'`]*", page))
    assert addresses == {"http://www.w3.org/2000/svg", "https://www.speedscope.app/file-format-schema.json"}
    assert re.findall(r"//cdn|@import|url\(", page) == []


def test_equal_trees_give_equal_pages() -> None:
    def page() -> str:
        return make_page(make_tree([-1, 0], ["p", "x"], [1, 2]))

    assert page() == page()


def test_an_empty_tree_has_a_message_in_the_static_part() -> None:
    page = make_page(make_tree([], [], []))
    assert "This run contains no calls" in page
    assert decoded(page)[0]["count"] == 0


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (9_996, "10.0 us"),
        (99_960, "100 us"),
        (999_600, "1.00 ms"),
        (1_234_567_890, "1.23 s"),
        (4_321_000_000_000, "4,321 s"),
    ],
)
def test_total_time_has_three_digits(ns: int, text: str) -> None:
    assert f'<dd id="total">{text}</dd>' in make_page(make_tree([-1], ["p"], [ns]))


def test_header_counts_calls_but_not_processes() -> None:
    page = make_page(make_tree([-1, 0, 0], ["p", "a", "b"], [1, 1, 1], ["process", "span", "span"]))
    assert "<dd>5</dd>" in page


def test_static_table_has_the_largest_self_times_first() -> None:
    count = 80
    tree = make_tree([-1] + [0] * count, ["p"] + [f"op{i}" for i in range(count)], [0, *range(count)])
    rows = re.findall(r'<tr><th scope="row">(\w+)</th>', make_page(tree))
    assert rows == [f"op{i}" for i in range(79, 29, -1)]


def test_static_table_adds_up_calls_of_a_name_and_shows_the_hottest_path() -> None:
    prefix = "autograd::engine::evaluate_function: "
    names = ["p", f"{prefix}Mm", "same", "b", "same"]
    tree = make_tree([-1, 0, 1, 0, 3], names, [0, 0, 30, 0, 10], ["span", "backward", "span", "span", "span"])
    tree.name[4] = 2
    row = re.search(r'<tr><th scope="row">same</th>.*?</tr>', make_page(tree))
    assert row is not None
    assert re.findall(r"<td>(.*?)</td>", row[0]) == ["span", "40 ns", "100.0%", "8", "p › Mm"]


def test_a_deep_path_is_cut_at_its_outer_end() -> None:
    depth = 20_000
    page = make_page(make_tree(list(range(-1, depth - 1)), [f"f{i}" for i in range(depth)], [1] * depth))
    assert "<td>… › f" in page


ENGINE = "autograd::engine::evaluate_function: "


def own_and_total(tree: CallTree) -> dict[str, list[int]]:
    shown = shown_tree(tree)
    return {
        shown.names[name]: [int(parent), int(own), int(total), int(calls)]
        for name, parent, own, total, calls in zip(
            shown.name, shown.parent, shown.own_ns, shown.total_ns, shown.calls, strict=True
        )
    }


def test_the_engine_s_span_takes_in_its_node() -> None:
    names = ["p", f"{ENGINE}Mm", "Mm", "aten::mm", "aten::add_", "later"]
    kinds = ["process", "backward", "operator", "operator", "operator", "span"]
    tree = make_tree([-1, 0, 1, 2, 1, 0], names, [0, 5, 7, 30, 2, 1], kinds)
    assert own_and_total(tree) == {
        "p": [-1, 0, 45, 1],
        f"{ENGINE}Mm": [0, 12, 44, 2],
        "aten::mm": [1, 30, 30, 4],
        "aten::add_": [1, 2, 2, 5],
        "later": [0, 1, 1, 6],
    }
    assert tree.own_ns.tolist() == [0, 5, 7, 30, 2, 1]  # the run's own tree stays as it is


@pytest.mark.parametrize(
    ("inner", "kinds"),
    [("Other", ["backward", "operator"]), ("Mm", ["span", "operator"]), ("Mm", ["backward", "layer"])],
)
def test_only_the_engine_s_span_takes_in_only_its_node(inner: str, kinds: list[str]) -> None:
    tree = make_tree([-1, 0, 1], ["p", f"{ENGINE}Mm", inner], [0, 5, 7], ["process", *kinds])
    assert own_and_total(tree)[inner] == [1, 7, 7, 3]


def test_a_negative_self_time_takes_no_width_from_the_pair() -> None:
    kinds = ["process", "backward", "operator"]
    tree = make_tree([-1, 0, 1], ["p", f"{ENGINE}Mm", "Mm"], [0, -5, 7], kinds)
    assert own_and_total(tree)[f"{ENGINE}Mm"][1] == 7


def test_untracked_time_is_the_last_child_of_its_process() -> None:
    names = ["p", "a", "b", "q", "c", "r"]
    kinds = ["process", "span", "span", "process", "span", "process"]
    shown = shown_tree(make_tree([-1, 0, 1, -1, 3, -1], names, [10, 1, 2, 0, 3, 4], kinds))
    assert [shown.names[name] for name in shown.name] == [
        *["p", "a", "b", OUTSIDE],
        *["q", "c"],
        *["r", OUTSIDE],
    ]
    assert shown.parent.tolist() == [-1, 0, 1, 0, -1, 4, -1, 6]
    assert shown.own_ns.tolist() == [0, 1, 2, 10, 0, 3, 0, 4]
    assert shown.total_ns.tolist() == [13, 3, 2, 10, 3, 3, 4, 4]
    assert shown.calls[[3, 7]].tolist() == [0, 0]
    assert [KINDS[kind] for kind in shown.kind[[3, 7]]] == ["process", "process"]


def test_a_run_without_calls_and_time_has_a_message_without_javascript() -> None:
    page = make_page(make_tree([-1], ["process 1"], [0], ["process"]))
    assert "This run contains no calls" in page


def test_a_machine_without_a_gpu_lacks_nothing() -> None:
    no_torch_cuda = SourceStatus.off(Reason.TORCH_WITHOUT_CUDA).to_plain()
    without = {
        "samples": SourceStatus.off(Reason.NO_DRIVER).to_plain(),
        "kernels": no_torch_cuda,
        "nvtx": SourceStatus.off(Reason.NVTX_VARIABLE_EMPTY, variable="NVTX_INJECTION64_PATH").to_plain(),
    }
    (line,) = page_notes({"complete": True, "sources": without})
    assert line.startswith("No nvtx: ")
    with_a_gpu = {"samples": SourceStatus.on(Method.NVML, period_ns=1).to_plain(), "kernels": no_torch_cuda}
    (line,) = page_notes({"complete": True, "sources": with_a_gpu})
    assert line.startswith("No kernels: ")


def test_a_few_dropped_stacks_are_no_warning() -> None:
    def lines(torn: Any) -> list[str]:
        note = Note(NoteCode.STACKS_TORN, {"torn": torn, "samples": 1_000}, (7,))
        return page_notes({"complete": True, "notes": [note.to_plain()]})

    assert lines(150) == []
    (line,) = lines(300)
    assert "300 of 1,000" in line
    assert len(lines("damaged")) == 1


@pytest.mark.parametrize(
    ("ranks", "label", "measure"),
    [
        ((), "Main process, wall time", "Wall time"),
        ((3,), "Rank 3, wall time", "Wall time, rank 3"),
        ((0, 1), "Ranks, wall time", "Wall time, 2 ranks added up"),
    ],
)
def test_the_sum_of_wall_times_names_whose_they_are(ranks: tuple[int, ...], label: str, measure: str) -> None:
    tree = make_tree([-1, 0], ["p", "step"], [1, 2])
    (view,) = weight_views(placed_tree(tree), [Weight("main", tree, ranks=ranks)])
    assert (view.facts["label"], view.facts["measure"]) == (label, measure)


def lab(color: str) -> tuple[float, float, float]:
    """Return the color in CIELAB, in which distances are about what one sees."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    roots = [each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in (x, y, z)]
    return 116 * roots[1] - 16, 500 * (roots[0] - roots[1]), 200 * (roots[1] - roots[2])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colors_of_kinds_differ_from_each_other_and_from_the_page(theme: str) -> None:
    pairs = re.findall(
        r"--(page|kind-\w+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", asset("kit/page.css")
    )
    colors = {name: light if theme == "light" else dark for name, light, dark in pairs}
    assert {name.removeprefix("kind-") for name in colors} == {*KINDS, OTHER, "page"}
    alike = [
        (one, other)
        for one, other in itertools.combinations(colors, 2)
        if math.dist(lab(colors[one]), lab(colors[other])) < 10
    ]
    assert alike == []
