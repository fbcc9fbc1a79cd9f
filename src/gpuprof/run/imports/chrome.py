# SPDX-License-Identifier: Apache-2.0
"""Chrome's trace format, as torch.profiler (Kineto) and many others write it, compressed or not."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.gpu_records import COPY, FILL, KERNEL, SYNCHRONIZATION, UNKNOWN
from gpuprof.run.imports.import_facts import (
    ImportFacts,
    NotImported,
    cuda_version,
    operator_kind,
    positive,
    python_function,
)
from gpuprof.run.imports.imported_run import (
    BATCH_ROWS,
    INTERFACE_CALL,
    MAIN_PROCESS,
    SPAN,
    ImportedRun,
    kind_code,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

PIECE_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"

_RECORD_KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": FILL,
    "cuda_sync": SYNCHRONIZATION,
}
# What Kineto called them before April 2022.
_FORMER_CATEGORIES = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_INTERFACE_CALLS = frozenset(
    f"{interface}_{level}"
    for interface in ("cuda", "xpu", "mtia", "privateuse1")
    for level in ("runtime", "driver")
)
_OF_THREADS = frozenset(("cpu_op", "user_annotation", "python_function", *_INTERFACE_CALLS))
# The same ranges once more on the GPU's tracks, and the profiler's own.
_LEFT_OUT = frozenset(("gpu_user_annotation", "Trace", "overhead", "cuda_profiler_range"))
# An event that has one of these was on a device.
_DEVICE_COLUMNS = ("device", "stream", "grid_x")
_OWN_KINDS = frozenset(("span", "layer", "operator", "nvtx", "backward", "compile", "gc"))

# As Kineto names memory, the codes of CUPTI's CUpti_ActivityMemoryKind.
_MEMORY = {"Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5, "Unified": 5}
_OWN_MEMORY = {"pageable": 1, "pinned": 2, "device": 3, "array": 4, "managed": 5}
_COPY_NAME = re.compile(r"\(?([A-Z]\w+) -> ([A-Z]\w+)\)?|copy (\w+) to (\w+)")
_FILL_NAME = re.compile(r"Memset \(([A-Z]\w+)\)|fill (\w+)")
# As Kineto names waits, now and before 2023.
_WAITS = {
    "Event Sync": 1,
    "Stream Wait Event": 2,
    "Stream Sync": 3,
    "Context Sync": 4,
    "Event Synchronize": 1,
    "Stream Synchronize": 3,
    "Context Synchronize": 4,
}
# Calls that wait: of traces without records of waits, as Kineto leaves these out by default.
_WAITING_CALLS = {
    f"{interface}{call}": code
    for interface in ("cuda", "hip")
    for call, code in (("EventSynchronize", 1), ("StreamSynchronize", 3), ("DeviceSynchronize", 4))
}


def read_chrome(path: Path, run: ImportedRun) -> ImportFacts:
    """Gather a trace's slices; returns its other facts. Raises RunError where it is no trace."""
    reader = _native.ChromeReader()
    sorter = _Sorter(run)
    cut = _feed(path, reader, sorter)
    reader.finish()
    sorter.add(*reader.take())
    told = reader.facts()
    _refuse(path, told, cut or not told["is_whole"])
    return _facts(told, cut, sorter)


def _feed(path: Path, reader: _native.ChromeReader, sorter: _Sorter) -> bool:
    """Read the file to its end; returns whether it was cut off."""
    try:
        for piece in _pieces(path):
            reader.feed(piece)
            if reader.rows() >= BATCH_ROWS:
                sorter.add(*reader.take())
    except (EOFError, zlib.error):
        return True
    return False


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        is_packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if is_packed:
            yield from _unpacked(raw)
            return
        while piece := raw.read(PIECE_BYTES):
            yield piece


def _unpacked(raw: IO[bytes]) -> Iterator[bytes]:
    """Yield what can be unpacked, up to the very place where a file is cut off; then raises EOFError."""
    stream = zlib.decompressobj(wbits=31)
    packed = b""
    while packed or (packed := raw.read(PIECE_BYTES)):
        if stream.eof:
            packed = packed.lstrip(b"\0")  # some writers fill up the last block
            if not packed:
                continue
            stream = zlib.decompressobj(wbits=31)
        if piece := stream.decompress(packed, PIECE_BYTES):
            yield piece
        packed = stream.unused_data or stream.unconsumed_tail
    if not stream.eof:
        yield stream.flush()
        raise EOFError


_WHICH_TRACE = "specify a trace of torch.profiler or Chrome"


