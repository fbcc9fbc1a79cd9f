# SPDX-License-Identifier: Apache-2.0
"""The errors of connections that cannot be opened: what failed, where, and what to do.

The limits of this machine have errors of their own, since the server has no part in them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress
from gpuprof.load.targets.statuses import status_of_error

_START = "start it, or check the port"
_USUAL_FILES = 1024


def unreachable(address: ServerAddress, error: Exception | None, timeout_s: float) -> BenchmarkError:
    """Return the error of a server to which no connection was opened within `timeout_s`."""
    limit = None if error is None else _limit_of_machine(error, f"no connection to {address.authority}")
    if limit is not None:
        return limit
    cause, hint = _cause(address, error, timeout_s)
    return BenchmarkError("no_server", f"no server responds at {address.authority}: {cause}", hint=hint)


def no_file(error: Exception, what: str) -> BenchmarkError | None:
    """Return the error of what failed without a free file descriptor; None for other causes."""
    if status_of_error(error) is not RequestStatus.NO_FILE_DESCRIPTORS:
        return None
    if getattr(error, "errno", None) == errno.ENFILE:
        cause, hint = "the system has no free file descriptor", "end other programs, or raise fs.file-max"
    else:
        limit = _most_files()
        cause = f"no free file descriptor (the limit of a process is {limit:,})"
        hint = f"raise the limit, as with ulimit -n {max(2 * limit, _USUAL_FILES)}"
    return BenchmarkError("no_file_descriptors", f"{what}: {cause}", hint=hint)


def _limit_of_machine(error: Exception, what: str) -> BenchmarkError | None:
    if status_of_error(error) is RequestStatus.NO_PORTS:
        return BenchmarkError(
            "no_ports",
            f"{what}: this machine has no free local port",
            hint="wait until closed connections have released theirs, or widen net.ipv4.ip_local_port_range",
        )
    return no_file(error, what)


def _most_files() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _cause(address: ServerAddress, error: Exception | None, timeout_s: float) -> tuple[str, str]:
    """Return why a connection was not opened, and the hint."""
    unencrypted = f"use {address.protocol.value}:// if the server is not encrypted"
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "name its CA with --ca FILE, and write the host as in the certificate"
        return f"its certificate is not accepted ({error.verify_message})", hint
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").lower().replace("_", " ") or "no reason given"
        return f"the TLS handshake failed ({reason})", unencrypted
    if isinstance(error, OSError) and error.errno:
        # asyncio has texts of its own.
        return os.strerror(error.errno), _START
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        if address.is_encrypted:
            return f"no TLS handshake within {timeout_s:g} s", unencrypted
        return f"no connection within {timeout_s:g} s", _START
    if isinstance(error, ConnectionError) and address.is_encrypted:
        return "it closed the connection during the TLS handshake", unencrypted
    return "no address of the host accepts a connection" if error is None else type(error).__name__, _START
