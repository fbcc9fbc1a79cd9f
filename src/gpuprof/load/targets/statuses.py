# SPDX-License-Identifier: Apache-2.0
"""How a request to a server ended, by the error of its connection or its HTTP status code."""

from __future__ import annotations

import asyncio
import errno

from gpuprof.load.requests import RequestStatus

TOO_MANY_REQUESTS = 429


_OF_ERRNO = {
    errno.ECONNREFUSED: RequestStatus.REFUSED,
    errno.ECONNRESET: RequestStatus.RESET,
    errno.EPIPE: RequestStatus.RESET,
    errno.ECONNABORTED: RequestStatus.RESET,
    errno.EMFILE: RequestStatus.NO_FILE_DESCRIPTORS,
    errno.ENFILE: RequestStatus.NO_FILE_DESCRIPTORS,
    errno.EADDRNOTAVAIL: RequestStatus.NO_PORTS,
    errno.EAGAIN: RequestStatus.NO_PORTS,
    errno.ETIMEDOUT: RequestStatus.TIMEOUT,
}


def status_of_error(error: BaseException) -> RequestStatus:
    """Return how a request ended whose connection could not be opened or broke."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return RequestStatus.TIMEOUT
    if isinstance(error, OSError):
        return _OF_ERRNO.get(error.errno or 0, RequestStatus.UNREACHABLE)
    return RequestStatus.INVALID


def status_of_code(code: int) -> RequestStatus:
    """Return how a request ended with an HTTP status code."""
    if 200 <= code < 300:
        return RequestStatus.OK
    if code == TOO_MANY_REQUESTS:
        return RequestStatus.OVERLOADED
    if code >= 500:
        return RequestStatus.SERVER_ERROR
    return RequestStatus.CLIENT_ERROR if code >= 400 else RequestStatus.HTTP_ERROR
