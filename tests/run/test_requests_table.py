# SPDX-License-Identifier: Apache-2.0
"""Which span is whose: requests as a thread served them, and its spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.run.damage import DamageCode
from gpuprof.run.requests_table import SERVED_FILE, ServedRequests, spans_of

FIRST, SECOND = 7, 8
MS = 1_000_000
Row = tuple[int, int, int]  # thread, sent and end in ms; thread 0 for none
Spans = list[tuple[int, int, float]]  # id, thread, begin in ms


def served(rows: list[Row]) -> ServedRequests:
    thread, sent, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), np.int64)
    return ServedRequests(
        np.arange(len(rows)), sent * MS, sent * MS, nothing, end * MS, nothing + 1, nothing, thread, {1: "ok"}
    )


def matched(rows: list[Row], spans: Spans) -> list[int]:
    columns = zip(*sorted(spans, key=lambda each: each[2]), strict=True)
    span_id, thread, start = (np.array(column) for column in columns)
    found = spans_of(
        served(rows),
        {"span_id": span_id, "thread_id": thread, "start_ns": (start * MS).astype(np.int64)},
    )
    return found.tolist()


@pytest.mark.parametrize(
    ("rows", "spans", "expected"),
    [
        # One after the other on one thread; the clock of the second span is 0.01 ms early.
        ([(FIRST, 1, 5), (FIRST, 5, 9)], [(10, FIRST, 1.1), (11, FIRST, 4.99)], [10, 11]),
        # Two threads at once: times alone do not divide them.
        ([(FIRST, 1, 9), (SECOND, 2, 8)], [(10, SECOND, 5.2), (11, FIRST, 5.1)], [11, 10]),
        # Tasks of one thread: all are sent, then they begin in this order.
        (
            [(FIRST, 1, 9), (FIRST, 2, 8), (FIRST, 3, 7)],
            [(10, FIRST, 4), (11, FIRST, 5), (12, FIRST, 6)],
            [10, 11, 12],
        ),
        # A batch is sent at one moment, and has one span.
        ([(FIRST, 1, 5), (FIRST, 1, 5), (FIRST, 6, 9)], [(10, FIRST, 2), (11, FIRST, 7)], [10, 10, 11]),
        # The span of the first one is lost.
        ([(FIRST, 1, 5), (FIRST, 6, 9)], [(11, FIRST, 7)], [-1, 11]),
        # The second one was never begun, and the span of another thread is no request's.
        ([(FIRST, 1, 5), (0, 6, 9)], [(10, FIRST, 2), (11, 9, 7)], [10, -1]),
        # The plan is not in the order of sending.
        ([(FIRST, 6, 9), (FIRST, 1, 5)], [(10, FIRST, 2), (11, FIRST, 7)], [11, 10]),
    ],
)  # fmt: skip
def test_each_request_has_its_span(rows: list[Row], spans: Spans, expected: list[int]) -> None:
    assert matched(rows, spans) == expected


def test_a_thread_serves_thousands(tmp_path: Path) -> None:
    count = 5000
    rows = [(FIRST + index % 3, index, index + 3) for index in range(count)]
    spans: Spans = [(index, FIRST + index % 3, index + 0.5) for index in range(count) if index % 7]
    expected = [index if index % 7 else -1 for index in range(count)]
    assert matched(rows, spans) == expected


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    given = served([(FIRST, 1, 5), (SECOND, 2, 9)])
    given.save(tmp_path)
    found, damage = ServedRequests.read(tmp_path)
    assert found is not None
    assert not damage
    assert (found.thread_id.tolist(), found.end_ns.tolist()) == ([FIRST, SECOND], [5 * MS, 9 * MS])
    assert found.statuses == {1: "ok"}


def test_nothing_is_no_damage(tmp_path: Path) -> None:
    assert ServedRequests.read(tmp_path) == (None, [])


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def objects(_content: bytes) -> bytes:
    return b"\x80\x04cos\nsystem\n."


@pytest.mark.parametrize("change", [cut, objects, lambda _: b""])
def test_a_damaged_file_is_damage(tmp_path: Path, change: Any) -> None:
    served([(FIRST, 1, 5)]).save(tmp_path)
    file = tmp_path / SERVED_FILE
    file.write_bytes(change(file.read_bytes()))
    found, (damage,) = ServedRequests.read(tmp_path)
    assert (found, damage.code, damage.file) == (None, DamageCode.UNREADABLE, SERVED_FILE)


def test_columns_of_other_lengths_are_damage(tmp_path: Path) -> None:
    served([(FIRST, 1, 5)]).save(tmp_path)
    with np.load(tmp_path / SERVED_FILE) as file:
        columns = dict(file)
    np.savez(tmp_path / SERVED_FILE, **{**columns, "units": np.zeros(5, np.int64)})
    assert ServedRequests.read(tmp_path)[1]
