# SPDX-License-Identifier: Apache-2.0
"""Requests start when the pacer announces them, and each ends in the log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from load_client import CheckedLog
from load_server import OK, LoadServer, hang, respond_with, serving, stream_of

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.client import Client, OnEnd
from gpuprof.load.targets.clients import make_client
from gpuprof.load.targets.event_loop import ClosedLoop, OpenLoop, run_event_loop
from gpuprof.load.targets.server_target import (
    ServerTarget,
    load_target,
    save_target,
    server_target,
)

S = RequestStatus
pytest.importorskip("uvloop")


class PlannedBatches:
    """A pacer whose batches become ready one after the other, each once the one before was taken."""

    def __init__(self, *batches: list[int]) -> None:
        self._batches = list(batches)
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def begin(self) -> None:
        os.write(self._write, b"x")

    def take_ready(self) -> list[int]:
        os.read(self._read, 1)
        batch = self._batches.pop(0)
        if self._batches:
            os.write(self._write, b"x")
        return batch

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def paced() -> Iterator[Callable[..., PlannedBatches]]:
    made: list[PlannedBatches] = []

    def make(*batches: list[int]) -> PlannedBatches:
        made.append(PlannedBatches(*batches))
        return made[-1]

    yield make
    for each in made:
        each.close()


def drive(target: ServerTarget, pacer: PlannedBatches, count: int, drain_s: float = 30.0) -> CheckedLog:
    log = CheckedLog()

    async def make(on_end: OnEnd) -> Client:
        return await make_client(target, log, on_end)

    run_event_loop(lambda: OpenLoop(pacer, count, drain_s=drain_s).run(make, pacer.begin))
    return log


def target_of(server: LoadServer, path: str = "/", scheme: str = "http", **options: Any) -> ServerTarget:
    return server_target(f"{scheme}://127.0.0.1:{server.port}{path}", **options)


def test_every_request_of_a_plan_is_sent(paced: Any) -> None:
    with serving({"/": respond_with(OK)}) as server:
        log = drive(target_of(server), paced([0], [1, 2, 3], [], [4]), 5)
    assert log.statuses == [S.OK] * 5


def test_what_has_not_ended_after_the_drain_is_in_the_log(paced: Any) -> None:
    with serving({"/": hang}) as server:
        log = drive(target_of(server, concurrency=2), paced([0, 1], [2]), 3, drain_s=0.05)
    assert log.statuses == [S.TIMEOUT] * 2 + [S.NOT_SENT]


def closed(target: ServerTarget, count: int, **options: Any) -> tuple[CheckedLog, list[tuple[int, int]]]:
    log, pairs = CheckedLog(), []

    async def make(on_end: OnEnd) -> Client:
        return await make_client(target, log, on_end)

    async def run() -> None:
        settings = {"outstanding": 3, "duration_s": float("inf"), "drain_s": 30.0, **options}
        await ClosedLoop(count, on_next=lambda *pair: pairs.append(pair), **settings).run(make, lambda: None)

    run_event_loop(run)
    return log, pairs


def test_in_a_closed_loop_each_end_starts_the_next() -> None:
    with serving({"/": respond_with(OK)}) as server:
        log, pairs = closed(target_of(server), 50)
        assert server.connections <= 3
        assert log.statuses == [S.OK] * 50
        assert [index for index, _ in pairs] == list(range(50))
        formers = [former for _, former in pairs]
        assert formers[:3] == [-1] * 3
        assert len(set(formers[3:])) == 47
        assert all(former < index for index, former in pairs)
        assert closed(target_of(server), 2)[0].statuses == [S.OK] * 2


def test_a_closed_loop_ends_with_its_duration() -> None:
    with serving({"/": hang}) as server:
        log, _ = closed(target_of(server), 50, duration_s=0.01, drain_s=0.01)
    assert log.statuses == [S.TIMEOUT] * 3


def test_streams_and_files_of_bodies(paced: Any, tmp_path: Path) -> None:
    done = stream_of(b'data: {"choices":[{"text":"x"}]}\n\n', b"data: [DONE]\n\n")
    with serving({"/v1/completions": respond_with(done)}) as server:
        target = target_of(server, "/v1", "openai+http", model="m", endpoint="completions", concurrency=1)
        assert drive(target, paced([0, 1]), 2).ends == {0: (S.OK, 1), 1: (S.OK, 1)}
        assert target.is_stream
    (tmp_path / "body.json").write_text('{"id": {{index}}}')
    with serving({"/predict": respond_with(OK)}) as server:
        target = target_of(server, "/predict", body=str(tmp_path / "body.json"), headers={"X-Key": "k"})
        assert drive(target, paced([0, 1]), 2).statuses == [S.OK] * 2
        assert sorted(body for _, body in server.requests) == [b'{"id": 0}', b'{"id": 1}']
        head = server.requests[0][0].lower()
        assert b"content-type: application/json" in head
        assert b"x-key: k" in head


def test_a_target_crosses_to_another_process(tmp_path: Path) -> None:
    target = server_target(
        "kserve+http://localhost:1/m", shapes={"x": [1, 8]}, headers={"Authorization": "secret"}, timeout_s=2
    )
    path = tmp_path / "target.json"
    save_target(target, path)
    assert load_target(path) == target
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        save_target(target, path)


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        ("http://192.0.2.1/", {}, "remote_target"),
        ("http://127.0.0.1/", {"concurrency": 0}, "bad_limit"),
        ("http://127.0.0.1/", {"timeout_s": float("nan")}, "bad_limit"),
        ("http://127.0.0.1/", {"timeout_s": 0.0}, "bad_limit"),
        ("http://127.0.0.1/", {"headers": {"A": "x\r\nB: y"}}, "bad_header"),
        ("http://127.0.0.1/", {"body": "missing.json"}, "cannot_read"),
        ("http://127.0.0.1/", {"body": "missing.json:many"}, "bad_mix"),
        ("openai+http://127.0.0.1/v1", {}, "no_model"),
        ("openai+http://127.0.0.1/v1", {"model": "m", "output_tokens": 0}, "bad_token_count"),
        ("openai+http://127.0.0.1/v1", {"model": "m", "prompt_tokens": 0}, "bad_token_count"),
        ("kserve+grpc://127.0.0.1/m", {"body": "body.json"}, "no_body"),
    ],
)
def test_what_is_refused_before_anything_is_sent(text: str, options: dict[str, Any], code: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        server_target(text, **options)
    assert caught.value.code == code
    assert caught.value.hint


def test_a_missing_package_names_itself(monkeypatch: pytest.MonkeyPatch, paced: Any) -> None:
    import sys

    from gpuprof.errors import UnavailableError

    monkeypatch.setitem(sys.modules, "httptools", None)
    target = server_target("http://127.0.0.1:1/")
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(make_client(target, CheckedLog(), lambda index, status: None))
    assert (caught.value.code, "httptools" in caught.value.message) == ("not_installed", True)
