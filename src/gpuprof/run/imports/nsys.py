# SPDX-License-Identifier: Apache-2.0
"""Nsight Systems: NVTX ranges, calls of CUDA, kernels, copies, fills and synchronizations of its export."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import RunError
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.gpu_records import COPY, FILL, KERNEL, SYNCHRONIZATION, UNKNOWN
from gpuprof.run.imports.import_facts import ImportFacts, NotImported, named_kind, operator_kind
from gpuprof.run.imports.imported_run import (
    FLOATING,
    INTERFACE_CALL,
    MAIN_PROCESS,
    SPAN,
    ImportedRun,
    kind_code,
)
from gpuprof.run.imports.nsys_tables import NsysDatabase, Wanted, physical_devices, read_target

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

NVTX = "NVTX_EVENTS"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
_RANGES = (MARK, PUSH_POP, START_END)
# NVTX events that name domains, categories, threads and devices: no events of the program.
_NAMING = (32, 33, 39, 64, 72, 73, 74, DOMAIN, 76, 97, 98, 99)
OWN_DOMAIN = "gpuprof"

_NONE = -1
_TIMES: Wanted = {"start_ns": ("start", _NONE), "end_ns": ("end", _NONE)}
_DEVICE: Wanted = {
    **_TIMES,
    "process": ("globalPid", _NONE),
    "device": ("deviceId", _NONE),
    "context": ("contextId", _NONE),
    "stream": ("streamId", _NONE),
    "correlation_id": ("correlationId", _NONE),
    "graph_id": ("graphId", _NONE),
    "graph_node_id": ("graphNodeId", _NONE),
}
_KERNEL: Wanted = {
    **_DEVICE,
    **{f"grid_{axis}": (f"grid{axis.upper()}", _NONE) for axis in "xyz"},
    **{f"block_{axis}": (f"block{axis.upper()}", _NONE) for axis in "xyz"},
    "registers": ("registersPerThread", _NONE),
    "static_shared_bytes": ("staticSharedMemory", _NONE),
    "dynamic_shared_bytes": ("dynamicSharedMemory", _NONE),
    "text": ("demangledName", _NONE),
    "short": ("shortName", _NONE),
    "mangled": ("mangledName", _NONE),
}
_COPY: Wanted = {
    **_DEVICE,
    "bytes": ("bytes", _NONE),
    "copy": ("copyKind", _NONE),
    "source_kind": ("srcKind", _NONE),
    "destination_kind": ("dstKind", _NONE),
}
_FILL: Wanted = {**_DEVICE, "bytes": ("bytes", _NONE), "destination_kind": ("memKind", _NONE)}
_WAIT: Wanted = {**_DEVICE, "detail": ("syncType", _NONE)}
# CUDA graphs that were traced as a whole, which is what nsys does by itself: one row a launch.
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RECORD_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL, _KERNEL),
    GRAPHS: (KERNEL, _DEVICE),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (COPY, _COPY),
    "CUPTI_ACTIVITY_KIND_MEMSET": (FILL, _FILL),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (SYNCHRONIZATION, _WAIT),
}
_CALL: Wanted = {
    **_TIMES,
    "thread": ("globalTid", _NONE),
    "correlation_id": ("correlationId", _NONE),
    "text": ("nameId", _NONE),
}
_RANGE: Wanted = {
    **_TIMES,
    "type": ("eventType", PUSH_POP),
    "thread": ("globalTid", _NONE),
    "domain": ("domainId", 0),
    "text": ("textId", _NONE),
}
_VERSION = re.compile(r"_v\d+(_pt[ds]z?s?)?\Z")
_OPERATOR_DETAILS = re.compile(r", (?:op_id|seq) = ")
# Labels of ENUM_CUDA_MEM_KIND, with the codes of CUPTI's CUpti_ActivityMemoryKind.
_MEMORY = {"pageable": 1, "pinned": 2, "device": 3, "array": 4, "managed": 5}
_MEMORY |= {"device static": 6, "managed static": 7}
# Where a copy's memory is unknown, CUPTI's CUpti_ActivityMemcpyKind shows which sides are on the device.
_COPY_SIDES = {"source_kind": (2, 8, 10), "destination_kind": (1, 8, 10)}
_THREAD_MASK = 0xFFFFFF
# A table with one of these holds events; the others hold names and facts.
_EVENT_COLUMNS = frozenset(("start", "timestamp", "rawTimestamp"))


def read_nsys(path: Path, run: ImportedRun) -> ImportFacts:
    """Gather what an export holds; returns its other facts. Raises RunError where it is no export."""
    try:
        database = NsysDatabase(path)
        try:
            return _NsysReader(path, database, run).read()
        finally:
            database.close()
    except sqlite3.Error as error:
        raise RunError("damaged", f"{path} is damaged ({error})", hint="export it again with nsys") from None


class _NsysReader:
    def __init__(self, path: Path, database: NsysDatabase, run: ImportedRun) -> None:
        known = {NVTX, RUNTIME, *_RECORD_TABLES}
        if not database.tables & known and "TARGET_INFO_SESSION_START_TIME" not in database.tables:
            raise RunError(
                "not_a_trace",
                f"{path} is an SQLite file of another tool",
                hint="use the output of `nsys export --type sqlite`",
            )
        self._database = database
        self._run = run
        self._facts = ImportFacts("Nsight Systems SQLite")
        self._totals = dict.fromkeys(("events", "damaged_events", "unfinished_spans"), 0)
        self._last_ns = 0
        self._memory = self._memory_labels()
        self._domains = self._domain_names()
        self._ranges: dict[Any, tuple[int, int]] = {}  # kind and name id by what names a range
        self._devices = physical_devices(database)

    def read(self) -> ImportFacts:
        for table, (kind, wanted) in _RECORD_TABLES.items():
            for rows, _ in self._database.rows(table, wanted):
                # CUPTI gives zeros where it could not take the times.
                has_times = (rows["start_ns"] != 0) | (rows["end_ns"] != 0)
                rows["start_ns"] = np.where(has_times, rows["start_ns"], _NONE)
                self._add_records(table, kind, self._whole(rows))
        for rows, _ in self._database.rows(RUNTIME, _CALL):
            self._add_calls(self._whole(rows))
        self._add_ranges()
        self._report_totals()
        return self._facts

    def _whole(self, rows: Columns) -> Columns:
        """Return the rows with durations, without those that have none or a negative one."""
        duration = rows["end_ns"] - rows["start_ns"]
        sound = (rows["start_ns"] >= 0) & (duration >= 0)
        self._totals["events"] += len(sound)
        self._totals["damaged_events"] += int((~sound).sum())
        if len(sound):
            self._last_ns = max(self._last_ns, int(rows["end_ns"].max()))
        return {name: column[sound] for name, column in {**rows, "duration_ns": duration}.items()}

    def _add_records(self, table: str, kind: int, rows: Columns) -> None:
        columns = {name: column for name, column in rows.items() if name not in ("end_ns", "process")}
        columns["kind"] = np.full(len(rows["start_ns"]), kind)
        columns["process_id"] = np.where(rows["process"] == _NONE, MAIN_PROCESS, _process(rows["process"]))
        columns["device"] = self._physical(columns["process_id"], rows["device"])
        if table == GRAPHS:
            columns["name"] = _mapped(rows["graph_id"], lambda graph: self._run.name_id(graph_name(graph)))
            self._run.count_graphs(len(rows["start_ns"]))
        elif kind == KERNEL:
            columns["name"] = self._kernel_names(rows)
        if kind == COPY:
            for name, on_device in _COPY_SIDES.items():
                side = np.where(np.isin(rows["copy"], on_device), _MEMORY["device"], UNKNOWN)
                told = self._memory_kinds(rows[name])
                columns[name] = np.where(told == UNKNOWN, side, told)
        elif kind == FILL:
            columns["destination_kind"] = self._memory_kinds(rows["destination_kind"])
        self._run.add_records(columns)

    def _physical(
        self, processes: npt.NDArray[np.int64], ordinals: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the GPUs' numbers on the machine; where the export has none, CUDA's own."""
        if not self._devices:
            return ordinals
        pairs, inverse = np.unique(np.stack((processes, ordinals)), axis=1, return_inverse=True)
        known = [self._devices.get((process, ordinal), ordinal) for process, ordinal in pairs.T.tolist()]
        return np.array(known, dtype=np.int64)[inverse.reshape(-1)]

    def _kernel_names(self, rows: Columns) -> npt.NDArray[np.int64]:
        text = rows["text"]
        for other in ("short", "mangled"):
            text = np.where(text == _NONE, rows[other], text)
        return _mapped(text, lambda number: self._run.name_id(self._text(number) or "(unknown kernel)"))

    def _memory_kinds(self, kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return _mapped(kinds, lambda kind: self._memory.get(kind, UNKNOWN))

    def _memory_labels(self) -> dict[int, int]:
        if not {"id", "label"} <= self._database.columns("ENUM_CUDA_MEM_KIND"):
            return {}
        rows = self._database.values("SELECT id, label FROM ENUM_CUDA_MEM_KIND")
        return {kind: _MEMORY.get(str(label).lower(), UNKNOWN) for kind, label in rows}

    def _add_calls(self, rows: Columns) -> None:
        count = len(rows["start_ns"])
        name = _mapped(rows["text"], lambda number: self._run.name_id(_call_name(self._text(number))))
        self._run.add_spans(
            {
                **_owners(rows),
                "kind": np.full(count, kind_code("operator")),
                "role": np.full(count, INTERFACE_CALL),
                "name_id": name,
                "correlation_id": rows["correlation_id"],
            }
        )

    def _add_ranges(self) -> None:
        kinds = f"({', '.join(map(str, _RANGES))})"
        has_type = "eventType" in self._database.columns(NVTX)
        condition = f"WHERE eventType IN {kinds}" if has_type else ""
        for rows, texts in self._database.rows(NVTX, _RANGE, condition, text="text"):
            self._end_open_ranges(rows)
            keys = zip(_process(rows["thread"]).tolist(), rows["domain"].tolist(), strict=True)
            named = zip(keys, rows["text"].tolist(), texts, strict=True)
            shown = np.array([self._range(*key, number, text) for key, number, text in named], dtype=np.int64)
            columns = self._whole({**rows, "kind": shown[:, 0], "name_id": shown[:, 1]})
            role = np.where(columns["type"] == START_END, FLOATING, SPAN)
            told = {"kind": columns["kind"], "name_id": columns["name_id"], "role": role}
            self._run.add_spans({**_owners(columns), **told})

    def _end_open_ranges(self, rows: Columns) -> None:
        """Give an end to marks, which have none, and to ranges that never ended."""
        is_open = rows["end_ns"] < 0
        is_mark = rows["type"] == MARK
        self._totals["unfinished_spans"] += int((is_open & ~is_mark).sum())
        last = np.maximum(self._last_ns, rows["start_ns"])
        end = np.where(is_mark, rows["start_ns"], last)
        rows["end_ns"] = np.where(is_open | is_mark, end, rows["end_ns"])

    def _range(self, process: int, domain: int, number: int, text: Any) -> tuple[int, int]:
        key = (process, domain, number if text is None else text)
        found = self._ranges.get(key)
        if found is None:
            name = str(text) if text is not None else self._text(number) or "(unnamed)"
            kind, shown = _range_kind(self._domains.get((process, domain), ""), name)
            found = self._ranges[key] = kind_code(kind), self._run.name_id(shown)
        return found

    def _domain_names(self) -> dict[tuple[int, int], str]:
        if "eventType" not in self._database.columns(NVTX):
            return {}
        names = {}
        for rows, texts in self._database.rows(NVTX, _RANGE, f"WHERE eventType = {DOMAIN}", text="text"):
            numbers = zip(_process(rows["thread"]), rows["domain"], rows["text"], texts, strict=True)
            for process, domain, number, text in numbers:
                names[(int(process), int(domain))] = str(text or self._text(int(number)) or "")
        return names

    def _text(self, number: int) -> str | None:
        return self._database.text(number)

    def _report_totals(self) -> None:
        self._facts.totals |= self._totals
        if negative := self._totals["damaged_events"]:
            self._facts.damage.append(Damage(DamageCode.TRACE_ROWS_INVALID, count=negative))
        self._facts.not_imported += self._not_imported()
        read_target(self._database, self._facts)
        if {"utcEpochNs"} <= self._database.columns("TARGET_INFO_SESSION_START_TIME"):
            for (start,) in self._database.values("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"):
                self._facts.unix_ns_at_zero = start if isinstance(start, int) else 0
        if {"globalTid", "nameId"} <= self._database.columns("ThreadNames"):
            for thread, number in self._database.values("SELECT globalTid, nameId FROM ThreadNames"):
                self._facts.thread_names[(int(_process(thread)), thread & _THREAD_MASK)] = (
                    self._text(number) or ""
                )

    def _not_imported(self) -> Iterator[NotImported]:
        """Yield the tables of events that are not read, and what is no range among those of NVTX."""
        for table in sorted(self._database.tables - {NVTX, RUNTIME, *_RECORD_TABLES}):
            if self._database.columns(table) & _EVENT_COLUMNS:
                yield NotImported("table", table, self._database.count(table))
        if "eventType" in self._database.columns(NVTX):
            counts = f"SELECT eventType, count(*) FROM {NVTX} GROUP BY 1 ORDER BY 1"  # noqa: S608 - a constant
            for event_type, count in self._database.values(counts):
                if event_type not in (*_RANGES, *_NAMING):
                    yield NotImported("nvtx event type", str(event_type), count)


def _range_kind(domain: str, name: str) -> tuple[str, str]:
    """Return the kind of a range and the name that it has in a run."""
    if domain == OWN_DOMAIN:
        return "span", name
    if domain:
        return "nvtx", f"{domain}: {name}"
    operator = _OPERATOR_DETAILS.split(name, maxsplit=1)[0]
    if operator != name:
        return operator_kind(operator), operator
    return named_kind(name) or "nvtx", name


def graph_name(graph_id: int) -> str:
    """Return what a graph that was traced as a whole is called among the kernels."""
    return "CUDA graph" if graph_id == _NONE else f"CUDA graph {graph_id}"


def _call_name(text: str | None) -> str:
    return "(unknown call)" if text is None else _VERSION.sub("", text)


def _owners(rows: Columns) -> Columns:
    return {
        "process_id": np.where(rows["thread"] == _NONE, 0, _process(rows["thread"])),
        "thread_id": np.where(rows["thread"] == _NONE, 0, rows["thread"] & _THREAD_MASK),
        "start_ns": rows["start_ns"],
        "duration_ns": rows["duration_ns"],
    }


def _process(thread: Any) -> Any:
    return thread >> 24 & _THREAD_MASK


def _mapped(numbers: npt.NDArray[np.int64], meaning: Callable[[int], int]) -> npt.NDArray[np.int64]:
    found, inverse = np.unique(numbers, return_inverse=True)
    return np.array([meaning(int(number)) for number in found], dtype=np.int64)[inverse]
