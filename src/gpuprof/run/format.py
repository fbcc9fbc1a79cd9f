# SPDX-License-Identifier: Apache-2.0
"""What a run folder holds, and the checks that a folder is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError

FORMAT_VERSION = 2
META_FILE = "meta.json"

# Kinds of calls. The index is the code that the native core, the columns and the pages use.
KINDS = (
    "process",
    "span",
    "layer",
    "operator",
    "nvtx",
    "backward",
    "compile",
    "kernel",
    "transfer",
    "python",
    "waiting",
    "gc",  # a collection of Python's garbage collector, named `generation 0` to `generation 2`
)

# Columns of each table, in order, with their DuckDB types. `call_tree` is derived from `spans`.
_COLUMNS = {
    "spans": (
        "span_id BIGINT, parent_id BIGINT, process_id BIGINT, thread_id BIGINT, kind VARCHAR, "
        "name VARCHAR, start_ns BIGINT, duration_ns BIGINT, depth INTEGER, path_id INTEGER"
    ),
    "call_tree": (
        "node_id INTEGER, parent_id INTEGER, process_id BIGINT, kind VARCHAR, name VARCHAR, calls BIGINT, "
        "total_ns BIGINT, own_ns BIGINT, threads INTEGER, gpu_ns BIGINT, path_id INTEGER"
    ),
    "kernels": (
        "kernel_id BIGINT, span_id BIGINT, process_id BIGINT, correlation_id UINTEGER, name VARCHAR, "
        "device UINTEGER, context UINTEGER, stream UINTEGER, start_ns BIGINT, duration_ns BIGINT, "
        "launch_ns BIGINT, grid_x UINTEGER, grid_y UINTEGER, grid_z UINTEGER, block_x UINTEGER, "
        "block_y UINTEGER, block_z UINTEGER, registers UINTEGER, static_shared_bytes UINTEGER, "
        "dynamic_shared_bytes UINTEGER, graph_id UINTEGER, graph_node_id UBIGINT, launch_end_ns BIGINT"
    ),
    "transfers": (
        "kind VARCHAR, bytes UBIGINT, src VARCHAR, dst VARCHAR, span_id BIGINT, process_id BIGINT, "
        "correlation_id UINTEGER, device UINTEGER, context UINTEGER, stream UINTEGER, start_ns BIGINT, "
        "duration_ns BIGINT, launch_ns BIGINT, graph_id UINTEGER, graph_node_id UBIGINT, "
        "launch_end_ns BIGINT"
    ),
    "synchronizations": (
        "type VARCHAR, span_id BIGINT, process_id BIGINT, correlation_id UINTEGER, context UINTEGER, "
        "stream UINTEGER, start_ns BIGINT, duration_ns BIGINT, event_id UINTEGER, event_sync_id UBIGINT"
    ),
    "work": (
        "root VARCHAR, layer VARCHAR, ordinal BIGINT, operator VARCHAR, overload VARCHAR, phase VARCHAR, "
        "flops BIGINT, bytes BIGINT, exactness VARCHAR, dtype VARCHAR, input_shapes VARCHAR, "
        "page_faults BIGINT, reuse_distance_bytes BIGINT[], reuse_bytes BIGINT[], "
        "reuse_written BOOLEAN[], compiled VARCHAR"
    ),
    "operator_inputs": (
        "position BIGINT, parent BIGINT, thread BIGINT, runs_backward BOOLEAN, operator VARCHAR, "
        "overload VARCHAR, flops BIGINT, bytes BIGINT, exactness VARCHAR, dtype VARCHAR, "
        "input_shapes VARCHAR, reuse_distance_bytes BIGINT[], reuse_bytes BIGINT[], "
        "reuse_written BOOLEAN[], error VARCHAR"
    ),
    "counters": (
        "process_id BIGINT, root VARCHAR, layer VARCHAR, ordinal BIGINT, operator VARCHAR, phase VARCHAR, "
        "kernel VARCHAR, kernel_number BIGINT, metric VARCHAR, counter VARCHAR, value DOUBLE, "
        "unit VARCHAR, passes INTEGER"
    ),
    "ceilings": (
        "device VARCHAR, resource VARCHAR, dtype VARCHAR, value DOUBLE, unit VARCHAR, spread DOUBLE, "
        "method VARCHAR"
    ),
    "stacks": (
        "t_ns BIGINT, process_id BIGINT, thread_id BIGINT, duration_ns BIGINT, frames VARCHAR[], "
        "cpu_ns BIGINT, queued_ns BIGINT, line BIGINT"
    ),
    "threads": (
        "process_id BIGINT, thread_id BIGINT, name VARCHAR, begin_ns BIGINT, end_ns BIGINT, cpu_ns BIGINT, "
        "queued_ns BIGINT, waiting_ns BIGINT, voluntary_switches BIGINT, involuntary_switches BIGINT"
    ),
    "steps": (
        "process_id BIGINT, index INTEGER, begin_ns BIGINT, end_ns BIGINT, kind VARCHAR, source VARCHAR, "
        "forward_ns BIGINT, backward_ns BIGINT, optimizer_ns BIGINT, data_ns BIGINT, other_ns BIGINT"
    ),
    "phases": "process_id BIGINT, kind VARCHAR, source VARCHAR, begin_ns BIGINT, end_ns BIGINT",
    "requests": (
        "index BIGINT, planned_ns BIGINT, sent_ns BIGINT, first_ns BIGINT, end_ns BIGINT, status VARCHAR, "
        "units BIGINT, process_id BIGINT, thread_id BIGINT, span_id BIGINT"
    ),
    "imports": (
        "process_id BIGINT, package VARCHAR, phase VARCHAR, duration_ns BIGINT, importer VARCHAR, "
        "module VARCHAR, caller VARCHAR"
    ),
    "function_calls": "caller VARCHAR, function VARCHAR, calls BIGINT, total_ns BIGINT, own_ns BIGINT",
    "lines": ("file VARCHAR, function VARCHAR, line BIGINT, hits BIGINT, total_ns BIGINT, source VARCHAR"),
    "samples": "t_ns BIGINT, device INTEGER, metric VARCHAR, value DOUBLE",
}
TABLES: dict[str, dict[str, str]] = {
    table: dict(column.split(" ") for column in columns.split(", ")) for table, columns in _COLUMNS.items()
}

# The spans that ran for each request; those of a batch are of each of its requests.
REQUEST_SPANS_VIEW = """
    CREATE VIEW request_spans AS
    WITH RECURSIVE owned AS (
        SELECT DISTINCT span_id AS request_span_id, span_id FROM requests WHERE span_id IS NOT NULL
        UNION ALL
        SELECT owned.request_span_id, spans.span_id FROM spans JOIN owned ON spans.parent_id = owned.span_id)
    SELECT requests.index, spans.* FROM owned JOIN spans ON spans.span_id = owned.span_id
    JOIN requests ON requests.span_id = owned.request_span_id
