# SPDX-License-Identifier: Apache-2.0
"""The machine, its clock, the interpreter, permissions and the disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuprof.doctor import machine_facts
from gpuprof.doctor.check import Check, guarded

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
SCARCE_DISK_BYTES = 1_000_000_000

# Names of the clocks in the native core.
_TICK_COUNTERS = {"tsc": "invariant time stamp counter", "cntvct": "Arm's virtual counter"}


def machine() -> Iterator[Check]:
    """Report the processor, its usable cores and the memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = f"{usable} of {os.cpu_count()} cores usable"
    yield Check(
        "machine", "ok", f"{_cpu_model()}, {cores}, {memory_bytes / 1e9:.1f} GB memory, {platform.platform()}"
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def clock() -> Iterator[Check]:
    """Report the clock of events."""
    if not machine_facts.has_native():
        yield Check("clock", "info", "not checked: the native core is missing")
        return
    clock = machine_facts.native().clock_info()["clock"]
    if clock in _TICK_COUNTERS:
        yield Check("clock", "ok", _TICK_COUNTERS[clock])
    else:
        yield Check(
            "clock",
            "info",
            "no invariant tick counter: the monotonic clock is used, which is about 15 ns slower",
        )


def python() -> Iterator[Check]:
    """Check whether gpuprof supports this Python."""
    version = sys.version_info[:2]
    detail = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        detail += ", free-threaded"
    supported = "{}.{} to {}.{}".format(*OLDEST_PYTHON, *NEWEST_PYTHON)
    if platform.python_implementation() != "CPython" or version < OLDEST_PYTHON:
        yield Check("python", "problem", detail, f"use CPython {supported}", required=True)
    elif version > NEWEST_PYTHON:
        yield Check("python", "info", f"{detail}; gpuprof was tested with {supported}")
    else:
        yield Check("python", "ok", detail, required=True)


def permissions() -> Iterator[Check]:
    """Report the permissions of the kernel."""
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    if paranoid.is_file():
        detail = f"gpuprof does not use them; perf_event_paranoid is {paranoid.read_text().strip()}"
        yield Check("perf events", "info", detail)


def disk() -> Iterator[Check]:
    """Check whether recordings can be written."""
    yield from guarded("current folder", lambda: _folder("current folder", "."))
    yield from guarded("temporary folder", lambda: _folder("temporary folder", tempfile.gettempdir()))


def _folder(name: str, path: str) -> Iterator[Check]:
    """Create a file in the folder and reserve its blocks, as a recording does."""
    try:
        folder = Path(path).resolve()
        _reserve_blocks(folder)
    except OSError as error:
        hint = "record into another folder: profile(out=...) or gpuprof run --out"
        yield Check(name, "problem", f"{path}: a recording cannot be written: {error.strerror}", hint)
        return
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{folder}: writable, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < SCARCE_DISK_BYTES:
        yield Check(name, "problem", detail, "free disk space, or record into another folder with --out")
    else:
        yield Check(name, "ok", detail)


def _reserve_blocks(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 65_536)
        else:
            file.write(b"\0" * 65_536)
            file.flush()
