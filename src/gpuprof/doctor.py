# SPDX-License-Identifier: Apache-2.0
"""What of gpuprof works on this machine, what is missing, and the mend.

The driver, CUPTI and PyTorch are asked in processes of their own, so that none can take this one down;
CUPTI only where the driver works, since some of its versions crash without one.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuprof.doctor_probes import (
    CUPTI_PROBE,
    DRIVER_PROBE,
    NVML_PROBE,
    NVRTC_PROBE,
    TORCH_PROBE,
    counters_are_restricted,
    probe,
)

DISTRIBUTION = "gpuprof-native"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
OLDEST_TORCH = (2, 4)
OLDEST_DUCKDB = (1, 1)
SCARCE_DISK_BYTES = 1_000_000_000
# From the sources: what other indexes hold under our name is not ours to promise.
REBUILD = "pip install --force-reinstall --no-deps . in gpuprof's source folder, with a C++20 compiler"

# What the native core calls its clocks.
_TICK_COUNTERS = {"tsc": "invariant time stamp counter", "cntvct": "Arm's virtual counter"}

Status = Literal["ok", "missing", "problem", "info"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the examination.

    `status` is "ok" (works), "missing" (not at hand, gpuprof goes on without it), "problem" (at
    hand and broken) or "info" (a fact to know). `mend` is what to do, empty where nothing is to be
    done. Only of a `required` check does a status of "missing" or "problem" stop gpuprof.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    required: bool = False


def is_broken(check: Check) -> bool:
    """Tell whether `check` found something that gpuprof cannot work without."""
    return check.required and check.status in ("missing", "problem")


def examine() -> list[Check]:
    """Look at everything that gpuprof stands on; never raises."""
    _ask_driver.cache_clear()
    _ask_nvml.cache_clear()
    _ask_torch.cache_clear()
    _ask_cupti.cache_clear()
    _ask_nvrtc.cache_clear()
    return [check for name, look in _CHECKS for check in _guarded(name, look)]


def _guarded(name: str, look: Callable[[], Iterable[Check]]) -> list[Check]:
    """Run one check; what it raises, a broken library's SystemExit too, becomes its finding."""
    found: list[Check] = []
    try:
        found.extend(look())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        detail = f"this check failed itself: {_one_line(error)}"
        found.append(Check(name, "problem", detail, "report it with this line"))
    return found


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _own_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a distribution,"


def _has_native() -> bool:
    return importlib.util.find_spec("gpuprof._native") is not None


def _native() -> Any:
    return importlib.import_module("gpuprof._native")


def _version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as "2.13.0+cpu"."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        raise ValueError(f"not a version: {text}")
    return int(numbers[1]), int(numbers[2] or 0)


# --- the machine and the interpreter -------------------------------------------------------------


def _machine() -> Iterator[Check]:
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


def _clock() -> Iterator[Check]:
    if not _has_native():
        yield Check("clock", "info", "not examined: the native core is missing")
        return
    clock = _native().clock_info()["clock"]
    if clock in _TICK_COUNTERS:
        yield Check("clock", "ok", _TICK_COUNTERS[clock])
    else:
        yield Check(
            "clock", "info", "no invariant tick counter here: the monotonic clock, slower by some 15 ns"
        )


def _python() -> Iterator[Check]:
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


# --- gpuprof itself ------------------------------------------------------------------------------


def _gpuprof() -> Iterator[Check]:
    yield Check("gpuprof", "ok", f"{_own_version()} in {Path(__file__).parent}")
    try:
        facts = _native().build_info()
    except ImportError as error:
        yield Check("native core", "missing", _one_line(error), REBUILD, required=True)
        return
    built = ", ".join(f"{facts[key]}" for key in ("version", "compiler", "build_type") if facts.get(key))
    yield Check("native core", "ok", built, required=True)
    if facts.get("cuda"):
        yield Check("CUDA part", "ok", "built in")
    else:
        yield Check(
            "CUDA part", "info", "built without CUDA; GPU records need none, CUPTI is found at run time"
        )


