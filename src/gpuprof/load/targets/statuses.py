# SPDX-License-Identifier: Apache-2.0
"""How a request to a server ended: one small integer in the log of requests."""

from __future__ import annotations

import asyncio
import errno
from enum import IntEnum

TOO_MANY_REQUESTS = 429


class ResponseStatus(IntEnum):
    """The end of a request, with the numbers of the log. Numbers never change."""

    OK = 1
    TIMED_OUT = 2
    NOT_SENT = 3  # still queued when the load ended
    CONNECTION_REFUSED = 17
    CONNECTION_RESET = 18
    NO_FILE_DESCRIPTORS = 19
    NO_PORTS = 20
    UNREACHABLE = 21
    OVERLOADED = 22  # 429, RESOURCE_EXHAUSTED
    CLIENT_ERROR = 23  # other 4xx
    SERVER_ERROR = 24  # 5xx
    UNEXPECTED_CODE = 25  # 1xx and 3xx: redirects are not followed
    INVALID_RESPONSE = 26  # not HTTP, not JSON
    INCOMPLETE_RESPONSE = 27  # closed in the middle
    STREAM_WITHOUT_DONE = 28
    HALF_EVENT = 29
    NO_TOKENS = 30  # a stream of no events
    EMPTY_CHUNKS = 31  # a stream of events without text
    STREAM_ERROR = 32  # the server reported an error within the stream


_OF_ERRNO = {
    errno.ECONNREFUSED: ResponseStatus.CONNECTION_REFUSED,
    errno.ECONNRESET: ResponseStatus.CONNECTION_RESET,
    errno.EPIPE: ResponseStatus.CONNECTION_RESET,
    errno.ECONNABORTED: ResponseStatus.CONNECTION_RESET,
    errno.EMFILE: ResponseStatus.NO_FILE_DESCRIPTORS,
    errno.ENFILE: ResponseStatus.NO_FILE_DESCRIPTORS,
    errno.EADDRNOTAVAIL: ResponseStatus.NO_PORTS,
    errno.EAGAIN: ResponseStatus.NO_PORTS,
    errno.ETIMEDOUT: ResponseStatus.TIMED_OUT,
}


def status_of_error(error: BaseException) -> ResponseStatus:
    """Return how a request ended whose connection could not be opened or broke."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return ResponseStatus.TIMED_OUT
    if isinstance(error, OSError):
        return _OF_ERRNO.get(error.errno or 0, ResponseStatus.UNREACHABLE)
    return ResponseStatus.INVALID_RESPONSE


def status_of_code(code: int) -> ResponseStatus:
    """Return how a request ended with an HTTP status code."""
    if 200 <= code < 300:
        return ResponseStatus.OK
    if code == TOO_MANY_REQUESTS:
        return ResponseStatus.OVERLOADED
    if code >= 500:
        return ResponseStatus.SERVER_ERROR
    return ResponseStatus.CLIENT_ERROR if code >= 400 else ResponseStatus.UNEXPECTED_CODE
