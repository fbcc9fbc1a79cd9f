# SPDX-License-Identifier: Apache-2.0
"""Latency and resources over time in a report, from made series of known values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from comparison_documents import HOSTILE, typed

from gpuprof.bench.compare.document import ComparisonDocument, TimeSeries
from gpuprof.bench.measure.resources import DeviceSeries, ResourceSeries
from gpuprof.bench.report.sections import content_of
from gpuprof.bench.serialization import from_plain, to_plain

RESOURCES = ResourceSeries(
    time_s=[-0.1, 0.0, 0.1],
    cpu_percent=[90.0, 100.0, 80.0],
    memory_bytes=[1_000_000, 2_000_000, 3_000_000],
    read_bytes=[0, 5_000_000, 0],
    written_bytes=[0, 0, 0],
    network_received_bytes=None,
    network_sent_bytes=None,
    devices=[DeviceSeries(0, "utilization_percent", [0.05], [75.0])],
)
SERIES = TimeSeries(latency_time_s=(0.0, 0.1), latency_s=(0.001, 0.002), resources=RESOURCES)


def with_series(document: ComparisonDocument) -> ComparisonDocument:
    variants = tuple(
        replace(
            each,
            batches=tuple(
                replace(batch, series=SERIES, data_loading_s=0.002, data_loading_share=0.25)
                for batch in each.batches
            ),
        )
        for each in document.variants
    )
    return replace(document, variants=variants)


def test_rows_have_the_values_of_the_series_of_each_variant() -> None:
    document = with_series(typed(("original", "int8")))
    (section,) = [each for each in content_of(document).sections if each.key == "series"]
    (figure,) = section.figures
    drawn = {(each["name"], each["yaxis"]): (each["x"], each["y"]) for each in figure.traces}
    assert len(drawn) == 2 * 5
    assert drawn["int8", "y"] == ([0.0, 0.1], pytest.approx([1.0, 2.0]))
    assert drawn["int8", "y2"] == ([-0.1, 0.0, 0.1], [90.0, 100.0, 80.0])
    assert drawn["original", "y3"][1] == pytest.approx([1.0, 2.0, 3.0])
    assert drawn["original", "y4"][1] == pytest.approx([0.0, 5.0, 0.0])  # nothing was written
    assert drawn["original", "y5"] == ([0.05], [75.0])
    domains = [figure.layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4", "yaxis5")]
    assert all(low < high for low, high in domains)
    assert all(below[1] <= above[0] for above, below in itertools.pairwise(domains))
    (table,) = section.tables
    assert [row.variant for row in table.rows] == [
        each.name for each in document.measured for _ in each.batches
    ]
    assert "I/O wait" not in table.heads  # unavailable


def test_a_report_without_series_has_no_such_section() -> None:
    assert "series" not in [each.key for each in content_of(typed(("original", "int8"))).sections]


def test_names_are_escaped_for_the_plot() -> None:
    document = with_series(typed(("original", HOSTILE)))
    (section,) = [each for each in content_of(document).sections if each.key == "series"]
    assert "<img" not in str(section.figures[0].to_dict())


def test_a_series_is_the_same_after_a_file() -> None:
    assert from_plain(to_plain(SERIES), TimeSeries) == SERIES
    np.testing.assert_array_equal(SERIES.latency_s, (0.001, 0.002))
