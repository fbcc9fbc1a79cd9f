# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 requests as bytes, made once where requests are alike."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.bodies import Body, BodyMix

# They are ours to write.
_RESERVED = {"host", "content-length", "transfer-encoding", "connection"}


def request_bytes(
    address: ServerAddress, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Return a whole request; headers are checked by `checked_headers`."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that cannot break a request; raises BenchmarkError for others."""
    for name, value in headers.items():
        is_token = name.isascii() and all(each.isalnum() or each in "!#$%&'*+-.^_`|~" for each in name)
        is_text = all(each == "\t" or (" " <= each <= "ÿ" and each != "\x7f") for each in value)
        if not name or not is_token or not is_text or name.lower() in _RESERVED:
            raise BenchmarkError(
                "bad_header",
                f"the header {name!r} is no header of a request, or its value is not one line of text",
                hint="write NAME:VALUE; gpuprof itself sets Host, Content-Length and those of the connection",
            )
    return dict(headers)


class HttpRequests:
    """The bytes of each request of a load, by index."""

    def __init__(
        self,
        address: ServerAddress,
        mix: BodyMix | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "",
    ) -> None:
        self._address = address
        self._mix = mix
        self._headers = checked_headers(headers or {})
        self._method = method or ("POST" if mix else "GET")
        self._ready = (
            [None if each.is_template else self._whole(each, 0) for each in mix.bodies] if mix else []
        )
        self._without_body = self._whole(Body(b"", ""), 0)

    def of(self, index: int) -> bytes:
        """Return request `index` as it is sent."""
        if self._mix is None:
            return self._without_body
        variant = self._mix.variant(index)
        return self._ready[variant] or self._whole(self._mix.bodies[variant], index)

    def _whole(self, body: Body, index: int) -> bytes:
        given = {name.lower() for name in self._headers}
        types = (
            {"Content-Type": body.content_type} if body.content_type and "content-type" not in given else {}
        )
        headers = {**types, **self._headers}
        return request_bytes(self._address, self._method, self._address.path, headers, body.of(index))
