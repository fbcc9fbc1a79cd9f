# SPDX-License-Identifier: Apache-2.0
"""How well the replay explains traces of GPUs that others recorded.

    python benchmarks/public_traces.py TRACE... [--json FILE|-]

TRACE is a file that `gpuprof import` reads, such as those in `tests/data` of
https://github.com/facebookresearch/HolisticTraceAnalysis and `tests/traces` of
https://github.com/AMD-AGI/TraceLens. Each one is imported and replayed without a change:

    identity    the replayed wall time minus the recorded one; anything but 0 ns is a fault
    residual    by how much the wall time changes without the delays that no rule explains
    gpu         the same of the end of the last work on a GPU: threads that do not wait for it do not hide it
    waits       part of the wall time in waits of threads for work that the trace does not name
    orphans     part of the GPU's work without a launch in the trace
    findings    of `gpuprof explain`

Exit code 1: an identity is not 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show
from gpuprof.analyze.whatif.prediction import main_process
from gpuprof.analyze.whatif.program import RecordedProcess, ReplayRules
from gpuprof.errors import GpuprofError
from gpuprof.run.folder import RunFolder


def main(arguments: list[str] | None = None) -> int:
    """Import, replay, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Replays of public traces.")
    parser.add_argument("trace", nargs="+", type=Path)
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    rows = [measure(trace) for trace in options.trace]
    columns = [
        Column("trace", 44, lambda row: str(row["trace"])[-44:]),
        Column("items", 7, lambda row: f"{row['items']:,}"),
        Column("streams", 7, lambda row: str(row["streams"])),
        Column("orphans", 7, lambda row: _share(row["orphans"], 1)),
        Column("identity", 9, lambda row: f"{row['identity_ns']} ns"),
        Column("residual", 9, lambda row: _share(row["residual"])),
        Column("gpu", 9, lambda row: _share(row["gpu_residual"])),
        Column("waits", 6, lambda row: _share(row["unknown_waits"], 1)),
        Column("steps", 16, lambda row: f"{row['steps']} {row['source'] or ''}".strip()),
        Column("findings", 8, lambda row: str(len(row["findings"]))),
    ]
    read = [row for row in rows if row["error"] is None]
    refused = [f"{row['trace']}: {row['error']}" for row in rows if row["error"] is not None]
    result = {"machine": describe_machine(), "code": describe_code(), "rows": rows}
    show(result, "\n".join([plain_table(columns, read), *refused]), options.json, indent=1)
    return int(any(row["identity_ns"] for row in read))


def measure(trace: Path) -> dict[str, Any]:
    """Import and replay one trace."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = gpuprof.import_trace(trace, Path(folder) / "r.gpuprof")
            return {"trace": trace.name, "error": None, **replayed(run)}
        except GpuprofError as error:
            return {"trace": trace.name, "error": str(error)}


def replayed(run: gpuprof.Run) -> dict[str, Any]:
    """Return the figures of an imported run."""
    folder = RunFolder(run.path)
    process = RecordedProcess.read(folder, main_process(folder))
    gpu, program = process.gpu, process.changed([])
    items = len(gpu)
    gpu_end = int((gpu.start_ns + gpu.duration_ns).max()) if items else 0
    recorded_ns = max([gpu_end, *(thread.end_ns for thread in process.threads)])
    kept, dropped = ReplayRules(is_changed=False), ReplayRules(is_changed=False, keeps_delays=False)
    found = run.findings()
    steps = run.sql("SELECT count(*), any_value(source) FROM steps").fetchall()[0]
    return {
        "items": items,
        "streams": len(gpu.lane_begin) - 1,
        "orphans": float((gpu.launch_ns < 0).mean()) if items else None,
        "identity_ns": program.execute(kept, of_all=True) - recorded_ns,
        "residual": program.execute(dropped, of_all=True) / recorded_ns - 1,
        "gpu_residual": program.execute_gpu(dropped) / gpu_end - 1 if items else None,
        "unknown_waits": gpu.unexplained_wait_ns / recorded_ns,
        "steps": steps[0],
        "source": steps[1],
        "findings": [each.rule.value for each in found],
    }


def _share(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


if __name__ == "__main__":
    sys.exit(main())
