# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison as files: its figures, hostile names, and what is missing."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import html.parser
import io
import json
import math
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_documents import HOSTILE, accuracy_of, document, everything_failed, failed, typed, variant
from comparisons import comparison_of, runs
from refusals import refused

from gpuprof.bench.compare.document import (
    ClassScores,
    ComparisonDocument,
    document_from,
    plain_document,
)
from gpuprof.bench.compare.figures import document_of
from gpuprof.bench.facts import warning
from gpuprof.bench.report import read_document, write_report
from gpuprof.bench.report.conclusion import conclusions
from gpuprof.bench.report.formatting import number, points, relative_iqr, time
from gpuprof.bench.report.sections import Content, content_of
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

BLACK_LIST = ("\x00", "\n", "\r", "\u202e", "\u2066", "\u200f")
NASTY = f"=cmd|' /C calc'!A0 {HOSTILE}\x00\n\r\u202eevil\u2066\u200f | a **b** [c](d)"


class Reader(html.parser.HTMLParser):
    """The elements and texts of a page, and the exact values of its figures by section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: dict[str, list[float]] = {}
        self.words: list[str] = []
        self.addresses: list[str] = []
        self._section = ""
        self._skip = 0
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [str(found[name]) for name in ("src", "href") if name in found]
        if tag == "section":
            self._section = str(found["id"])
        if tag == "data":
            self.values.setdefault(self._section, []).append(float(str(found["value"])))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.words.append(data)


def written(tmp_path: Path, plain: dict[str, Any], ending: str) -> str:
    (path,) = write_report(document_from(plain), [ending], tmp_path, "report")
    assert path == tmp_path / f"report.{ending}"
    return path.read_text(encoding="utf-8")


def content(plain: dict[str, Any]) -> Content:
    return content_of(document_from(plain))


def numbers_of(text: str) -> list[float]:
    """Every number of a text, with the prefix of its unit, in seconds, bytes and so on."""
    units = {"ms": 1e-3, "us": 1e-6, "MB": 1e6, "GB": 1e9, "kB": 1e3, "%": 1e-2, "pp": 1e-2, "M": 1e6}
    found = []
    for digits, exponent, unit in re.findall(r"([-+]?[\d,]*\.?\d+)(e[-+]?\d+)? ?([a-zA-Z%]*)", text):
        plain = (digits + exponent).replace(",", "")
        found.append(float(plain) * units.get(unit, 1.0))
    return found


def figures_of(batch: dict[str, Any]) -> Iterator[float]:
    """The figures of a batch size that a reader asks for."""
    for key in ("median_s", "p90_s", "p95_s", "p99_s", "throughput_per_s", "speedup"):
        if batch[key] is not None:
            yield batch[key]["value"]
    yield from (batch[key] for key in ("mean_s", "std_s", "min_s", "max_s", "spread", "samples"))
    yield from (batch[key] for key in ("host_peak_bytes", "cost_per_million"))


# --- the figures ---------------------------------------------------------------------------------


def test_every_figure_of_the_page_is_exactly_the_documents(tmp_path: Path) -> None:
    plain = document()
    found = Reader(written(tmp_path, plain, "html")).values
    everywhere = {value for values in found.values() for value in values}
    for each in plain["variants"]:
        for batch in each["batches"]:
            assert set(figures_of(batch)) <= everywhere
    speedups = {each["speedup"]["value"] for each in plain["variants"] if each["speedup"]}
    changes = {each["accuracy"]["change"]["value"] for each in plain["variants"]}
    assert speedups | changes <= set(found["variants"])
    told = set(_leaves(plain))
    assert everywhere <= told, "a figure that the document does not have"


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def test_the_baseline_has_no_change_rather_than_an_unavailable_one() -> None:
    plain = document(("original", "int8"), (8,))
    plain["variants"][0]["accuracy"] |= {"change": None, "verdict": None}
    sections = {each.key: each for each in content(plain).sections}
    rows = [sections["variants"].tables[0].rows[0], sections["quality"].tables[0].rows[0]]
    assert [[cell.text for cell in row.cells].count("baseline") for row in rows] == [3, 2]


def test_words_are_as_exact_as_four_digits() -> None:
    tables = [table for section in content(document()).sections for table in section.tables]
    cells = [cell for table in tables for row in table.rows for cell in row.cells if cell.value is not None]
    assert len(cells) > 300
    for cell in cells:
        (shown, *_) = numbers_of(cell.text)
        coarse = "%" in cell.text or "pp" in cell.text
        assert math.isclose(shown, cell.value, rel_tol=5.1e-4, abs_tol=5.1e-5 if coarse else 0), cell


def test_the_ends_of_intervals_are_below_their_figures() -> None:
    plain = document(("original", "int8"), (8,))
    batch = plain["variants"][1]["batches"][0]
    (section,) = (each for each in content(plain).sections if each.key == "latency")
    (row,) = (row for row in section.tables[0].rows if row.variant == "int8")
    ends = numbers_of(row.cells[2].note)
    # The unit is there once, after the second.
    assert ends[0] * 1e-3 == pytest.approx(batch["median_s"]["low"], rel=5e-4)
    assert ends[1] == pytest.approx(batch["median_s"]["high"], rel=5e-4)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0123, 0.0125, "12.30 to 12.50 ms"),
        (0.000999, 0.00101, "999.0 us to 1.010 ms"),
        (None, 0.1, ""),
    ],
)
def test_an_interval_has_its_unit_once_where_it_is_the_same(
    low: float | None, high: float | None, text: str
) -> None:
    assert time.interval(low, high) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.99998, "1.000"),
        (1234567, "1,234,567"),
        (2.30649, "2.306"),
        (-0.00123456, "-0.001235"),
        (1.5e-7, "1.500e-07"),
    ],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_change_that_rounds_to_zero_has_no_side() -> None:
    assert points(-0.00001) == points(0.0) == "+0.00 pp"
    assert points(-0.05) == "-5.00 pp"


def test_markdown_has_the_figures_of_the_document(tmp_path: Path) -> None:
    plain = document()
    shown = numbers_of(written(tmp_path, plain, "md"))
    for each in plain["variants"]:
        for batch in each["batches"]:
            for figure in figures_of(batch):
                assert any(math.isclose(figure, one, rel_tol=5.1e-4, abs_tol=5.1e-5) for one in shown), figure


def test_csv_holds_exact_figures_in_a_row_a_batch_size(tmp_path: Path) -> None:
    plain = document()
    rows = list(csv.DictReader(io.StringIO(written(tmp_path, plain, "csv"))))
    assert len(rows) == 18
    for row in rows:
        own = next(each for each in plain["variants"] if each["name"] == row["variant"])
        batch = next(each for each in own["batches"] if str(each["batch_size"]) == row["batch_size"])
        assert float(row["latency_p50_ms"]) == batch["median_s"]["value"] * 1e3
        assert float(row["latency_p50_high_ms"]) == batch["median_s"]["high"] * 1e3
        assert float(row["throughput_ips"]) == batch["throughput_per_s"]["value"]
        assert float(row["accuracy"]) == own["accuracy"]["accuracy"]
        assert float(row["cost_per_million"]) == batch["cost_per_million"]
        assert int(row["host_peak_bytes"]) == batch["host_peak_bytes"]
        p99 = batch["p99_s"]
        assert row["latency_p99_ms"] == ("" if p99 is None else str(p99["value"] * 1e3))
    assert [row["is_baseline"] for row in rows[:4]] == ["True", "True", "True", "False"]


def test_json_is_the_document_and_is_read_back(tmp_path: Path) -> None:
    plain = document()
    text = written(tmp_path, plain, "json")
    assert json.loads(text) == json.loads(json.dumps(plain_document(document_from(plain))))
    assert read_document(tmp_path / "report.json") == document_from(plain)
    assert set(figures_in(plain)) <= set(figures_in(json.loads(text)))


def test_a_report_of_raw_samples_has_their_figures(tmp_path: Path) -> None:
    given = {
        name: {1: runs(level, (seed, 1)), 8: runs(5 * level, (seed, 8))}
        for seed, (name, level) in enumerate({"old": 10.0, "new": 7.0, "third": 10.1, "last": 12.0}.items())
    }
    result = comparison_of(given, price_per_hour=1.2)
    found = document_of(result, datetime.datetime(2026, 2, 3, tzinfo=datetime.timezone.utc))
    write_report(found, ["html", "csv", "md"], tmp_path, "report")
    shown = set(Reader((tmp_path / "report.html").read_text(encoding="utf-8")).values["latency"])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text(encoding="utf-8"))))
    for name, sizes in given.items():
        for size, raw in sizes.items():
            median_ms = float(np.median(np.concatenate(raw)))
            (row,) = (each for each in rows if (each["variant"], each["batch_size"]) == (name, str(size)))
            assert float(row["latency_p50_ms"]) == pytest.approx(median_ms, rel=1e-5)
            assert any(one == pytest.approx(median_ms / 1e3, rel=1e-5) for one in shown)
    assert read_again(found, tmp_path) == found


def read_again(found: ComparisonDocument, folder: Path) -> ComparisonDocument:
    write_report(found, ["json"], folder, "again")
    return read_document(folder / "again.json")


def figures_in(plain: dict[str, Any]) -> Iterator[float]:
    """All figures of the variants."""
    return _leaves(plain["variants"])


# --- what is missing is shown --------------------------------------------------------------------


def test_the_headline_comes_first_and_the_sections_in_order(tmp_path: Path) -> None:
    found = Reader(written(tmp_path, document(), "html"))
    order = [
        "Ship int8: 2.31 times",
        "What to do next",
        "Variants",
        "Latency",
        "Throughput against",
        "Memory",
    ]
    order += ["Accuracy against speed-up", "Speed-up by technique", "Cost per million inferences"]
    order += ["Model size", "Bottlenecks of the layers", "Test environment", "Methodology", "Conclusion"]
    places = [found.text.index(each) for each in order[:2]]
    for each in order[2:]:
        places.append(found.text.index(each, places[-1]))
    assert places == sorted(places)
    assert "Why: it is 2.306 times as fast" in found.text
    assert "Pareto front, the fastest first: int8, onnx." in found.text
    worse = "classes with lower accuracy: forklift from 81.00% to 52.40% of 40 samples (p=0.001)"
    assert f"pruned: {worse}, mostly predicted as tractor" in found.text


def test_a_variant_that_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    plain = document(("original", "int8"))
    plain["variants"].append(failed("tensorrt", "TensorRT is not installed: pip install tensorrt"))
    for ending in ("html", "md"):
        text = written(tmp_path, plain, ending)
        text = Reader(text).text if ending == "html" else text
        assert text.count("TensorRT is not installed: pip install tensorrt") >= 2
        assert "failed: nothing was measured" in text
    rows = list(csv.DictReader(io.StringIO(written(tmp_path, plain, "csv"))))
    assert rows[-1]["failure"] == "TensorRT is not installed: pip install tensorrt"
    assert (rows[-1]["batch_size"], rows[-1]["latency_p50_ms"]) == ("", "")


def test_a_variant_that_failed_has_its_known_figures_and_its_failure() -> None:
    plain = document(("original", "int8"))
    lost = failed("pruned", "a launch ended")
    plain["variants"].append(lost | {"accuracy": accuracy_of(-0.705)})
    sections = {each.key: each for each in content(plain).sections}
    (row,) = (row for row in sections["variants"].tables[0].rows if row.variant == "pruned")
    assert [cell.text for cell in row.cells[1:5]] == ["failed", "failed", "5.63%", "-70.50 pp"]
    (row,) = (row for row in sections["quality"].tables[0].rows if row.variant == "pruned")
    assert (row.cells[0].text, row.cells[0].note, row.cells[1].text) == ("pruned", "failed", "5.63%")
    assert any(line.startswith("pruned (failed): classes") for line in sections["quality"].lines)


@pytest.mark.parametrize("ending", ["html", "md"])
def test_without_a_price_there_is_no_cost(tmp_path: Path, ending: str) -> None:
    plain = document(("original", "int8"))
    assert "million" in written(tmp_path, plain, ending)
    plain["method"]["price_per_hour"] = None
    for each in plain["variants"]:
        for batch in each["batches"]:
            batch["cost_per_million"] = None
    text = written(tmp_path, plain, ending)
    text = Reader(text).text if ending == "html" else text
    assert "million" not in text
    assert "price" not in text


def test_a_class_that_got_worse_is_reported_once() -> None:
    plain = document(("original", "pruned"), (8,))
    told = plain["variants"][1]["accuracy"]
    told["findings"] = [
        "class forklift degrades: 81.0% to 52.4% of 40 samples right (p=0.001), mostly called tractor",
        "class 7 of something else",
        "2 more classes degrade",
    ]
    (section,) = (each for each in content(plain).sections if each.key == "quality")
    assert [line for line in section.lines if "forklift" in line or "class" in line] == [
        "pruned: class 7 of something else",
        "pruned: classes with lower accuracy: forklift from 81.00% to 52.40% of 40 samples (p=0.001), "
        "mostly predicted as tractor",
    ]


def test_a_report_without_a_name_is_called_by_its_variants(tmp_path: Path) -> None:
    plain = document(("original", "int8", "a" * 60, "onnx", "pruned", "compiled"), (8,), name="comparison")
    title = f"Comparison of original, int8, {'a' * 7}...{'a' * 14}, onnx and 2 more"
    assert content(plain).title == title
    assert f"<title>{title} · gpuprof</title>" in written(tmp_path, plain, "html")
    assert written(tmp_path, plain, "md").startswith("# Comparison of original")
    assert content(document(("original",))).title == "resnet50: which one to ship"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01913, "1.91%"), (1.0, "100.00%"), (1.875, "1.875× the median"), (181.9977, "182.0× the median")],
)
def test_a_relative_iqr_above_1_is_a_factor(value: float, text: str) -> None:
    assert relative_iqr(value) == text


def test_warnings_of_one_code_are_one_line_with_the_worst() -> None:
    plain = plain_document(typed(("original", "int8"), (1, 8)))
    batches = [batch for each in plain["variants"] for batch in each["batches"]]
    switches = [(9, 1_000), (133, 4), (974, 99)]
    for batch, (count, calls) in zip(batches, switches, strict=False):
        values = {"switches": count, "calls": calls}
        batch["warnings"] = [warning("involuntary_context_switches", **values).to_dict()]
    one_run = warning("one_process_run").to_dict()
    batches[3]["warnings"] = [one_run]
    batches[0]["warnings"] += [one_run, warning("large_drift", first_s=1e-6, last_s=2e-6).to_dict()]
    batches[1]["warnings"] += [warning("of_tomorrow", level=5).to_dict()]
    (section,) = (each for each in content(plain).sections if each.key == "method")
    assert section.lines[-4:] == (
        "involuntary context switches: in 3 of 4 measurements, worst: original, batch size 8: "
        f"{warning('involuntary_context_switches', switches=133, calls=4)}",
        f"one process run: in 2 of 4 measurements: {warning('one_process_run')}",
        "large drift: in 1 of 4 measurements: original, batch size 1: "
        f"{warning('large_drift', first_s=1e-6, last_s=2e-6)}",
        "of tomorrow: in 1 of 4 measurements: original, batch size 8: of_tomorrow, level 5",
    )
    # What the line of a group has already is not repeated.
    assert len(section.single_lines) == len(switches)
    for line, (count, _calls) in zip(section.single_lines, switches, strict=True):
        assert str(count) in line


def test_a_reason_that_an_earlier_version_wrote_as_a_sentence_becomes_its_code() -> None:
    plain = document()
    for figures in plain["variants"]:
        figures["comparison"] = None
        for batch in figures["batches"]:
            if batch["comparison"] is not None:
                batch["comparison"] |= {"verdict": "inconclusive", "reason": "a sentence", "low": 0.9}
    plain["variants"][1]["batches"][0]["comparison"] |= {"low": None, "high": None}
    plain["variants"][1]["comparison"] = plain["variants"][1]["batches"][-1]["comparison"]
    found = document_from(plain).variants[1]
    reasons = [batch.comparison.reason for batch in found.batches if batch.comparison is not None]
    assert reasons == ["too_few_runs", *["across_margin"] * (len(found.batches) - 1)]
    assert found.comparison is not None
    assert found.comparison.reason == "across_margin"


def test_warnings_of_format_1_keep_their_sentence() -> None:
    plain = document(("original", "int8"), (1, 8))
    line = "the process was interrupted 9 times"
    plain["variants"][0]["batches"][0]["flags"] = [{"name": "interrupted", "line": line}]
    (section,) = (each for each in content(plain).sections if each.key == "method")
    found = f"involuntary context switches: in 1 of 4 measurements: original, batch size 1: {line}"
    assert found in section.lines


def test_layers_are_shown_for_a_call_with_their_bound_as_it_is() -> None:
    plain = document(("original", "int8"), (8,))
    plain["variants"][0]["layers"][0]["bound"] = "under-utilised (memory)"
    (section,) = (each for each in content(plain).sections if each.key == "layers")
    (table,), (figure,) = section.tables, section.figures
    assert "in a recorded call" in table.caption
    assert table.heads[3:5] == ("Self time in percent", "Self time in a call")
    assert [row.cells[5].text for row in table.rows][:2] == ["underutilized (memory)", "memory (dram)"]
    bars = {trace["hovertext"][0].split("<br>")[1]: trace["marker"] for trace in figure.traces}
    # The color of the nearest ceiling, and hatched.
    assert bars["underutilized (memory): 23.10%"]["color"] == "var(--bound-memory)"
    assert "pattern" in bars["underutilized (memory): 23.10%"]
    assert "pattern" not in bars["memory (dram), memory (l2): 26.50%"]


def test_the_margin_is_not_drawn_through_the_names() -> None:
    (figure,) = (each for each in content(document()).figures if each.key == "technique")
    for title in figure.layout["annotations"]:
        assert all(not shape["y0"] < title["y"] < shape["y1"] for shape in figure.layout["shapes"])
    assert len(figure.layout["shapes"]) == 2 * len(figure.layout["annotations"])


@pytest.mark.parametrize("ending", ["html", "md", "csv", "json"])
def test_everything_failed_is_a_report_too(tmp_path: Path, ending: str) -> None:
    text = written(tmp_path, everything_failed(), ending)
    assert "models/int8.pt2 cannot be read" in text or "models/int8\\.pt2" in text or "int8.pt2" in text
    if ending == "html":
        assert Reader(text).values.keys() <= {"environment", "method"}


def test_unavailable_figures_and_too_few_samples_are_text_and_never_0() -> None:
    plain = document(("original", "int8"), (1, 32))
    for each in plain["variants"]:
        each["accuracy"], each["accuracy_unavailable"], each["layers"] = None, "no --dataset was given", None
        for batch in each["batches"]:
            batch["cost_per_million"] = batch["host_peak_bytes"] = None
    plain["pareto"], plain["quality"] = [], {"name": None, "rests_on": "nothing"}
    plain["variants"][1]["model_bytes"] = None
    found = content(plain)
    sections = {each.key: each for each in found.sections}
    assert sections["memory"].lines == ("Memory: unavailable",)
    assert sections["cost"].lines == ("Cost per million inferences: unavailable",)
    assert sections["quality"].lines[0] == "original: unavailable (no --dataset was given)"
    assert "layers" not in sections
    assert [card.text for card in found.cards if card.title == "Accuracy"] == ["unavailable"]
    (p99,) = {row.cells[5].text for row in sections["latency"].tables[1].rows if row.cells[1].text == "32"}
    assert p99 == "too few samples (n=2,032)"
    method = sections["method"].lines
    assert "device memory: unavailable for all variants (no device reports its peak)" in method
    assert "layers and their bottlenecks: unavailable (no run was recorded)" in method
    cells = [
        cell for each in found.sections for table in each.tables for row in table.rows for cell in row.cells
    ]
    assert not any(
        cell.text in ("0", "0.00%", "None", "nan") for cell in cells if cell.value is None and cell.note
    )


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("original",), (1,)),
        (("original", "int8"), (32,)),
        (("original", "int8"), (1, 2, 4, 8, 32, 128)),
        (("original", *(f"variant {number}" for number in range(11))), (1, 8)),
    ],
)
def test_one_to_twelve_variants_and_one_to_six_batch_sizes(
    tmp_path: Path, names: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    plain = document(names, sizes)
    found = content(plain)
    kinds = {figure.key: {trace["type"] for trace in figure.traces} for figure in found.figures}
    assert kinds["latency"] == ({"bar"} if len(sizes) == 1 else {"scatter"})
    assert len({(look.color, look.symbol) for look in found.looks.values()}) == len(names)
    text = Reader(written(tmp_path, plain, "html")).text
    assert all(name in text for name in names)


def test_the_plots_hold_the_documents_figures_and_nothing_else() -> None:
    plain = document()
    figures = {figure.key: figure for figure in content(plain).figures}
    line = next(trace for trace in figures["latency"].traces if trace["name"] == "int8")
    batches = next(each for each in plain["variants"] if each["name"] == "int8")["batches"]
    assert line["x"] == [1, 8, 32]
    assert line["y"] == pytest.approx([batch["median_s"]["value"] * 1e3 for batch in batches])
    low = [(batch["median_s"]["value"] - batch["median_s"]["low"]) * 1e3 for batch in batches]
    assert line["error_y"]["arrayminus"] == pytest.approx(low)
    assert figures["latency"].layout["yaxis"]["type"] == "log"
    front = figures["quality"].traces[0]
    assert front["x"][1:-1] == [1.853, 2.306]
    assert [round(trace["x"][0], 3) for trace in figures["technique"].traces] == [
        2.306,
        1.853,
        1.412,
        1.187,
        0.971,
    ]


def test_an_interval_beyond_all_sense_has_a_logarithmic_axis() -> None:
    plain = document(("original", "int8"), (1,))
    plain["variants"][1]["speedup"] = {"low": 0.016, "value": 0.86, "high": 45.9}
    (figure,) = (each for each in content(plain).figures if each.key == "technique")
    x_axis = figure.layout["xaxis"]
    assert x_axis["type"] == "log"
    assert 10 ** x_axis["range"][0] < 0.016 < 45.9 < 10 ** x_axis["range"][1]
    assert "1" in x_axis["ticktext"]
    assert figure.traces[0]["error_x"]["array"] == [pytest.approx(45.04)]


def test_plotly_knows_every_property_of_the_plots() -> None:
    objects = pytest.importorskip("plotly.graph_objects")
    for figure in content(document()).figures:
        plain = json.loads(json.dumps(figure.to_dict()), object_hook=_without_names)
        objects.Figure(data=plain["traces"], layout=plain["layout"])


def _without_names(value: dict[str, Any]) -> dict[str, Any]:
    """Replace names of the style sheet, which plotly.js never gets, by a color."""
    return {
        key: "#123456" if isinstance(one, str) and one.startswith("var(") else one
        for key, one in value.items()
    }


def test_traffic_is_advice_with_both_sides_and_their_ratios() -> None:
    times = {f"{name}_s": {"low": 0.9 * at, "value": at, "high": 1.1 * at} for name, at in TIMES.items()}
    arm = {
        "share": 0.9,
        "requests": 9_000,
        "failed": 18,
        "failed_share": {"low": 0.001, "value": 0.002, "high": 0.003},
    }
    ratio = {"low": 0.71, "value": 0.75, "high": 0.79}
    traffic = {
        "variants": ["original", "int8"],
        "split": [0.9, 0.1],
        "launches": 10,
        "settings": {"requests": 1_000, "duration_s": 20.0},
        "arms": [
            {"variant": "original", **arm, **times, "first_failure": "ValueError: no"},
            {"variant": "int8", **arm, **times, "p99_s": None, "first_failure": None},
        ],
        "figures": [
            {"figure": "p50", "ratio": ratio, "launches": 10, "margin": 0.01, "verdict": "faster"},
            {"figure": "p99", "ratio": None, "launches": 0, "margin": 0.05, "verdict": "insufficient"},
        ],
        "advice": {"action": "roll out", "text": "roll out int8", "because": "p50 is faster"},
        "notes": ["interrupted: these are the launches until then"],
        "launch_ratios": [{"launch": 1, "p50": 0.7}],
    }
    (section,) = (each for each in content(document(traffic=traffic)).sections if each.key == "traffic")
    assert section.lead == "Roll out int8. Why: p50 is faster"
    arms, figures, rest = section.tables
    assert [row.variant for row in arms.rows] == ["original", "int8"]
    assert [cell.text for cell in arms.rows[1].cells[2:]] == [
        "9,000", "18", "0.20%", "12.00 ms", "15.00 ms", "unavailable",
    ]  # fmt: skip
    assert [cell.text for cell in figures.rows[0].cells] == ["p50", "0.7500", "1.00%", "10", "faster"]
    assert [cell.text for cell in figures.rows[1].cells[:2]] == ["p99", "too few samples"]
    assert [[cell.text for cell in row.cells] for row in rest.rows] == [
        ["process runs", "10"],
        ["requests", "1,000"],
        ["duration", "20.00 s"],
    ]
    assert section.lines == (
        "interrupted: these are the launches until then",
        "original: the first failed request: ValueError: no",
    )


TIMES = {"p50": 0.012, "p95": 0.015, "p99": 0.021}


# --- hostile text --------------------------------------------------------------------------------


def hostile() -> dict[str, Any]:
    plain = document(("original", NASTY))
    plain["name"] = plain["variants"][1]["framework"] = NASTY
    plain["variants"][1]["technique"] = HOSTILE
    plain["variants"][1]["accuracy"]["findings"] = [NASTY]
    plain["variants"][1]["batches"][0]["flags"] = [{"name": NASTY, "line": NASTY}]
    plain["variants"][1]["layers"] = [{"name": NASTY, "type": NASTY, "share": 0.5, "bound": NASTY}]
    plain["summary"] = {"headline": NASTY, "lines": [NASTY], "choice": NASTY}
    plain["recommendations"] = [{"text": NASTY, "because": NASTY}]
    plain["environment"][NASTY], plain["method"]["currency"], plain["notes"] = NASTY, NASTY, [NASTY]
    plain["quality"] = {"name": NASTY, "rests_on": NASTY}
    plain["variants"].append(failed("\ud800 half", NASTY))
    return plain


def test_hostile_text_stays_text_in_the_page(tmp_path: Path) -> None:
    page = written(tmp_path, hostile(), "html")
    found = Reader(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 3
    assert found.addresses == ["data:,"]
    assert HOSTILE in found.text
    assert not any(each in found.text for each in BLACK_LIST)


def test_hostile_text_in_plots_is_no_markup_of_plotly() -> None:
    texts = [
        text
        for figure in content(hostile()).figures
        for trace in figure.traces
        for text in (*trace.get("hovertext", ()), trace.get("name", ""), *trace.get("text", ()))
    ]
    texts += [
        each["text"] for figure in content(hostile()).figures for each in figure.layout.get("annotations", ())
    ]
    assert any("&lt;/script" in text for text in texts)
    assert not any(re.search(r"<(?!/?b>|br>)", text) for text in texts)
    assert not any(each in text for text in texts for each in BLACK_LIST)


def test_hostile_text_keeps_markdown_tables_whole(tmp_path: Path) -> None:
    text = written(tmp_path, hostile(), "md")
    assert "<img" not in text.replace("\\<img", "")
    assert not any(each in text for each in ("\x00", "\r", "\u202e"))
    block: list[int] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            block.append(len(re.findall(r"(?<!\\)\|", line)))
            continue
        assert len(set(block)) <= 1
        block = []


def test_hostile_text_runs_nothing_in_a_spreadsheet(tmp_path: Path) -> None:
    text = written(tmp_path, hostile(), "csv")
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    assert len(rows) == 1 + 3 + 3 + 1
    cells = [cell for row in rows for cell in row]
    assert any(cell.startswith("'=cmd") for cell in cells)
    assert not any(cell.startswith(("=", "@", "\t")) for cell in cells)
    assert not any(each in text for each in ("\x00", "\r", "\u202e"))


# --- files, packages and browsers that are not there -----------------------------------------------


def test_without_jinja2_or_plotly_the_other_formats_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("jinja2", "plotly.offline"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            package = missing.split(".", maxsplit=1)[0]
            with refused(UnavailableError, "not_installed", package):
                write_report(typed(("original",)), ["html", "pdf", "md"], tmp_path / package, "report")
        assert [path.name for path in (tmp_path / package).iterdir()] == ["report.md"]


def test_formats_that_need_no_package_import_none(run_python: Any, tmp_path: Path) -> None:
    code = (
        "import sys, json, pathlib\n"
        "from gpuprof.bench.report import write_report\n"
        "from gpuprof.bench.report import read_document\n"
        f"document = read_document(pathlib.Path({str(tmp_path / 'in.json')!r}))\n"
        f"write_report(document, ['md', 'csv', 'json'], pathlib.Path({str(tmp_path)!r}), 'out')\n"
        "print(sorted({'jinja2', 'plotly', 'torch', 'duckdb'} & set(sys.modules)))"
    )
    (tmp_path / "in.json").write_text(json.dumps(document(("original",))))
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_format_that_cannot_be_written_does_not_take_the_others(tmp_path: Path) -> None:
    (tmp_path / "report.csv").mkdir()
    with refused(BenchmarkError, "cannot_write", "report.csv"):
        write_report(typed(("original",)), ["csv", "md", "json"], tmp_path, "report")
    assert (tmp_path / "report.md").is_file()
    assert (tmp_path / "report.json").is_file()


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused(BenchmarkError, "unknown_format", "docx", "html", "md", "csv", "json", "pdf"):
        write_report(typed(), ["md", "docx"], tmp_path / "new", "report")
    assert not (tmp_path / "new").exists()


def test_no_browser_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GPUPROF_CHROMIUM", raising=False)
    with refused(UnavailableError, "not_installed"):
        write_report(typed(("original",)), ["pdf", "html"], tmp_path, "report")
    assert (tmp_path / "report.html").is_file()


def browser_that(tmp_path: Path, does: str) -> str:
    path = tmp_path / "browser"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_browser_that_never_ends_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuprof.bench.report.pdf import print_pdf

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    does = f"exec 3> {pipe}; echo begun >&3; sleep 600 & wait"
    monkeypatch.setenv("GPUPROF_CHROMIUM", browser_that(tmp_path, does))
    with refused(BenchmarkError, "print_timeout", "3"):
        print_pdf("<p>", tmp_path / "out.pdf", limit_s=3.0)
    assert not (tmp_path / "out.pdf").exists()
    # A pipe is at its end when its last writer has closed it.
    assert os.read(reader, 100) == b"begun\n"
    assert select.select([reader], [], [], 180)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_browser_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.bench.report.pdf import print_pdf

    monkeypatch.setenv("GPUPROF_CHROMIUM", browser_that(tmp_path, "echo no usable sandbox >&2; exit 1"))
    with refused(BenchmarkError, "nothing_printed", "sandbox"):
        print_pdf("<p>", tmp_path / "out.pdf")
    monkeypatch.setenv("GPUPROF_CHROMIUM", str(tmp_path / "nowhere"))
    with refused(UnavailableError, "not_a_program", "nowhere"):
        print_pdf("<p>", tmp_path / "out.pdf")


# --- documents that are none -----------------------------------------------------------------------


def _broken(change: str) -> dict[str, Any]:
    plain = document(("original", "int8"))
    first = plain["variants"][0]
    batch = first["batches"][0]
    {
        "no variants": lambda: plain.pop("variants"),
        "variants are a text": lambda: plain.update(variants="none"),
        "a variant is a list": lambda: plain["variants"].append([1]),
        "a time is a text": lambda: batch.update(mean_s="1"),
        "an interval is a number": lambda: batch.update(median_s=0.1),
        "a size below 1": lambda: batch.update(batch_size=0),
        "a status of no kind": lambda: first.update(status="fine"),
        "two of one name": lambda: plain["variants"].append(variant("int8", (1,))),
        "a headline is a number": lambda: plain["summary"].update(headline=3),
        "true is no number": lambda: first.update(startup_s=True),
        "a number without end": lambda: first.update(startup_s=10**400),
    }[change]()
    return plain


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no variants", "damaged"),
        ("variants are a text", "damaged"),
        ("a variant is a list", "damaged"),
        ("a time is a text", "damaged"),
        (
            "an interval is a number",
            "damaged",
        ),
        ("a size below 1", "damaged"),
        ("a status of no kind", "damaged"),
        ("two of one name", "damaged"),
        ("a headline is a number", "damaged"),
        ("true is no number", "damaged"),
        ("a number without end", "damaged"),
    ],
)
def test_a_damaged_document_is_one_line(tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(_broken(change)))
    with refused(BenchmarkError, words) as caught:
        read_document(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not_a_comparison"),
        ("[1, 2]", "not_a_comparison"),
        ('{"kind": "comparison"', "not_a_comparison"),
        ('{"kind": "benchmark", "format": 1}', "not_a_comparison"),
        ('{"kind": "comparison", "format": 9}', "unknown_format"),
        ('{"kind": "comparison", "format": 1, "x": NaN}', "not_a_comparison"),
        ("[" * 200_000, "not_a_comparison"),
    ],
)
def test_another_file_is_no_document(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with refused(BenchmarkError, words):
        read_document(path)


def test_a_file_that_cannot_be_read_is_no_document(tmp_path: Path) -> None:
    with refused(BenchmarkError, "cannot_read"):
        read_document(tmp_path / "nowhere.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with refused(BenchmarkError, "not_a_comparison"):
        read_document(tmp_path / "bytes.json")


def test_a_figure_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    broken = dataclasses.replace(typed(("original",)), environment={"load": math.nan})
    with refused(GpuprofError, "cannot_write"):
        write_report(broken, ["json", "md"], tmp_path, "report")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


# --- plots and documents that were asked for -----------------------------------------------------


def test_sizes_speeds_and_qualities_have_plots_with_the_documents_figures() -> None:
    plain = document(("original", "int8", "onnx"), (1, 8))
    figures = {each.key: each for each in content(plain).figures}
    sizes = [each["x"][0] for each in figures["sizes"].traces]
    assert sizes == [each["model_bytes"] / 1e6 for each in plain["variants"]]
    points = {each["name"]: (each["x"][0], each["y"][0]) for each in figures["size-speed"].traces}
    speedups = [1.0, *(each["speedup"]["value"] for each in plain["variants"][1:])]
    assert points == dict(zip(("original", "int8", "onnx"), zip(sizes, speedups, strict=True), strict=True))
    for each, trace in zip(plain["variants"], figures["accuracy-time"].traces, strict=False):
        if each["name"] == trace["name"]:
            assert trace["x"][0] == pytest.approx(each["batches"][0]["median_s"]["value"] * 1e3)
            assert trace["y"][0] == pytest.approx(each["accuracy"]["accuracy"] * 100)


def test_device_utilization_is_unavailable_without_samples_and_a_plot_with_them() -> None:
    plain = document(("original", "int8"), (1, 8))
    found = content(plain)
    assert "utilization" not in {each.key for each in found.sections}
    lines = next(each.lines for each in found.sections if each.key == "method")
    assert [line for line in lines if line.startswith("device utilization: unavailable")]
    typed_document = document_from(plain)
    first = typed_document.variants[0]
    batches = tuple(dataclasses.replace(each, device_utilization=0.625) for each in first.batches)
    variants = (dataclasses.replace(first, batches=batches), *typed_document.variants[1:])
    section = _section(dataclasses.replace(typed_document, variants=variants), "utilization")
    assert [cell.value for cell in section.tables[0].rows[0].cells[1:]] == [0.625, 0.625]
    assert [cell.text for cell in section.tables[0].rows[1].cells[1:]] == ["unavailable"] * 2
    assert section.figures[0].traces[0]["y"] == [62.5, 62.5]


def _section(found: ComparisonDocument, key: str) -> Any:
    return next(each for each in content_of(found).sections if each.key == key)


def test_the_table_of_classes_has_all_scores_and_of_many_classes_the_worst() -> None:
    found = document_from(document(("original", "int8")))
    scores = [
        ClassScores(name=f"class {n}", label=n, support=5, precision=n / 200 or None, recall=0.5, f1=n / 200)
        for n in range(150)
    ]
    accuracy = found.variants[1].accuracy
    assert accuracy is not None
    for shown, expected in ((3, range(3)), (150, range(100))):
        one = dataclasses.replace(accuracy, classes=tuple(scores[:shown]))
        variants = (found.variants[0], dataclasses.replace(found.variants[1], accuracy=one))
        tables = _section(dataclasses.replace(found, variants=variants), "quality").tables
        table = next(each for each in tables if "Support" in each.heads)
        assert table.heads == ("Variant", "Class", "Precision", "Recall", "F1", "Support")
        assert [row.cells[1].text for row in table.rows] == [f"class {n}" for n in expected]
        assert table.rows[0].cells[2].value is None
        assert [cell.value for cell in table.rows[2].cells[2:]] == [0.01, 0.5, 0.01, 5]


def test_the_conclusion_has_typed_facts_of_the_figures() -> None:
    found = document_from(document(("original", "int8", "pruned"), (1, 8)))
    facts = {each.code: each.values for each in conclusions(found)}
    assert facts["concluded_measured"] == {"measured": 3, "variants": 3, "runs": found.method.launches_done}
    assert facts["concluded_faster"]["variants"] == ["int8"]
    assert facts["concluded_slower"]["variants"] == ["pruned"]
    assert facts["concluded_worse_outputs"]["variants"] == ["pruned"]
    assert facts["concluded_steps"] == {"steps": len(found.recommendations)}
    nothing = document_from(everything_failed())
    assert next(each.code for each in conclusions(nothing)) == "concluded_measured"
    assert {each.values["measured"] for each in conclusions(nothing) if "measured" in each.values} == {0}


def test_the_recommendations_are_a_document_of_their_own(tmp_path: Path) -> None:
    found = document_from(document(("original", "int8")))
    (path,) = write_report(found, ["recommendations"], tmp_path, "report")
    assert path == tmp_path / "report.recommendations.md"
    text = path.read_text(encoding="utf-8")
    heads = ["What to deploy", "Why", "What to check", "Test environment", "Methodology"]
    assert [text.index(f"\n## {each}\n") for each in heads] == sorted(
        text.index(f"## {e}\n") - 1 for e in heads
    )
    assert text.count("- [ ] ") == len(found.recommendations)
    hostile = document(("original", "int8"))
    hostile["variants"][1]["name"] = NASTY
    hostile["summary"]["choice"] = NASTY
    hostile["pareto"] = []
    (path,) = write_report(document_from(hostile), ["recommendations"], tmp_path, "hostile")
    text = path.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert not any(each in text for each in BLACK_LIST if each != "\n")
