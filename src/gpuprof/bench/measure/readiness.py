# SPDX-License-Identifier: Apache-2.0
"""Conditions by which a program is ready: a response, an open port, a file, or a line of its output."""

from __future__ import annotations

import http.client
import ipaddress
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuprof.errors import BenchmarkError

_HINT = "write http://127.0.0.1:8000/health, tcp://127.0.0.1:8000, file:PATH or output:TEXT"
_RESPONSE_LIMIT_S = 1.0


class Readiness(ABC):
    """A condition that is asked again and again until it is met."""

    @abstractmethod
    def is_met(self, output: bytes) -> bool:
        """Return whether the program is ready; `output` is what it has printed until now."""

    def refuse_if_met_before(self) -> None:
        """Raise BenchmarkError if the condition is met although the program has not been started."""
        if self.is_met(b""):
            raise BenchmarkError(
                "ready_before_start",
                f"{self} is met before the program is started",
                hint="end the other program, or remove its file",
            )


@dataclass(frozen=True, slots=True)
class RespondingUrl(Readiness):
    """A server on this machine that responds with a status of 2xx."""

    address: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return self.address

    def is_met(self, output: bytes) -> bool:  # noqa: ARG002
        """Return whether a GET request has a status of 2xx."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_RESPONSE_LIMIT_S)
        try:
            connection.request("GET", self.path, headers={"Connection": "close"})
            return 200 <= connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class OpenPort(Readiness):
    """A port of this machine that accepts connections."""

    address: str
    host: str
    port: int

    def __str__(self) -> str:
        return self.address

    def is_met(self, output: bytes) -> bool:  # noqa: ARG002
        """Return whether a connection is accepted."""
        try:
            socket.create_connection((self.host, self.port), timeout=_RESPONSE_LIMIT_S).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ExistingFile(Readiness):
    """A file that the program writes when it is ready."""

    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"

    def is_met(self, output: bytes) -> bool:  # noqa: ARG002
        """Return whether the file exists."""
        return self.path.is_file()


@dataclass(frozen=True, slots=True)
class PrintedText(Readiness):
    """A text in what the program prints, on standard output or standard error."""

    text: str

    def __str__(self) -> str:
        return f"output:{self.text}"

    def is_met(self, output: bytes) -> bool:
        """Return whether the text was printed."""
        return self.text.encode() in output


def parse_readiness(text: str) -> Readiness:
    """Return the condition of `http://HOST:PORT/PATH`, `tcp://HOST:PORT`, `file:PATH` or `output:TEXT`.

    A host is one of this machine. Raises BenchmarkError.
    """
    scheme, _, rest = text.partition(":")
    if scheme in ("file", "output") and rest:
        return ExistingFile(Path(rest)) if scheme == "file" else PrintedText(rest)
    if scheme not in ("http", "tcp"):
        raise BenchmarkError("bad_readiness", f"{text!r} is no condition of readiness", hint=_HINT)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or (80 if scheme == "http" else None)
    except ValueError:
        host = port = None
    if not host or port is None:
        raise BenchmarkError("bad_readiness", f"{text!r} names no host and port", hint=_HINT)
    if not _is_here(host):
        raise BenchmarkError(
            "remote_readiness",
            f"{host} is not this machine, where the program is started",
            hint="use 127.0.0.1, [::1] or localhost",
        )
    if scheme == "tcp":
        return OpenPort(text, host, port)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character.isspace() for character in path):
        raise BenchmarkError("bad_readiness", f"the path {path!r} is not ASCII", hint="quote it as %XX")
    return RespondingUrl(text, host, port, path)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
