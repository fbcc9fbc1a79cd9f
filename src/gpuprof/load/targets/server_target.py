# SPDX-License-Identifier: Apache-2.0
"""A server as a target: what is asked of it, as plain data that crosses to the process of the client."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuprof.errors import BenchmarkError
from gpuprof.load.driver import DriveSettings
from gpuprof.load.targets.address import ServerAddress, WireProtocol, parse_address, resolve
from gpuprof.load.targets.bodies import parse_mix
from gpuprof.load.targets.http import CONCURRENCY, TIMEOUT_S
from gpuprof.load.targets.http_requests import checked_headers
from gpuprof.load.targets.tls import check_ca


@dataclass(frozen=True, kw_only=True)
class ServerTarget:
    """A server and its requests.

    body: files of bodies, `FILE` or `FILE:WEIGHT,FILE:WEIGHT`. model, prompt_tokens, output_tokens, endpoint:
    of OpenAI's interface. batch, shapes, is_binary: of KServe's. concurrency: most requests under way; the
    others wait. timeout_s: of each request, from its send.
    """

    address: ServerAddress
    headers: dict[str, str] = field(default_factory=dict)
    method: str = ""
    body: str = ""
    model: str = ""
    prompt_tokens: int = 128
    output_tokens: int = 64
    endpoint: str = "chat/completions"
    batch: int = 1
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_binary: bool = True
    concurrency: int = CONCURRENCY
    timeout_s: float = TIMEOUT_S
    seed: int = 0

    @property
    def is_stream(self) -> bool:
        """Whether responses are streams of tokens."""
        return self.address.protocol is WireProtocol.OPENAI


def server_target(
    text: str,
    *,
    allowed_hosts: Collection[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    ca_file: str = "",
    **options: Any,
) -> ServerTarget:
    """Return the target of an address, resolved and allowed, with every option checked; sends nothing.

    `ca_file` has the CAs of an encrypted connection in PEM format, empty for those of the system.
    """
    address = resolve(parse_address(text), allowed_hosts)
    address = replace(address, ca_file=str(Path(ca_file).absolute()) if ca_file else "")
    check_ca(address)
    sizes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    target = ServerTarget(address=address, shapes=sizes, **options)
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
    DriveSettings(target.concurrency)  # has the upper limit
    if target.is_stream and not target.body:
        if not target.model:
            raise BenchmarkError(
                "no_model", f"no model is named for {target.address.authority}", hint="add --model NAME"
            )
        if target.prompt_tokens < 1 or target.output_tokens < 1:
            raise BenchmarkError(
                "bad_token_count",
                f"{target.prompt_tokens} tokens in, {target.output_tokens} tokens out: less than one",
                hint="give --prompt-tokens and --output-tokens of 1 or more",
            )
    if target.body:
        if target.address.protocol is WireProtocol.KSERVE_GRPC:
            raise BenchmarkError(
                "no_body", "a gRPC request has no body of its own", hint="use --batch and --server-input"
            )
        parse_mix(target.body)


def save_target(target: ServerTarget, path: Path) -> None:
    """Write a target for `load_target`; headers may be secrets, so that only the user may read it."""
    import msgspec

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(target))


def load_target(path: Path) -> ServerTarget:
    """Return what `save_target` wrote."""
    import msgspec

    return msgspec.json.decode(path.read_bytes(), type=ServerTarget)
