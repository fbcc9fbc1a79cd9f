# SPDX-License-Identifier: Apache-2.0
"""Streams of tokens against a real server: what is counted, and every way in which a stream can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from load_client import CheckedLog, send_all
from load_server import OK, STREAM, Exchange, LoadServer, Responder, chunked, respond_with, serving, stream_of

from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.requests import RequestStatus, write_rows
from gpuprof.load.targets.address import WireProtocol, parse_address
from gpuprof.load.targets.client import OnEnd
from gpuprof.load.targets.openai import COMPLETIONS, OpenAiClient, OpenAiRequest, openai_requests
from gpuprof.load.targets.token_times import TokenFile, read_tokens

pytest.importorskip("httptools")
S = RequestStatus
DONE = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(content: str | None = "x", **more: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}}], **more})


def usage(count: int) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 5, "completion_tokens": count}}


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
LAST = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
COUNT = event({"choices": [], **usage(7)})
ERROR = event({"error": {"message": "out of blocks", "code": 500}})
UNCOUNTED = event({"choices": [{"text": "x"}], "usage": None, "error": None})

# The events of a stream, whether the server ends it as HTTP wants, its status and its tokens.
STREAMS: dict[str, tuple[tuple[bytes, ...], bool, RequestStatus, int]] = {
    "chat": ((ROLE, text(), text(), LAST, DONE), True, S.OK, 2),
    "usage counts, chunks do not": ((ROLE, text(), text(), LAST, COUNT, DONE), True, S.OK, 7),
    "completions": ((UNCOUNTED, UNCOUNTED, UNCOUNTED, DONE), True, S.OK, 3),
    "all in one chunk": ((ROLE + text() + text() + DONE,), True, S.OK, 2),
    "reasoning": ((event({"choices": [{"delta": {"reasoning_content": "hm"}}]}), DONE), True, S.OK, 1),
    "a tool": ((event({"choices": [{"delta": {"tool_calls": [{"id": "1"}]}}]}), DONE), True, S.OK, 1),
    "fields of another server": (
        (event({"x": [1], "choices": [{"text": "x", "y": {}}]}), DONE),
        True,
        S.OK,
        1,
    ),
    "no [DONE]": ((ROLE, text(), LAST), True, S.STREAM_WITHOUT_DONE, 1),
    "no [DONE], cut off": ((ROLE, text()), False, S.STREAM_WITHOUT_DONE, 1),
    "half an event": ((ROLE, text(), text()[:20]), True, S.HALF_EVENT, 1),
    "half an event, cut off": ((ROLE, text(), text()[:20]), False, S.HALF_EVENT, 1),
    "[DONE], cut off": ((text(), DONE), False, S.INCOMPLETE, 0),
    "no events": ((DONE,), True, S.NO_TOKENS, 0),
    "empty chunks": ((ROLE, text(""), text(None), LAST, DONE), True, S.EMPTY_CHUNKS, 0),
    "usage of 0": ((text(), event({"choices": [], **usage(0)}), DONE), True, S.NO_TOKENS, 0),
    "usage of 0 without text": (
        (text(""), event({"choices": [], **usage(0)}), DONE),
        True,
        S.EMPTY_CHUNKS,
        0,
    ),
    "an error within": ((ROLE, text(), ERROR, DONE), True, S.STREAM_ERROR, 1),
    "not JSON": ((text(), b"data: {x}\n\n", DONE), True, S.INVALID, 1),
    "JSON of another kind": ((text(), b"data: [1, 2]\n\n", DONE), True, S.INVALID, 1),
    "text that is a number": ((event({"choices": [{"text": 5}]}), DONE), True, S.INVALID, 0),
    "a negative count": ((text(), event({"choices": [], **usage(-3)}), DONE), True, S.NO_TOKENS, 0),
    "a JSON document": ((b'{"choices": [{"message": {"content": "no"}}]}',), True, S.NOT_EVENT_STREAM, 0),
    "JSON in lines": ((b'{\n"n": 5,\n"data": []\n}\n',), True, S.NOT_EVENT_STREAM, 0),
    "a page": ((b"<!doctype html>\n\n<p>no",), True, S.NOT_EVENT_STREAM, 0),
    "blank lines": ((b"\n\n",), True, S.STREAM_WITHOUT_DONE, 0),
    "a comment only": ((b": keep-alive\n\n",), True, S.STREAM_WITHOUT_DONE, 0),
    "an empty body": ((), True, S.STREAM_WITHOUT_DONE, 0),
    "the beginning of a field": ((b"dat",), True, S.HALF_EVENT, 0),
}


def openai_client(server: LoadServer, on_tokens: Any = None, **options: Any) -> Any:
    address = server.address("/v1", WireProtocol.OPENAI)
    requests = openai_requests(address, OpenAiRequest("m", prompt_tokens=4, output_tokens=3))
    return lambda log, on_end: OpenAiClient(address, requests.of, log, on_tokens, on_end=on_end, **options)


def streaming(responder: Responder) -> dict[str, Responder]:
    return {"/v1/chat/completions": responder}


@pytest.mark.parametrize("name", STREAMS)
def test_each_end_of_a_stream_has_its_status(name: str) -> None:
    events, is_whole, status, tokens = STREAMS[name]
    with serving(
        streaming(respond_with(stream_of(*events, is_whole=is_whole), close=not is_whole))
    ) as server:
        log = send_all(openai_client(server), 2, one_by_one=True)
    assert log.statuses == [status] * 2
    assert [units for _, units in log.ends.values()] == [tokens if is_whole or status is S.OK else 0] * 2
    assert log.firsts == (
        [0, 1] if any(b'"x"' in each or b"hm" in each or b"id" in each for each in events) else []
    )


def test_failures_before_the_stream() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"
    for responder, expected in ((refusal, S.OVERLOADED), (OK, S.NOT_EVENT_STREAM)):
        with serving(streaming(respond_with(responder))) as server:
            log = send_all(openai_client(server), 1)
        assert (log.statuses, log.firsts) == ([expected], [])


def test_a_stream_that_stops_is_late_and_keeps_its_first_token() -> None:
    with serving(streaming(respond_with(STREAM + chunked(text())))) as server:
        log = send_all(openai_client(server, timeout_s=0.1), 1)
    assert (log.statuses, log.firsts) == ([S.TIMEOUT], [0])


def test_where_counts_come_from() -> None:
    clients: list[OpenAiClient] = []
    replies = [stream_of(text(), COUNT, DONE), stream_of(text(), DONE), stream_of(text())]

    def make(log: CheckedLog, on_end: OnEnd) -> OpenAiClient:
        clients.append(openai_client(server)(log, on_end))
        return clients[0]

    def respond(exchange: Exchange) -> None:
        exchange.transport.write(replies[len(server.requests) - 1])

    with serving(streaming(respond)) as server:
        send_all(make, 3, one_by_one=True)
    assert (clients[0].totals.by_usage, clients[0].totals.by_chunks) == (1, 1)


def test_tokens_have_times_and_counts(tmp_path: Path) -> None:
    counted = (text("a", **usage(2)), text("bcd", **usage(5)), DONE)
    uncounted = (text(), text(), COUNT, DONE)
    replies = [stream_of(*counted), stream_of(*uncounted)]

    def respond(exchange: Exchange) -> None:
        exchange.transport.write(replies[len(server.requests) - 1])

    with TokenFile(tmp_path / "tokens") as file, serving(streaming(respond)) as server:
        log = send_all(openai_client(server, file.add), 2, one_by_one=True)
    rows = read_tokens(tmp_path / "tokens")
    assert rows[["request", "tokens", "counted"]].tolist() == [(0, 2, 1), (0, 3, 1), (1, 1, 0), (1, 1, 0)]
    assert (rows["time_ns"][1:] >= rows["time_ns"][:-1]).all()
    assert [units for _, units in log.ends.values()] == [5, 7]


def test_a_file_of_tokens_that_is_cut_off(tmp_path: Path) -> None:
    with TokenFile(tmp_path / "tokens") as file:
        for index in range(10_000):
            file.add(index, index * 10, 70_000, True)
    rows = read_tokens(tmp_path / "tokens")
    assert rows["request"].tolist() == list(range(10_000))
    assert rows["time_ns"].tolist() == [index * 10 for index in range(10_000)]
    assert set(rows["tokens"].tolist()) == {65_535}
    with (tmp_path / "tokens").open("r+b") as cut:
        cut.truncate(16 * 9 + 5)
    assert len(read_tokens(tmp_path / "tokens")) == 9


def test_the_table_of_tokens_is_parquet(tmp_path: Path) -> None:
    from gpuprof.run.database import connect

    with TokenFile(tmp_path / "tokens") as file:
        for index in range(1000):
            file.add(index % 7, 10**15 + index * 1000, 1, False)
    write_rows(read_tokens(tmp_path / "tokens"), tmp_path / "tokens.parquet")
    query = "SELECT request, tokens, counted, time_ns FROM read_parquet(?)"
    rows = connect().execute(query, [str(tmp_path / "tokens.parquet")]).fetchall()
    assert rows == [(index % 7, 1, 0, 10**15 + index * 1000) for index in range(1000)]
    with pytest.raises(RunError):
        write_rows(read_tokens(tmp_path / "tokens"), tmp_path / "missing" / "tokens.parquet")


def test_what_is_asked_for() -> None:
    address = parse_address("openai+http://127.0.0.1:8000/v1/")
    sent = openai_requests(address, OpenAiRequest("m", 4, 3), {"Authorization": "Bearer k"}).of(12)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert b"\r\nAuthorization: Bearer k" in head
    assert json.loads(body) == {
        "model": "m",
        "stream": True,
        "max_tokens": 3,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "12 word word word "}],
    }
    sent = openai_requests(address, OpenAiRequest("m", 1, 1, COMPLETIONS)).of(0)
    assert sent.startswith(b"POST /v1/completions ")
    assert json.loads(sent.partition(b"\r\n\r\n")[2])["prompt"] == "0 "
    whole = parse_address("openai+http://127.0.0.1:8000/api/chat/completions")
    assert openai_requests(whole, OpenAiRequest("m")).of(0).startswith(b"POST /api/chat/completions ")


def test_an_unknown_endpoint() -> None:
    with pytest.raises(BenchmarkError) as caught:
        openai_requests(parse_address("openai+http://127.0.0.1/v1"), OpenAiRequest("m", 1, 1, "embeddings"))
    assert caught.value.code == "unknown_endpoint"


@pytest.mark.parametrize("header", ["a: b", "", "X\n", "Host", "content-length", "é"])
def test_headers_that_would_break_a_request(header: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        openai_requests(parse_address("openai+http://127.0.0.1/v1"), OpenAiRequest("m"), {header: "x"})
    assert caught.value.code == "bad_header"
    with pytest.raises(BenchmarkError):
        openai_requests(parse_address("openai+http://127.0.0.1/v1"), OpenAiRequest("m"), {"X": "a\r\nB: c"})
