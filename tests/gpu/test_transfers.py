# SPDX-License-Identifier: Apache-2.0
"""GPU: copies, fills and waits."""

from __future__ import annotations

from typing import Any

from expectations import is_whole

SIZES = (1, 4096, 1_000_003)
PLACES = {
    "pageable to device": ("copy", "pageable", "device"),
    "pinned to device": ("copy", "pinned", "device"),
    "device to pageable": ("copy", "device", "pageable"),
    "device to pinned": ("copy", "device", "pinned"),
    "device to device": ("copy", "device", "device"),
    "fill": ("fill", None, "device"),
}


def test_bytes_are_exact(program: Any) -> None:
    run = program("transfers").run
    is_whole(run)
    found = run.sql(
        "SELECT spans.name, transfers.kind, src, dst, bytes, transfers.launch_ns IS NOT NULL "
        "FROM transfers JOIN spans USING (span_id) ORDER BY transfers.start_ns"
    ).fetchall()
    # A fill may be done by a kernel, depending on its size and on PyTorch.
    fills = run.sql(
        "SELECT count(*) FROM kernels JOIN spans USING (span_id) WHERE spans.name = 'fill'"
    ).fetchall()[0][0]
    expected = [(name, *place, size, True) for size in SIZES for name, place in PLACES.items()]
    copies = [row for row in expected if row[0] != "fill"]
    assert [row for row in found if row[0] != "fill"] == copies
    assert [row for row in found if row[0] == "fill"] == [row for row in expected if row[0] == "fill"][
        : len(SIZES) - fills
    ]


def test_waits(program: Any) -> None:
    ran = program("waits")
    is_whole(ran.run)
    found = ran.run.sql(
        "SELECT spans.name, max(synchronizations.duration_ns) FROM synchronizations "
        "JOIN spans USING (span_id) GROUP BY spans.name"
    ).fetchall()
    waited = dict(found)
    assert waited.keys() == {"context", "stream", "event"}
    error_ns = ran.run.meta["gpu"]["clock_error_ns"]
    for name, taken_ns in ran.facts["taken_ns"].items():
        assert taken_ns / 2 < waited[name] <= taken_ns + error_ns
