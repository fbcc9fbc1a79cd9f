# SPDX-License-Identifier: Apache-2.0
"""The tables of a recording, written by DuckDB."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.record.recording_folder import SEGMENTS
from gpuprof.run.child_facts import (
    name_processes,
    processes_with_gpu_counts,
    read_child_facts,
    with_child_facts,
    with_forked,
)
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of
from gpuprof.run.facts import damage_of, statuses_of
from gpuprof.run.frame_tree import with_last_samples
from gpuprof.run.outermost_calls import LayerModes
from gpuprof.run.part_writers import PartWriters
from gpuprof.run.requests_table import ServedRequests
from gpuprof.run.samples import SampledDevices, read_samples
from gpuprof.run.stacks import Stacks, has_stacks, read_stacks
from gpuprof.run.stored_spans import StoredSpans
from gpuprof.run.table_writer import SCRATCH, TableWriter
from gpuprof.run.temporary import PlainPath

# Rows of a batch, in columns of 57 bytes a row, and the threads that write such batches while the next is
# decoded. This may be the measured program's memory, so batches are smaller than DuckDB would like: twice as
# many rows save a tenth of the time and cost 10 MB.
BATCH_ROWS = 32_768
WRITING_THREADS = 2


def write_recorded(
    path: Path, target: Path, facts: dict[str, Any]
) -> tuple[dict[str, Any], SampledDevices, dict[str, Any]]:
    """Write the tables of the recording at `path`; returns what was decoded and sampled, and its facts.

    The facts have those of the processes that joined. Raises OSError of the disk.
    """
    children, damage = read_child_facts(path / SEGMENTS)
    decoded, sampled = _write_tables(path, target, children, facts)
    decoded["damage"] += damage
    facts = with_child_facts(facts, children, decoded)
    facts = with_forked(facts, path / SEGMENTS, joined=processes_with_gpu_counts(children))
    return decoded, sampled, facts


def _write_tables(
    path: Path, target: Path, children: list[dict[str, Any]], facts: dict[str, Any]
) -> tuple[dict[str, Any], SampledDevices]:
    import duckdb

    # A query stays in the thread that asks: more of them would hold buffers of their own.
    connection = connect_database(threads=1)
    plain = PlainPath(target)
    try:
        with StoredSpans(plain.path) as spans, PartWriters(connection, WRITING_THREADS) as parts:
            kept = spans if has_stacks(path / SEGMENTS) else None
            writer = TableWriter(connection, plain.path, kept_spans=kept, parts=parts)
            decoded, sampled, stacks = _write_with(
                writer, path / SEGMENTS, children, closed=bool(facts.get("closed"))
            )
        operators = statuses_of(facts).get("operators")
        has_operators = operators is not None and operators.is_on
        writer.write_steps(stacks, LayerModes.of(decoded), has_operators=has_operators)
        served, damage = ServedRequests.read(path / SEGMENTS)
        decoded["damage"] += damage
        if served is not None and len(served):
            writer.write_requests(served, int(facts["process_id"]), int(decoded["origin_monotonic_ns"]))
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
