# SPDX-License-Identifier: Apache-2.0
"""Who may ask: the bound name, the page's own origin, and on other addresses than loopback a token."""

from __future__ import annotations

import http.cookies
import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuprof.live.dashboard.page import REFUSAL_POLICY, refusal_page

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
}
NO_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Access:
    """The address that is bound, and the token that it needs, None for loopback without one."""

    host: str
    port: int
    token: str | None = None

    @property
    def hosts(self) -> list[str]:
        """The names in a Host header, in small letters."""
        own = (f"[{self.host}]" if ":" in self.host else self.host).lower()
        return list(
            dict.fromkeys([own, *(("localhost", "127.0.0.1", "[::1]") if is_loopback(self.host) else ())])
        )

    def accepts(self, host: str) -> bool:
        """Whether a header `Host` names this server. With a token any port does: it may be forwarded."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        is_port = self.token is not None or port in ("", str(self.port))
        return is_port and (is_wildcard(self.host) or name.lower() in self.hosts)

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers do not separate cookies by port."""
        return f"gpuprof-{self.port}"

    def is_token(self, given: str | None) -> bool:
        """Whether a text is the token."""
        return self.token is None or (
            given is not None and secrets.compare_digest(given.encode(), self.token.encode())
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether an address is that of all interfaces."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def secured(send: Send) -> Send:
    """Return a function that sends a response with the headers of security."""

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            found = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                found[name] = value
            found.setdefault("Content-Security-Policy", NO_CONTENT_POLICY)
        await send(message)

    return send_secured


def refused(status: int, text: str, headers: Headers) -> Response:
    """Return a refusal with a text: a page for a browser that opens an address, else a line."""
    if "text/html" not in headers.get("accept", ""):
        return PlainTextResponse(f"{text}\n", status)
    message, _, hint = text.partition("; hint: ")
    policy = {"Content-Security-Policy": REFUSAL_POLICY}
    return HTMLResponse(refusal_page(message, hint), status, policy)


class Guard:
    """Refuses other hosts, other methods than GET, foreign origins, and requests without the token."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[-1]
        refusal = self._refusal(scope, headers, given)

        async def send_cookie(message: Message) -> None:
            has_cookie = refusal is None and given is not None and self._access.token is not None
            if has_cookie and message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("Set-Cookie", self._cookie())
            await send(message)

        send_guarded = secured(send_cookie)

        if refusal is not None:
            await refused(*refusal, headers)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers, given: str | None) -> tuple[int, str] | None:
        if not self._access.accepts(headers.get("host", "")):
            return 421, f"a request to another address; hint: {self._hint()}"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET is allowed: nothing can be changed over HTTP"
        if _is_foreign(scope["path"], headers):
            return 403, "a request of another site"
        if self._access.is_token(given) or self._access.is_token(self._cookie_of(headers)):
            return None
        return 401, "the token is missing or wrong; hint: open the address that gpuprof dashboard printed"

    def _hint(self) -> str:
        return (
            f"open http://{self._access.hosts[0]}:{self._access.port}/, "
            "and forward it to the same port, or add --token"
        )

    def _cookie_of(self, headers: Headers) -> str | None:
        cookies: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except http.cookies.CookieError:
            return None
        found = cookies.get(self._access.cookie)
        return None if found is None else found.value

    def _cookie(self) -> str:
        return f"{self._access.cookie}={self._access.token}; HttpOnly; SameSite=Strict; Path=/"


def _is_foreign(path: str, headers: Headers) -> bool:
    """Whether a page of another site sends a request; it may link to the dashboard's first page only."""
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{headers.get('host', '')}":
        return True
    site = headers.get("sec-fetch-site", "none")
    wanted = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    is_link = path == "/" and wanted == ("navigate", "document")
    return site not in ("none", "same-origin") and not is_link
