# SPDX-License-Identifier: Apache-2.0
"""Connections that cannot be opened: the error has the cause and the place, and a hint for its cause."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kserve_server import grpc_server
from load_client import send_all
from load_server import OK, LoadServer, hang, respond_with, serving
from refusals import check_form, refused

from gpuprof.errors import BenchmarkError
from gpuprof.load.driver import DriveSettings
from gpuprof.load.targets.address import ServerAddress, WireProtocol
from gpuprof.load.targets.client_process import drive_server
from gpuprof.load.targets.connection_errors import no_file, unreachable
from gpuprof.load.targets.event_loop import paced_file
from gpuprof.load.targets.http import HttpClient, HttpConnection
from gpuprof.load.targets.http_requests import HttpRequests
from gpuprof.load.targets.kserve_grpc import KServeGrpcClient
from gpuprof.load.targets.kserve_http import KServeInputs, described_inputs
from gpuprof.load.targets.server_target import server_target

pytest.importorskip("httptools")


def address(scheme: WireProtocol = WireProtocol.HTTP, port: int = 8080, **more: Any) -> ServerAddress:
    return ServerAddress(scheme, "127.0.0.1", port, "/m", resolved=("127.0.0.1",), **more)


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


CERTIFICATE = ssl.SSLCertVerificationError(1, "planted")
CERTIFICATE.verify_message = "self-signed certificate"


@pytest.mark.texts
@pytest.mark.parametrize(
    ("encrypted", "error", "cause", "hint"),
    [
        (False, ConnectionRefusedError(errno.ECONNREFUSED, "asyncio's"), "Connection refused", "port"),
        (False, asyncio.TimeoutError(), "no connection within 30 s", "port"),
        (False, TimeoutError(errno.ETIMEDOUT, "x"), "Connection timed out", "port"),
        (True, asyncio.TimeoutError(), "no TLS handshake within 30 s", "http://"),
        (True, tls_error("WRONG_VERSION_NUMBER"), "wrong version number", "http://"),
        (True, ConnectionResetError(), "closed the connection", "http://"),
        (True, CERTIFICATE, "self-signed certificate", "--ca"),
    ],
)
def test_the_cause_of_a_server_that_does_not_respond(
    encrypted: bool, error: Exception, cause: str, hint: str
) -> None:
    found = unreachable(address(is_encrypted=encrypted), error, 30.0)
    check_form(str(found))
    assert found.code == "no_server"
    assert "127.0.0.1:8080" in found.message
    assert cause in found.message
    assert type(error).__name__ not in found.message
    assert hint in found.hint


@pytest.mark.texts
@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.EMFILE, "no_file_descriptors", "ulimit -n "),
        (errno.ENFILE, "no_file_descriptors", "fs.file-max"),
        (errno.EADDRNOTAVAIL, "no_ports", "ip_local_port_range"),
    ],
)
def test_a_limit_of_this_machine_is_not_blamed_on_the_server(number: int, code: str, hint: str) -> None:
    for encrypted in (False, True):
        found = unreachable(address(is_encrypted=encrypted), OSError(number, "planted"), 30.0)
        check_form(str(found))
        assert found.code == code
        assert "127.0.0.1:8080" in found.message
        assert hint in found.hint
        assert "start it" not in found.hint


def test_the_hint_of_a_limit_is_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, wanted in ((64, 1024), (4096, 8192)):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, limit))
        found = no_file(OSError(errno.EMFILE, "planted"), "planted")
        assert found is not None
        assert str(wanted) in found.hint
    assert no_file(ConnectionRefusedError(errno.ECONNREFUSED, "planted"), "planted") is None


def test_a_first_connection_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_port(_self: HttpClient) -> HttpConnection:
        raise OSError(errno.EADDRNOTAVAIL, "planted")

    monkeypatch.setattr(HttpClient, "_connect", without_port)
    server = LoadServer({}).address()
    with refused(BenchmarkError, "no_ports"):
        send_all(lambda log, on_end: HttpClient(server, HttpRequests(server).of, log, on_end=on_end))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from gpuprof.load.targets.client_process import _main
from pathlib import Path
_main(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("limit", [9, 11, 14, 17])
def test_a_client_without_files_ends_in_one_error(limit: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "no_file_descriptors" in done.stdout


def test_no_file_for_the_pipes_of_the_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def without_file(*_words: Any, **_options: Any) -> Any:
        raise OSError(errno.EMFILE, "planted")

    monkeypatch.setattr(subprocess, "Popen", without_file)
    with refused(BenchmarkError, "no_file_descriptors"):
        drive_server(server_target("http://127.0.0.1:1/"), np.zeros(1, np.int64), tmp_path, DriveSettings())


def test_no_file_for_the_pacer() -> None:
    class Pacer:
        def fileno(self) -> int:
            raise OSError(errno.EMFILE, "planted")

        def take_ready(self) -> list[int]:
            return []

    with refused(BenchmarkError, "no_file_descriptors"):
        paced_file(Pacer())


@pytest.mark.parametrize("scheme", ["https", "kserve+https", "kserve+grpcs"])
def test_a_server_that_is_not_encrypted(scheme: str, tmp_path: Path) -> None:
    with serving({"/": respond_with(OK)}) as server:
        target = server_target(f"{scheme}://127.0.0.1:{server.port}/m", timeout_s=0.5)
        with refused(BenchmarkError, "no_server", server.port) as caught:
            drive_server(target, np.zeros(1, np.int64), tmp_path, DriveSettings())
    assert "TimeoutError" not in str(caught.value)


def test_a_closed_port_of_grpc_is_an_error_at_once(tmp_path: Path) -> None:
    pytest.importorskip("grpc")

    def no_channel(_self: KServeGrpcClient, _server: str) -> Any:
        raise AssertionError("waits for a channel")

    with closed_port() as port, pytest.MonkeyPatch.context() as patch:
        patch.setattr(KServeGrpcClient, "_new_channel", no_channel)
        with refused(BenchmarkError, "no_server", port, "Connection refused"):
            asyncio.run(
                KServeGrpcClient(address(WireProtocol.KSERVE_GRPC, port), KServeInputs(), None).open()  # type: ignore[arg-type]
            )


@pytest.mark.texts
def test_a_description_that_is_asked_from_a_port_of_grpc() -> None:
    pytest.importorskip("grpc")
    with grpc_server() as (port, _), refused(BenchmarkError, "no_metadata", "HTTP/1", "kserve+grpc://"):
        asyncio.run(described_inputs(address(WireProtocol.KSERVE_HTTP, port), KServeInputs(), 30.0))


@pytest.mark.texts
@pytest.mark.parametrize(
    ("responder", "cause"),
    [
        (hang, "no response within 0.05 s"),
        (respond_with(b"", close=True), "closed the connection"),
        (respond_with(b"SSH-2.0 x\r\n\r\n", close=True), "not HTTP/1"),
        (respond_with(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"), "status code is 404"),
        (respond_with(b"HTTP/1.1 200 OK\r\n\r\n{", close=True), "JSON"),
        (respond_with(b"HTTP/1.1 200 OK\r\n\r\n{}", close=True), "no inputs"),
    ],
)
def test_the_cause_of_a_model_without_a_description(responder: Any, cause: str) -> None:
    with serving({"/v2/models/m": responder}) as server, refused(BenchmarkError, "no_metadata", cause):
        where = server.address("/m", WireProtocol.KSERVE_HTTP)
        asyncio.run(described_inputs(where, KServeInputs(), 0.05 if responder is hang else 30.0))


def test_each_address_of_a_host_is_asked_for_a_description() -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2]}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving({"/v2/models/m": respond_with(head + body)}) as server:
        where = ServerAddress(
            WireProtocol.KSERVE_HTTP, "localhost", server.port, "/m", resolved=("127.0.0.2", "127.0.0.1")
        )
        found = asyncio.run(described_inputs(where, KServeInputs(), 5))
    assert [each.name for each in found] == ["x"]