def _namesake() -> Iterator[Check]:
    """On PyPI the bare name belongs to an unrelated project, which installs the same package."""
    try:
        version = importlib.metadata.version("gpuprof")
    except importlib.metadata.PackageNotFoundError:
        return
    detail = f"the distribution gpuprof {version} is installed: an unrelated project; ours is {DISTRIBUTION}"
    mend = f"pip uninstall gpuprof, then {REBUILD}: both own the folder gpuprof/"
    yield Check("namesake", "problem", detail, mend, required=True)


def _duckdb() -> Iterator[Check]:
    if importlib.util.find_spec("duckdb") is None:
        yield Check("DuckDB", "missing", "runs cannot be read", 'pip install "duckdb>=1.1"', required=True)
        return
    version = importlib.import_module("duckdb").__version__
    if _version(version) < OLDEST_DUCKDB:
        yield Check(
            "DuckDB", "problem", f"{version} is too old", 'pip install -U "duckdb>=1.1"', required=True
        )
    else:
        yield Check("DuckDB", "ok", version, required=True)


# --- PyTorch and its announcements ---------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _ask_torch() -> dict[str, Any] | None:
    return probe(TORCH_PROBE) if importlib.util.find_spec("torch") else None


def _torch() -> Iterator[Check]:
    facts = _ask_torch()
    if facts is None:
        detail = "not installed: spans are recorded, layers and operators need it"
        yield Check("torch", "missing", detail, 'pip install "torch>={}.{}"'.format(*OLDEST_TORCH))
    elif "error" in facts:
        yield Check("torch", "problem", f"import torch fails: {facts['error']}", "install torch again")
    elif _version(facts["version"]) < OLDEST_TORCH:
        wanted = "{}.{}".format(*OLDEST_TORCH)
        yield Check("torch", "problem", f"{facts['version']} is too old", f'pip install -U "torch>={wanted}"')
    else:
        build = (
            f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU"
        )
        yield Check("torch", "ok", f"{facts['version']}, {build} build")


def _itt() -> Iterator[Check]:
    facts = _ask_torch()
    tool = os.environ.get("INTEL_LIBITTNOTIFY64")
    if tool and not _is_ours(tool):
        mend = "unset INTEL_LIBITTNOTIFY64, or end the tool that set it, to record operators"
        yield Check("ITT", "problem", f"another tool collects here: {tool}", mend)
    elif platform.machine().lower() not in ("x86_64", "amd64"):
        yield Check("ITT", "missing", f"none on {platform.machine()}: operators are not recorded here")
    elif facts is None or "error" in facts or not _has_native():
        yield Check("ITT", "info", "not examined: torch or the native core is missing")
    elif not facts["itt"]:
        yield Check(
            "ITT", "missing", "this torch was built without it", "use a torch wheel from pytorch.org or PyPI"
        )
    elif "torch" in sys.modules and not _native().itt_attached():
        mend = "import gpuprof before torch, or start the program with gpuprof run"
        yield Check("ITT", "problem", "torch was imported here before gpuprof could listen", mend)
    else:
        yield Check("ITT", "ok", "torch announces its operators, gpuprof run and import gpuprof listen")


def _is_ours(library: str) -> bool:
    return Path(library).name.startswith("libgpuprof")


def _nvtx() -> Iterator[Check]:
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    if tool and not _is_ours(tool):
        gets = "it gets the ranges, and gpuprof's spans and layers as such"
        yield Check("NVTX", "info", f"a tool is attached (NVTX_INJECTION64_PATH={tool}): {gets}")
    elif tool == "":
        mend = "unset NVTX_INJECTION64_PATH to record ranges"
        yield Check("NVTX", "info", "NVTX_INJECTION64_PATH is set and empty: ranges are not recorded", mend)
    elif not _has_native():
        yield Check("NVTX", "info", "not examined: the native core is missing")
    else:
        version = importlib.metadata.version("nvtx") if importlib.util.find_spec("nvtx") else None
        package = f"package nvtx {version}" if version else "package nvtx not installed"
        yield Check("NVTX", "ok", f"ranges of every library are recorded; {package}")


