# SPDX-License-Identifier: Apache-2.0
"""A run of what torch.profiler, cProfile or line_profiler measured of a whole program."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.errors import GpuprofError, RecordingError, RunError
from gpuprof.record import line_program
from gpuprof.record.environment import environment_for
from gpuprof.record.facts import Method, NoteCode, SourceStatus, note
from gpuprof.record.other_profilers import CPROFILE_RESULT, NOTES_RESULT, TORCH_RESULT
from gpuprof.record.recording_folder import SEGMENTS, create_folder
from gpuprof.record.supervise import (
    ProgramResult,
    program_command,
    remove_unused,
    run_command,
    target_path,
)
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of
from gpuprof.run.format import KINDS, META_FILE, read_json
from gpuprof.run.imports.import_facts import ImportFacts, imported_meta
from gpuprof.run.imports.trace_file import import_trace
from gpuprof.run.machine import describe_machine
from gpuprof.run.parts import write_meta
from gpuprof.run.table_writer import TableWriter
from gpuprof.run.temporary import PlainPath

_PROCESS_ID = 0  # these profilers do not record it
_RESULTS = {"torch": TORCH_RESULT, "cprofile": CPROFILE_RESULT, "line": line_program.LINES_RESULT}


def run_profiled(
    target: str, arguments: Sequence[str], *, is_module: bool, out: Path | None, profiler: str
) -> tuple[ProgramResult, RunError | None]:
    """Run a program under `profiler`, `torch`, `cprofile` or `line`, and write its result as a run.

    Returns how the program ended, and why there is no run of it if there is none. Raises RecordingError when
    the target or the folder is unusable; then nothing was run.
    """
    path = target_path(target, is_module=is_module, out=out)
    create_folder(path)  # it is ours from now on: the name shall not be given away while the program runs
    try:
        results = Path(tempfile.mkdtemp(prefix=".gpuprof-profiler-", dir=path.resolve().parent))
    except OSError as error:
        remove_unused(path)
        raise RecordingError(
            "cannot_write",
            f"cannot write next to {path}: {error.strerror}",
            hint="specify another folder",
        ) from None
    result = results / _RESULTS[profiler]
    try:
        if profiler == "line":
            kind = "module" if is_module else "script"
            words = [str(result), kind, target, *arguments]
            command = program_command(line_program.__file__, words, is_module=False)
            code = run_command(command, dict(os.environ))
        else:
            options = {"profiler": profiler, "results": str(results)}
            command = program_command(target, arguments, is_module=is_module)
            code = run_command(command, environment_for(options))
        ended = ProgramResult(code, path)
        failure = _failure(profiler, result, path, [sys.executable, target, *arguments])
        if failure is None:
            shutil.rmtree(results, ignore_errors=True)
        return ended, failure
    finally:
        remove_unused(path)
        if not result.exists():
            shutil.rmtree(results, ignore_errors=True)


def _failure(profiler: str, result: Path, path: Path, command: list[str]) -> RunError | None:
    """Write the run; returns why there is none. The profiler's own result stays where it is then."""
    if not result.exists():
        return RunError(
            "ended_too_early",
            "the program never imported torch, or ended at once (os._exit, a signal)"
            if profiler == "torch"
            else f"the program ended at once (os._exit, a signal), before {profiler} could write what it had",
            hint="import torch in the program, and let it end normally"
            if profiler == "torch"
            else "let the program end normally",
        )
    draft = result.with_name("run")
    try:
        _write_run(profiler, result, draft, command)
        with contextlib.suppress(FileNotFoundError):
            (path / SEGMENTS).rmdir()
        draft.rename(path)  # in place of an empty folder: no other run is replaced
    except Exception as error:
        shutil.rmtree(draft, ignore_errors=True)
        line = error.message if isinstance(error, GpuprofError) else str(error) or type(error).__name__
        reason = f"cannot write {path}: {error.strerror}" if isinstance(error, OSError) else line
        return RunError(
            "profile_unreadable",
            f"{reason}; the result of {profiler} is kept in {result}",
            hint=f"gpuprof import {shlex.quote(str(result))} -o NAME"
            if profiler == "torch"
            else "run the program again with another --out",
        )
    return None


def _write_run(profiler: str, result: Path, draft: Path, command: list[str]) -> None:
    if profiler == "torch":
        import_trace(result, draft)
    elif profiler == "line":
        _write_lines(json.loads(result.read_text(encoding="utf-8")), draft)
    else:
        _write_functions(json.loads(result.read_text(encoding="utf-8")), draft)
    meta = read_json(draft / META_FILE)
    told = {
        "command": command,
        "machine": describe_machine(),
        "sources": {profiler: SourceStatus.on(Method.OTHER_PROFILER).to_plain()},
    }
    notes = result.with_name(NOTES_RESULT)
    if notes.exists():
        told["notes"] = [*meta["notes"], *json.loads(notes.read_text(encoding="utf-8"))]
    write_meta(draft, {**meta, **told})


def _write_lines(lines: list[dict[str, Any]], path: Path) -> None:
    """Write a run of lines: line_profiler knows neither instants nor who calls whom."""
    texts = {name: _texts(each[name] for each in lines) for name in ("file", "function", "source")}
    numbers = {
        name: np.array([each[name] for each in lines], dtype=np.int64)
        for name in ("line", "hits", "total_ns")
    }
    columns = {**texts, **numbers, "number": np.arange(len(lines), dtype=np.int64)}
    end_ns = sum(each["total_ns"] for each in lines)
    _write_counts(
        path,
        "line_profiler",
        [],
        end_ns,
        NoteCode.LINES_HAVE_NO_SPANS,
        lambda writer: writer.write_lines(columns),
    )


def _texts(values: Iterable[str]) -> np.ndarray[Any, np.dtype[np.object_]]:
    return np.array(list(values), dtype=object)


def _write_functions(functions: list[dict[str, Any]], path: Path) -> None:
    """Write a run of functions: cProfile knows no instants, so it has no spans.

    The tree has one level: a node a function, with the calls and times that cProfile counted. Who called whom
    is in the table `function_calls`; a deeper tree could only be estimated from it.
    """
    calls = _call_columns(functions)
    end_ns = sum(_ns(each["own_s"]) for each in functions)
    _write_counts(
        path,
        "cProfile",
        functions,
        end_ns,
        NoteCode.CPROFILE_HAS_NO_SPANS,
        lambda writer: writer.write_function_calls(calls),
    )


def _write_counts(
    path: Path,
    source: str,
    functions: list[dict[str, Any]],
    end_ns: int,
    reason: NoteCode,
    write: Callable[[TableWriter], None],
) -> None:
    """Write a run without spans: a flat tree of functions, and the table that `write` fills."""
    import duckdb

    create_folder(path)
    connection = connect_database()
    try:
        writer = TableWriter(connection, PlainPath(path).path)
        writer.write_tree(_flat_tree(functions))
        write(writer)
        writer.ensure_tables()
    except duckdb.Error as error:
        raise RunError(
            "cannot_write",
            f"cannot write {path}: {reason_of(error)}",
            hint="free disk space, or specify another folder",
        ) from None
    finally:
        connection.close()
    shutil.rmtree(path / SEGMENTS, ignore_errors=True)
    process = {"process_id": _PROCESS_ID, "closed": True, "start_ns": 0, "end_ns": end_ns}
    meta = imported_meta(ImportFacts(source=source, totals={"spans": 0}), [process], origin_ns=0, gpu=None)
    write_meta(path, {**meta, "notes": [note(reason).to_plain()]})


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
