# SPDX-License-Identifier: Apache-2.0
"""KServe's open inference protocol, version 2, over gRPC: one channel, one call per request."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.client import OnEnd, ResponseLog, load_package
from gpuprof.load.targets.connection_errors import unreachable
from gpuprof.load.targets.http import CONCURRENCY, TIMEOUT_S
from gpuprof.load.targets.kserve_http import KServeInputs, no_metadata
from gpuprof.load.targets.kserve_messages import INFER, METADATA, infer_request, message_class
from gpuprof.load.targets.tensors import split_model, tensor_inputs
from gpuprof.load.targets.tls import root_certificates

_LONGEST_WAIT_S = 5.0  # for a channel
# Of gRPC's codes, by their numbers.
_OF_CODE = {
    4: RequestStatus.TIMEOUT,  # DEADLINE_EXCEEDED
    8: RequestStatus.OVERLOADED,  # RESOURCE_EXHAUSTED
    **dict.fromkeys((2, 10, 12, 13, 15), RequestStatus.SERVER_ERROR),
    **dict.fromkeys((3, 5, 6, 7, 9, 11, 16), RequestStatus.CLIENT_ERROR),
}
# What UNAVAILABLE means in a state of the channel: in all others there is no connection.
_OF_STATE = {
    "READY": RequestStatus.SERVER_ERROR,  # the connection is open: it is the server's response
    "IDLE": RequestStatus.RESET,  # the connection was closed
}
# No proxy of the environment may redirect what was checked; large tensors pass; soon again after a refusal.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class KServeGrpcClient:
    """Sends ModelInfer calls; one that waits for `concurrency` others keeps its place in the queue."""

    def __init__(
        self,
        address: ServerAddress,
        asked: KServeInputs,
        log: ResponseLog,
        *,
        concurrency: int = CONCURRENCY,
        timeout_s: float = TIMEOUT_S,
        on_end: OnEnd | None = None,
    ) -> None:
        # Its own log of connections that fail is for its developers; the result has their number.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self._grpc = load_package("grpc.aio")
        self._unavailable = load_package("grpc").StatusCode.UNAVAILABLE
        _, self._model, self._version = split_model(address)
        self._address, self._asked, self._log = address, asked, log
        self._concurrency, self._timeout_s, self._on_end = concurrency, timeout_s, on_end
        self._waiting: deque[int] = deque()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._request = b""
        self._channel: Any = None
        self._infer: Any = None

    async def open(self) -> None:
        """Connect, and make the request from the model's description; raises BenchmarkError."""
        error: BenchmarkError | None = None
        for server in self._address.resolved:
            try:
                await self._check_port(server)
            except (OSError, asyncio.TimeoutError) as raised:
                error = unreachable(self._address, raised, self._timeout_s)
                continue
            host = f"ipv6:[{server}]" if ":" in server else f"ipv4:{server}"
            self._channel = self._new_channel(f"{host}:{self._address.port}")
            wait_s = min(self._timeout_s, _LONGEST_WAIT_S)
            try:
                await asyncio.wait_for(self._channel.channel_ready(), wait_s)
            except asyncio.TimeoutError:
                error = self._not_ready(wait_s)
                await self._channel.close()
            else:
                await self._describe()
                # Without serializers: bytes go in and come out.
                self._infer = self._channel.unary_unary(INFER)
                return
        raise error or unreachable(self._address, None, self._timeout_s)

    async def _check_port(self, server: str) -> None:
        """Open and close a connection: gRPC tries again without end, and its channel has no cause."""
        opening = asyncio.get_running_loop().create_connection(asyncio.Protocol, server, self._address.port)
        transport, _ = await asyncio.wait_for(opening, self._timeout_s)
        transport.close()

    def _not_ready(self, waited_s: float) -> BenchmarkError:
        """Return the error of a server that accepts a connection, and no channel of gRPC."""
        where = self._address.authority
        if self._address.is_encrypted:
            return BenchmarkError(
                "no_server",
                f"no server responds at {where}: no gRPC over TLS within {waited_s:g} s",
                hint="check the certificate (--ca FILE), or use kserve+grpc:// if it is not encrypted",
            )
        return BenchmarkError(
            "no_server",
            f"no server responds at {where}: no gRPC within {waited_s:g} s",
            hint="check that the port is that of gRPC, or use kserve+grpcs:// if it is encrypted",
        )

    def _new_channel(self, server: str) -> Any:
        """Return a channel to an IP address; the certificate is that of the host's name."""
        if not self._address.is_encrypted:
            return self._grpc.insecure_channel(server, options=_OPTIONS)
        credentials = load_package("grpc").ssl_channel_credentials(root_certificates(self._address))
        named = (
            ("grpc.ssl_target_name_override", self._address.host),
            ("grpc.default_authority", self._address.authority),
        )
        return self._grpc.secure_channel(server, credentials, options=(*_OPTIONS, *named))

    async def _describe(self) -> None:
        request = message_class("ModelMetadataRequest")(name=self._model, version=self._version)
        call = self._channel.unary_unary(METADATA)
        try:
            received = await asyncio.wait_for(call(request.SerializeToString()), self._timeout_s)
        except (self._grpc.AioRpcError, asyncio.TimeoutError) as error:
            await self._channel.close()
            code = getattr(error, "code", None)
            cause = code().name if code else f"no response within {self._timeout_s:g} s"
            raise no_metadata(self._address, cause) from error
        found = message_class("ModelMetadataResponse").FromString(received)
        inputs = tensor_inputs(found.inputs, self._asked.batch, self._asked.shapes)
        if not inputs:
            raise no_metadata(self._address, "it has no inputs")
        self._request = infer_request(self._model, self._version, inputs, self._asked.seed)

    def start(self, index: int) -> None:
        """Call for request `index`, or queue it."""
        if len(self._calls) >= self._concurrency:
            self._waiting.append(index)
        else:
            self._log.begin(index)
            self._calls[index] = asyncio.get_running_loop().create_task(self._call(index))

    async def _call(self, index: int) -> None:
        status = RequestStatus.OK
        call = self._infer(self._request)
        # A deadline of gRPC's own is a time of the wall clock, which can be set meanwhile.
        timer = asyncio.get_running_loop().call_later(self._timeout_s, call.cancel)
        try:
            await call
        except self._grpc.AioRpcError as error:
            status = self._status_of(error.code())
        except asyncio.CancelledError:
            if index not in self._calls:  # abandoned
                raise
            status = RequestStatus.TIMEOUT
        finally:
            timer.cancel()
        self._end(index, status)

    def _status_of(self, code: Any) -> RequestStatus:
        """Return how a call ended with an error: UNAVAILABLE is the server's own, or of the connection.

        gRPC changes the state of the channel on a thread of its own: a call that fails at the moment at which
        the connection closes can still count as the server's own error. To wait for the state would delay the
        ends that a server reports.
        """
        if code is not self._unavailable:
            return _OF_CODE.get(code.value[0], RequestStatus.INVALID)
        return _OF_STATE.get(self._channel.get_state().name, RequestStatus.REFUSED)

    def _end(self, index: int, status: RequestStatus) -> None:
        self._log.end(index, status, int(status is RequestStatus.OK))
        self._calls.pop(index, None)
        if self._on_end is not None:
            self._on_end(index, status)
        if self._waiting and len(self._calls) < self._concurrency:
            self.start(self._waiting.popleft())

    def abandon(self) -> None:
        """End what is queued as not sent and what is under way as timed out."""
        waiting, self._waiting = self._waiting, deque()
        for index in waiting:
            self._end(index, RequestStatus.NOT_SENT)
        for index, call in list(self._calls.items()):
            self._end(index, RequestStatus.TIMEOUT)
            call.cancel()

    async def close(self) -> None:
        """Close the channel, after every call has ended."""
        calls = list(self._calls.values())
        self.abandon()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
