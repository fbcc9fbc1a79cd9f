# SPDX-License-Identifier: Apache-2.0
"""Reads a file or folder as a side of a gate, by its kind.

A benchmark is read here. Other rooms write results too, which this one does not import: the readers of theirs
are found by the kind that their JSON names, at their first use.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprof.bench.results.stored import ResultFile, read_result_file
from gpuprof.errors import BenchmarkError

RESULT_NAME = "result.json"
# Modules with `read_side(folders) -> ResultFile`, by the kind of a folder's result.json.
_READERS = {"load": "gpuprof.load.gate_side"}
SideReader = Callable[[Sequence[Path]], ResultFile]


def result_kind(path: Path) -> str | None:
    """Return the kind that a JSON names, or that of a folder; None for a benchmark."""
    try:
        plain = json.loads(_json_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # which the reader of results reports
    kind = plain.get("kind") if isinstance(plain, dict) else None
    return kind if isinstance(kind, str) else None


def _json_of(path: Path) -> Path:
    return path / RESULT_NAME if path.is_dir() else path


def has_folder_reader(path: Path) -> bool:
    """Whether a path is a folder with a result of its own, or the JSON of one."""
    return result_kind(path) in _READERS


def read_side_of(
    paths: Sequence[Path], read_file: Callable[[Path], ResultFile] = read_result_file
) -> ResultFile:
    """Read one side of a gate: a file, or folders of which each is an independent run.

    `read_file` reads files of no other room. Raises GpuprofError for what cannot be read, and for several
    paths that cannot be one side.
    """
    kinds = {result_kind(path) for path in paths}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _READERS:
        reader: SideReader = importlib.import_module(_READERS[kind]).read_side
        return reader([path.parent if path.is_file() else path for path in paths])
    if len(paths) > 1:
        raise BenchmarkError(
            "several_files",
            f"{paths[0]} and {paths[1]} cannot be one side",
            hint="name one file, or folders of gpuprof load",
        )
    if paths[0].is_dir():
        raise BenchmarkError(
            "not_a_result",
            f"{paths[0]} is a folder without a result",
            hint="name a folder of gpuprof load, or a .json of gpuprof bench",
        )
    return read_file(paths[0])
