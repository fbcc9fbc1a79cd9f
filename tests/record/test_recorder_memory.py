# SPDX-License-Identifier: Apache-2.0
"""The memory of a program that records does not grow with the recording."""

from __future__ import annotations

import sys
from typing import Any

import pytest

# 64 MB of events. The thread that unmaps them may be late on a busy machine, so it gets time, and some more.
PROGRAM = """
import time
from pathlib import Path
import gpuprof

def mapped_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssFile", "RssShmem")))

def record(count):
    span = gpuprof.span("work")
    for _ in range(count):
        with span:
            pass

with gpuprof.profile(out="r.gpuprof", layers=False, operators=False) as recording:
    record(1000)
    before_kb = mapped_kb()
    record(2_000_000)
    deadline = time.monotonic() + 60
    while mapped_kb() - before_kb > 32_000 and time.monotonic() < deadline:
        record(10_000)
    grown_kb = mapped_kb() - before_kb
    record(1000)
run = recording.run
print(grown_kb < 32_000, run.meta["complete"], run.meta["totals"]["spans"] >= 2_002_000)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, and madvise is Linux's")
def test_pages_of_full_chunks_are_unmapped(run_python: Any) -> None:
    done = run_python("-c", PROGRAM)
    assert (done.stdout, done.stderr) == ("True True True\n", "")
