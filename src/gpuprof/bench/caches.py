# SPDX-License-Identifier: Apache-2.0
"""Flushing the processor's caches, for calls that find nothing of their inputs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Larger than the last level of most processors, where the system does not tell.
ASSUMED_BYTES = 64 << 20


def last_level_cache_bytes() -> int | None:
    """Return the size of the largest cache of the first processor; None where the system does not tell."""
    sizes = [size for path in _CACHES.glob("index*/size") if (size := _read_size(path)) is not None]
    return max(sizes, default=None)


def cache_flusher(size_bytes: int | None = None) -> Callable[[], None]:
    """Return a function that writes twice the last level's bytes, so that older lines have to go."""
    size = size_bytes or 2 * (last_level_cache_bytes() or ASSUMED_BYTES)
    buffer = np.zeros(max(size // 8, 1), dtype=np.int64)

    def flush() -> None:
        np.add(buffer, 1, out=buffer)

    return flush


def _read_size(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    number, unit = text.rstrip("KMG"), text[-1:]
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else None
