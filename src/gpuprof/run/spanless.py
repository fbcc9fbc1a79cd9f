# SPDX-License-Identifier: Apache-2.0
"""Closing a recording without spans: of a program that called no layer and no operator.

Such a run has a row a process, its threads, and stack samples. The tables are written here without NumPy and
DuckDB, because to import these takes longer than many such a program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.run.facts import damage_of
from gpuprof.run.format import KINDS, TABLES
from gpuprof.run.frame_tree import PYTHON, UNCOUNTED, WAIT, WAITING, FrameTree, with_last_samples
from gpuprof.run.import_times import import_times
from gpuprof.run.parquet import write_rows
from gpuprof.run.span_boundaries import ThreadSpans
from gpuprof.run.stack_placement import Placement
from gpuprof.run.stacks import Stacks, ThreadStacks, read_stacks
from gpuprof.run.threads import UNKNOWN

# Files of a recording that are read here; of others, such as GPU records and counted work, there are none.
_READ_SUFFIXES = (".names", ".segment", ".stacks")
_LOSSES_FILE = "losses"
# Of samples. More are written faster by DuckDB, and smaller.
_MOST_STACK_BYTES = 1 << 16

Rows = Sequence[Sequence[Any]]


def write_spanless(segments: Path, target: Path) -> dict[str, Any] | None:
    """Write the tables of a recording without spans; returns what was decoded, for `meta.json`.

    None for a recording that has spans, GPU records, processes that joined, or many samples: nothing was
    written then. Raises OSError of the disk.
    """
    if not _is_small(segments):
        return None
    decoded = _native.decode_spanless(os.fsencode(segments))
    if decoded is None or not _has_one_row_a_process(decoded):
        return None
    decoded["damage"] = [damage_of(each) for each in decoded["damage"]]
    stacks = read_stacks(segments, int(decoded["origin_monotonic_ns"]))
    with_last_samples(decoded, stacks)
    parts = enumerate(_parts(decoded, stacks))
    written = {_write(target, table, rows, process_id, number) for number, (table, process_id, rows) in parts}
    write_empty_tables(target, written)
    decoded["damage"] += stacks.damage
    return {**decoded, "stacks": stacks.summary(), "work": None, "counters": None, "gpu_notes": []}


def _is_small(segments: Path) -> bool:
    files = list(segments.iterdir())
    samples_bytes = sum(each.stat().st_size for each in files if each.suffix == ".stacks")
    is_known = all(each.name == _LOSSES_FILE or each.suffix in _READ_SUFFIXES for each in files)
    return is_known and samples_bytes <= _MOST_STACK_BYTES


def _has_one_row_a_process(decoded: dict[str, Any]) -> bool:
    processes = decoded["tree"]["process_id"]
    return len(processes) == len(set(processes)) == len(decoded["processes"])


def write_empty_tables(target: Path, written: set[str]) -> None:
    """Make the tables that nothing was recorded for, so that queries of them work. Raises OSError."""
    for number, table in enumerate(sorted(TABLES.keys() - written)):
        _write(target, table, (), 0, number)


def part_path(target: Path, table: str, process_id: int, number: int) -> Path:
    """Return the path of a new part of a table, in a folder that exists."""
    folder = target / table / "rank=0"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"part-{process_id}-{number:06}.parquet"


def _write(target: Path, table: str, rows: Rows, process_id: int, number: int) -> str:
    write_rows(part_path(target, table, process_id, number), TABLES[table], rows)
    return table


def _parts(decoded: dict[str, Any], stacks: Stacks) -> Iterator[tuple[str, int, Rows]]:
    """Yield table, process and rows of each part."""
    yield from _stack_parts(stacks)
    threads = sorted(stacks.thread_times, key=lambda each: (each.process_id, each.begin_ns, each.thread_id))
    if threads:
        known = [tuple(None if value == UNKNOWN else value for value in each) for each in threads]
        yield "threads", 0, known
    yield "call_tree", 0, list(_tree_rows(decoded, stacks))
    imports = import_times(stacks, {})
    imports.sort(key=lambda each: (each.process_id, -each.duration_ns, *each))
    if imports:
        yield "imports", 0, [(*each[:-1], each.caller or None) for each in imports]


# ---- stacks ----------------------------------------------------------------------------------


def _stack_parts(stacks: Stacks) -> Iterator[tuple[str, int, Rows]]:
    processes = sorted({thread.process_id for thread in stacks.threads if len(thread)})
    for process_id in processes:
        threads = (each for each in stacks.threads if each.process_id == process_id)
        yield "stacks", process_id, [row for each in threads for row in _sample_rows(each, stacks.texts)]


def _sample_rows(thread: ThreadStacks, texts: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    columns = (thread.t_ns, thread.duration_ns, thread.cpu_ns, thread.queued_ns, thread.line, thread.frames)
    for t_ns, duration_ns, cpu_ns, queued_ns, line, frames in zip(*columns, strict=True):
        yield (
            t_ns,
            thread.process_id,
            thread.thread_id,
            duration_ns,
            [texts[frame] for frame in frames],
            cpu_ns if cpu_ns >= 0 else None,
            queued_ns if queued_ns >= 0 else None,
            line if line > 0 else None,
        )


# ---- the call tree ---------------------------------------------------------------------------


def _tree_rows(decoded: dict[str, Any], stacks: Stacks) -> Iterator[tuple[Any, ...]]:
    tree, names = decoded["tree"], decoded["names"]
    roots = {process_id: row for row, process_id in enumerate(tree["process_id"])}
    nodes = _sampled(tree, roots, stacks)
    order = nodes.preorder()
    places = {node: place for place, node in enumerate(order)}
    process_of: dict[int, int] = {}
    for place, node in enumerate(order):
        row, up = nodes.row[node], nodes.parent[node]
        is_process = row >= 0
        process_of[node] = tree["process_id"][row] if is_process else process_of[up]
        calls = nodes.sums["calls"][node] if is_process else UNCOUNTED
        yield (
            place,
            places[up] if up >= 0 else None,
            process_of[node],
            KINDS[tree["kind"][row] if is_process else WAITING if row == WAIT else PYTHON],
            names[tree["name"][row]] if is_process else nodes.texts[nodes.frame[node]],
            None if calls == UNCOUNTED else calls,
            nodes.sums["total_ns"][node],
            nodes.sums["own_ns"][node],
            tree["threads"][row] if is_process else max(1, len(nodes.thread_ids[node])),
            None,  # no GPU was recorded
            place if is_process else None,
        )


def _sampled(tree: dict[str, list[int]], roots: dict[int, int], stacks: Stacks) -> FrameTree:
    """Return the processes and the frames that were sampled below them."""
    nodes = FrameTree(stacks, roots)
    for process_id, row in roots.items():
        for name in ("calls", "total_ns", "own_ns"):
            nodes.sums[name][nodes.root(process_id)] = tree[name][row]
    for thread in stacks.threads:
        if thread.process_id in roots:
            placement = Placement(thread, ThreadSpans(), nodes.kinds, nodes.groups)
            nodes.add_frame_times(thread.process_id, thread.thread_id, placement)
    nodes.sum_up()
    return nodes
