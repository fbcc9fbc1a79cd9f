# SPDX-License-Identifier: Apache-2.0
"""How far PyTorch's profiler's clock is from the monotonic one.

Both count the processor's ticks, but PyTorch ties its count to the time of day once, which may be off by some
microseconds: more than a small operator takes, which would then stand in the layer beside its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NAME = "gpuprof: clock mark"
_COUNT = 20


class ClockMarks:
    """Ranges of PyTorch's, each between two readings of the monotonic clock, at both ends of a recording."""

    def __init__(self) -> None:
        self._read_ns: list[tuple[int, int]] = []

    def take(self) -> None:
        """Make some, while the profiler is active on this thread; a few microseconds in all."""
        from torch._C._profiler import _RecordFunctionFast

        mark = _RecordFunctionFast(NAME)
        for _ in range(_COUNT):
            before_ns = time.monotonic_ns()
            with mark:
                pass
            self._read_ns.append((before_ns, time.monotonic_ns()))

    def shifts_ns(
        self, starts_ns: npt.NDArray[np.int64], marks_ns: Sequence[tuple[int, int]]
    ) -> npt.NDArray[np.int64]:
        """Return what to add to each of the profiler's instants, to a few hundred nanoseconds.

        `marks_ns` are the beginnings and ends that the profiler has of the marks. Where they are not as many
        as were made nothing is known, and all is zero.
        """
        import numpy as np

        if len(marks_ns) != len(self._read_ns) or not marks_ns:
            return np.zeros(len(starts_ns), dtype=np.int64)
        pairs = list(zip(self._read_ns, sorted(marks_ns), strict=True))
        ends = pairs[:_COUNT], pairs[-_COUNT:]
        instants = [float(of_end[0][1][0]) for of_end in ends]
        found = np.interp(starts_ns, instants, [_offset_ns(of_end) for of_end in ends])
        return np.rint(found).astype(np.int64)


def _offset_ns(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
    """Return the middle of the offsets with which every mark lies between its two readings."""
    least = max(read[0] - mark[0] for read, mark in pairs)
    most = min(read[1] - mark[1] for read, mark in pairs)
    return (least + most) / 2
