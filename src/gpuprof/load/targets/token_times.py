# SPDX-License-Identifier: Apache-2.0
"""When the tokens of streams arrived: 16 bytes for each chunk of text, appended to a file as they come."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

# `counted` is 1 where the server reported how many tokens the chunk has, and 0 where the chunk counts as one.
TOKENS = np.dtype([("request", "<u4"), ("tokens", "<u2"), ("counted", "<u2"), ("time_ns", "<i8")])
_ROWS_IN_MEMORY = 4096
_MOST_TOKENS = (1 << 16) - 1

TokenSink = Callable[[int, int, int, bool], None]


class TokenFile:
    """Writes the arrivals of a load; what is full is on disk even if the program ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._words = array("Q")

    def add(self, index: int, time_ns: int, tokens: int, is_counted: bool) -> None:
        """Append the arrival of a chunk of request `index`, in the order of time."""
        words = self._words
        words.append(index | min(tokens, _MOST_TOKENS) << 32 | is_counted << 48)
        words.append(time_ns)
        if len(words) >= 2 * _ROWS_IN_MEMORY:
            self._flush()

    def _flush(self) -> None:
        self._words.tofile(self._file)
        del self._words[:]

    def close(self) -> None:
        """Write the rest."""
        self._flush()
        self._file.close()

    def __enter__(self) -> TokenFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_tokens(path: Path) -> npt.NDArray[Any]:
    """Return the rows of a file, without one that is cut off."""
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // TOKENS.itemsize * TOKENS.itemsize], TOKENS)
