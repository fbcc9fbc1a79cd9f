# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems, written with the tables of real ones. No nsys and no GPU is involved."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from import_oracle import differences, nsys_figures, run_figures
from nsys_file import (
    DOMAIN,
    FACTS,
    GLOBAL_PROCESS,
    GLOBAL_THREAD,
    PROCESS,
    TABLES,
    THREAD,
    NsysFile,
    write_small,
)
from refusals import refused

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.errors import RunError
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.nsys_tables import NsysDatabase, physical_devices, read_target

Fill = Callable[[NsysFile], None]


def imported(tmp_path: Path, fill: Fill, tables: Any = tuple(TABLES)) -> gpuprof.Run:
    path = tmp_path / "report.sqlite"
    file = NsysFile(path, tables)
    fill(file)
    file.close()
    return gpuprof.import_trace(path, tmp_path / "report.gpuprof")


def rows(run: gpuprof.Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).fetchall()


TREE = (
    "SELECT s.kind, s.name, p.name, s.start_ns, s.duration_ns FROM spans s "
    "LEFT JOIN spans p ON p.span_id = s.parent_id ORDER BY s.span_id"
)


@pytest.fixture
def small(tmp_path: Path) -> gpuprof.Run:
    write_small(tmp_path / "small.sqlite")
    return gpuprof.import_trace(tmp_path / "small.sqlite", tmp_path / "small.gpuprof")


def test_ranges_and_calls_become_spans(small: gpuprof.Run) -> None:
    assert rows(small, TREE) == [
        ("nvtx", "step", None, 0, 8_000),
        ("operator", "aten::mm", "step", 500, 4_500),
        ("nvtx", "NCCL: AllReduce", "aten::mm", 600, 1_000),
        ("operator", "cudaLaunchKernel", "NCCL: AllReduce", 1_000, 500),
        ("nvtx", "request", "aten::mm", 2_000, 9_000),
        ("span", "net.layer", "step", 5_500, 400),
        ("nvtx", "here", "step", 6_000, 0),
        ("operator", "cudaMemcpyAsync", "step", 6_100, 100),
    ]
    assert rows(small, "SELECT own_ns FROM call_tree WHERE name = 'request'") == [(0,)]
    assert small.meta["origin_unix_ns"] == "1700000000000001000"
    assert small.meta["threads"] == [{"process_id": PROCESS, "thread_id": THREAD, "name": "pt_main_thread"}]
    assert rows(small, "SELECT name FROM call_tree WHERE kind = 'process'") == [(f"python3 ({PROCESS})",)]


def test_gpu_work_belongs_to_the_range_around_its_launch(small: gpuprof.Run) -> None:
    assert rows(
        small,
        "SELECT k.name, s.name, k.start_ns, k.duration_ns, launch_ns, grid_x, registers, block_x "
        "FROM kernels k LEFT JOIN spans s USING (span_id)",
    ) == [("gemm<float>", "NCCL: AllReduce", 4_000, 3_000, 1_000, 4, 40, None)]
    assert rows(small, "SELECT kind, bytes, src, dst, span_id IS NULL FROM transfers ORDER BY start_ns") == [
        ("copy", 512, "pinned", "device", False),
        ("fill", 64, None, "device", True),
    ]
    assert rows(small, "SELECT type, duration_ns FROM synchronizations") == [("stream", 100)]
    assert small.meta["gpu"] == {"kernels": 1, "graphs": 0, "transfers": 2, "synchronizations": 1}
    assert "gemm<float>" in str(small.summary(by="kernel"))


