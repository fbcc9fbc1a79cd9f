# SPDX-License-Identifier: Apache-2.0
"""A load on a server by the client's process: what its files contain, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from load_server import OK, LoadServer, hang, respond_with, serving, stream_of
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load import open_result
from gpuprof.load.driver import DriveSettings
from gpuprof.load.requests import RequestStatus
from gpuprof.load.result import LoadSettings
from gpuprof.load.run import LoadOptions, run_load
from gpuprof.load.stopping import check_client
from gpuprof.load.targets.client_process import drive_server, drive_server_closed
from gpuprof.load.targets.server_target import ServerTarget, server_target

pytest.importorskip("uvloop")
S = RequestStatus
MS = 1_000_000


def target_of(server: LoadServer, path: str = "/", scheme: str = "http", **options: Any) -> ServerTarget:
    return server_target(f"{scheme}://127.0.0.1:{server.port}{path}", **options)


def test_each_request_of_a_plan_has_its_row(tmp_path: Path) -> None:
    offsets = np.arange(100) * MS // 2
    with serving({"/": respond_with(OK)}) as server:
        load = drive_server(target_of(server), offsets, tmp_path, DriveSettings())
    driven = load.driven
    rows = driven.rows
    assert (rows["status"] == S.OK).all()
    assert len(server.requests) == len(rows) == 100
    assert (rows["planned_ns"] - driven.start_ns).tolist() == offsets.tolist()
    assert (rows["planned_ns"] <= driven.released_ns).all()
    assert (driven.released_ns <= rows["sent_ns"]).all()
    assert (rows["sent_ns"] <= rows["end_ns"]).all()
    assert (driven.interrupted, driven.duplicates, load.summary.unrequested) == (False, 0, 0)
    assert driven.end_ns == rows["end_ns"].max()


def test_streams_have_first_tokens_and_token_times(tmp_path: Path) -> None:
    text = b'data: {"choices":[{"text":"x"}]}\n\n'
    done = stream_of(text, text, text, b"data: [DONE]\n\n")
    with serving({"/v1/chat/completions": respond_with(done)}) as server:
        target = target_of(server, "/v1", "openai+http", model="m")
        load = drive_server(target, np.arange(5) * MS, tmp_path, DriveSettings())
    rows = load.driven.rows
    assert rows["units"].tolist() == [3] * 5
    assert ((rows["sent_ns"] <= rows["first_ns"]) & (rows["first_ns"] <= rows["end_ns"])).all()
    assert sorted(load.tokens["request"].tolist()) == sorted([0, 1, 2, 3, 4] * 3)
    # The clock of the tokens is the clock of the log.
    for row in load.tokens:
        request = rows[row["request"]]
        assert request["sent_ns"] <= row["time_ns"] <= request["end_ns"]
    assert load.summary.streams_by_chunks == 5


def test_a_closed_loop(tmp_path: Path) -> None:
    with serving({"/": respond_with(OK)}) as server:
        load = drive_server_closed(target_of(server, concurrency=2), 20, tmp_path, DriveSettings())
        assert server.connections <= 2
    rows = load.driven.rows
    assert (rows["status"] == S.OK).all()
    # Each is due when another ended, but for the first two.
    assert set(rows["planned_ns"][2:].tolist()) <= set(rows["end_ns"].tolist())


def test_what_is_under_way_at_the_end_of_the_drain_is_late(tmp_path: Path) -> None:
    with serving({"/": hang}) as server:
        settings = DriveSettings(drain_s=0.05)
        load = drive_server(target_of(server, concurrency=1), np.zeros(3, np.int64), tmp_path, settings)
    rows = load.driven.rows
    assert rows["status"].tolist() == [S.TIMEOUT, S.NOT_SENT, S.NOT_SENT]
    assert (rows["end_ns"] > rows["planned_ns"]).all()


def test_progress_shows_the_rows_and_an_interrupt_keeps_them(tmp_path: Path) -> None:
    seen: list[int] = []

    def interrupt(rows: np.ndarray) -> None:
        seen.append(len(rows))
        if (rows["status"] == S.OK).any():
            raise KeyboardInterrupt

    offsets = np.concatenate([np.zeros(5, np.int64), [3600 * 1000 * MS]])
    with serving({"/": respond_with(OK)}) as server:
        load = drive_server(target_of(server), offsets, tmp_path, DriveSettings(progress=interrupt))
    assert set(seen) == {6}
    assert load.driven.interrupted
    assert load.driven.rows["status"].tolist() == [S.OK] * 5


def kill_client(_: np.ndarray) -> None:
    """End the only child of this process."""
    (child,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)


needs_children = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="no list of children"
)


@needs_children
def test_a_client_that_is_killed_leaves_what_it_measured(tmp_path: Path) -> None:
    def kill(rows: np.ndarray) -> None:
        if (rows["status"][:5] == S.OK).all() and rows["sent_ns"][5]:
            kill_client(rows)

    # The first five get a response, one hangs, two wait for its connection, and one is due in an hour.
    offsets = np.array([0] * 5 + [MS] * 3 + [3600 * 1000 * MS])
    replies = iter([respond_with(OK)] * 5 + [hang])
    with serving({"/": lambda exchange: next(replies)(exchange)}) as server:
        load = drive_server(target_of(server, concurrency=1), offsets, tmp_path, DriveSettings(progress=kill))
    driven = load.driven
    assert driven.client_code == -signal.SIGKILL
    assert not driven.interrupted
    assert driven.rows["status"].tolist() == [S.OK] * 5 + [S.TIMEOUT, S.NOT_SENT, S.NOT_SENT]
    assert (driven.rows["end_ns"] > driven.rows["planned_ns"]).all()
    assert (driven.rows["planned_ns"] - driven.start_ns).tolist() == offsets[:8].tolist()


@needs_children
def test_a_load_whose_client_is_killed_is_an_incomplete_result(tmp_path: Path) -> None:
    def kill(rows: np.ndarray) -> None:
        if (rows["status"][:100] == S.OK).any():
            kill_client(rows)

    with serving({"/": respond_with(OK)}) as server:
        settings = LoadSettings("http", "closed-loop", count=1_000_000)
        options = LoadOptions(progress=kill, describe=False)
        result = run_load(target_of(server, concurrency=2), settings, options=options)
        assert "client_ended" in {each.code for each in result.warnings}
        assert result.statuses[S.OK] > 0
        assert set(result.statuses) <= {
            S.OK,
            S.TIMEOUT,
        }
        result.save(tmp_path)
        assert open_result(tmp_path).run.client_code == -signal.SIGKILL
        # A run that was cut is no sample of a search.
        with refused(BenchmarkError, "client_failed"):
            check_client(result)


@pytest.mark.parametrize("scheme", ["http", "openai+http", "kserve+http"])
def test_no_server_is_one_line(scheme: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        target = server_target(f"{scheme}://127.0.0.1:{port}/m", model="m")
        with pytest.raises(BenchmarkError) as caught:
            drive_server(target, np.zeros(1, np.int64), tmp_path, DriveSettings())
    assert caught.value.code == "no_server"
    assert caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_an_empty_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError) as caught:
        drive_server(server_target("http://127.0.0.1:1/"), np.zeros(0, np.int64), tmp_path, DriveSettings())
    assert caught.value.code == "empty_plan"
