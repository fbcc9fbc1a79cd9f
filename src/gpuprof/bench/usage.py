# SPDX-License-Identifier: Apache-2.0
"""What the process took of the processors and of the disks while something was measured."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

IO = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class Usage:
    """Between two moments: processors kept busy (1.0 is one of them), and bytes of this process's disk I/O.

    None is what the system does not tell.
    """

    wall_s: float
    cpu_share: float | None
    read_bytes: int | None
    written_bytes: int | None


class UsageMeter:
    """Counts from where it is made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s, self._io = time.monotonic(), _cpu_s(), _io()

    def read(self) -> Usage:
        """Return what was used until now."""
        wall_s, io = time.monotonic() - self._wall_s, _io()
        share = (_cpu_s() - self._cpu_s) / wall_s if wall_s > 0 else None
        read, written = (None if io is None or self._io is None else io[i] - self._io[i] for i in (0, 1))
        return Usage(wall_s, share, read, written)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _io(path: Path = IO) -> tuple[int, int] | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        values = dict(line.split(": ") for line in lines)
        return int(values["read_bytes"]), int(values["write_bytes"])
    except (OSError, KeyError, ValueError):
        return None
