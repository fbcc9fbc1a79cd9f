# SPDX-License-Identifier: Apache-2.0
"""Memory: what an allocator handed out, what the device holds, and what of the host this process fills.

These are several figures, not one: an allocator's peak leaves out the framework's context and what its cache
keeps, the device's figure is of all processes on it, and most of a process on the host is the framework.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuprof.bench.failures import SMALLER_BATCHES, DoesNotFitError
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.record.processor import available_memory_bytes

STATUS = Path("/proc/self/status")
_RESET_PEAK = Path("/proc/self/clear_refs")
_COUNTERS = Path("/proc/vmstat")
_BYTES_OF_UNIT = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Read a size such as 12GiB or 800MB. Raises BenchmarkError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    units = {unit.lower(): size for unit, size in _BYTES_OF_UNIT.items()}
    size = 0.0 if match is None else float(match[1]) * units.get(match[2].lower(), 0)
    if not size:
        raise BenchmarkError(
            "invalid_size", f"{text!r} is not a size", hint="write a number and a unit, as in 12GiB or 800MB"
        )
    return int(size)


def bytes_as_asked(size_bytes: int) -> str:
    """Return a size as a person would have asked for it: 12GiB, 800MB."""
    size, unit = max((size, unit) for unit, size in _BYTES_OF_UNIT.items() if size_bytes % size == 0)
    return f"{size_bytes // size}{unit}"


def name_budget(error: GpuprofError, budget_bytes: int | None) -> GpuprofError:
    """Return an error of memory with the budget that was given; any other as it is."""
    if budget_bytes is None or not isinstance(error, DoesNotFitError):
        return error
    hint = f"{SMALLER_BATCHES} (--memory-budget {bytes_as_asked(budget_bytes)})"
    return DoesNotFitError(error.message, hint=hint)


def host_peak_bytes(status: Path = STATUS) -> int | None:
    """Return the most that this process has filled since `reset_host_peak`, or since its start."""
    peak = _status(status).get("VmHWM")
    if peak is not None:
        return peak
    with contextlib.suppress(OSError, ValueError):
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
    return None


def resident_bytes(status: Path = STATUS) -> int | None:
    """Return what this process fills of the host's memory now; None where the system does not report it."""
    return _status(status).get("VmRSS")


class HostPeak:
    """The most of the host's memory that this process has filled since `reset()`."""

    def __init__(self) -> None:
        self._floor = 0
        self._before: int | None = None

    def reset(self) -> None:
        """Reset the peak, after the allocator's memory of earlier batches is released."""
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _padding: None)(0)
        is_reset = reset_host_peak()
        self._floor = 0 if is_reset else (host_peak_bytes() or 0)
        self._before = resident_bytes() if is_reset else None

    def added(self) -> int | None:
        """Return by how much the peak is above what was filled at `reset()`; None where unknown."""
        peak = self.read()
        return None if peak is None or self._before is None else max(0, peak - self._before)

    def read(self) -> int | None:
        """Return the peak; None where it may be an older one, since the system cannot reset it."""
        peak = host_peak_bytes()
        return peak if peak is not None and peak > self._floor else None


def reset_host_peak() -> bool:
    """Reset the peak; returns whether the system can."""
    try:
        _RESET_PEAK.write_text("5")
    except OSError:
        return False
    return True


def memory_kills(counters: Path = _COUNTERS) -> int | None:
    """Return how many processes the system has killed because memory ran out; None where unknown."""
    try:
        lines = counters.read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _status(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if words[2:] == ["kB"]}


# What a framework allocates at its first call, which is no part of a model's budget.
_FRAMEWORK_BYTES = 256 << 20


def limit_host_memory(budget_bytes: int | None) -> None:
    """Let allocations far beyond the budget, or beyond what the machine has left, fail.

    Otherwise the system would end the process. Whether a batch keeps the budget is measured. A lower limit
    that was set before stays. Where no limit can be set there is none.
    """
    left = available_memory_bytes()
    allowed = None if budget_bytes is None else budget_bytes + _FRAMEWORK_BYTES
    room = min((each for each in (allowed, left) if each is not None), default=None)
    taken = _status(STATUS).get("VmData")
    if room is None or taken is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [each for each in (soft, hard, taken + room) if each != resource.RLIM_INFINITY]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def device_used_bytes() -> int | None:
    """Return what all processes hold of the first NVIDIA device; None where NVML does not report it."""
    from gpuprof.record.device_samples import has_driver  # processes without a GPU do not pay for it

    if not has_driver():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def memory_failures(batch_size: int) -> Iterator[None]:
    """Turn memory that ends into DoesNotFitError."""
    try:
        yield
    except MemoryError as error:
        message = f"batch size {batch_size} does not fit into memory"
        raise DoesNotFitError(message, hint=SMALLER_BATCHES) from error
