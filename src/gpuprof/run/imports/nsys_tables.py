# SPDX-License-Identifier: Apache-2.0
"""The SQLite export of Nsight Systems, table by table, with whatever tables and columns a version has.

Of its target it names machine, GPUs, versions, command and ranks. Of the environment that the export also
holds, nothing is read: it may hold secrets.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.run.imports.import_facts import ImportFacts, cuda_version, positive

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

BATCH_ROWS = 65_536
# A column as it is written: its name in the table, its value where it is missing or NULL.
Wanted = dict[str, tuple[str, int]]


class NsysDatabase:
    """An export that is only read. Raises sqlite3.Error where it is damaged."""

    def __init__(self, path: Path) -> None:
        # Immutable: no journal is looked for, and a read-only folder will do.
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        self._texts: dict[int, str | None] = {}
        try:
            rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            # A name with a quote in it is none of Nsight's, and none that a query here could hold.
            self.tables = {name for (name,) in rows if '"' not in name}
            self._has_texts = {"id", "value"} <= self.columns("StringIds")
        except sqlite3.Error:
            self.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def columns(self, table: str) -> set[str]:
        """Return the names of a table's columns; none where there is no such table."""
        if table not in self.tables:
            return set()
        return {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def rows(
        self, table: str, wanted: Wanted, condition: str = "", text: str | None = None
    ) -> Iterator[tuple[Columns, list[Any]]]:
        """Yield the wanted columns as integers, in batches, and the column `text` as it is."""
        there = self.columns(table)
        if not there:
            return
        shown = [
            f'coalesce("{column}", {default})' if column in there else str(default)
            for column, default in wanted.values()
        ]
        shown.append(f'"{text}"' if text in there else "NULL")
        query = f'SELECT {", ".join(shown)} FROM "{table}" {condition}'  # noqa: S608 - names of this file
        cursor = self._connection.execute(query)
        while batch := cursor.fetchmany(BATCH_ROWS):
            *integers, texts = zip(*batch, strict=True)
            yield dict(zip(wanted, map(_integers, integers), strict=True)), list(texts)

    def values(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small query."""
        return self._connection.execute(query).fetchall()

    def count(self, table: str) -> int:
        """Return the number of a table's rows."""
        (count,) = self._connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608
        return int(count)

    def text(self, text_id: int) -> str | None:
        """Return the string of an id, None where the export lacks it."""
        if text_id not in self._texts:
            found = (
                self._connection.execute("SELECT value FROM StringIds WHERE id = ?", (text_id,)).fetchone()
                if self._has_texts
                else None
            )
            self._texts[text_id] = None if found is None else str(found[0])
        return self._texts[text_id]


def _integers(values: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    try:
        return np.array(values, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):
        # SQLite stores any value, whatever the declared type of the column.
        return np.array([value if isinstance(value, int) else -1 for value in values], dtype=np.int64)


GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_CAPTURE = "META_DATA_CAPTURE"
_EXPORT = "META_DATA_EXPORT"

# The keys of `devices` in the meta data by the columns of the export.
_GPU_COLUMNS = {
    "name": "name",
    "uuid": "uuid",
    "memory_bytes": "totalMemory",
    "memory_bandwidth_bytes_per_s": "memoryBandwidth",
    "l2_cache_bytes": "l2CacheSize",
    "multiprocessors": "smCount",
    "max_sm_clock_hz": "clockRate",
}
_UNKNOWN_TEXTS = frozenset(("", "unknown"))
# Before 2023 the driver's version was written without its points: 52510517 is 525.105.17.
_PACKED_DRIVER = re.compile(r"(\d{3})(\d{2,3})(\d{2})")
_COMMAND = re.compile(r"PROCESS_0:(?:COMMAND|ARGUMENT_(\d+))")


def read_target(database: NsysDatabase, facts: ImportFacts) -> None:
    """Add the export's description of its target to the facts; what it lacks stays unknown."""
    said = _texts(database, _ENVIRONMENT)
    driver = _known(said.get("NvDriverVersion"))
    facts.machine = {
        "system": _known(said.get("OsDescription")),
        "architecture": _known(said.get("CpuArchitecture")),
        "processor": _known(said.get("CpuDescription")),
        "cores": positive(said.get("CpuCores")),
        "memory_bytes": None,
    }
    versions = {
        "Nsight Systems": _known(_texts(database, _EXPORT).get("EXPORT_PRODUCT_VERSION")),
        "NVIDIA driver": None if driver is None else _PACKED_DRIVER.sub(r"\1.\2.\3", driver),
        "CUDA driver": cuda_version(positive(said.get("CudaDriverVersion"))),
    }
    facts.versions = {name: version for name, version in versions.items() if version is not None}
    facts.devices = [{**gpu, "driver_version": versions["NVIDIA driver"]} for gpu in _gpus(database)]
    facts.command = _command(database)
    _read_processes(database, facts)


def physical_devices(database: NsysDatabase) -> dict[tuple[int, int], int]:
    """Return the GPU's number by (process, CUDA ordinal): each process may see its own selection."""
    if not {"gpuId", "cudaId", "pid"} <= database.columns(CUDA_DEVICE):
        return {}
    rows = database.values(f"SELECT pid, cudaId, gpuId FROM {CUDA_DEVICE}")  # noqa: S608 - a constant
    return {(pid, ordinal): gpu for pid, ordinal, gpu in rows if _are_integers(pid, ordinal, gpu)}


def _gpus(database: NsysDatabase) -> list[dict[str, Any]]:
    there = database.columns(GPU)
    if not {"id", "name"} <= there:
        return []
    wanted = ["id", *_GPU_COLUMNS.values(), "computeMajor", "computeMinor"]
    columns = ", ".join(f'"{column}"' if column in there else "NULL" for column in wanted)
    found = []
    for number, *values, major, minor in database.values(f"SELECT {columns} FROM {GPU} ORDER BY id"):  # noqa: S608
        if not isinstance(number, int):
            continue
        known = dict(zip(_GPU_COLUMNS, values, strict=True))
        texts = {key: _known(known.pop(key)) for key in ("name", "uuid")}
        capability = f"{major}.{minor}" if _are_integers(major, minor) else None
        numbers = {key: positive(value) for key, value in known.items()}
        found.append({"index": number, **texts, **numbers, "compute_capability": capability})
    return found


def _command(database: NsysDatabase) -> list[str] | None:
    if not {"name", "value"} <= database.columns(_CAPTURE):
        return None
    words: dict[int, str] = {}
    for name, value in database.values(f"SELECT name, value FROM {_CAPTURE}"):  # noqa: S608 - a constant
        if found := _COMMAND.fullmatch(str(name)):
            words[0 if found[1] is None else 1 + int(found[1])] = str(value)
    return [words[number] for number in sorted(words)] or None


def _read_processes(database: NsysDatabase, facts: ImportFacts) -> None:
    if {"pid", "name"} <= database.columns("PROCESSES"):
        for process, name in database.values("SELECT pid, name FROM PROCESSES"):
            facts.process_names[process] = Path(str(name)).name or "process"
    if {"globalPid", "rank"} <= database.columns("MPI_RANKS"):
        for process, rank in database.values("SELECT globalPid, rank FROM MPI_RANKS"):
            if _are_integers(process, rank):
                facts.ranks[process >> 24 & 0xFFFFFF] = rank


def _texts(database: NsysDatabase, table: str) -> dict[str, str]:
    if not {"name", "value"} <= database.columns(table):
        return {}
    return {str(name): str(value) for name, value in database.values(f'SELECT name, value FROM "{table}"')}  # noqa: S608


def _known(text: Any) -> str | None:
    return None if text is None or str(text).strip() in _UNKNOWN_TEXTS else str(text).strip()


def _are_integers(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)
