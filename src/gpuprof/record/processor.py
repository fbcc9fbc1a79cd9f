# SPDX-License-Identifier: Apache-2.0
"""The processors that this process may use: their caches, and the limits set on them and on memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SYSTEM = Path("/")
# The places in the first line of /proc/stat (proc_stat(5)).
_IDLE, _WAITING, _STOLEN, _KINDS = 3, 4, 7, 8
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Where sysfs shows no caches, the C library may know them from CPUID, but not which processors use them.
_SYSCONF_CACHES = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}


class Cache(NamedTuple):
    """One data cache, and the processors that use it as far as the system reports them."""

    level: int
    bytes: int
    processors: tuple[int, ...]


def usable_processors() -> list[int]:
    """Return the numbers of the processors in the process's affinity mask, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def data_caches(processors: list[int], root: Path = SYSTEM) -> list[Cache]:
    """Return the data caches that `processors` reach, each once; nothing where they are unknown."""
    found = {cache: None for number in processors for cache in _caches_of(number, root)}
    if found or root != SYSTEM:
        return list(found)
    return list(_sysconf_caches(processors))


def _caches_of(number: int, root: Path) -> Iterator[Cache]:
    folder = root / f"sys/devices/system/cpu/cpu{number}/cache"
    for index in sorted(folder.glob("index*")):
        # What a virtual machine leaves out or garbles is a cache that is not known.
        with contextlib.suppress(OSError, ValueError, KeyError):
            if _read(index / "type") in ("Data", "Unified"):
                size = _read(index / "size")
                size_bytes = int(size[:-1]) * _SUFFIXES[size[-1]]
                shared = tuple(parse_list(_read(index / "shared_cpu_list")))
                if size_bytes > 0:
                    yield Cache(int(_read(index / "level")), size_bytes, shared or (number,))


def _sysconf_caches(processors: list[int]) -> Iterator[Cache]:
    for level, name in _SYSCONF_CACHES.items():
        try:
            size_bytes = os.sysconf(name)
        except (ValueError, OSError):
            continue
        if size_bytes > 0 and level < 3:
            yield from (Cache(level, size_bytes, (number,)) for number in processors)
        elif size_bytes > 0:
            yield Cache(level, size_bytes, tuple(processors))


def parse_list(text: str) -> list[int]:
    """Return the numbers that a list such as "0-3,8" names."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def processor_quota(root: Path = SYSTEM) -> float | None:
    """Return how many processors' worth of time the control groups grant at most; None for no limit."""
    quotas = [*_quotas_of_version_2(root), *_quotas_of_version_1(root)]
    return min(quotas, default=None)


def _quotas_of_version_2(root: Path) -> Iterator[float]:
    for folder in _group_folders(root, "", root / "sys/fs/cgroup"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _read(folder / "cpu.max").split()
            if quota != "max":
                yield int(quota) / int(period)


def _quotas_of_version_1(root: Path) -> Iterator[float]:
    for folder in _group_folders(root, "cpu", root / "sys/fs/cgroup/cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota_us = int(_read(folder / "cpu.cfs_quota_us"))
            if quota_us > 0:
                yield quota_us / int(_read(folder / "cpu.cfs_period_us"))


def quota_throttled_ns(root: Path = SYSTEM) -> int | None:
    """Return how long the control groups have kept this process off its processors; None where unknown."""
    found: list[int] = []
    for folder in _group_folders(root, "", root / "sys/fs/cgroup"):
        found += _statistic(folder / "cpu.stat", "throttled_usec", 1_000)
    for folder in _group_folders(root, "cpu", root / "sys/fs/cgroup/cpu"):
        found += _statistic(folder / "cpu.stat", "throttled_time", 1)
    return max(found, default=None)


def _statistic(path: Path, name: str, scale: int) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for line in _read(path).splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                yield scale * int(value)


def processor_seconds(statistics: Path = SYSTEM / "proc/stat") -> tuple[float, float] | None:
    """Return the seconds since boot that all processors were busy, and their steal time; None if unknown."""
    try:
        words = statistics.read_text(encoding="ascii").split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1 : 1 + _KINDS]]
        per_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    if words[:1] != ["cpu"] or len(ticks) < _KINDS:
        return None
    idle = ticks[_IDLE] + ticks[_WAITING] + ticks[_STOLEN]
    return (sum(ticks) - idle) / per_second, ticks[_STOLEN] / per_second


def available_memory_bytes(root: Path = SYSTEM) -> int | None:
    """Return what this process may still take without swapping, control groups considered."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = _read(root / "proc/meminfo").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder in _group_folders(root, "", root / "sys/fs/cgroup"):
        limits += _room(folder / "memory.max", folder / "memory.current")
    for folder in _group_folders(root, "memory", root / "sys/fs/cgroup/memory"):
        limits += _room(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")
    return min(limits, default=None)


def _room(limit: Path, used: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        yield max(0, int(_read(limit)) - int(_read(used)))


def _group_folders(root: Path, controller: str, top: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of those around it; inside a container, the top."""
    group = _group_of(root, controller)
    if group is None:
        return
    folder = top / group.strip("/")
    while folder != top and top in folder.parents:
        yield folder
        folder = folder.parent
    yield top


def _group_of(root: Path, controller: str) -> str | None:
    try:
        lines = _read(root / "proc/self/cgroup").splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controller in controllers.split(","):
            # A group outside of the part that a container sees: its top is all there is to read.
            return "/" if ".." in group else group
    return None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()
