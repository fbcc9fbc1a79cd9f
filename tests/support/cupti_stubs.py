# SPDX-License-Identifier: Apache-2.0
"""Programs that run against stub libraries of the driver and of CUPTI. Nothing of it needs a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof import _native

ROOT = Path(__file__).resolve().parents[2]
STUBS = {
    "libcuda.so.1": ("stub_cuda.cpp", "stub_driver_work.cpp"),
    "libcupti.so.13": ("stub_cupti.cpp", "stub_counters.cpp"),
    "libnvrtc.so.13": ("stub_nvrtc.cpp",),
}

# A torch of a CUDA build, with a driver that the program may initialize.
PROGRAM = """
import ctypes, json, os, sys
import gpuprof
import torch
cuda = ctypes.CDLL(os.environ["STUB_CUDA"])
cupti = lambda: ctypes.CDLL(os.environ["GPUPROF_CUPTI_LIBRARY"])
torch.version.cuda = "13.0"
torch.cuda.is_current_stream_capturing = lambda: capturing
initialized = capturing = False
torch.cuda.is_initialized = lambda: initialized
def initialize():
    global initialized
    assert cuda.cuInit(0) == 0
    for call, _ in torch.cuda._queued_calls:
        call()
    torch.cuda._queued_calls.clear()
    initialized = True
launched = 0
def launch(count):
    global launched
    function = cupti().stub_launch
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    import time
    for _ in range(count):
        now = time.monotonic_ns()
        launched += 1
        function(launched, b"_Z4gemmIfEvPT_i", now, now + 1000)
def stub_count(what):
    return cupti().stub_count(what)
def report(run):
    print(json.dumps({key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")}))
"""


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stubs of the libraries."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the stub libraries")
    folder = tmp_path_factory.mktemp("stubs")
    core = Path(_native.__file__).parent
    for library, sources in STUBS.items():
        words = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", f"-Wl,-soname,{library}"]
        words += [*(str(ROOT / "tests/native" / source) for source in sources), "-o", str(folder / library)]
        words += [f"-L{core}", "-lgpuprof_core", f"-Wl,-rpath,{core}", "-pthread"]
        subprocess.run(words, check=True, timeout=240)
    return folder


@pytest.fixture
def program(stubs: Path, run_python: Any) -> Callable[[str], dict[str, Any]]:
    """`program(lines)` runs them after PROGRAM and returns what `report` printed."""

    def program(lines: str) -> dict[str, Any]:
        environment = {
            **os.environ,
            "STUB_CUDA": str(stubs / "libcuda.so.1"),
            "GPUPROF_CUPTI_LIBRARY": str(stubs / "libcupti.so.13"),
        }
        done = run_python("-c", PROGRAM + lines, env=environment)
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts

    return program
