# SPDX-License-Identifier: Apache-2.0
"""Memory and time of recording and closing many kernels, without a GPU: a stub hands over CUPTI's buffers.

    python benchmarks/gpu_long_run.py [--kernels N]... [--folder DIR] [--json FILE|-]

Each kernel has a launch of its own, in steps of some thousand, and the records of a buffer come in no order.
It shows the memory of gpuprof itself: buffers, decoding, tables. It does not measure a GPU, nor the cost of
recording one: the stub delivers records as fast as it can and waits where no buffer is free.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

ROOT = Path(__file__).resolve().parent.parent
STUBS = {
    "libcuda.so.1": ("stub_cuda.cpp", "stub_driver_work.cpp"),
    "libcupti.so.13": ("stub_cupti.cpp",),
}
_COLUMNS = (
    Column("kernels", 12, lambda run: f"{run['kernels']:,}"),
    Column("recording", 9, lambda run: f"{run['recording']['seconds']:.1f} s"),
    Column("peak", 8, lambda run: _megabytes(run["recording"]["peak_bytes"])),
    Column("closing", 8, lambda run: f"{run['closing']['seconds']:.1f} s"),
    Column("peak", 8, lambda run: _megabytes(run["closing"]["peak_bytes"])),
    Column("segments", 9, lambda run: _megabytes(run["segments_bytes"])),
    Column("run", 8, lambda run: _megabytes(run["run_bytes"])),
)
_PROGRAM = r"""
import ctypes, json, os, re, sys, threading, time
import gpuprof
import numpy as np
from gpuprof import _native

run, kernels = sys.argv[1], int(sys.argv[2])
cuda = ctypes.CDLL(os.environ["STUB_CUDA"])
assert cuda.cuInit(0) == 0
RECORD = np.dtype({
    "names": ["kind", "registers", "start", "end", "device", "context", "stream", "grid", "block",
              "correlation", "name"],
    "formats": ["<u4", "<u2", "<i8", "<i8", "<u4", "<u4", "<u4", "3<u4", "3<u4", "<u4", "<u8"],
    "offsets": [0, 6, 16, 24, 40, 44, 48, 52, 64, 92, 104],
    "itemsize": 216,  # of CUPTI 13.0
})
IN_BUFFER = (1 << 20) // RECORD.itemsize
texts = [f"void kernel_{number}<float>(float*, int)" for number in range(400)]
names = [ctypes.create_string_buffer(text.encode()) for text in texts]
places = np.array([ctypes.addressof(name) for name in names], dtype=np.uint64)
random = np.random.default_rng(0)

class Peak:
    def __enter__(self):
        open("/proc/self/clear_refs", "w").write("5")
        self.begin, self.anonymous, self.ended = time.perf_counter(), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self
    def watch(self):
        while not self.ended.wait(0.02):
            self.anonymous = max(self.anonymous, status("RssAnon"))
    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.begin
        self.ended.set()
        self.thread.join()
        self.bytes = status("VmHWM")
    def facts(self, before):
        return {"seconds": self.seconds, "peak_bytes": self.bytes, "peak_anonymous_bytes": self.anonymous,
                "anonymous_growth_bytes": self.anonymous - before}

def status(key):
    return int(re.search(key + r":\s+(\d+)", open("/proc/self/status").read())[1]) * 1024

def buffer(first, count):
    records = np.zeros(count, dtype=RECORD)
    numbers = random.permutation(count)
    records["kind"] = 10
    now = ctypes.c_uint64()
    assert cupti.cuptiGetTimestamp(ctypes.byref(now)) == 0
    records["start"] = now.value + 1000 * numbers
    records["end"] = records["start"] + 900
    records["correlation"] = first + numbers
    records["name"] = places[(first + numbers) % len(places)]
    records["stream"], records["grid"], records["block"], records["registers"] = 7, 4, 128, 32
    return records.tobytes()

def hand_over(content):
    waits = 0
    while not (place := cupti.stub_request()):
        waits += 1
        time.sleep(0.001)
    ctypes.memmove(place, content, len(content))
    cupti.stub_complete(ctypes.c_void_p(place), ctypes.c_size_t(len(content)))
    return waits

import duckdb
before = status("RssAnon")
profile = gpuprof.profile(out=run, layers=False, operators=False, gpu=False)
profile.__enter__()
started = _native.gpu_start([])
assert not started["reason"], started
cupti = ctypes.CDLL(os.environ["GPUPROF_CUPTI_LIBRARY"])
cupti.stub_request.restype = ctypes.c_void_p
waits = 0
with Peak() as recording:
    for first in range(1, kernels + 1, IN_BUFFER):
        count = min(IN_BUFFER, kernels + 1 - first)
        with gpuprof.span(f"step {first % 7}"):
            for correlation in range(first, first + count):
                _native.link_gpu_work("launch", correlation)
                _native.link_gpu_work("launch_end", correlation)
        waits += hand_over(buffer(first, count))
    totals = _native.gpu_stop()
segments = sum(entry.stat().st_size for entry in os.scandir(run + "/segments"))
middle = status("RssAnon")
with Peak() as closing:
    profile.__exit__(None, None, None)
rows = profile.run.sql(
    "SELECT count(*), count(DISTINCT correlation_id), count(span_id), count(launch_ns) FROM kernels"
)
counted = rows.fetchall()[0]
assert counted == (kernels,) * 4, counted
print(json.dumps({
    "kernels": totals["kernels"], "dropped": totals["dropped"], "waits": waits,
    "recording": recording.facts(before), "closing": closing.facts(before), "segments_bytes": segments,
    "run_bytes": sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(run) for f in fs),
}))
"""


def build_stubs(folder: Path) -> dict[str, str]:
    """Compile the tests' stub libraries; returns the environment that names them."""
    from gpuprof import _native

    core = Path(_native.__file__).parent
    for library, sources in STUBS.items():
        words = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}"]
        words += [*(str(ROOT / "tests/native" / source) for source in sources), f"-Wl,-soname,{library}"]
        words += [
            f"-L{core}",
            "-lgpuprof_core",
            f"-Wl,-rpath,{core}",
            "-pthread",
            "-o",
            str(folder / library),
        ]
        subprocess.run(words, check=True)
    return {
        "STUB_CUDA": str(folder / "libcuda.so.1"),
        "GPUPROF_CUPTI_LIBRARY": str(folder / "libcupti.so.13"),
    }


def measure(kernels: int, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Record and close that many kernels in a process of its own."""
    run = folder / "run.gpuprof"
    command = [sys.executable, "-c", _PROGRAM, str(run), str(kernels)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    shutil.rmtree(run, ignore_errors=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="What recording and closing many kernels takes.")
    parser.add_argument("--kernels", type=int, action="append", help="may be repeated (1, 3 and 10 million)")
    parser.add_argument("--folder", help="where files are written meanwhile (the temporary folder)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpuprof-kernels-") as name:
        environment = build_stubs(Path(name))
        for kernels in options.kernels or [1_000_000, 3_000_000, 10_000_000]:
            print(f"measuring {kernels:,} kernels ...", file=sys.stderr, flush=True)
            found.append(measure(kernels, Path(name), environment))
    facts = {"benchmark": "gpu_long_run", "machine": describe_machine(), "gpuprof": describe_code()}
    show({**facts, "runs": found}, plain_table(_COLUMNS, found), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
