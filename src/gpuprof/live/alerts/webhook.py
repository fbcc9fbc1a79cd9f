# SPDX-License-Identifier: Apache-2.0
"""Sends alerts to a webhook: one POST of JSON for each that fires or clears, in a thread of its own.

A webhook that hangs delays nothing: a request has a timeout, and what cannot wait in the queue is dropped and
counted. Redirects are not followed, and no proxy is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
from collections.abc import Collection, Mapping
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.load.targets.address import ServerAddress, parse_address, resolve

TIMEOUT_S = 5.0
MOST_WAITING = 100
_HEADERS = {"Content-Type": "application/json", "User-Agent": "gpuprof"}


class Webhook:
    """One address that gets alerts. Raises GpuprofError for one of another machine that is not allowed."""

    def __init__(
        self, url: str, allowed_hosts: Collection[str] = (), *, timeout_s: float = TIMEOUT_S
    ) -> None:
        if not url.lower().startswith(("http://", "https://")):
            raise GpuprofError(
                "bad_webhook", f"--webhook {url!r} is not http or https", hint="write http://HOST:PORT/PATH"
            )
        self._address = _checked_address(url, allowed_hosts)
        self._timeout_s = timeout_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self.sent = self.failed = self.dropped = 0
        self._accepted = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many alerts were not tried to their end yet."""
        return self._accepted - self.sent - self.failed

    @property
    def lost(self) -> int:
        """How many alerts were not taken, or are not known to be."""
        return self.failed + self.dropped + self.waiting

    def send(self, alert: Mapping[str, Any]) -> None:
        """Send an alert soon; drop it if too many wait."""
        try:
            self._waiting.put_nowait(json.dumps(alert).encode())
            self._accepted += 1
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Wait for what was sent, at most as long as two requests may take."""
        try:
            self._waiting.put(None, timeout=self._timeout_s)
        except queue.Full:
            return
        self._thread.join(self._timeout_s)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            try:
                is_taken = 200 <= self._post(self._address, body) < 300
            except (OSError, http.client.HTTPException):
                is_taken = False
            if is_taken:
                self.sent += 1
            else:
                self.failed += 1

    def _post(self, address: ServerAddress, body: bytes) -> int:
        # To the address that was checked, not to what the name means by now.
        connection = _connection(address, self._timeout_s)
        # The timeout of a socket is for each read: a server that sends a byte now and then would hang on.
        limit = threading.Timer(self._timeout_s, _shut_down, [connection])
        limit.daemon = True
        limit.start()
        try:
            connection.request("POST", address.path, body, {**_HEADERS, "Host": address.authority})
            return connection.getresponse().status
        finally:
            limit.cancel()
            connection.close()


def _shut_down(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _checked_address(url: str, allowed_hosts: Collection[str]) -> ServerAddress:
    """Return an address with its IP addresses. Raises GpuprofError with hints of this command's options."""
    host = ""
    try:
        address = parse_address(url)
        host = address.host
        return resolve(address, allowed_hosts)
    except GpuprofError as error:
        if error.code == "remote_target":
            raise GpuprofError(
                "remote_webhook",
                f"--webhook: {host} is not this machine",
                hint=f"if alerts may leave this machine, add --allow-remote {host}",
            ) from None
        if error.code == "password_in_address":
            raise GpuprofError(
                "password_in_webhook",
                f"--webhook: {error.message}",
                hint="write the URL without USER:PASSWORD@",
            ) from None
        if error.code == "unknown_host":
            raise GpuprofError("unknown_host", f"--webhook: {error.message}", hint=error.hint) from None
        raise GpuprofError(
            "bad_webhook", f"--webhook: {error.message}", hint="write http://HOST:PORT/PATH in ASCII"
        ) from None


class _CheckedConnection(http.client.HTTPSConnection):
    """Connects to an IP address, with the certificate of the host's name."""

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        self._context = ssl.create_default_context()
        super().__init__(address.resolved[0], address.port, timeout=timeout_s, context=self._context)
        self._name = address.host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def _connection(address: ServerAddress, timeout_s: float) -> http.client.HTTPConnection:
    if address.is_encrypted:
        return _CheckedConnection(address, timeout_s)
    return http.client.HTTPConnection(address.resolved[0], address.port, timeout=timeout_s)