def _refuse(path: Path, told: dict[str, Any], cut: bool) -> None:
    what = "not a trace in Chrome's JSON format"
    if told["is_empty"]:
        raise RunError("empty_trace", f"{path} is empty", hint="export the trace again")
    if told["problem"] and told["events"] == 0:
        raise RunError("not_a_trace", f"{path} is {what}: {told['problem']}", hint=_WHICH_TRACE)
    if not told["has_events"]:
        raise RunError(
            "not_a_trace",
            f"{path} is {what}: it has no traceEvents",
            hint=_WHICH_TRACE,
        )
    if cut and told["events"] == 0:
        raise RunError("damaged", f"{path} is cut off before its first event", hint="export the trace again")


def _facts(told: dict[str, Any], cut: bool, sorter: _Sorter) -> ImportFacts:
    outer = told["outer"]
    is_kineto = "baseTimeNanoseconds" in outer or sorter.saw_operators
    base = str(outer.get("baseTimeNanoseconds", "0"))
    facts = ImportFacts(
        source="Kineto JSON" if is_kineto else "Chrome JSON",
        unix_ns_at_zero=int(base) if re.fullmatch(r"-?\d{1,19}", base) else 0,
        totals={
            "events": told["events"],
            "damaged_events": told["damaged"] + told["negative"],
            "unmatched_ends": told["unmatched_ends"],
            "unfinished_spans": told["unfinished"],
        },
    )
    facts.damage += _damage(told, cut)
    facts.not_imported += sorter.not_imported()
    facts.not_imported += [NotImported("phase", *each) for each in sorted(told["not_taken"].items())]
    read_kineto_facts(outer, facts)
    for process_id, thread_id, name in told["tracks"]:
        if thread_id < 0:
            facts.process_names[process_id] = name
        else:
            facts.thread_names[(process_id, thread_id)] = name
    return facts


def _damage(told: dict[str, Any], cut: bool) -> Iterator[Damage]:
    if told["problem"]:
        error = {"error": told["problem"]}
        yield Damage(DamageCode.TRACE_NOT_READABLE, count=told["events"], values=error)
    elif cut or not told["is_whole"]:
        yield Damage(DamageCode.TRACE_CUT, count=told["events"])
    if told["damaged"]:
        yield Damage(DamageCode.TRACE_EVENTS_INVALID, count=told["damaged"])
    if told["negative"]:
        yield Damage(DamageCode.TRACE_NEGATIVE_DURATIONS, count=told["negative"])


