# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.load.requests import (
    REQUEST,
    RequestStatus,
    first_ns,
    is_ok,
    latency_ns,
    lateness_ns,
    read_requests,
    rows_of,
    service_ns,
    write_rows,
)

_FIELDS = st.tuples(
    *[st.integers(-(2**63), 2**63 - 1)] * 4, st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)
)


def test_a_row_has_the_layout_of_the_native_core() -> None:
    assert REQUEST.itemsize == 40
    log = _native.RequestLog(3)
    before_ns = time.monotonic_ns()
    log.begin(1)
    log.first(1)
    log.first(1)
    assert log.end(1, RequestStatus.HTTP_ERROR, 7)
    row = rows_of(log)[1]
    assert before_ns <= row["sent_ns"] <= row["first_ns"] <= row["end_ns"] <= time.monotonic_ns()
    assert (row["planned_ns"], row["status"], row["units"]) == (0, RequestStatus.HTTP_ERROR, 7)


def test_the_first_outcome_of_a_request_stays() -> None:
    log = _native.RequestLog(3)
    log.begin(0)
    log.begin(1)
    assert log.end(0, RequestStatus.OK, 1)
    assert not log.end(0, RequestStatus.FAILED, 9)
    assert (log.ended, log.duplicates) == (1, 1)
    assert log.close() == 2
    rows = rows_of(log)
    assert rows["status"].tolist() == [RequestStatus.OK, RequestStatus.TIMEOUT, RequestStatus.NOT_SENT]
    assert rows["units"].tolist() == [1, 0, 0]
    assert not log.end(1, RequestStatus.OK, 1)


def test_a_request_is_marked_and_sent_in_one_call() -> None:
    log = _native.RequestLog(2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before_ns = time.monotonic_ns()
        assert log.send(1, ours.fileno(), b"request") == 7
        assert before_ns <= rows_of(log)["sent_ns"][1] <= time.monotonic_ns()
        assert theirs.recv(100) == b"request"
        theirs.close()
        assert log.send(0, ours.fileno(), b"request") == 0


def test_a_request_of_a_closed_loop_is_due_when_the_one_before_it_ended() -> None:
    log = _native.RequestLog(2)
    log.begin_next(0, -1)
    log.end(0, RequestStatus.OK, 1)
    log.begin_next(1, 0)
    rows = rows_of(log)
    assert rows["planned_ns"].tolist() == [rows["sent_ns"][0], rows["end_ns"][0]]


def test_a_request_can_be_planned_before_it_is_sent() -> None:
    log = _native.RequestLog(2)
    before_ns = time.monotonic_ns()
    log.plan_next(0, -1)
    log.begin(0)
    log.end(0, RequestStatus.OK, 1)
    log.plan_next(1, 0)
    rows = rows_of(log)
    assert before_ns <= rows["planned_ns"][0] <= rows["sent_ns"][0]
    assert rows["planned_ns"][1] == rows["end_ns"][0]
    assert rows["sent_ns"][1] == 0


def test_an_index_outside_the_log_is_refused() -> None:
    log = _native.RequestLog(2)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            log.begin(index)
        with pytest.raises(IndexError):
            log.end(index, 1, 1)
        with pytest.raises(IndexError):
            log.send(index, 0, b"")
    for begin in (log.begin_next, log.plan_next):
        with pytest.raises(IndexError):
            begin(0, 2)
        with pytest.raises(IndexError):
            begin(2, -1)


def test_rows_of_a_file_are_on_the_disk_at_once(tmp_path: Path) -> None:
    log = _native.RequestLog(2, str(tmp_path / "rows"))
    log.begin(0)
    log.end(0, RequestStatus.OK, 5)
    assert np.fromfile(tmp_path / "rows", REQUEST)["units"].tolist() == [5, 0]
    with pytest.raises(FileExistsError):
        _native.RequestLog(2, str(tmp_path / "rows"))
    with pytest.raises(FileNotFoundError):
        _native.RequestLog(2, str(tmp_path / "missing" / "rows"))


def test_latency_counts_from_the_plan() -> None:
    rows = np.array([(100, 150, 170, 200, 1, 1), (100, 0, 0, 900, 3, 0)], REQUEST)
    assert latency_ns(rows).tolist() == [100, 800]
    assert service_ns(rows).tolist() == [50, -1]
    assert lateness_ns(rows).tolist() == [50, -1]
    assert first_ns(rows).tolist() == [70, -1]
    assert is_ok(rows).tolist() == [True, False]


@settings(max_examples=20, deadline=None)
@given(st.lists(_FIELDS, max_size=50))
def test_rows_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, fields: list[tuple[int, ...]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "it's requests.parquet"
    rows = np.array(fields, REQUEST)
    write_rows(rows, path)
    assert (read_requests(path) == rows).all()


def test_a_request_needs_less_than_40_bytes_on_the_disk(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = np.zeros(20_000, REQUEST)
    rows["planned_ns"] = 10**15 + np.cumsum(generator.exponential(1e6, len(rows)))
    rows["sent_ns"] = rows["planned_ns"] + generator.integers(100, 50_000, len(rows))
    rows["end_ns"] = rows["sent_ns"] + generator.integers(10**6, 10**8, len(rows))
    rows["status"], rows["units"] = RequestStatus.OK, 1
    write_rows(rows, tmp_path / "requests.parquet")
    assert (tmp_path / "requests.parquet").stat().st_size < 40 * len(rows)


def test_files_that_are_no_requests_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no Parquet")
    for path in (tmp_path / "text", tmp_path / "missing"):
        with refused(RunError, "cannot_read", path.name):
            read_requests(path)
