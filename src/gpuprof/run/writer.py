# SPDX-License-Identifier: Apache-2.0
"""Closing a run: the segments of a recording become Parquet tables and `meta.json`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.record.recording_folder import LOCK_FILE, RECORDING_FILE, SEGMENTS, exclusive
from gpuprof.run.child_facts import (
    name_processes,
    processes_with_gpu_counts,
    read_child_facts,
    with_child_facts,
    with_forked,
)
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of
from gpuprof.run.facts import current_format, damage_of, statuses_of
from gpuprof.run.format import META_FILE, TABLES, read_json
from gpuprof.run.frame_tree import with_last_samples
from gpuprof.run.meta import meta_of
from gpuprof.run.parts import write_meta
from gpuprof.run.quick_switching import quick_switching
from gpuprof.run.samples import SampledDevices, read_samples
from gpuprof.run.spanless import write_spanless
from gpuprof.run.stacks import Stacks, has_stacks, read_stacks
from gpuprof.run.temporary import PlainPath

if TYPE_CHECKING:
    from gpuprof.run.table_writer import TableWriter

# Rows of a batch, in columns of 57 bytes a row, and the threads that write such batches while the next is
# decoded. This may be the measured program's memory, so batches are smaller than DuckDB would like: twice as
# many rows save a tenth of the time and cost 10 MB.
BATCH_ROWS = 32_768
WRITING_THREADS = 2


def preload() -> None:
    """Import what `close_run` needs."""
    import duckdb  # noqa: F401
    import numpy as np  # noqa: F401


@quick_switching()
def close_run(path: Path, into: Path | None = None) -> dict[str, Any]:
    """Write the tables and `meta.json` of a recording that has ended; returns the meta data.

    The recording's own files are removed once everything else is on disk. With `into`, they are left
    alone and the run is written to that folder. Raises RunError with a hint.
    """
    with exclusive(path) as free:
        if not free:
            raise RunError(f"{path} is still being recorded: wait until its program has ended")
        if (path / META_FILE).exists() and not (path / RECORDING_FILE).exists():
            return read_json(path / META_FILE)  # another thread or process was faster
        facts = current_format(read_json(path / RECORDING_FILE), path)
        if not (path / SEGMENTS).is_dir():
            raise RunError(f"{path} has no {SEGMENTS} folder, where its events were: restore it from a copy")
        target = path if into is None else into
        try:
            _remove_tables(target)
            decoded, sampled = write_spanless(path / SEGMENTS, target), SampledDevices()
            if decoded is None:
                children, damage = read_child_facts(path / SEGMENTS)
                decoded, sampled = _write_tables(path, target, children, facts)
                decoded["damage"] += damage
                facts = with_child_facts(facts, children, decoded)
                facts = with_forked(facts, path / SEGMENTS, joined=processes_with_gpu_counts(children))
            meta = write_meta(target, meta_of(facts, decoded, sampled, path))
        except OSError as error:
            raise RunError(
                f"cannot write the tables of {path}: {error.strerror}; what was recorded is kept: "
                "make room or the folder writable, then open it again"
            ) from None
        if into is None:
            _remove_recording(path)
    return meta


def _remove_tables(target: Path) -> None:
    """Remove parts of an earlier attempt that was interrupted: they would count twice."""
    for table in TABLES:
        shutil.rmtree(target / table, ignore_errors=True)


def _write_tables(
    path: Path, target: Path, children: list[dict[str, Any]], facts: dict[str, Any]
) -> tuple[dict[str, Any], SampledDevices]:
    import duckdb

    from gpuprof.run.part_writers import PartWriters
    from gpuprof.run.table_writer import SCRATCH, TableWriter

    # A query stays in the thread that asks: more of them would hold buffers of their own.
    connection = connect_database(threads=1)
    plain = PlainPath(target)
    try:
        with PartWriters(connection, WRITING_THREADS) as parts:
            writer = TableWriter(connection, plain.path, keeps_spans=has_stacks(path / SEGMENTS), parts=parts)
            decoded, sampled, stacks = _write_with(
                writer, path / SEGMENTS, children, closed=bool(facts.get("closed"))
            )
        operators = statuses_of(facts).get("operators")
        writer.write_steps(stacks, has_operators=operators is not None and operators.is_on)
        writer.ensure_tables()
    except duckdb.Error as error:
        raise OSError(0, reason_of(error)) from error
    finally:
        connection.close()
        shutil.rmtree(target / SCRATCH, ignore_errors=True)
    decoded["damage"] += sampled.damage
    return decoded, sampled


def _write_with(
    writer: TableWriter, segments: Path, children: list[dict[str, Any]], *, closed: bool
) -> tuple[dict[str, Any], SampledDevices, Stacks]:
    decoded = _native.decode(os.fsencode(segments), BATCH_ROWS, writer.add_batch)
    decoded["damage"] = [damage_of(each) for each in decoded["damage"]]
    name_processes(decoded, children)
    writer.write_gpu(segments, decoded)
    origin_ns = int(decoded["origin_monotonic_ns"])
    stacks = read_stacks(segments, origin_ns)
    with_last_samples(decoded, stacks)
    writer.write_stacks(stacks)
    writer.write_threads(stacks.thread_times)
    writer.write_tree(decoded, stacks)
    decoded["damage"] += stacks.damage
    decoded["stacks"] = stacks.summary()
    writer.write_work(segments, decoded)
    sampled = read_samples(segments, lambda columns: writer.add_samples(columns, origin_ns), closed=closed)
    return decoded, sampled, stacks


def _remove_recording(path: Path) -> None:
    shutil.rmtree(path / SEGMENTS, ignore_errors=True)
    for name in (RECORDING_FILE, LOCK_FILE):
        (path / name).unlink(missing_ok=True)
