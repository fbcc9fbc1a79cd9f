# SPDX-License-Identifier: Apache-2.0
"""The client of each kind of server."""

from __future__ import annotations

from typing import Any

from gpuprof.load.targets.address import WireProtocol
from gpuprof.load.targets.bodies import parse_mix
from gpuprof.load.targets.client import Client, OnEnd, ResponseLog
from gpuprof.load.targets.http import HttpClient
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.kserve_grpc import KServeGrpcClient
from gpuprof.load.targets.kserve_http import KServeInputs, described_inputs, kserve_requests
from gpuprof.load.targets.openai import OpenAiClient, OpenAiRequest, openai_requests
from gpuprof.load.targets.server_target import ServerTarget
from gpuprof.load.targets.token_times import TokenSink


async def make_client(
    target: ServerTarget, log: ResponseLog, on_end: OnEnd, on_tokens: TokenSink | None = None
) -> Client:
    """Return the client of a target; asks a KServe server for the inputs of its model."""
    limits: dict[str, Any] = {"concurrency": target.concurrency, "timeout_s": target.timeout_s}
    if target.address.protocol is WireProtocol.KSERVE_GRPC:
        return KServeGrpcClient(target.address, _inputs(target), log, on_end=on_end, **limits)
    requests = await _requests(target)
    if target.is_stream:
        return OpenAiClient(target.address, requests.of, log, on_tokens, on_end=on_end, **limits)
    return HttpClient(target.address, requests.of, log, on_end=on_end, **limits)


async def _requests(target: ServerTarget) -> HttpRequests:
    if target.is_stream and not target.body:
        return openai_requests(target.address, _asked(target), target.headers)
    if target.address.protocol is WireProtocol.KSERVE_HTTP and not target.body:
        inputs = await described_inputs(target.address, _inputs(target), target.timeout_s)
        return kserve_requests(target.address, inputs, _inputs(target), target.headers)
    mix = parse_mix(target.body, target.seed) if target.body else None
    return HttpRequests(target.address, mix, target.headers, target.method)


def _asked(target: ServerTarget) -> OpenAiRequest:
    return OpenAiRequest(target.model, target.prompt_tokens, target.output_tokens, target.endpoint)


def _inputs(target: ServerTarget) -> KServeInputs:
    return KServeInputs(target.batch, target.shapes, target.is_binary, target.seed)
