# SPDX-License-Identifier: Apache-2.0
"""Server-sent events out of the bytes of a response, as they arrive.

The format is that of the HTML standard, 9.2.6: lines end with LF, CR or CR LF, the `data` lines of an event
are joined with LF, and an empty line ends the event. Events that end in the middle are never returned.
"""

from __future__ import annotations

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_EVENT = 16 << 20
_NAMES = (b"data", b"event", b"id", b"retry", b"")  # of fields; a comment has none


class EventTooLongError(ValueError):
    """A server sends one event without end."""


class EventReader:
    """Splits the bytes of one response into the data of its events."""

    __slots__ = ("_data", "_has_field", "_has_other", "_is_first", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_first = True
        self._has_field = self._has_other = False
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that `received` completes."""
        lines = (self._rest + received).splitlines(keepends=True)
        # A CR at the end may be the first half of CR LF.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        events: list[bytes] = []
        for line in lines:
            self._take(line.rstrip(b"\r\n"), events)
        if len(self._rest) + self._size > _LONGEST_EVENT:
            raise EventTooLongError
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
            return
        name, _, value = line.partition(b":")
        is_field = name in _NAMES
        self._has_field, self._has_other = self._has_field or is_field, self._has_other or not is_field
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)

    def finish(self) -> list[bytes]:
        """Return the event that a last CR completed, once the response is over."""
        events: list[bytes] = []
        if self._rest.endswith(b"\r"):
            self._take(self._rest.rstrip(b"\r"), events)
            self._rest = b""
        return events

    @property
    def has_half_event(self) -> bool:
        """Whether bytes have arrived that belong to no complete event."""
        return bool(self._rest.strip() or self._data)

    @property
    def is_other_format(self) -> bool:
        """Whether something has arrived, of which nothing is a field of an event or the beginning of one."""
        name, colon, _ = self._rest.removeprefix(_BYTE_ORDER_MARK).partition(b":")
        may_be_field = name in _NAMES if colon else any(each.startswith(name) for each in _NAMES)
        return not self._has_field and (self._has_other or not may_be_field)
