# SPDX-License-Identifier: Apache-2.0
"""The report of one model over batch sizes: its plots against the samples, its sections, hostile names."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

import numpy as np
import pytest
from batches import batch_of
from comparison_documents import HOSTILE
from refusals import refused_command

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.report.benchmark import BINS, benchmark_content, distribution
from gpuprof.bench.report.sections import Content
from gpuprof.bench.report.writers import write_content
from gpuprof.bench.results.session import BatchResult, BenchFinding, SessionResult

AT = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.timezone.utc)
# Of 2,000 samples one in a hundred is ten times as long.
SAMPLES = [10 + 0.01 * (number % 100) if number % 100 else 100.0 for number in range(2_000)]


def finding_of(*batches: BatchResult, model: str = "resnet50") -> BenchFinding:
    return BenchFinding(SessionResult(SystemSpec(model), JobSettings(), list(batches)))


def content_of(*sizes: int) -> Content:
    runs = [batch_of(SAMPLES, [each * 1.01 for each in SAMPLES], batch_size=size) for size in sizes]
    return benchmark_content(finding_of(*runs), AT)


def test_a_histogram_counts_each_sample_once_and_names_those_beyond() -> None:
    batch = batch_of([*SAMPLES, 900.0], batch_size=4)
    found = distribution(batch)
    assert found is not None
    (bars,) = found.traces
    assert len(bars["y"]) == BINS
    # 1.5 times p99, which is between the usual samples and the long ones.
    longest = 1.5 * float(np.quantile(batch.result.samples, 0.99))
    beyond = int((batch.result.samples > longest).sum())
    assert beyond > 0
    assert sum(bars["y"]) == 2_001 - beyond
    assert f"{beyond} longer samples" in found.layout["xaxis"]["title"]["text"]
    median = batch.result.quantile(0.5)
    assert median is not None
    assert found.layout["shapes"][0]["x0"] == pytest.approx(median * 1e3)
    assert distribution(batch_of([])) is None


def test_percentiles_have_a_line_each_over_the_batch_sizes() -> None:
    found = content_of(1, 8, 32)
    figure = next(each for each in found.figures if each.key == "latency")
    assert [each["name"] for each in figure.traces] == ["p50", "p95", "p99"]
    assert [each["x"] for each in figure.traces] == [[1, 8, 32]] * 3
    table = next(each for each in found.sections if each.key == "latency").tables[0]
    medians = [row.cells[table.heads.index("p50")].value for row in table.rows]
    assert figure.traces[0]["y"] == pytest.approx([each * 1e3 for each in medians if each is not None])


def test_sections_and_files(tmp_path: Path) -> None:
    found = content_of(1, 8)
    keys = [each.key for each in found.sections]
    assert keys == ["latency", "distribution", "throughput", "memory", "environment", "method"]
    (markdown,) = write_content(found, ["md"], tmp_path, "one.report")
    text = markdown.read_text(encoding="utf-8")
    assert markdown.name == "one.report.md"
    assert [text.index(f"## {each.title}") for each in found.sections]
    # What belongs to comparisons, or is not known here, is left out: it is never 0.
    assert "baseline" not in text
    assert "margin" not in text
    assert "0 ns" not in text


def test_too_few_samples_have_no_line() -> None:
    found = benchmark_content(finding_of(batch_of([1.0, 2.0, 3.0], batch_size=1)), AT)
    names = [each["name"] for figure in found.figures if figure.key == "latency" for each in figure.traces]
    assert "p99" not in names


def test_hostile_names_are_text(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    batch = batch_of(SAMPLES, batch_size=1)
    batch.description = dataclasses.replace(batch.description, model=HOSTILE)
    content = benchmark_content(finding_of(batch, model=HOSTILE), AT)
    for path in write_content(content, ["html", "md"], tmp_path, "x"):
        assert HOSTILE not in path.read_text(encoding="utf-8")


def test_unknown_reports_are_refused_before_anything_is_measured() -> None:
    refused_command(["bench", "resnet50", "--report", "docx"], "unknown_format", "docx")
