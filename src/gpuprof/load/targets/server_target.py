# SPDX-License-Identifier: Apache-2.0
"""A server as a target: what is asked of it, as plain data that crosses to the process of the client."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import ServerAddress, WireProtocol, parse_address, resolve
from gpuprof.load.targets.bodies import parse_mix
from gpuprof.load.targets.client import Client, OnEnd, ResponseLog
from gpuprof.load.targets.http import CONCURRENCY, TIMEOUT_S, HttpClient
from gpuprof.load.targets.http_requests import HttpRequests, checked_headers
from gpuprof.load.targets.kserve_grpc import KServeGrpcClient
from gpuprof.load.targets.kserve_http import KServeInputs, described_inputs, kserve_requests
from gpuprof.load.targets.openai import CHAT, OpenAiClient, OpenAiRequest, openai_requests
from gpuprof.load.targets.token_times import TokenSink


class ServerTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A server and its requests.

    body: files of bodies, `FILE` or `FILE:WEIGHT,FILE:WEIGHT`. model, prompt_tokens, output_tokens, endpoint:
    of OpenAI's interface. batch, shapes, is_binary: of KServe's. concurrency: most requests under way; the
    others wait. timeout_s: of each request, from its send.
    """

    address: ServerAddress
    headers: dict[str, str] = {}
    method: str = ""
    body: str = ""
    model: str = ""
    prompt_tokens: int = 128
    output_tokens: int = 64
    endpoint: str = CHAT
    batch: int = 1
    shapes: dict[str, tuple[int, ...]] = {}
    is_binary: bool = True
    concurrency: int = CONCURRENCY
    timeout_s: float = TIMEOUT_S
    seed: int = 0

    @property
    def is_stream(self) -> bool:
        """Whether responses are streams of tokens."""
        return self.address.protocol is WireProtocol.OPENAI

    @property
    def _inputs(self) -> KServeInputs:
        return KServeInputs(self.batch, self.shapes, self.is_binary, self.seed)


def server_target(text: str, *, allowed_hosts: Collection[str] = (), **options: object) -> ServerTarget:
    """Return the target of an address, resolved and allowed, with every option checked; sends nothing."""
    address = resolve(parse_address(text), allowed_hosts)
    target = msgspec.convert({"address": address, **options}, ServerTarget)
    _check(target)
    return target


def _check(target: ServerTarget) -> None:
    checked_headers(target.headers)
    if target.concurrency < 1 or not 0 < target.timeout_s < float("inf"):
        raise BenchmarkError(
            "bad_limit",
            f"--concurrency {target.concurrency} and --timeout {target.timeout_s:g} are no limits",
            hint="give 1 or more requests, and a time above 0",
        )
    if target.is_stream and not target.body:
        if not target.model:
            raise BenchmarkError(
                "no_model", f"no model is named for {target.address.authority}", hint="add --model NAME"
            )
        openai_requests(target.address, _asked(target))
    if target.body:
        if target.address.protocol is WireProtocol.KSERVE_GRPC:
            raise BenchmarkError(
                "no_body", "a gRPC request has no body of its own", hint="use --batch and --server-input"
            )
        parse_mix(target.body)


def _asked(target: ServerTarget) -> OpenAiRequest:
    return OpenAiRequest(target.model, target.prompt_tokens, target.output_tokens, target.endpoint)


async def make_client(
    target: ServerTarget, log: ResponseLog, on_end: OnEnd, on_tokens: TokenSink | None = None
) -> Client:
    """Return the client of a target; asks a KServe server for the inputs of its model."""
    limits: dict[str, Any] = {"concurrency": target.concurrency, "timeout_s": target.timeout_s}
    if target.address.protocol is WireProtocol.KSERVE_GRPC:
        return KServeGrpcClient(target.address, target._inputs, log, on_end=on_end, **limits)
    requests = await _requests(target)
    if target.is_stream:
        return OpenAiClient(target.address, requests.of, log, on_tokens, on_end=on_end, **limits)
    return HttpClient(target.address, requests.of, log, on_end=on_end, **limits)


async def _requests(target: ServerTarget) -> HttpRequests:
    if target.is_stream and not target.body:
        return openai_requests(target.address, _asked(target), target.headers)
    if target.address.protocol is WireProtocol.KSERVE_HTTP and not target.body:
        inputs = await described_inputs(target.address, target._inputs, target.timeout_s)
        return kserve_requests(target.address, inputs, target._inputs, target.headers)
    mix = parse_mix(target.body, target.seed) if target.body else None
    return HttpRequests(target.address, mix, target.headers, target.method)


def save_target(target: ServerTarget, path: Path) -> None:
    """Write a target for `load_target`; headers may be secrets, so that only the user may read it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(target))


def load_target(path: Path) -> ServerTarget:
    """Return what `save_target` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=ServerTarget)