# --- NVIDIA --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _ask_driver() -> dict[str, Any]:
    return probe(DRIVER_PROBE)


@functools.lru_cache(maxsize=1)
def _ask_cupti() -> dict[str, Any]:
    return probe(CUPTI_PROBE)


def _driver() -> Iterator[Check]:
    facts = _ask_driver()
    if "missing" in facts:
        mend = "with an NVIDIA GPU in this machine, install its driver; without one nothing is to be done"
        yield Check("NVIDIA driver", "missing", facts["missing"], mend)
    elif "error" in facts:
        yield Check("NVIDIA driver", "problem", f"it fails when loaded: {facts['error']}", "install it again")
    elif facts["init"] != 0:
        mend = "see that nvidia-smi works, and that a container was given the GPU"
        yield Check("NVIDIA driver", "problem", f"cuInit answers error {facts['init']}", mend)
    else:
        supports = f"CUDA {facts['version'] // 1000}.{facts['version'] % 1000 // 10}"
        yield Check("NVIDIA driver", "ok", f"supports up to {supports}")


def _gpu() -> Iterator[Check]:
    devices = _ask_driver().get("devices", [])
    for ordinal, (name, memory_bytes, capability) in enumerate(devices):
        detail = f"{name}, {memory_bytes / 1e9:.1f} GB, compute capability {capability}"
        yield Check(f"GPU {ordinal}", "info", detail)
    if not devices:
        yield Check("GPU", "info", "none found: the CPU side is recorded")


@functools.lru_cache(maxsize=1)
def _ask_nvml() -> dict[str, Any]:
    return probe(NVML_PROBE)


def _nvml() -> Iterator[Check]:
    facts = _ask_nvml()
    if "missing" in facts:
        yield Check("NVML", "missing", f"no device samples: {facts['missing']}", "it comes with the driver")
    elif "package" in facts:
        detail = "no device samples: nvidia-ml-py is not installed"
        yield Check("NVML", "missing", detail, 'pip install "nvidia-ml-py>=12"')
    elif "driver" in facts:
        devices = ", ".join(facts["devices"]) or "no device"
        yield Check("NVML", "ok", f"driver {facts['driver']}: {devices}; device samples are taken")
    else:
        detail = f"no device samples: it fails: {facts.get('nvml') or facts.get('error')}"
        yield Check("NVML", "problem", detail, "see that nvidia-smi works here")


def _cupti() -> Iterator[Check]:
    found = list(dict.fromkeys(path.resolve() for path in _cupti_libraries()))
    listed = ", ".join([*_distribution_versions("nvidia-cuda-cupti"), *map(str, found)]) or "not found"
    if _ask_driver().get("init") != 0:
        # Some versions of CUPTI crash without a driver.
        yield Check("CUPTI", "info", f"{listed}; not loaded, since it needs the NVIDIA driver")
        return
    facts = _ask_cupti()
    reason = facts.get("error") or facts.get("reason")
    if reason:
        detail, _, mend = reason.rpartition(": ")
        status: Status = "problem" if found else "missing"
        yield Check("CUPTI", status, f"{detail or mend}; GPU records are off", mend if detail else "")
    else:
        yield Check("CUPTI", "ok", f"{facts['version']} at {facts['path']}; it traces kernels and copies")


