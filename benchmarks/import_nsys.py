# SPDX-License-Identifier: Apache-2.0
"""Memory and time of importing Nsight Systems' SQLite export, for exports of growing size.

    python benchmarks/import_nsys.py [--rows N]... [--folder DIR] [--json FILE|-]

The exports are made here, after the published schema: for each two kernels two launches and a range around
both. Each is imported in a process of its own, whose peak memory is printed.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show

ROWS_IN_STEP = 5
_COLUMNS = (
    Column("rows", 12, lambda done: f"{done['rows']:,}"),
    Column("export", 10, lambda done: f"{done['export_bytes'] / 1e6:.0f} MB"),
    Column("import", 9, lambda done: f"{done['import_s']:.1f} s"),
    Column("peak memory", 12, lambda done: f"{done['peak_memory_bytes'] / 1e6:.0f} MB"),
)
_PROCESS = 1 << 48 | 4242 << 24
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT NOT NULL, text TEXT, globalTid INT,
    textId INT, domainId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT NOT NULL, end INT NOT NULL, globalTid INT,
    correlationId INT, nameId INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT,
    streamId INT, correlationId INT, globalPid INT, demangledName INT, shortName INT);
INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel');
"""
_NAMES = "INSERT INTO StringIds SELECT 2 + value, 'kernel_' || value FROM numbers WHERE value < 400"
_RANGES = """INSERT INTO NVTX_EVENTS SELECT 10000 * value, 10000 * value + 9000, 59, 'step ' || (value % 50),
    {thread}, NULL, 0 FROM numbers"""
_CALLS = """INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 10000 * value + {at}, 10000 * value + {at} + 1000,
    {thread}, 2 * value + {one}, 1 FROM numbers"""
_KERNELS = """INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 10000 * value + {at} + 1500,
    10000 * value + {at} + 4000, 0, 1, 7, 2 * value + {one}, {process}, 2 + value % 400, 2 + value % 400
    FROM numbers"""
_IMPORT = """
import resource, sys, time
import gpuprof
begin = time.perf_counter()
run = gpuprof.import_trace(sys.argv[1], sys.argv[2])
took = time.perf_counter() - begin
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, run.meta["totals"]["spans"])
"""


def write_export(path: Path, rows: int) -> None:
    """Write an export of about `rows` rows."""
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_SCHEMA}")
    connection.execute("CREATE TEMP TABLE numbers (value INTEGER PRIMARY KEY)")
    steps = max(400, rows // ROWS_IN_STEP)
    connection.executemany("INSERT INTO numbers VALUES (?)", ((number,) for number in range(steps)))
    thread = _PROCESS | 4243
    connection.execute(_NAMES)
    connection.execute(_RANGES.format(thread=thread))
    for one, at in ((0, 1000), (1, 5000)):
        connection.execute(_CALLS.format(thread=thread, at=at, one=one))
        connection.execute(_KERNELS.format(process=_PROCESS, at=at, one=one))
    connection.commit()
    connection.close()


def measure(rows: int, folder: Path) -> dict[str, Any]:
    """Return what importing that many rows takes."""
    export = folder / f"{rows}.sqlite"
    begin_s = time.perf_counter()
    write_export(export, rows)
    written_s = time.perf_counter() - begin_s
    command = [sys.executable, "-c", _IMPORT, str(export), str(folder / f"{rows}.gpuprof")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took_s, peak_bytes, spans = done.stdout.split()
    size_bytes = export.stat().st_size
    export.unlink()
    return {
        "rows": rows,
        "export_bytes": size_bytes,
        "written_s": written_s,
        "import_s": float(took_s),
        "peak_memory_bytes": int(peak_bytes),
        "spans": int(spans),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="What importing Nsight Systems' exports takes.")
    parser.add_argument("--rows", type=int, action="append", help="may be repeated (1, 3 and 10 million)")
    parser.add_argument("--folder", help="where files are written meanwhile (the temporary folder)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpuprof-import-") as folder:
        for rows in options.rows or [1_000_000, 3_000_000, 10_000_000]:
            print(f"measuring {rows:,} rows ...", file=sys.stderr, flush=True)
            found.append(measure(rows, Path(folder)))
    facts = {"benchmark": "import_nsys", "machine": describe_machine(), "gpuprof": describe_code()}
    show({**facts, "imports": found}, plain_table(_COLUMNS, found), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
