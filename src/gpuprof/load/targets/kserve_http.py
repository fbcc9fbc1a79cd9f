# SPDX-License-Identifier: Apache-2.0
"""KServe's open inference protocol, version 2, over HTTP: JSON, or the binary extension for tensors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import ServerAddress, WireProtocol
from gpuprof.load.targets.bodies import Body, BodyMix
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.tensors import TensorInput, split_model, tensor_inputs
from gpuprof.load.targets.tls import client_context

_LENGTH_HEADER = "Inference-Header-Content-Length"
_LONGEST_METADATA = 1 << 20
_HEAD_END = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*(?:\r\n|$)", re.IGNORECASE)


class _Described(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Described] | None = None


@dataclass(frozen=True, slots=True)
class KServeInputs:
    """What is sent: the batch, shapes of inputs with free dimensions, and whether tensors are binary."""

    batch: int = 1
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_binary: bool = True
    seed: int = 0


def model_path(address: ServerAddress) -> str:
    """Return the path of a model, whichever form the address gives it in."""
    prefix, model, version = split_model(address)
    path = f"{prefix}/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


async def described_inputs(
    address: ServerAddress, asked: KServeInputs, timeout_s: float
) -> list[TensorInput]:
    """Return the inputs of a model as its server describes them; raises BenchmarkError."""
    path = model_path(address)
    try:
        code, content = await asyncio.wait_for(_get(address, path), timeout_s)
        found = msgspec.json.decode(content, type=_Metadata) if code == 200 else None
    except (OSError, asyncio.TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        raise no_metadata(address, type(error).__name__) from error
    if found is None or not found.inputs:
        raise no_metadata(address, f"the status code is {code}" if code != 200 else "it has no inputs")
    return tensor_inputs(found.inputs, asked.batch, asked.shapes)


def no_metadata(address: ServerAddress, reason: str) -> BenchmarkError:
    """Return the error of a server that does not describe the model."""
    is_grpc = address.protocol is WireProtocol.KSERVE_GRPC
    return BenchmarkError(
        "no_metadata",
        f"{address.authority} does not describe the model of {address.path}: {reason}",
        hint="check the name of the model" + ("" if is_grpc else ", or give --body"),
    )


async def _get(address: ServerAddress, path: str) -> tuple[int, bytes]:
    """Return code and body of one request on a connection of its own, as HTTP/1.0 frames it."""
    reader, writer = await asyncio.open_connection(
        address.resolved[0], address.port, ssl=client_context(address),
        server_hostname=address.host if address.is_encrypted else None,
    )  # fmt: skip
    try:
        request = f"GET {path} HTTP/1.0\r\nHost: {address.authority}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        received = b""
        while not _is_complete(received) and (more := await reader.read(_LONGEST_METADATA)):
            received += more
            if len(received) > _LONGEST_METADATA:
                raise ValueError(len(received))
    finally:
        writer.close()
    head, _, body = received.partition(_HEAD_END)
    words = head.split(None, 2)
    return (int(words[1]) if len(words) > 1 else 0), body


def _is_complete(received: bytes) -> bool:
    """Whether a response has all of its `Content-Length`: a server may leave the connection open."""
    head, end, body = received.partition(_HEAD_END)
    found = _CONTENT_LENGTH.search(head)
    return bool(end) and found is not None and len(body) >= int(found[1])


def infer_body(inputs: Sequence[TensorInput], asked: KServeInputs) -> tuple[Body, dict[str, str]]:
    """Return the body of an inference request, and its headers."""
    described: list[dict[str, object]] = []
    raw: list[bytes] = []
    for place, each in enumerate(inputs):
        entry: dict[str, object] = {"name": each.name, "shape": list(each.shape), "datatype": each.datatype}
        if asked.is_binary:
            raw.append(each.raw(asked.seed + place))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = each.as_json(asked.seed + place)
        described.append(entry)
    parameters = {"parameters": {"binary_data_output": True}} if asked.is_binary else {}
    head = json.dumps({"inputs": described, **parameters}, separators=(",", ":")).encode()
    if not asked.is_binary:
        return Body(head, "application/json"), {}
    return Body(b"".join([head, *raw]), "application/octet-stream"), {_LENGTH_HEADER: str(len(head))}


def kserve_requests(
    address: ServerAddress,
    inputs: Sequence[TensorInput],
    asked: KServeInputs,
    headers: Mapping[str, str] | None = None,
) -> HttpRequests:
    """Return the inference requests to the model of an address."""
    body, more = infer_body(inputs, asked)
    path = f"{model_path(address)}/infer"
    return HttpRequests(address.at(path), BodyMix([body]), {**more, **(headers or {})})
