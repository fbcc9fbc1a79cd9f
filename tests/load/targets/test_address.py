# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers: what is parsed, and that nothing but this machine gets load without consent."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import WireProtocol, is_loopback, parse_address, resolve


def test_schemes_ports_and_paths() -> None:
    texts = (
        "http://127.0.0.1:8080/predict?x=1",
        "https://localhost",
        "kserve+http://[::1]:8000/model",
        "kserve+grpc://127.0.0.1/model",
        "openai+http://127.0.0.1:8000/v1",
    )
    found = [parse_address(text) for text in texts]
    assert [(each.protocol, each.host, each.port, each.path, each.is_encrypted) for each in found] == [
        (WireProtocol.HTTP, "127.0.0.1", 8080, "/predict?x=1", False),
        (WireProtocol.HTTP, "localhost", 443, "/", True),
        (WireProtocol.KSERVE_HTTP, "::1", 8000, "/model", False),
        (WireProtocol.KSERVE_GRPC, "127.0.0.1", 8001, "/model", False),
        (WireProtocol.OPENAI, "127.0.0.1", 8000, "/v1", False),
    ]
    assert found[2].authority == "[::1]:8000"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ftp://127.0.0.1/", "unknown_scheme"),
        ("127.0.0.1:8000", "unknown_scheme"),
        ("http://", "bad_address"),
        ("http:///path", "bad_address"),
        ("http://127.0.0.1:99999/", "bad_address"),
        ("http://127.0.0.1:0/", "bad_address"),
        ("http://127.0.0.1:eight/", "bad_address"),
        ("http://[::1/", "bad_address"),
        ("http://127.0.0.1/a b", "bad_address"),
        ("http://127.0.0.1/é", "bad_address"),
        ("http://user:password@127.0.0.1/", "password_in_address"),
    ],
)
def test_what_is_no_address(text: str, code: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        parse_address(text)
    assert caught.value.code == code
    assert caught.value.hint
    assert "password@" not in str(caught.value)


def resolver_of(*addresses: str) -> Any:
    return lambda host, port, **_: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses
    ]


@pytest.mark.parametrize(
    "found", [["192.0.2.1"], ["127.0.0.1", "192.0.2.1"], ["0.0.0.0"], ["::ffff:192.0.2.1"]]
)
def test_another_machine_needs_consent_by_name(found: list[str]) -> None:
    address = parse_address("http://Server.example/")
    for allowed in ((), ("other.example",), ("example",), ("192.0.2.1",)):
        with pytest.raises(BenchmarkError) as caught:
            resolve(address, allowed, resolver_of(*found))
        assert caught.value.code == "remote_target"
        assert "--allow-remote server.example" in caught.value.hint
    assert resolve(address, ["SERVER.example"], resolver_of(*found)).resolved == tuple(found)


def test_loopback_needs_none() -> None:
    address = resolve(parse_address("http://localhost:1/"), (), resolver_of("::1", "127.0.0.1", "::1"))
    assert address.resolved == ("::1", "127.0.0.1")
    assert resolve(parse_address("http://127.0.0.1:1/")).resolved == ("127.0.0.1",)
    assert all(map(is_loopback, ("127.0.0.53", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "::", "fe80::1%eth0")))


def test_a_host_without_an_address() -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(BenchmarkError) as caught:
        resolve(parse_address("http://nowhere.example/"), (), fail)
    assert caught.value.code == "unknown_host"
