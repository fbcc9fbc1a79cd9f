# SPDX-License-Identifier: Apache-2.0
"""The native sampler: a thread that is ready does not wait, even if its time in the queue is not counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprof.record import stack_sampler

SUPPORT = Path(__file__).parents[1] / "support"
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(
    stack_sampler.why_not() is not None, reason="the sampler does not work with this interpreter"
)

# The program computes on the processor of six others. Its sampler may use another one.
COMPUTES = """
import os, subprocess, sys, threading, time
import gpuprof
from gpuprof.run.call_sites import waited_ns

def compute(cpu_s):
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass

allowed = os.sched_getaffinity(0)
os.environ.pop("LD_PRELOAD")
# They end on their own if this program is killed.
busy = "import time; end = time.monotonic() + 60\\nwhile time.monotonic() < end: pass"
others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(6)]
try:
    for each in others:
        os.sched_setaffinity(each.pid, {min(allowed)})
    with gpuprof.profile(out="r.gpuprof", python=True) as profile:
        os.sched_setaffinity(0, {min(allowed)})
        time.sleep(0.2)
        began_ns = time.monotonic_ns()
        compute(0.1)
        off_ns = time.monotonic_ns() - began_ns - 100_000_000
finally:
    for each in others:
        each.kill()
        each.wait()
os.sched_setaffinity(0, allowed)
rows = profile.run.sql(f'''
    SELECT duration_ns, cpu_ns, queued_ns, array_to_string(frames, ' ') FROM stacks
    WHERE thread_id = {threading.get_native_id()}''').fetchall()
waits = {True: 0, False: 0}
for duration_ns, cpu_ns, queued_ns, frames in rows:
    waits["compute" in frames] += waited_ns(duration_ns, cpu_ns, queued_ns)
print(off_ns, waits[True], waits[False])
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C compiler")
def test_a_ready_thread_does_not_wait_if_its_queue_is_not_counted(tmp_path: Path, run_python: Any) -> None:
    assert COMPILER is not None
    library = tmp_path / "constant_schedstat.so"
    words = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(SUPPORT / "constant_schedstat.c"), "-ldl"]
    subprocess.run(words, check=True)
    done = run_python("-c", COMPUTES, env={**os.environ, "LD_PRELOAD": str(library)})
    assert done.returncode == 0, done.stderr
    off_ns, in_compute_ns, elsewhere_ns = map(int, done.stdout.split())
    assert off_ns > 300_000_000
    assert in_compute_ns < 0.6 * off_ns
    assert elsewhere_ns > 100_000_000