def test_launch_and_kernel_meet_within_their_process(tmp_path: Path) -> None:
    other = 9 << 24

    def fill(file: NsysFile) -> None:
        file.add_range(0, 100, "one")
        file.add_range(0, 100, "two", globalTid=other | 10)
        file.add_call(10, 20, "cudaLaunchKernel", 5)
        file.add_call(10, 20, "cudaLaunchKernel", 5, globalTid=other | 10)
        file.add_kernel(30, 40, 5, "k1")
        file.add_kernel(30, 45, 5, "k2", globalPid=other)

    run = imported(tmp_path, fill)
    query = "SELECT k.name, s.name, k.process_id FROM kernels k JOIN spans s USING (span_id) ORDER BY 1"
    assert rows(run, query) == [("k1", "one", PROCESS), ("k2", "two", 9)]


def test_kernels_of_a_graph_keep_their_names(tmp_path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.add_range(0, 100, "replay")
        file.add_call(10, 20, "cudaGraphLaunch", 5)
        file.add_kernel(30, 40, 5, "k1", graphNodeId=77, graphId=3)
        file.add_kernel(41, 50, 5, "k2", graphNodeId=78, graphId=3)

    run = imported(tmp_path, fill)
    assert [row.name for row in run.summary(by="kernel").rows] == ["k1", "k2"]
    assert rows(run, "SELECT DISTINCT graph_id FROM kernels") == [(3,)]


def test_a_graph_that_was_traced_as_a_whole_is_one_unit_under_its_launch(tmp_path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.add_range(0, 1_000, "decode")
        for correlation in (5, 6):
            file.add_call(100 * correlation, 100 * correlation + 20, "cudaGraphLaunch_v10000", correlation)
            file.add_graph(100 * correlation + 30, 100 * correlation + 90, correlation, graph=42)
        file.add_kernel(900, 910, 8, "k")
        file.add_graph(0, 0, 7, graph=42)  # CUPTI could not take its times

    run = imported(tmp_path, fill)
    query = "SELECT k.name, graph_id, k.duration_ns, launch_ns, grid_x, s.name FROM kernels k "
    assert rows(run, query + "LEFT JOIN spans s USING (span_id) ORDER BY k.start_ns") == [
        ("CUDA graph 42", 42, 60, 500, None, "decode"),
        ("CUDA graph 42", 42, 60, 600, None, "decode"),
        ("k", None, 10, None, None, None),
    ]
    assert run.meta["gpu"] == {"kernels": 1, "graphs": 2, "transfers": 0, "synchronizations": 0}
    assert run.meta["totals"]["damaged_events"] == 1
    assert [(row.name, row.calls, row.total_ns) for row in run.summary(by="kernel").rows] == [
        ("CUDA graph 42", 2, 120),
        ("k", 1, 10),
    ]


def test_the_machine_is_that_of_the_export(small: gpuprof.Run) -> None:
    assert small.meta["machine"] == {
        "system": "Ubuntu 24.04.3 LTS",
        "architecture": "x86_64",
        "processor": "12th Gen Intel(R) Core(TM) i5",
        "cores": 12,
        "memory_bytes": None,
    }
    assert small.meta["versions"] == {
        "Nsight Systems": "2026.1.1.204",
        "NVIDIA driver": "591.86",
        "CUDA driver": "13.1",
    }
    assert small.meta["command"] == ["python", "train.py"]
    assert small.meta["devices"] == [
        {
            "index": 0,
            "name": "NVIDIA GeForce RTX 3080",
            "uuid": "554a6988-0",
            "memory_bytes": 10_736_893_952,
            "memory_bandwidth_bytes_per_s": 760_080_000_000,
            "l2_cache_bytes": 5_242_880,
            "multiprocessors": 68,
            "max_sm_clock_hz": 1_710_000_000,
            "compute_capability": "8.6",
            "driver_version": "591.86",
        }
    ]


def test_drivers_of_older_exports_are_written_without_points(tmp_path: Path) -> None:
    run = imported(
        tmp_path, lambda file: file.add_environment(NvDriverVersion="52510517", CpuDescription="unknown")
    )
    assert run.meta["versions"]["NVIDIA driver"] == "525.105.17"
    assert run.meta["machine"]["processor"] is None


def test_nothing_of_the_environment_is_imported(tmp_path: Path) -> None:
    secret = "hunter2-token"

    def fill(file: NsysFile) -> None:
        file.add_environment(DeviceEnvironment=f"HF_TOKEN={secret}")
        file.add_facts("META_DATA_CAPTURE", ("PROCESS_0:ENVIRONMENT_VARIABLE", f'HF_TOKEN="{secret}"'))

    assert secret not in json.dumps(imported(tmp_path, fill).meta)


def test_each_process_may_see_its_own_gpu_as_cuda_device_0(tmp_path: Path) -> None:
    other = 9 << 24

    def fill(file: NsysFile) -> None:
        for gpu, process in ((2, PROCESS), (5, 9)):
            file.add_gpu(gpu)
            file.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=process)
        file.add_kernel(30, 40, 5, "k1")
        file.add_kernel(30, 45, 5, "k2", globalPid=other)
        file.add_kernel(50, 60, 6, "k3", deviceId=1)  # of a device that the table lacks

    run = imported(tmp_path, fill)
    assert rows(run, "SELECT name, device FROM kernels ORDER BY name") == [("k1", 2), ("k2", 5), ("k3", 1)]


def test_ranks_of_mpi_are_those_of_their_processes(tmp_path: Path) -> None:
    other = 9 << 24

    def fill(file: NsysFile) -> None:
        file.add("MPI_RANKS", globalPid=GLOBAL_PROCESS, rank=1)
        file.add("MPI_RANKS", globalPid=other, rank=0)
        file.add_range(0, 100, "one")
        file.add_range(0, 100, "two", globalTid=other | 10)

    run = imported(tmp_path, fill)
    names = {"rank 0: process (9)", f"rank 1: process ({PROCESS})"}
    assert {name for (name,) in rows(run, "SELECT name FROM call_tree WHERE kind = 'process'")} == names
    assert {each["rank"] for each in run.meta["processes"]} == {0, 1}


def test_the_summary_holds_all_processes_of_a_capture(tmp_path: Path, capsys: Any) -> None:
    other = 9 << 24

    def fill(file: NsysFile) -> None:
        for process, name in ((GLOBAL_PROCESS, "k1"), (other, "k2")):
            file.add_range(0, 100, "step", globalTid=process | 10)
            file.add_call(10, 20, "cudaLaunchKernel", 5, globalTid=process | 10)
            file.add_kernel(30, 40, 5, name, globalPid=process)

    run = imported(tmp_path, fill)
    by_kernel = run.summary(by="kernel")
    assert {(row.name, row.calls) for row in by_kernel.rows} == {("k1", 1), ("k2", 1)}
    assert set(by_kernel.processes) == {PROCESS, 9}
    assert [(row.calls, row.processes) for row in run.summary(by="span").rows] == [(2, 2)]
    assert [row.name for row in run.summary(by="kernel", process=9).rows] == ["k2"]
    assert execute(["summary", str(run.path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("process")]
    assert sorted(lines) == [
        "process   process (4242): 3 calls, 100 ns on threads, 10 ns on GPUs",
        "process   process (9): 3 calls, 100 ns on threads, 10 ns on GPUs",
    ]


def test_gpus_of_a_capture_have_theoretical_ceilings_and_a_line_in_the_summary(
    small: gpuprof.Run, capsys: Any
) -> None:
    found = rows(small, "SELECT device, resource, dtype, value FROM ceilings WHERE dtype IS NULL ORDER BY 2")
    assert found == [
        ("cuda:0", "memory.dram", None, 760_080_000_000.0),
        ("cuda:0", "memory.dram.theoretical", None, 760_080_000_000.0),
    ]
    query = "SELECT value FROM ceilings WHERE resource = 'compute' AND dtype = 'fp32'"
    assert rows(small, query) == [(68 * 1.71e9 * 256,)]  # 128 multiply-adds in each multiprocessor and cycle
    assert small.meta["ceilings"]["gpus"] == [
        {"device": "cuda:0", "gpu": "NVIDIA GeForce RTX 3080", "l2_cache_bytes": 5_242_880}
    ]
    assert execute(["summary", str(small.path)]) == 0
    output = capsys.readouterr().out
    assert "device 0  NVIDIA GeForce RTX 3080, 10.7 GB memory, 68 multiprocessors, compute capab" in output
    left_out = {"kind": "table", "name": "OSRT_API", "events": 1}
    assert left_out in small.meta["not_imported"]
    assert "OSRT_API" in output


def test_hostile_facts_are_escaped_in_the_summary_and_the_page(tmp_path: Path, capsys: Any) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e"

    def fill(file: NsysFile) -> None:
        file.add_gpu(0, hostile)
        file.add_environment(CpuDescription=hostile, NvDriverVersion=hostile, CpuCores=hostile)
        file.add_facts("META_DATA_CAPTURE", ("PROCESS_0:COMMAND", hostile))
        file.add_kernel(1, 2, 3, f"{hostile}<a<b")
        file.connection.execute(f'CREATE TABLE "{hostile}" (start INT)')
        file.connection.execute(f'INSERT INTO "{hostile}" VALUES (1)')

    run = imported(tmp_path, fill)
    assert execute(["summary", str(run.path), "--by", "kernel"]) == 0
    page = run.flamegraph(tmp_path / "page.html").read_text(encoding="utf-8")
    for text in (page, capsys.readouterr().out):
        assert not {"\x1b", "\u202e"} & set(text)
    assert "<img src=x" not in page


def test_a_gpu_of_which_nothing_is_known_has_no_ceilings(tmp_path: Path) -> None:
    unknown = {"memoryBandwidth": None, "clockRate": 0, "computeMajor": None, "totalMemory": "text"}
    run = imported(tmp_path, lambda file: file.add_gpu(0, **unknown))
    assert rows(run, "SELECT count(*) FROM ceilings") == [(0,)]
    assert "ceilings" not in run.meta
    assert run.meta["devices"][0]["memory_bytes"] is None


@pytest.mark.parametrize("schema", ["2021", "2026"])
def test_figures_equal_plain_sql_over_the_export(tmp_path: Path, schema: str) -> None:
    recent = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *FACTS}
    tables = set(TABLES) if schema == "2026" else set(TABLES) - recent
    random = Random(schema)
    path = tmp_path / "report.sqlite"
    file = NsysFile(path, tables)
    for correlation in range(300):
        process = random.choice((GLOBAL_PROCESS, 9 << 24))
        start = random.randrange(1, 10_000_000)
        where = {"globalPid": process, "deviceId": random.randrange(2)}
        file.add_call(start, start + random.randrange(50), "cudaLaunch", correlation, globalTid=process | 3)
        file.add_range(start - 1, start + random.randrange(1, 99), "range", globalTid=process | 3)
        end = start + random.randrange(100_000)
        kind = random.choice(("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
        if kind == "KERNEL":
            file.add_kernel(start, end, correlation, f"k{random.randrange(5)}", **where)
        elif kind != "GRAPH_TRACE":
            file.add_work(kind, start, end, correlation, bytes=random.randrange(1 << 40), **where)
        elif schema == "2026":
            file.add_graph(start, end, correlation, graph=random.randrange(3), **where)
    file.close()
    run = gpuprof.import_trace(path, tmp_path / "report.gpuprof")
    expected = nsys_figures(path)
    found = run_figures(run, [name for name in expected if name.startswith("kernels of ")])
    assert differences(expected, found) == []
    assert ("graphs" in expected) == (schema == "2026")
    assert min(figures[0] for name, figures in expected.items() if name not in EMPTY) > 20


EMPTY = ("synchronizations", "marks", "operators")


def test_what_is_not_imported_is_counted(tmp_path: Path) -> None:
    def fill(file: NsysFile) -> None:
        for start in range(3):
            file.add("OSRT_API", start=start, end=9, globalTid=GLOBAL_THREAD, nameId=1, returnValue=0)
        file.connection.execute("CREATE TABLE GPU_METRICS (rawTimestamp INT, timestamp INT, value INT)")
        file.connection.execute("INSERT INTO GPU_METRICS VALUES (1, 1, 1), (2, 2, 1)")
        file.connection.execute("CREATE TABLE ENUM_SOMETHING (id INT, name TEXT)")
        file.connection.execute("INSERT INTO ENUM_SOMETHING VALUES (1, 'x')")
        file.connection.execute("CREATE TABLE SCHED_EVENTS (start INT, cpu INT)")
        file.add_range(1, None, "pushed and never popped", 35)
        file.add_range(1, 2, "a range")
        file.add_range(0, None, "a domain", DOMAIN)

    assert imported(tmp_path, fill).meta["not_imported"] == [
        {"kind": "table", "name": "GPU_METRICS", "events": 2},
        {"kind": "table", "name": "OSRT_API", "events": 3},
        {"kind": "nvtx event type", "name": "35", "events": 1},
    ]


EVENTS = sorted(set(TABLES) - {"StringIds", "OSRT_API", *FACTS})


@pytest.mark.parametrize("missing", EVENTS)
def test_any_table_may_be_missing(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "r.sqlite"
    write_small(path)
    connection = sqlite3.connect(path)
    connection.execute(f"DROP TABLE {missing}")
    connection.commit()
    connection.close()
    run = gpuprof.import_trace(path, tmp_path / "r.gpuprof")
    assert run.meta["totals"]["spans"] >= 2
    assert str(run.summary())


@pytest.mark.parametrize("table", FACTS)
def test_any_facts_may_be_missing(tmp_path: Path, table: str) -> None:
    path = tmp_path / "r.sqlite"
    write_small(path)
    connection = sqlite3.connect(path)
    for column in [each.split()[0] for each in TABLES[table].split(", ")][1:]:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.commit()
        facts = ImportFacts("a test")
        database = NsysDatabase(path)
        read_target(database, facts)
        physical_devices(database)
        database.close()
        assert table == "TARGET_INFO_SYSTEM_ENV" or facts.machine["cores"] == 12
    connection.close()


@pytest.mark.parametrize("table", EVENTS)
def test_any_columns_may_be_missing(tmp_path: Path, table: str) -> None:
    names = [column.split()[0] for column in TABLES[table].split(", ") if "PRIMARY" not in column]
    # One column is the least that a table has; without its times a row is left out.
    optional = [name for name in names if name not in ("start", "end")]
    for number, dropped in enumerate((optional[::2], optional[1::2], optional[1:])):
        path = tmp_path / f"{number}.sqlite"
        write_small(path)
        connection = sqlite3.connect(path)
        for column in dropped:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.commit()
        connection.close()
        run = gpuprof.import_trace(path, tmp_path / f"{number}.gpuprof")
        assert run.meta["totals"]["spans"] >= 2, dropped


def test_names_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    write_small(path)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE StringIds DROP COLUMN value")
    connection.commit()
    connection.close()
    run = gpuprof.import_trace(path, tmp_path / "r.gpuprof")
    assert rows(run, "SELECT name FROM kernels") == [("(unknown kernel)",)]


def test_ranges_without_an_end_are_cut_off_and_negative_ones_left_out(tmp_path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.add_range(10, None, "open")
        file.add_range(30, 20, "negative")
        file.add_call(40, 90, "cudaMalloc", 1)

    run = imported(tmp_path, fill)
    assert [each[1:] for each in rows(run, TREE)] == [("open", None, 0, 80), ("cudaMalloc", "open", 30, 50)]
    assert run.meta["totals"]["unfinished_spans"] == 1
    assert run.meta["totals"]["damaged_events"] == 1
    assert run.meta["complete"] is False
    assert run.damage == [Damage(DamageCode.TRACE_ROWS_INVALID, count=1)]


def test_an_export_of_nothing(tmp_path: Path) -> None:
    run = imported(tmp_path, lambda file: None)
    assert rows(run, "SELECT count(*) FROM spans") == [(0,)]
    assert run.meta["complete"] is True


def test_an_sqlite_of_another_tool_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cookies (id INT)")
    connection.commit()
    connection.close()
    with refused(RunError, "not_a_trace"):
        gpuprof.import_trace(path, tmp_path / "r.gpuprof")
    assert not (tmp_path / "r.gpuprof").exists()


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9])
def test_a_damaged_database_is_one_line(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "cut.sqlite"
    write_small(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with refused(RunError, "damaged"):
        gpuprof.import_trace(path, tmp_path / "r.gpuprof")


def test_values_of_wrong_types_do_no_harm(tmp_path: Path) -> None:
    def fill(file: NsysFile) -> None:
        file.add_range(10, 20, "fine")
        file.add(
            "NVTX_EVENTS", start="text", end=b"\xff", eventType=59, globalTid=GLOBAL_THREAD, text=b"\xff\x00"
        )
        file.add_work("KERNEL", 10, 20, -7, demangledName=12345, shortName="x", globalPid=GLOBAL_PROCESS)

    run = imported(tmp_path, fill)
    assert [each[1] for each in rows(run, TREE)] == ["fine"]
    assert rows(run, "SELECT name, correlation_id IS NULL FROM kernels")[0][0] == "(unknown kernel)"


MANY = """
import sys
from pathlib import Path
import gpuprof
run = gpuprof.import_trace(sys.argv[1], sys.argv[2])
status = Path("/proc/self/status").read_text()
peak_kib = int(status.split("VmHWM:")[1].split()[0])
print(run.meta["totals"]["spans"], run.meta["gpu"]["kernels"], peak_kib)
"""


def write_many(path: Path, kernels: int) -> None:
    """Write ten ranges, a call and a kernel for each of `kernels`."""
    file = NsysFile(path)
    names = [file.text(f"aten::op{number}") for number in range(100)]
    call, kernel = file.text("cudaLaunchKernel"), file.text("k")
    file.connection.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid, domainId) "
        "VALUES (?, ?, 59, ?, ?, 0)",
        (
            (place * 100 + level, place * 100 + 90 - level, names[(place + level) % 100], GLOBAL_THREAD)
            for place in range(kernels)
            for level in range(3)
        ),
    )
    file.connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue) "
        "VALUES (?, ?, ?, ?, ?, 0)",
        ((place * 100 + 20, place * 100 + 30, GLOBAL_THREAD, place, call) for place in range(kernels)),
    )
    file.connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, "
        "globalPid, demangledName, shortName) VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?)",
        (
            (place * 100 + 40, place * 100 + 95, place, GLOBAL_PROCESS, kernel, kernel)
            for place in range(kernels)
        ),
    )
    file.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_export(tmp_path: Path, run_python: Any) -> None:
    peaks = []
    for kernels in (20_000, 100_000):
        path = tmp_path / f"{kernels}.sqlite"
        write_many(path, kernels)
        done = run_python("-c", MANY, path, tmp_path / f"{kernels}.gpuprof")
        assert done.returncode == 0, done.stderr
        spans, found, peak_kib = map(int, done.stdout.split())
        assert (spans, found) == (kernels * 4, kernels)
        peaks.append(peak_kib / 1024)
    # Half a million rows would be 50 MB in columns and many times that as Python's objects. What may grow
    # is DuckDB's buffers, up to their bound of 256 MB; 12.5 million rows were measured at 370 MiB.
    assert peaks[1] < 450, peaks