"""
# Without rows, for spans of other columns.
NO_REQUEST_SPANS_VIEW = """
    CREATE VIEW request_spans AS SELECT NULL::BIGINT AS index, spans.* FROM spans WHERE false
"""


def check_version(facts: dict[str, Any], path: Path) -> None:
    """Refuse what a newer gpuprof wrote, and what is no run at all. Raises RunError."""
    version = facts.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RunError(
            "unknown_format",
            f"{path}: format_version is {version!r}, not a version: this is not a run of gpuprof",
            hint="specify the folder that a recording writes (NAME.gpuprof)",
        )
    if version > FORMAT_VERSION:
        raise RunError(
            "newer_format",
            f"{path} has run format {version}; this gpuprof reads up to {FORMAT_VERSION}",
            hint="upgrade it (pip install --upgrade gpuprof-native)",
        )


# What the keys of `meta.json` hold, for those that a reader looks into.
_META_TYPES: dict[str, type] = {
    "totals": dict,
    "machine": dict,
    "versions": dict,
    "sources": dict,
    "clock": dict,
    "processes": list,
    "threads": list,
    "damage": list,
    "notes": list,
    "devices": list,
    "not_imported": list,
    "process_id": int,
    "duration_ns": int,
    "work": dict,
    "ceilings": dict,
    "counters": dict,
    "layer_types": dict,
    "settings": dict,
    "machine_busy_ns": int,
    "machine_steal_ns": int,
    "gpu": dict,
    "stacks": dict,
    "parts": dict,
}
# Null where the run has nothing of the kind.
_MAY_BE_NULL = (
    *("work", "ceilings", "counters", "layer_types", "settings", "machine_busy_ns", "machine_steal_ns"),
    *("gpu", "stacks"),
)


def check_meta(meta: dict[str, Any], path: Path) -> None:
    """Refuse meta data whose parts are not what they should be. Raises RunError."""
    check_version(meta, path)
    # A trace has the calls of any processes.
    may_be_null = (*_MAY_BE_NULL, "process_id") if meta.get("imported") else _MAY_BE_NULL
    for key, kind in _META_TYPES.items():
        if key not in meta or (meta[key] is None and key in may_be_null):
            continue
        if not isinstance(meta[key], kind):
            raise RunError(
                "damaged",
                f"{path / META_FILE} is damaged: {key} is no {_JSON_NAMES[kind]}",
                hint="restore it from a copy",
            )
    if not all(isinstance(count, int) for count in meta.get("totals", {}).values()):
        raise RunError(
            "damaged", f"{path / META_FILE} is damaged: totals are not numbers", hint="restore it from a copy"
        )


_JSON_NAMES = {dict: "object", list: "array", int: "number"}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises RunError that names the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(
            "cannot_read", f"cannot read {path}: {error.strerror}", hint="check the permissions of the file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RunError(
            "damaged", f"{path} is damaged: not JSON ({error})", hint="restore it from a copy of the run"
        ) from None
    if not isinstance(content, dict):
        raise RunError(
            "damaged", f"{path} is damaged: not a JSON object", hint="restore it from a copy of the run"
        )
    return content
