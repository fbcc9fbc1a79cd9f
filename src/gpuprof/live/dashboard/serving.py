# SPDX-License-Identifier: Apache-2.0
"""Binds the address and serves until the user ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from gpuprof.errors import GpuprofError
from gpuprof.live.alerts.rules import BUILT_IN_RULES, AlertRule
from gpuprof.live.alerts.watch import alert_document
from gpuprof.live.dashboard.connections import Bounded, Limits, count_of, limited
from gpuprof.live.dashboard.live_runs import LiveRuns
from gpuprof.live.dashboard.security import Access, is_loopback
from gpuprof.live.dashboard.server import Dashboard, application

if TYPE_CHECKING:
    from gpuprof.live.alerts.engine import Alert
    from gpuprof.live.alerts.webhook import Webhook

# Descriptors for the connections, the files of runs, and the workers.
_DESCRIPTORS = 4_096


def serve(
    folder: Path,
    host: str,
    port: int,
    *,
    with_token: bool,
    announce: Callable[[str], None],
    rules: Sequence[AlertRule] = BUILT_IN_RULES,
    webhook: Webhook | None = None,
) -> None:
    """Serve a folder until an interruption. `announce` gets the address once it is bound.

    `webhook` gets the alerts of `rules`, whether or not a page is open.

    Raises GpuprofError for a folder that cannot be listed, an address that cannot be bound, and one that
    others reach without a token.
    """
    if not is_loopback(host) and not with_token:
        raise GpuprofError(
            "needs_token",
            f"--host {host}: others reach this address",
            hint="add --token, or omit --host and forward the port with ssh -L",
        )
    if not folder.is_dir():
        raise GpuprofError(
            "no_such_folder", f"{folder} is no folder", hint="name a folder of runs and results"
        )
    with bound_socket(host, port) as listener:
        access = Access(host, listener.getsockname()[1], secrets.token_urlsafe(24) if with_token else None)
        root = folder.resolve()
        send = None if webhook is None else partial(_send, webhook)
        live = LiveRuns(root, rules=rules, on_alert=send)
        app = application(Dashboard(root, live=live, webhook=webhook), access)
        _allow_descriptors()
        asyncio.run(_serve(server_of(app), listener, lambda: announce(address_of(access))))


async def _serve(server: uvicorn.Server, listener: socket.socket, announce: Callable[[], None]) -> None:
    # In the loop, which ends at a Ctrl-C after the announcement without a word.
    announce()
    await server.serve(sockets=[listener])


def _send(webhook: Webhook, path: str, alert: Alert) -> None:
    webhook.send(alert_document(path, alert))


def server_of(app: ASGIApp, limits: Limits | None = None) -> uvicorn.Server:
    """Return the server of an application; it logs nothing, since a request is no event of a user."""
    limits = limits or Limits()
    config = uvicorn.Config(
        Bounded(app, lambda: count_of(server), limits),
        http=limited(limits),
        ws="none",
        loop="asyncio",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    return server


def _allow_descriptors() -> None:
    """Raise the limit of open files, of which many systems allow 1,024: clients must not use up all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a lower limit than they report.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def address_of(access: Access) -> str:
    """Return the address to open, with the token if it needs one."""
    host = f"[{access.host}]" if ":" in access.host else access.host
    return f"http://{host}:{access.port}/" + ("" if access.token is None else f"?token={access.token}")


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises GpuprofError with a hint."""
    try:
        ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise GpuprofError(
            "invalid_address", f"--host {host}: {error.strerror}", hint="name an address of this machine"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise GpuprofError(
                "port_in_use",
                f"port {port} of {host} is in use",
                hint="choose another one with --port, or 0 for any",
            ) from None
        raise GpuprofError(
            "cannot_bind", f"{host}:{port}: {error.strerror}", hint="choose another --host or --port"
        ) from None
    return listener
