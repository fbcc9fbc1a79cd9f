# SPDX-License-Identifier: Apache-2.0
"""A run of what torch.profiler or cProfile found out about a whole program."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.errors import RecordingError, RunError
from gpuprof.record.launch import environment_for
from gpuprof.record.other_profilers import CPROFILE_RESULT, TORCH_RESULT
from gpuprof.record.recording import SEGMENTS, create_folder, write_json
from gpuprof.record.supervise import ProgramResult, program_command, run_command, target_path
from gpuprof.run.format import KINDS, META_FILE, read_json
from gpuprof.run.imports.import_facts import ImportFacts, imported_meta
from gpuprof.run.imports.trace_file import import_trace
from gpuprof.run.machine import describe_machine
from gpuprof.run.plain_path import PlainPath
from gpuprof.run.writer import TableWriter

_PROCESS_ID = 0  # cProfile does not tell it


def run_profiled(
    target: str, arguments: Sequence[str], *, is_module: bool, out: Path | None, profiler: str
) -> tuple[ProgramResult, RunError | None]:
    """Run a program under `profiler`, `torch` or `cprofile`, and write its result as a run.

    Returns how the program ended, and why there is no run of it if there is none. Raises RecordingError when
    the target or the folder is unusable; then nothing was run.
    """
    path = target_path(target, is_module=is_module, out=out)
    create_folder(path)  # whether it can be made is to be known before the program runs
    shutil.rmtree(path)
    try:
        results = Path(tempfile.mkdtemp(prefix=".gpuprof-profiler-", dir=path.resolve().parent))
    except OSError as error:
        raise RecordingError(f"cannot write beside {path}: {error.strerror}; name another folder") from error
    try:
        options = {"profiler": profiler, "results": str(results)}
        command = program_command(target, arguments, is_module=is_module)
        result = ProgramResult(run_command(command, environment_for(options)), path)
        return result, _write_run(profiler, results, path, [sys.executable, target, *arguments])
    finally:
        shutil.rmtree(results, ignore_errors=True)


def _write_run(profiler: str, results: Path, path: Path, command: list[str]) -> RunError | None:
    name = TORCH_RESULT if profiler == "torch" else CPROFILE_RESULT
    if not (results / name).exists():
        return RunError(
            "the program never imported torch, or was ended from outside"
            if profiler == "torch"
            else "the program was ended from outside, before cProfile could write what it had"
        )
    try:
        if profiler == "torch":
            import_trace(results / name, path)
        else:
            _write_functions(json.loads((results / name).read_text(encoding="utf-8")), path)
        told = {"command": command, "machine": describe_machine(), "sources": {profiler: "on"}}
        write_json(path / META_FILE, {**read_json(path / META_FILE), **told})
    except (RunError, RecordingError, OSError, ValueError) as error:
        return error if isinstance(error, RunError) else RunError(str(error))
    return None


def _write_functions(functions: list[dict[str, Any]], path: Path) -> None:
    """Write a run of functions: cProfile knows no instants, so it has no spans.

    The tree has one level: a node a function, with the calls and times that cProfile counted. Who called whom
    is in the table `function_calls`; a deeper tree could only be estimated from it.
    """
    import duckdb

    create_folder(path)
    connection = duckdb.connect(":memory:")
    try:
        writer = TableWriter(connection, PlainPath(path).path)
        writer.write_tree(_flat_tree(functions))
        writer.write_function_calls(_call_columns(functions))
        writer.ensure_tables()
    except duckdb.Error as error:
        raise RunError(f"cannot write {path}: {str(error).splitlines()[0]}; make room") from error
    finally:
        connection.close()
    shutil.rmtree(path / SEGMENTS, ignore_errors=True)
    total_ns = sum(_ns(each["own_s"]) for each in functions)
    process = {"process_id": _PROCESS_ID, "closed": True, "start_ns": 0, "end_ns": total_ns}
    facts = ImportFacts(source="cProfile", totals={"spans": 0})
    facts.notes.append(
        "cProfile counts calls and times of functions and no instants: there are no spans, and the tree has "
        "one level"
    )
    write_json(path / META_FILE, imported_meta(facts, [process], origin_ns=0, gpu=None))


def _flat_tree(functions: list[dict[str, Any]]) -> dict[str, Any]:
    count = len(functions)
    own = np.array([_ns(each["own_s"]) for each in functions], dtype=np.int64)
    total = np.array([_ns(each["total_s"]) for each in functions], dtype=np.int64)
    columns = {
        "number": np.arange(count + 1, dtype=np.uint32),
        "parent": np.array([-1, *[0] * count], dtype=np.int32),
        "kind": np.array([0, *[KINDS.index("python")] * count], dtype=np.uint8),
        "name": np.arange(count + 1, dtype=np.int32),
        "calls": np.array([0, *(each["calls"] for each in functions)], dtype=np.int64),
        "total_ns": np.concatenate([[own.sum()], total]).astype(np.int64),
        "own_ns": np.concatenate([[0], own]).astype(np.int64),
        "threads": np.ones(count + 1, dtype=np.int32),
        "process_id": np.full(count + 1, _PROCESS_ID, dtype=np.int64),
    }
    return {"tree": columns, "names": ["program", *(str(each["function"]) for each in functions)]}


def _call_columns(functions: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [
        (each["function"], callee["function"], callee["calls"], _ns(callee["total_s"]), _ns(callee["own_s"]))
        for each in functions
        for callee in each["callees"]
    ]
    texts = {
        name: np.array([row[at] for row in rows], dtype=object)
        for at, name in enumerate(("caller", "function"))
    }
    numbers = {
        name: np.array([row[at] for row in rows], dtype=np.int64)
        for at, name in enumerate(("calls", "total_ns", "own_ns"), start=2)
    }
    return {**texts, **numbers, "number": np.arange(len(rows), dtype=np.int64)}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
