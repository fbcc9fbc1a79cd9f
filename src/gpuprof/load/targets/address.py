# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers: parsed, resolved and checked before anything is sent.

Load goes to this machine only, unless the user names the host: a typing error must not become an attack.
Connections are opened to the addresses that were checked, not to the name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gpuprof.errors import BenchmarkError

_HINT = "give an address such as http://127.0.0.1:8080/predict or openai+http://127.0.0.1:8000/v1"


class WireProtocol(str, Enum):
    """The protocol of a server."""

    HTTP = "http"
    KSERVE_HTTP = "kserve+http"
    KSERVE_GRPC = "kserve+grpc"
    OPENAI = "openai+http"


# Protocol, encrypted, port.
_SCHEMES = {
    "http": (WireProtocol.HTTP, False, 80),
    "https": (WireProtocol.HTTP, True, 443),
    "kserve+http": (WireProtocol.KSERVE_HTTP, False, 80),
    "kserve+https": (WireProtocol.KSERVE_HTTP, True, 443),
    "kserve+grpc": (WireProtocol.KSERVE_GRPC, False, 8001),
    "kserve+grpcs": (WireProtocol.KSERVE_GRPC, True, 8001),
    "openai+http": (WireProtocol.OPENAI, False, 80),
    "openai+https": (WireProtocol.OPENAI, True, 443),
}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: `host` as given, `path` with its query, and `resolved`, the IP addresses to use.

    `ca_file` has the CAs that its certificate is checked with, empty for those of the system.
    """

    protocol: WireProtocol
    host: str
    port: int
    path: str = "/"
    is_encrypted: bool = False
    resolved: tuple[str, ...] = ()
    ca_file: str = ""

    @property
    def authority(self) -> str:
        """Return host and port as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        """Return the scheme of its protocol, with an `s` where it is encrypted."""
        return self.protocol.value + ("s" if self.is_encrypted else "")

    def at(self, path: str) -> ServerAddress:
        """Return the same server with another path."""
        return replace(self, path=path)


def is_address(text: str) -> bool:
    """Return whether a target is the address of a server, of whatever scheme."""
    return "://" in text


def parse_address(text: str) -> ServerAddress:
    """Return an address that is not resolved yet; raises BenchmarkError for one that cannot be."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BenchmarkError("bad_address", f"{text!r} is no address: {error}", hint=_HINT) from error
    if parts.scheme not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise BenchmarkError("unknown_scheme", f"{text!r} has none of the schemes {known}", hint=_HINT)
    if not parts.hostname or any(each.isspace() or not each.isprintable() for each in text):
        raise BenchmarkError("bad_address", f"{text!r} is no address of a server", hint=_HINT)
    if parts.username is not None or parts.password is not None:
        raise BenchmarkError(
            "password_in_address", f"the address of {parts.hostname} contains a password", hint="use --header"
        )
    protocol, is_encrypted, usual_port = _SCHEMES[parts.scheme]
    if port == 0:
        raise BenchmarkError("bad_address", f"{text!r} has port 0", hint=_HINT)
    return ServerAddress(protocol, parts.hostname, port or usual_port, _path_of(parts), is_encrypted)


def _path_of(parts: SplitResult) -> str:
    path = parts.path or "/"
    if not path.isascii():
        raise BenchmarkError("bad_address", f"the path {path!r} is not ASCII", hint="quote it as %XX")
    return f"{path}?{parts.query}" if parts.query else path


Resolver = Callable[..., list[Any]]


def resolve(
    address: ServerAddress, allowed_hosts: Collection[str] = (), resolver: Resolver = socket.getaddrinfo
) -> ServerAddress:
    """Return an address with its IP addresses; raises BenchmarkError unless all are allowed.

    `allowed_hosts` are the hosts of `--allow-remote`, compared as they are spelled, in small letters.
    """
    try:
        found = resolver(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name of a host"
        raise BenchmarkError(
            "unknown_host",
            f"the host {address.host!r} cannot be resolved: {reason}",
            hint="check the address, or give an IP address",
        ) from error
    resolved = tuple(dict.fromkeys(str(each[4][0]) for each in found))
    remote = [each for each in resolved if not is_loopback(each)]
    is_allowed = address.host.lower() in {each.lower() for each in allowed_hosts}
    if remote and not is_allowed:
        raise BenchmarkError(
            "remote_target",
            f"{address.host} is not this machine ({', '.join(remote)}), so no load is sent to it",
            hint=f"if you may load that server, add --allow-remote {address.host}",
        )
    return replace(address, resolved=resolved)


def is_loopback(text: str) -> bool:
    """Return whether an IP address belongs to this machine's loopback interface."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