class _Sorter:
    """Separates intervals of threads from GPU records by category and name, each pair once."""

    def __init__(self, run: ImportedRun) -> None:
        self.saw_operators = False
        self._run = run
        self._left_out: Counter[str] = Counter()
        self._on_devices: Counter[str] = Counter()
        self._texts: list[str] = []
        self._places: dict[int, int] = {}  # of (category, name) in the lists below
        self._is_span: list[bool] = []
        self._is_record: list[bool] = []
        self._is_unknown: list[bool] = []  # of a category that nothing is known of
        self._span: list[tuple[int, int, int]] = []  # kind, role, name id
        self._record: list[tuple[int, int, int, int, int]] = []  # kind, name id, source, destination, wait
        self._wait_of_call: list[int] = []  # UNKNOWN for what is no call that waits

    def add(self, columns: Columns, texts: list[str]) -> None:
        self._texts += texts
        pairs = columns["category"].astype(np.uint64) << np.uint64(32) | columns["text"]
        found, inverse = np.unique(pairs, return_inverse=True)
        places = np.array([self._place(int(pair)) for pair in found], dtype=np.int64)[inverse]
        if len(places) == 0:
            return
        is_record = np.array(self._is_record)[places]
        on_device = np.array(self._is_unknown)[places] & _has_device(columns)
        is_span = np.array(self._is_span)[places] & ~on_device
        self._count(self._on_devices, columns["category"][on_device])
        self._count(self._left_out, columns["category"][~is_span & ~is_record & ~on_device])
        self._add_spans({name: column[is_span] for name, column in columns.items()}, places[is_span])
        self._add_waiting_calls(columns, np.array(self._wait_of_call)[places])
        self._add_records({name: column[is_record] for name, column in columns.items()}, places[is_record])

    def not_imported(self) -> Iterator[NotImported]:
        """Yield what was left out, by category."""
        for category, events in sorted(self._left_out.items()):
            yield NotImported("category", category, events)
        for category, events in sorted(self._on_devices.items()):
            yield NotImported("unknown device category", category, events)

    def _count(self, counter: Counter[str], categories: npt.NDArray[np.uint32]) -> None:
        for number, events in zip(*np.unique(categories, return_counts=True), strict=True):
            counter[self._texts[number]] += int(events)

    def _add_spans(self, columns: Columns, places: npt.NDArray[np.int64]) -> None:
        kind, role, name = np.array(self._span, dtype=np.int64).T[:, places]
        self._run.add_spans({**columns, "kind": kind, "role": role, "name_id": name})

    def _add_records(self, columns: Columns, places: npt.NDArray[np.int64]) -> None:
        kind, name, source, destination, wait = np.array(self._record, dtype=np.int64).T[:, places]
        told = {"kind": kind, "name": name, "source_kind": source, "destination_kind": destination}
        process = np.full(len(places), MAIN_PROCESS)  # a trace numbers devices where it numbers processes
        self._run.add_records({**columns, **told, "detail": wait, "process_id": process})

    def _add_waiting_calls(self, columns: Columns, waits: npt.NDArray[np.int64]) -> None:
        is_wait = waits != UNKNOWN
        if not is_wait.any():
            return
        names = ("process_id", "start_ns", "duration_ns", "correlation_id")
        kind = np.full(int(is_wait.sum()), SYNCHRONIZATION)
        self._run.add_waiting_calls(
            {**{name: columns[name][is_wait] for name in names}, "kind": kind, "detail": waits[is_wait]}
        )

    def _place(self, pair: int) -> int:
        place = self._places.get(pair)
        if place is None:
            place = self._places[pair] = len(self._is_span)
            self._classify(self._texts[pair >> 32], self._texts[pair & UNKNOWN])
        return place

    def _classify(self, category: str, name: str) -> None:
        category = _FORMER_CATEGORIES.get(category, category)
        span, record = (0, SPAN, 0), (0, 0, UNKNOWN, UNKNOWN, UNKNOWN)
        is_record = category in _RECORD_KINDS
        is_span = not is_record and category not in _LEFT_OUT
        if is_record:
            record = self._classified_record(_RECORD_KINDS[category], name)
        elif is_span:
            kind, role, shown = self._classified_span(category, name)
            span = (kind_code(kind), role, self._run.name_id(shown))
        waits = _WAITING_CALLS.get(name, UNKNOWN) if category in _INTERFACE_CALLS else UNKNOWN
        self._wait_of_call.append(waits)
        self._is_span.append(is_span)
        self._is_record.append(is_record)
        self._is_unknown.append(is_span and category not in _OF_THREADS | _OWN_KINDS)
        self._span.append(span)
        self._record.append(record)

    def _classified_span(self, category: str, name: str) -> tuple[str, int, str]:
        if category == "cpu_op":
            self.saw_operators = True
            return operator_kind(name), SPAN, name
        if category in _INTERFACE_CALLS:
            return "operator", INTERFACE_CALL, name
        if category == "python_function":
            kind, shown = python_function(name)
            return kind, SPAN, shown
        return category if category in _OWN_KINDS else "span", SPAN, name

    def _classified_record(self, kind: int, name: str) -> tuple[int, int, int, int, int]:
        source = destination = wait = UNKNOWN
        if kind == COPY and (copied := _COPY_NAME.search(name)):
            source, destination = (_memory(copied[1] or copied[3]), _memory(copied[2] or copied[4]))
        if kind == FILL and (filled := _FILL_NAME.search(name)):
            destination = _memory(filled[1] or filled[2])
        if kind == SYNCHRONIZATION:
            wait = _WAITS.get(name, UNKNOWN)
        return kind, self._run.name_id(name), source, destination, wait


def _has_device(columns: Columns) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(columns["category"]), dtype=np.bool_)
    for name in _DEVICE_COLUMNS:
        found |= columns[name] != UNKNOWN
    return found


def _memory(name: str) -> int:
    return _MEMORY.get(name, _OWN_MEMORY.get(name, UNKNOWN))


# The keys of `devices` in the meta data by those of Kineto.
_DEVICE_KEYS = {"memory_bytes": "totalGlobalMem", "multiprocessors": "numSms"}
_VERSIONS = {"CUDA runtime": "cuda_runtime_version", "CUDA driver": "cuda_driver_version"}


def read_kineto_facts(outer: Mapping[str, str], facts: ImportFacts) -> None:
    """Add devices, rank and versions to the facts; `outer` are the values next to the events, as written."""
    devices = _parsed(outer.get("deviceProperties"), list)
    facts.devices = [
        _device(each) for each in devices if isinstance(each, dict) and _number(each) is not None
    ]
    versions = {name: cuda_version(positive(outer.get(key))) for name, key in _VERSIONS.items()}
    facts.versions = {name: version for name, version in versions.items() if version is not None}
    rank = _parsed(outer.get("distributedInfo"), dict).get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool):
        facts.main_rank = rank


def _device(said: dict[str, Any]) -> dict[str, Any]:
    major, minor = said.get("computeMajor"), said.get("computeMinor")
    numbers = {key: positive(said.get(name)) for key, name in _DEVICE_KEYS.items()}
    name = said.get("name")
    return {
        "index": _number(said),
        "name": str(name) if name else None,
        **numbers,
        "compute_capability": f"{major}.{minor}"
        if isinstance(major, int) and isinstance(minor, int)
        else None,
    }


def _number(said: dict[str, Any]) -> int | None:
    number = said.get("id")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _parsed(text: str | None, kind: type) -> Any:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()
