# SPDX-License-Identifier: Apache-2.0
"""Streams of servers that are compatible with OpenAI's chat/completions and completions.

A chunk is no token: servers put several tokens into one, and several chunks arrive in one read. So tokens are
the server's own count (`usage`), of the response and, where it counts as it goes, of each chunk. Without a
count, chunks with text are counted, and the result reports that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.bodies import Body, BodyMix, json_body
from gpuprof.load.targets.client import ResponseLog
from gpuprof.load.targets.http import HttpClient, HttpConnection
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.server_sent_events import EventReader, EventTooLongError
from gpuprof.load.targets.token_times import TokenSink

CHAT, COMPLETIONS = "chat/completions", "completions"
_DONE = b"[DONE]"
_NO_ERROR = (b"", b"null")
# One token of most vocabularies, with the space.
_WORD = "word "


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    text: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta
        if self.text or delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_DECODE: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class StreamTotals:
    """Where the token counts of the streams of a load come from."""

    by_usage: int = 0  # complete streams that the server counted
    by_chunks: int = 0  # complete streams of which chunks are counted


class StreamReader:
    """Reads one stream after another; `units` is the tokens of the one that is read."""

    def __init__(self, totals: StreamTotals, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._totals, self._clock_ns = totals, clock_ns
        self.begin(0)

    def begin(self, index: int) -> None:
        """Begin the stream of request `index`."""
        self._index = index
        self._events = EventReader()
        self._error = RequestStatus.OK
        self._is_done = False
        self._chunks = self._events_seen = 0
        self._counted: int | None = None

    def feed(self, body: bytes, on_first: Callable[[int], None], on_tokens: TokenSink | None) -> None:
        """Read a part of the body; calls on_first at the first text, and on_tokens for each chunk of text."""
        try:
            events = self._events.feed(body)
        except EventTooLongError:
            self._fail(RequestStatus.INVALID)
            return
        for event in events:
            self._take(event, on_first, on_tokens)

    def _fail(self, status: RequestStatus) -> None:
        if self._error is RequestStatus.OK:
            self._error = status

    def _take(self, event: bytes, on_first: Callable[[int], None], on_tokens: TokenSink | None) -> None:
        if event == _DONE:
            self._is_done = True
            return
        try:
            chunk = _DECODE(event)
        except msgspec.MsgspecError:
            self._fail(RequestStatus.INVALID)
            return
        self._events_seen += 1
        if bytes(chunk.error) not in _NO_ERROR:
            self._fail(RequestStatus.STREAM_ERROR)
        before = self._counted
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._counted = max(chunk.usage.completion_tokens, 0)
        if not any(choice.has_text for choice in chunk.choices or ()):
            return
        if not self._chunks:
            on_first(self._index)
        self._chunks += 1
        if on_tokens is not None:
            is_counted = self._counted is not None
            tokens = max((self._counted or 0) - (before or 0), 0) if is_counted else 1
            on_tokens(self._index, self._clock_ns(), tokens, is_counted)

    def finish(self) -> tuple[RequestStatus, int]:
        """Return how the stream ended, and its tokens."""
        if self._error is RequestStatus.OK and not self._is_done:
            for event in self._events.finish():
                self._is_done = self._is_done or event == _DONE
        tokens = self._chunks if self._counted is None else self._counted
        status = self._status(tokens)
        if status is RequestStatus.OK:
            self._totals.by_usage += self._counted is not None
            self._totals.by_chunks += self._counted is None
        return status, tokens

    def _status(self, tokens: int) -> RequestStatus:
        if self._error is not RequestStatus.OK:
            return self._error
        if not self._is_done:
            if self._events.is_other_format:
                return RequestStatus.NOT_EVENT_STREAM
            has_half = self._events.has_half_event
            return RequestStatus.HALF_EVENT if has_half else RequestStatus.STREAM_WITHOUT_DONE
        if self._chunks and tokens:
            return RequestStatus.OK
        is_empty = self._events_seen and not self._chunks
        return RequestStatus.EMPTY_CHUNKS if is_empty else RequestStatus.NO_TOKENS


class _StreamConnection(HttpConnection):
    """A connection whose responses are streams."""

    reads_body = True

    def __init__(self, client: OpenAiClient) -> None:
        super().__init__(client)
        self._reader = StreamReader(client.totals)
        self._on_first, self._on_tokens = client.on_first, client.on_tokens

    def send(self, index: int, request: bytes) -> None:
        self._reader.begin(index)
        super().send(index, request)

    def send_first(self, index: int, request: bytes) -> None:
        self._reader.begin(index)
        super().send_first(index, request)

    def on_body(self, body: bytes) -> None:
        if self._status is RequestStatus.OK and self.index is not None:
            self._reader.feed(body, self._on_first, self._on_tokens)

    def finish_response(self) -> tuple[RequestStatus, int]:
        return self._reader.finish()

    def lost_response(self) -> RequestStatus:
        status, _ = self._reader.finish()
        return super().lost_response() if status is RequestStatus.OK else status


class OpenAiClient(HttpClient):
    """A client whose responses are streams of tokens; on_tokens gets the time of each chunk of text."""

    def __init__(
        self,
        address: ServerAddress,
        request_of: Callable[[int], bytes],
        log: ResponseLog,
        on_tokens: TokenSink | None = None,
        **options: Any,
    ) -> None:
        super().__init__(address, request_of, log, **options)
        self.totals = StreamTotals()
        self.on_tokens = on_tokens
        self.on_first = log.first

    def new_connection(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return _StreamConnection(self)


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """What is asked of a model: tokens are those of the prompt, approximately, and the most to write."""

    model: str
    prompt_tokens: int = 128
    output_tokens: int = 64
    endpoint: str = CHAT

    def body(self) -> Body:
        """Return the body; each request has its number first, so that no cache of prompts has it."""
        prompt = "{{index}} " + _WORD * (self.prompt_tokens - 1)
        asked: dict[str, object] = {"model": self.model, "stream": True, "max_tokens": self.output_tokens}
        asked["stream_options"] = {"include_usage": True}
        if self.endpoint == CHAT:
            return json_body({**asked, "messages": [{"role": "user", "content": prompt}]})
        return json_body({**asked, "prompt": prompt})


def openai_requests(
    address: ServerAddress, asked: OpenAiRequest, headers: Mapping[str, str] | None = None
) -> HttpRequests:
    """Return the requests to a server whose address is that of its API, such as `openai+http://host/v1`."""
    if asked.endpoint not in (CHAT, COMPLETIONS):
        raise BenchmarkError(
            "unknown_endpoint",
            f"{asked.endpoint!r} is not an endpoint of OpenAI's",
            hint=f"{CHAT} or {COMPLETIONS}",
        )
    given = address.path.rstrip("/")
    path = given if given.endswith(f"/{COMPLETIONS}") else f"{given}/{asked.endpoint}"
    mix = BodyMix([asked.body()])
    return HttpRequests(address.at(path), mix, {"Accept": "text/event-stream", **(headers or {})})
