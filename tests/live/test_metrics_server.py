# SPDX-License-Identifier: Apache-2.0
"""The endpoint of metrics: whom it serves, what it serves, and what it refuses."""

from __future__ import annotations

import gzip
import http.client
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_snapshots import snapshot
from refusals import refused, refused_command
from waiting import LONGEST_S

from gpuprof.cli.main import execute
from gpuprof.errors import GpuprofError
from gpuprof.live.metrics.collector import MetricsCollector
from gpuprof.live.metrics.exposition import TextFormat
from gpuprof.live.metrics.server import MOST_CLIENTS, MetricsServer

Start = Callable[..., MetricsServer]


@pytest.fixture
def collector() -> MetricsCollector:
    made = MetricsCollector("1")
    made.update("", snapshot([100_000_000]))
    return made


@pytest.fixture
def serve(collector: MetricsCollector) -> Iterator[Start]:
    """`serve(...)` serves the collector on a free port of 127.0.0.1."""
    servers: list[MetricsServer] = []

    def start(host: str = "127.0.0.1", token: str | None = None) -> MetricsServer:
        server = MetricsServer(host, 0, collector.text, token=token)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(
    server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LONGEST_S)
    connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_both_formats_are_served_plain_and_compressed(serve: Start, collector: MetricsCollector) -> None:
    server = serve()
    for accept, text_format in (
        ("", TextFormat.PROMETHEUS),
        ("application/openmetrics-text", TextFormat.OPEN_METRICS),
    ):
        response, body = get(server, Accept=accept)
        assert (response.status, response.headers["Content-Type"]) == (200, text_format.value)
        assert body == collector.text(text_format)
        response, body = get(server, Accept=accept, Accept_Encoding="deflate, gzip")
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == collector.text(text_format)
    response, body = get(server, method="HEAD")
    assert (response.status, body) == (200, b"")


def test_nothing_else_is_served(serve: Start) -> None:
    server = serve()
    for path in ("/", "/metrics/", "/metrics/..", "/../metrics", "/etc/passwd", "/metrics%00"):
        response, body = get(server, path)
        assert (response.status, body) == (404, b"Not Found\n")
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"):
        response, body = get(server, method=method)
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert (body, response.headers["Content-Type"]) == (
            b"Method Not Allowed\n",
            "text/plain; charset=utf-8",
        )
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_no_request_is_refused_as_text(serve: Start) -> None:
    server = serve()
    for sent, status in (
        (b"GET /metrics HTTP/1.x\r\n\r\n", b"400"),
        (b"a b c d\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/3.0\r\n\r\n", b"505"),
    ):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=LONGEST_S) as connection:
            connection.sendall(sent)
            with connection.makefile("rb") as file:
                head, _, body = file.read().partition(b"\r\n\r\n")
        assert b"<" not in body, sent
        # To a line without a version, the response is of HTTP/0.9: it has no headers.
        assert not head.startswith(b"HTTP/") or (b" " + status + b" " in head and b"nosniff" in head), head


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),
        ("[::1]:{port}", 200),
        ("evil.example", 421),
        ("evil.example:{port}", 421),
        ("127.0.0.1:1", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_a_request_for_a_foreign_host_is_refused(serve: Start, host: str, status: int) -> None:
    server = serve()
    response, body = get(server, Host=host.format(port=server.server_port))
    assert response.status == status
    if status == 421:
        assert f"; hint: read {server.url}, or serve with --token-file\n" in body.decode()


def test_two_host_headers_are_refused(serve: Start) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 421 ")


def test_a_request_of_a_foreign_page_is_refused(serve: Start) -> None:
    server = serve()
    own = f"127.0.0.1:{server.server_port}"
    assert get(server, Host=own, Origin="http://evil.example")[0].status == 403
    assert get(server, Host=own, Origin=f"http://{own}")[0].status == 200


def test_with_a_token_only_its_owner_reads(serve: Start) -> None:
    server = serve(token="s3cret")
    statuses = {
        given: get(server, Host="pod.example", Authorization=given)[0].status
        for given in ("", "Bearer wrong", "Basic s3cret", "s3cret", "Bearer s3cret", "bearer s3cret")
    }
    assert {given for given, status in statuses.items() if status == 200} == {
        "Bearer s3cret",
        "bearer s3cret",
    }
    assert set(statuses.values()) == {200, 401}
    response, _ = get(server)
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_another_address_needs_a_token(collector: MetricsCollector, serve: Start) -> None:
    for host in ("0.0.0.0", "::"):
        with refused(GpuprofError, "token_required"):
            MetricsServer(host, 0, collector.text)
    server = serve("0.0.0.0", token="s3cret")
    assert not server.is_local
    assert get(server, Authorization="Bearer s3cret")[0].status == 200


def test_a_port_in_use_and_an_unknown_host_are_one_line(serve: Start, collector: MetricsCollector) -> None:
    with refused(GpuprofError, "cannot_listen"):
        MetricsServer("127.0.0.1", serve().server_port, collector.text)
    with refused(GpuprofError, "unknown_host"):
        MetricsServer("no such host", 0, collector.text)


def test_clients_that_never_read_do_not_exhaust_the_server(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer than the limit of a request.
    monkeypatch.setattr("gpuprof.live.metrics.server._Handler.timeout", LONGEST_S)
    server = serve()
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(MOST_CLIENTS + 20)]
    for each in idle[MOST_CLIENTS:]:
        each.settimeout(LONGEST_S)
        with each.makefile("rb") as file:
            refusal = file.read()
        assert refusal.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 10\r\n" in refusal
        assert b"nosniff" in refusal
    # The others are still served.
    idle[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle[0].recv(100).startswith(b"HTTP/1.1 200 ")
    for each in idle:
        each.close()


def test_wrong_input_of_the_command_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUPROF_TOKEN", raising=False)
    refused_command(["metrics", "--host", "0.0.0.0"], "token_required")
    (tmp_path / "empty").write_text(" \n")
    refused_command(["metrics", "--token-file", str(tmp_path / "empty")], "bad_token")
    (tmp_path / "binary").write_bytes(b"\x00\xff" * 4)
    refused_command(["metrics", "--token-file", str(tmp_path / "binary")], "bad_token", "binary")
    for host in ("", " ", "a..b"):
        refused_command(["metrics", "--host", host], "no_address")
    monkeypatch.setenv("GPUPROF_TOKEN", "s3cret")
    # An address of the documentation, which no machine has.
    refused_command(["metrics", "--port", "0", "--host", "203.0.113.1"], "not_own_address", "203.0.113.1")
    refused_command(["metrics", str(tmp_path / "missing.gpuprof")], "no_such_run")
    refused_command(["metrics", "--once", "--otlp", "file:///etc/passwd"], "bad_endpoint")
    assert execute(["metrics", "--token-file", str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, r"\x1b[31m"), (False, "\x1b[31m")])
def test_a_name_on_a_terminal_does_not_move_the_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool, shown: str
) -> None:
    text = b'gpuprof_span_calls_total{span="\x1b[31m"} 1\n'
    monkeypatch.setattr(MetricsCollector, "text", lambda *_arguments: text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert execute(["metrics", "--once"]) == 0
    assert capsys.readouterr().out == f'gpuprof_span_calls_total{{span="{shown}"}} 1\n'


def test_the_machine_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["metrics", "--once"]) == 0
    printed = capsys.readouterr().out
    assert 'gpuprof_machine_cpu_seconds_total{mode="busy"} ' in printed
    assert "gpuprof_steps_total" not in printed