def _counters() -> Iterator[Check]:
    """Tell whether `--counters` can have what it wants, as far as that shows without a kernel."""
    if _ask_driver().get("init") != 0:
        yield Check("GPU counters", "info", "none: they need a GPU and the NVIDIA driver")
        return
    facts = _ask_cupti()
    reason = facts.get("error") or facts.get("reason") or facts.get("no_counters")
    restricted = counters_are_restricted()
    if reason:
        detail, _, mend = reason.rpartition(": ")
        yield Check("GPU counters", "missing", f"none: {detail or mend}", mend if detail else "")
    elif restricted:
        mend = (
            "run as root or with CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
        yield Check("GPU counters", "missing", "for administrators only; tracing needs no permission", mend)
    else:
        told = "the driver does not say who may" if restricted is None else "this process may"
        yield Check("GPU counters", "ok", f"gpuprof run --counters reads them; {told}")


def _cupti_libraries() -> Iterator[Path]:
    """Yield the files in the wheels' folders, then the toolkits'."""
    for entry in dict.fromkeys(sys.path):
        for folder in ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib"):
            yield from sorted(Path(entry, folder).glob("libcupti.so*"))
    toolkits = [os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH")] + sorted(
        map(str, Path("/usr/local").glob("cuda*"))
    )
    for toolkit in filter(None, toolkits):
        for folder in ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib"):
            yield from sorted(Path(toolkit, folder).glob("libcupti.so*"))


def _distribution_versions(prefix: str) -> list[str]:
    names = (prefix, f"{prefix}-cu13", f"{prefix}-cu12", f"{prefix}-cu11")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _nsys() -> Iterator[Check]:
    path = shutil.which("nsys")
    yield Check(
        "nsys", "info", path or "Nsight Systems not found: gpuprof nsys prints the command to run elsewhere"
    )


@functools.lru_cache(maxsize=1)
def _ask_nvrtc() -> dict[str, Any]:
    return probe(NVRTC_PROBE)


def _nvrtc() -> Iterator[Check]:
    """Tell whether kernels can be compiled that measure the ceilings of GPUs, where there are any."""
    if not _ask_driver().get("devices"):
        return
    facts = _ask_nvrtc()
    reason = facts.get("error") or facts.get("reason")
    if reason:
        detail, _, mend = reason.rpartition(": ")
        what = f"{detail or mend}; GPU ceilings are worked out from clocks and not measured"
        yield Check("NVRTC", "missing", what, mend if detail else "")
    else:
        yield Check(
            "NVRTC", "ok", f"{facts['version']} at {facts['path']}; it compiles what measures ceilings"
        )


def _nvcc() -> Iterator[Check]:
    path = shutil.which("nvcc")
    yield Check("nvcc", "info", path or "not found and not needed: NVRTC compiles our kernels")


# --- permissions and disk ------------------------------------------------------------------------


def _permissions() -> Iterator[Check]:
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    if paranoid.is_file():
        yield Check("perf events", "info", f"perf_event_paranoid is {paranoid.read_text().strip()}; not used")


def _disk() -> Iterator[Check]:
    yield from _guarded("current folder", lambda: _folder("current folder", "."))
    yield from _guarded("temporary folder", lambda: _folder("temporary folder", tempfile.gettempdir()))


def _folder(name: str, path: str) -> Iterator[Check]:
    """Try in the folder what a recording does: make a file and reserve its blocks."""
    try:
        folder = Path(path).resolve()
        _reserve_blocks(folder)
    except OSError as error:
        mend = "record into another folder: profile(out=...) or gpuprof run --out"
        yield Check(name, "problem", f"{path} cannot hold a recording: {error.strerror}", mend)
        return
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{folder}: writable, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < SCARCE_DISK_BYTES:
        yield Check(name, "problem", detail, "free some space, or record elsewhere with --out")
    else:
        yield Check(name, "ok", detail)


def _reserve_blocks(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 65_536)
        else:
            file.write(b"\0" * 65_536)
            file.flush()


_CHECKS: tuple[tuple[str, Callable[[], Iterable[Check]]], ...] = (
    ("machine", _machine),
    ("clock", _clock),
    ("python", _python),
    ("gpuprof", _gpuprof),
    ("namesake", _namesake),
    ("DuckDB", _duckdb),
    ("torch", _torch),
    ("ITT", _itt),
    ("NVTX", _nvtx),
    ("NVIDIA driver", _driver),
    ("GPU", _gpu),
    ("NVML", _nvml),
    ("CUPTI", _cupti),
    ("GPU counters", _counters),
    ("nsys", _nsys),
    ("NVRTC", _nvrtc),
    ("nvcc", _nvcc),
    ("permissions", _permissions),
    ("disk", _disk),
)
