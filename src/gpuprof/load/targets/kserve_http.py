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
from gpuprof.load.targets.connection_errors import unreachable
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.tensors import TensorInput, split_model, tensor_inputs
from gpuprof.load.targets.tls import client_context

_LENGTH_HEADER = "Inference-Header-Content-Length"
_LONGEST_METADATA = 1 << 20
_HEAD_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
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
    reader, writer = await _connect(address, timeout_s)
    try:
        received = await asyncio.wait_for(_get(address, model_path(address), reader, writer), timeout_s)
    except asyncio.TimeoutError as error:
        raise no_metadata(address, f"no response within {timeout_s:g} s") from error
    except OSError as error:
        raise no_metadata(address, "it closed the connection before a response") from error
    return tensor_inputs(_inputs_of(address, received), asked.batch, asked.shapes)


def no_metadata(address: ServerAddress, reason: str, hint: str = "") -> BenchmarkError:
    """Return the error of a server that does not describe the model."""
    is_grpc = address.protocol is WireProtocol.KSERVE_GRPC
    return BenchmarkError(
        "no_metadata",
        f"{address.authority} does not describe the model of {address.path}: {reason}",
        hint=hint or "check the name of the model" + ("" if is_grpc else ", or give --body"),
    )


async def _connect(
    address: ServerAddress, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to the first of the addresses that accepts one; raises BenchmarkError."""
    error: Exception | None = None
    for server in address.resolved:
        opening = asyncio.open_connection(
            server, address.port, ssl=client_context(address),
            server_hostname=address.host if address.is_encrypted else None,
        )  # fmt: skip
        try:
            return await asyncio.wait_for(opening, timeout_s)
        except (OSError, asyncio.TimeoutError) as raised:
            error = raised
    raise unreachable(address, error, timeout_s) from error


async def _get(
    address: ServerAddress, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    """Return the response to one request on a connection of its own, as HTTP/1.0 frames it."""
    try:
        request = f"GET {path} HTTP/1.0\r\nHost: {address.authority}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        received = b""
        while not _is_complete(received) and (more := await reader.read(_LONGEST_METADATA)):
            received += more
            if len(received) > _LONGEST_METADATA:
                raise no_metadata(address, f"the response is longer than {_LONGEST_METADATA >> 20} MiB")
    finally:
        writer.close()
    return received


def _inputs_of(address: ServerAddress, received: bytes) -> list[_Described]:
    """Return the inputs in a response; raises BenchmarkError for a response without any."""
    if not received:
        raise no_metadata(address, "it closed the connection before a response")
    status = _STATUS_LINE.match(received)
    if status is None:
        encrypted = "s" if address.is_encrypted else ""
        hint = f"check that the port is that of HTTP, or use kserve+grpc{encrypted}:// for that of gRPC"
        raise no_metadata(address, "its response is not HTTP/1", hint)
    if status[1] != b"200":
        raise no_metadata(address, f"the status code is {status[1].decode()}")
    try:
        found = msgspec.json.decode(received.partition(_HEAD_END)[2], type=_Metadata)
    except ValueError as error:
        raise no_metadata(address, "its response is not the JSON of a description") from error
    if not found.inputs:
        raise no_metadata(address, "it has no inputs")
    return found.inputs


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
