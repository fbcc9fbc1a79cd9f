# SPDX-License-Identifier: Apache-2.0
"""The slowest requests of a load that was profiled, on an invented one."""

from __future__ import annotations

from pathlib import Path

from golden_files import GoldenFiles
from simulated_load import Part, layer, operator, wait, with_rare

import gpuprof


def test_the_slowest_requests(golden: GoldenFiles, tmp_path: Path) -> None:
    load = with_rare([layer("net.rare", 2, operator("aten::conv2d", 20))], requests=100, every=30)
    load.serve(wait(30, "handle (app.py:3)", "lock.acquire (built-in)"), batch=4)
    load.serve(Part("gc", "generation 2", 25), planned_ns=load.now_ns - 7_000_000)
    load.serve(operator("aten::mm", 90), status="timeout")
    load.requests[-1]["span_id"] = None
    run = gpuprof.open(load.write(tmp_path / "profile.gpuprof"))
    golden.check("load/slowest.txt", str(run.requests()))
