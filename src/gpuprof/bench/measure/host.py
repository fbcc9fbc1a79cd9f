# SPDX-License-Identifier: Apache-2.0
"""The host: its description, its state during a measurement, and the resources that a process used.

None is unavailable.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuprof.bench.measure.io_counters import IoCounters, read_io
from gpuprof.record.processor import processor_seconds

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_DISTRIBUTIONS = ("gpuprof-native", "numpy", "torch", "onnxruntime", "jax", "jaxlib", "tensorrt")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_GIT_LIMIT_S = 10


def describe_environment() -> dict[str, Any]:
    """Return machine, versions, threads, revision of the working directory and date; None is unavailable."""
    from gpuprof.run.machine import describe_machine  # processes that measure do without

    torch = sys.modules.get("torch")
    return {
        **describe_machine(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": _governor(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: found for name in _DISTRIBUTIONS if (found := _version(name)) is not None},
        "threads": None if torch is None else torch.get_num_threads(),
        "variables": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "revision": _git("rev-parse", "HEAD"),
        "changed_files": _changed_files(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str | None:
    # Here, since processes that measure do not need it and would take its time.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _changed_files() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _git(*words: str) -> str | None:
    """Return what git reports of the working directory; None without git, and outside a repository."""
    import subprocess

    command = ["git", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


_PROCESSOR_FILES = Path("/sys/devices/system/cpu")
_PROCESSORS = Path("/proc/cpuinfo")
_STATISTICS = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class MachineState:
    """Counters at one moment."""

    at_ns: int
    cpu_s: float
    children_cpu_s: float
    involuntary_switches: int
    busy_s: float | None
    stolen_s: float | None
    frequency_mhz: float | None
    io: IoCounters


@dataclass(frozen=True, slots=True)
class MachineUse:
    """What happened between two moments.

    `others_cpus` is how many processors' worth of time other processes of the machine used (other
    containers of it among them), `stolen_share` the fraction of the processors' time that the hypervisor gave
    to others. Frequencies are means over the processors at the start and at the end. `io` is None in results
    of earlier versions.
    """

    elapsed_s: float
    processors: int
    involuntary_switches: int | None
    others_cpus: float | None
    stolen_share: float | None
    frequency_before_mhz: float | None
    frequency_after_mhz: float | None
    io: IoCounters | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Processors kept busy (1.0 is one of them) between two moments, and bytes of this process's disk I/O."""

    wall_s: float
    cpu_share: float | None
    read_bytes: int | None
    written_bytes: int | None


def read_state() -> MachineState:
    """Read the counters now."""
    busy_s, stolen_s = _processor_times()
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return MachineState(
        at_ns=time.monotonic_ns(),
        cpu_s=own.ru_utime + own.ru_stime,
        children_cpu_s=children.ru_utime + children.ru_stime,
        involuntary_switches=own.ru_nivcsw,
        busy_s=busy_s,
        stolen_s=stolen_s,
        frequency_mhz=_frequency_mhz(),
        io=read_io(),
    )


def use_between(before: MachineState, after: MachineState) -> MachineUse:
    """Return what the machine did from one moment to another."""
    elapsed = max((after.at_ns - before.at_ns) / 1e9, 1e-9)
    processors = os.cpu_count() or 1
    busy, stolen = _rise(before.busy_s, after.busy_s), _rise(before.stolen_s, after.stolen_s)
    own = after.cpu_s + after.children_cpu_s - before.cpu_s - before.children_cpu_s
    return MachineUse(
        elapsed_s=elapsed,
        processors=processors,
        involuntary_switches=after.involuntary_switches - before.involuntary_switches,
        others_cpus=None if busy is None else max(0.0, busy - own) / elapsed,
        stolen_share=None if stolen is None else stolen / (elapsed * processors),
        frequency_before_mhz=before.frequency_mhz,
        frequency_after_mhz=after.frequency_mhz,
        io=after.io.since(before.io),
    )


def usage_between(before: MachineState, after: MachineState) -> Usage:
    """Return what this process used from one moment to another; None is what the system does not report."""
    wall_s, io = (after.at_ns - before.at_ns) / 1e9, after.io.since(before.io)
    return Usage(
        wall_s=wall_s,
        cpu_share=(after.cpu_s - before.cpu_s) / wall_s if wall_s > 0 else None,
        read_bytes=io.read_bytes,
        written_bytes=io.written_bytes,
    )


Counter = TypeVar("Counter", int, float)


def _rise(before: Counter | None, after: Counter | None) -> Counter | None:
    return None if before is None or after is None else after - before


def _processor_times() -> tuple[float | None, float | None]:
    """Return the seconds that all processors were busy, and their steal time."""
    return processor_seconds(_STATISTICS) or (None, None)


def _frequency_mhz() -> float | None:
    found = [*_scaling_mhz()] or [*_reported_mhz()]
    return sum(found) / len(found) if found else None


def _scaling_mhz() -> Iterator[float]:
    for path in _PROCESSOR_FILES.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        with contextlib.suppress(OSError, ValueError):
            yield int(path.read_text(encoding="ascii")) / 1e3


def _reported_mhz() -> Iterator[float]:
    """Yield the frequency of each processor in /proc/cpuinfo, which in a virtual machine may never change."""
    with contextlib.suppress(OSError, ValueError):
        for line in _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("cpu MHz"):
                yield float(line.partition(":")[2])
