# SPDX-License-Identifier: Apache-2.0
"""Whether memory grows with requests, in bytes a request, by several meters.

A slope that differs from 0 is no leak: of series without any, ordinary least squares reports one in up to 59
of 100, and in all whose warm-up flattens. Here the first half is dropped, and the growth between consecutive
blocks of the second half has a Student interval that must be beyond a margin. If memory only fluctuates,
consecutive differences are negatively correlated, so the interval is too wide and no leak is invented; if it
moves at random, they are independent, and the interval is right.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuprof.bench.facts import TextEnum
from gpuprof.bench.measure.memory import resident_bytes
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.stats.growth import Growth, block_growth
from gpuprof.stats.quantiles import CONFIDENCE

BLOCKS = 6
FEWEST_READINGS = 4 * BLOCKS


class Meter(TextEnum):
    """What is read. Python's blocks show objects, which `MALLOC` hardly sees; RSS sees pages alone."""

    RSS = "RSS"
    MALLOC = "malloc in use"
    PYTHON_BLOCKS = "Python blocks"
    CUDA = "CUDA allocator"


class SoakVerdict(TextEnum):
    """A verdict of a soak test. `OPEN`: the growth flattens, and may end; only a longer test shows it."""

    YES = "yes"
    NO = "no"
    INCONCLUSIVE = "inconclusive"
    OPEN = "open"
    UNAVAILABLE = "unavailable"


# The growth a request that is no leak: what fragmentation and rounding to pages give.
MARGINS = {Meter.RSS: 8.0, Meter.MALLOC: 8.0, Meter.PYTHON_BLOCKS: 0.1, Meter.CUDA: 8.0}


@dataclass(frozen=True, slots=True)
class MemoryLevels:
    """Memory after so many requests, while none is in flight; None is unavailable."""

    requests: int
    values: dict[Meter, int | None]


@dataclass(frozen=True, slots=True)
class MeterGrowth:
    """The growth of one meter a request, in bytes (or in blocks), with its 95% interval."""

    meter: Meter
    verdict: SoakVerdict
    low: float | None
    value: float | None
    high: float | None
    reason: LoadReason

    @property
    def unit(self) -> str:
        """What the growth is counted in."""
        return _unit(self.meter)


@dataclass(frozen=True, slots=True)
class LeakReport:
    """The growth by each meter, and the verdict of all: yes if one of them is yes."""

    verdict: SoakVerdict
    meters: tuple[MeterGrowth, ...]


def read_memory(requests: int) -> MemoryLevels:
    """Read all meters. Call `trim_memory` before, so that free memory is not counted."""
    values: dict[Meter, int | None] = {
        Meter.RSS: resident_bytes(),
        Meter.MALLOC: malloc_bytes(),
        Meter.PYTHON_BLOCKS: sys.getallocatedblocks(),
        Meter.CUDA: _cuda_bytes(),
    }
    return MemoryLevels(requests, values)


def trim_memory() -> None:
    """Collect garbage, empty Python's caches, and return free memory of the C library to the system."""
    gc.collect()
    _clear_caches()
    _malloc_trim()(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _padding: None)


# CPython's cache of attributes keeps names that C code looks up, up to 4,096 strings: one or two a cycle, a
# leak for a meter of blocks where a cycle has few requests. From 3.13 on the function has another name.
_clear_caches: Callable[[], None] = getattr(
    sys, "_clear_internal_caches", getattr(sys, "_clear_type_cache", lambda: None)
)


_MALLINFO_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallocStatistics(ctypes.Structure):
    """`struct mallinfo2` (mallinfo(3))."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO_FIELDS]


@cache
def _mallinfo() -> Any:
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)  # glibc 2.33
    if found is not None:
        found.restype = _MallocStatistics
    return found


def malloc_bytes() -> int | None:
    """Return what the program has allocated from the C library; None without glibc's mallinfo2."""
    function = _mallinfo()
    if function is None:
        return None
    found = function()
    return int(found.uordblks) + int(found.hblkhd)


def _cuda_bytes() -> int | None:
    torch: Any = sys.modules.get("torch")
    return int(torch.cuda.memory_allocated()) if torch is not None and torch.cuda.is_initialized() else None


def leaks_of(
    readings: Sequence[MemoryLevels],
    margins: dict[Meter, float] | None = None,
    *,
    is_own_process: bool = True,
) -> LeakReport:
    """Return whether memory grows with requests; `margins` replace MARGINS.

    What has no reading is unavailable: on this machine, or since the target is not in this process.
    """
    allowed = {**MARGINS, **(margins or {})}
    meters = tuple(_growth(meter, readings, allowed[meter], is_own_process=is_own_process) for meter in Meter)
    return LeakReport(overall([each.verdict for each in meters]), meters)


def overall(verdicts: Sequence[SoakVerdict]) -> SoakVerdict:
    """Return the worst verdict: yes, open, inconclusive, no; unavailable if all are."""
    order = (SoakVerdict.YES, SoakVerdict.OPEN, SoakVerdict.INCONCLUSIVE, SoakVerdict.NO)
    return next((each for each in order if each in verdicts), SoakVerdict.UNAVAILABLE)


def _growth(
    meter: Meter, readings: Sequence[MemoryLevels], margin: float, *, is_own_process: bool
) -> MeterGrowth:
    known = [(each.requests, read) for each in readings if (read := each.values.get(meter)) is not None]
    if not known:
        name = str(meter)
        why = reason("unavailable", meter=name) if is_own_process else reason("other_process", meter=name)
        return MeterGrowth(meter, SoakVerdict.UNAVAILABLE, None, None, None, why)
    if len(known) < FEWEST_READINGS or known[-1][0] <= known[0][0]:
        why = reason("short_series", meter=str(meter), readings=len(known), least=FEWEST_READINGS)
        return MeterGrowth(meter, SoakVerdict.INCONCLUSIVE, None, None, None, why)
    half = np.array(known[len(known) // 2 :], dtype=np.float64)
    growth = block_growth(half[:, 0], half[:, 1], blocks=BLOCKS, confidence=CONFIDENCE)
    verdict, why = _verdict(meter, growth, margin)
    return MeterGrowth(meter, verdict, growth.low, growth.value, growth.high, why)


def _verdict(meter: Meter, growth: Growth, margin: float) -> tuple[SoakVerdict, LoadReason]:
    low, high = growth.low, growth.high
    values = {"meter": str(meter), "low": low, "high": high, "unit": _unit(meter), "margin": margin}
    if high < margin:
        return SoakVerdict.NO, reason("within_margin", **values)
    if growth.flattens(margin):
        return SoakVerdict.OPEN, reason("flattens", **values)
    if low > margin:
        return SoakVerdict.YES, reason("grows", **values)
    return SoakVerdict.INCONCLUSIVE, reason("wide_interval", **values)


def _unit(meter: Meter) -> str:
    return "blocks" if meter is Meter.PYTHON_BLOCKS else "bytes"
