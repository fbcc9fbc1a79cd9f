# SPDX-License-Identifier: Apache-2.0
"""Writes SQLite files with the tables of Nsight Systems' exports, as versions from 2021 to 2026 wrote them.

A program too: `nsys_file.py OUT.sqlite` writes a small one, as the stub of nsys does.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROCESS, THREAD = 4242, 4243
GLOBAL_PROCESS = 1 << 48 | PROCESS << 24
GLOBAL_THREAD = GLOBAL_PROCESS | THREAD
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75

TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "NVTX_EVENTS": "start INT NOT NULL, end INT, eventType INT NOT NULL, rangeId INT, category INT, "
    "color INT, text TEXT, globalTid INT, endGlobalTid INT, textId INT, domainId INT, uint64Value INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT NOT NULL, end INT NOT NULL, eventClass INT, globalTid INT, "
    "correlationId INT, nameId INT NOT NULL, returnValue INT NOT NULL, callchainId INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL, "
    "contextId INT NOT NULL, streamId INT NOT NULL, correlationId INT, globalPid INT, "
    "demangledName INT NOT NULL, shortName INT NOT NULL, mangledName INT, registersPerThread INT, "
    "gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT, staticSharedMemory INT, "
    "dynamicSharedMemory INT, graphNodeId INT, graphId INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT, "
    "streamId INT, correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT, "
    "streamId INT, correlationId INT, globalPid INT, value INT, bytes INT, memKind INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INT NOT NULL, end INT NOT NULL, deviceId INT, "
    "contextId INT, streamId INT, correlationId INT, globalPid INT, syncType INT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER PRIMARY KEY, name TEXT, label TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT, localTime TEXT",
    "ThreadNames": "nameId INT, priority INT, globalTid INT",
    "PROCESSES": "globalPid INT, pid INT, name TEXT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL, "
    "graphExecId INTEGER NOT NULL",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, "
    "isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, "
    "clockRate INTEGER, smCount INTEGER, uuid TEXT, chipName TEXT, computeMajor INTEGER, "
    "computeMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT, "
    "numMultiprocessors INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, "
    "nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "MPI_RANKS": "globalPid INTEGER, rank INTEGER",
    "OSRT_API": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
}
# Those that describe the target of the capture; the others hold what happened.
FACTS = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")
FACTS += ("META_DATA_EXPORT", "MPI_RANKS", "PROCESSES")


class NsysFile:
    """One export under construction."""

    def __init__(self, path: Path, tables: Iterable[str] = tuple(TABLES)) -> None:
        self.connection = sqlite3.connect(path)
        self._texts: dict[str, int] = {}
        for table in tables:
            self.connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.connection.execute("INSERT INTO StringIds VALUES (?, ?)", (self._texts[value], value))
        return self._texts[value]

    def add(self, table: str, **columns: Any) -> None:
        names = ", ".join(columns)
        marks = ", ".join("?" for _ in columns)
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))

    def add_range(self, start: int, end: int | None, name: str, kind: int = PUSH_POP, **columns: Any) -> None:
        told = {"text": name} if "textId" not in columns else {}
        columns = {"globalTid": GLOBAL_THREAD, "domainId": 0, **columns, **told}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, **columns)

    def add_call(self, start: int, end: int, name: str, correlation: int, **columns: Any) -> None:
        columns = {"globalTid": GLOBAL_THREAD, "nameId": self.text(name), "returnValue": 0, **columns}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, correlationId=correlation, **columns)

    def add_work(self, what: str, start: int, end: int, correlation: int, **columns: Any) -> None:
        placed = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": GLOBAL_PROCESS, **columns}
        self.add(f"CUPTI_ACTIVITY_KIND_{what}", start=start, end=end, correlationId=correlation, **placed)

    def add_kernel(self, start: int, end: int, correlation: int, name: str, **columns: Any) -> None:
        names = {"demangledName": self.text(name), "shortName": self.text(name.partition("<")[0])}
        self.add_work("KERNEL", start, end, correlation, **names, **columns)

    def add_graph(self, start: int, end: int, correlation: int, graph: int, **columns: Any) -> None:
        self.add_work("GRAPH_TRACE", start, end, correlation, graphId=graph, graphExecId=graph + 1, **columns)

    def add_gpu(self, number: int, name: str = "NVIDIA GeForce RTX 3080", **columns: Any) -> None:
        known = {"uuid": f"554a6988-{number}", "totalMemory": 10_736_893_952, "l2CacheSize": 5_242_880}
        known |= {"memoryBandwidth": 760_080_000_000, "clockRate": 1_710_000_000, "smCount": 68}
        known |= {"computeMajor": 8, "computeMinor": 6, "vmId": 1 << 48, **columns}
        self.add("TARGET_INFO_GPU", id=number, name=name, **known)

    def add_environment(self, **values: Any) -> None:
        for number, (name, value) in enumerate(values.items()):
            state = {"devStateName": "Local (CLI)", "nameEnum": number}
            self.add("TARGET_INFO_SYSTEM_ENV", name=name, value=str(value), **state)

    def add_facts(self, table: str, *facts: tuple[str, str]) -> None:
        for name, value in facts:
            self.add(table, name=name, value=value)

    def close(self) -> None:
        self.connection.commit()
        self.connection.close()


def write_small(path: Path) -> None:
    """Write a file in which each table has rows."""
    file = NsysFile(path)
    file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    file.add("PROCESSES", globalPid=GLOBAL_PROCESS, pid=PROCESS, name="/usr/bin/python3")
    file.add("ThreadNames", nameId=file.text("pt_main_thread"), priority=0, globalTid=GLOBAL_THREAD)
    for number, label in enumerate(("Pageable", "Pinned", "Device")):
        file.add("ENUM_CUDA_MEM_KIND", id=number, name=f"KIND_{label.upper()}", label=label)
    file.add_range(0, None, "NCCL", DOMAIN, domainId=3)
    file.add_range(0, None, "gpuprof", DOMAIN, domainId=4)
    file.add_range(1_000, 9_000, "step")
    file.add_range(1_500, 6_000, "", textId=file.text("aten::mm, op_id = 12"))
    file.add_range(1_600, 2_600, "AllReduce", domainId=3)
    file.add_range(6_500, 6_900, "net.layer", domainId=4)
    file.add_range(3_000, 12_000, "request", START_END)
    file.add_range(7_000, None, "here", MARK)
    file.add_call(2_000, 2_500, "cudaLaunchKernel_v7000", 11)
    file.add_call(7_100, 7_200, "cudaMemcpyAsync_v3020", 12)
    file.add_kernel(5_000, 8_000, 11, "gemm<float>", gridX=4, gridY=2, gridZ=1, registersPerThread=40)
    file.add_work("MEMCPY", 8_100, 8_200, 12, bytes=512, copyKind=1, srcKind=1, dstKind=2)
    file.add_work("MEMSET", 8_300, 8_400, 99, bytes=64, memKind=2)
    file.add_work("SYNCHRONIZATION", 8_500, 8_600, 98, syncType=3)
    file.add_gpu(0)
    file.add_environment(
        CpuCores=12, CpuDescription="12th Gen Intel(R) Core(TM) i5", NvDriverVersion="591.86"
    )
    file.add_environment(
        OsDescription="Ubuntu 24.04.3 LTS", CpuArchitecture="x86_64", CudaDriverVersion=13010
    )
    file.add_facts("META_DATA_EXPORT", ("EXPORT_PRODUCT_VERSION", "2026.1.1.204"))
    file.add_facts("META_DATA_CAPTURE", ("PROCESS_0:COMMAND", "python"), ("PROCESS_0:ARGUMENT_0", "train.py"))
    file.add("OSRT_API", start=10, end=20, globalTid=GLOBAL_THREAD, nameId=1, returnValue=0)
    file.close()


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    write_small(Path(arguments[0]))
