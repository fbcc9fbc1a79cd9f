# SPDX-License-Identifier: Apache-2.0
"""The history of many result files, in the order of time, and the candidates that are compared with it."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.results.readers import has_folder_reader, read_side_of
from gpuprof.bench.results.stored import ResultFile
from gpuprof.errors import BenchmarkError, GpuprofError

_NAMED = 3  # files in one line, before "and N more"


@dataclass(frozen=True, slots=True)
class History:
    """Files in the order of time, the candidates that are compared with them, and notes on the choice."""

    files: tuple[ResultFile, ...]
    candidates: tuple[ResultFile, ...]
    notes: tuple[Diagnostic, ...]


def read_history(places: Sequence[str], candidates: Sequence[Path], *, any_machine: bool = False) -> History:
    """Read the files of folders, patterns and names, and the candidates; a folder of a load is one file.

    Candidates among them, copies of files and what is newer than the first candidate are left out. Raises
    BenchmarkError for files that cannot be read, and for such of other machines (unless `any_machine`) or
    that were measured in another way.
    """
    new = sorted(_read_all(candidates, "--candidate"), key=lambda each: each.at)
    found = _paths(places)
    paths = [path for path in found if not (path.is_file() and path.stat().st_size == 0)]
    notes = [note("empty_files", files=len(found) - len(paths))] if len(paths) < len(found) else []
    of_candidates = {each.path.resolve() for each in new}
    read = _read_all([path for path in paths if path.resolve() not in of_candidates], "--history")
    kept, more = _earlier(sorted(read, key=lambda each: (each.at, str(each.path))), new)
    if not kept:
        raise BenchmarkError(
            "no_older_results",
            f"--history {' '.join(places)} holds no results from before {new[0].path} ({new[0].timestamp})",
            hint="name the folder of older results",
        )
    notes += more + _machines([*kept, *new[:-1]], new[-1], any_machine)
    _check_ways([*kept, *new[:-1]], new[-1])
    return History(tuple(kept), tuple(new), tuple(notes))


def _paths(places: Sequence[str]) -> list[Path]:
    """Return the files of places, each once. Raises BenchmarkError for a place without any."""
    found: dict[Path, Path] = {}
    for place in places:
        path = Path(place)
        if has_folder_reader(path):
            files = [path]
        elif path.is_dir():
            files = [
                each for each in sorted(path.iterdir()) if each.suffix == ".json" or has_folder_reader(each)
            ]
        elif path.exists():
            files = [path]
        else:
            files = [Path(each) for each in sorted(glob.glob(place, recursive=True))]  # noqa: PTH207 - absolute ones too
        if not files:
            raise BenchmarkError(
                "no_results",
                f"--history {place}: no result file there",
                hint="specify a folder or 'FOLDER/*.json'",
            )
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def _read_all(paths: Iterable[Path], option: str) -> list[ResultFile]:
    """Read files; all that cannot be read are named in one line."""
    found, failures = [], []
    for path in paths:
        try:
            found.append(_checked(read_side_of([path])))
        except GpuprofError as error:
            failures.append(error.message)
    if failures:
        raise BenchmarkError(
            "unusable_history",
            f"{option}: {_some(failures)}",
            hint="repair these files, or move them to another folder",
        )
    return found


def _checked(file: ResultFile) -> ResultFile:
    """Return a file of a history, all of whose configurations have figures. Raises BenchmarkError."""
    empty = next(
        (each for each, figures in file.medians_s.items() if not figures and each.load is None), None
    )
    if empty is not None:
        raise BenchmarkError(
            "no_process_run",
            f"{file.path}: no process run of {empty} completed",
            hint="measure it again, or remove the file",
        )
    file.at  # noqa: B018 - raises for what is not a time
    return file


def _earlier(
    ordered: Sequence[ResultFile], new: Sequence[ResultFile]
) -> tuple[list[ResultFile], list[Diagnostic]]:
    """Leave out copies, and what is newer than the first candidate."""
    copies = {(each.at, tuple(each.medians_s.items())) for each in new}
    kept, copied, newer = [], 0, 0
    for each in ordered:
        content = (each.at, tuple(each.medians_s.items()))
        if content in copies:
            copied += 1
        elif each.at > new[0].at:
            newer += 1
        else:
            copies.add(content)
            kept.append(each)
    notes = [note("copied_files", files=copied)] if copied else []
    return kept, notes + ([note("newer_files", files=newer)] if newer else [])


def _machines(files: Sequence[ResultFile], new: ResultFile, any_machine: bool) -> list[Diagnostic]:
    others = [each for each in files if each.machine != new.machine]
    if not others:
        return []
    first = others[0]
    told = "; ".join(
        f"{name} {first.machine[name]} and {new.machine[name]}"
        for name in new.machine
        if first.machine[name] != new.machine[name]
    )
    what = f"{_measured(others)} on another machine"
    if any_machine:
        return [warning("other_machine_files", files=what, different=told)]
    raise BenchmarkError(
        "other_machine",
        f"{what} or with other threads than {new.path} ({told})",
        hint="remove these from --history, or add --any-machine",
    )


def _check_ways(files: Sequence[ResultFile], new: ResultFile) -> None:
    """Raise BenchmarkError where files were measured with other data, or in another mode."""
    ways: tuple[tuple[str, Callable[[ResultFile], bool]], ...] = (
        ("other data", lambda each: each.data != new.data),
        ("another mode or other caches", lambda each: _differs(each, new)),
    )
    for what, is_other in ways:
        others = [each for each in files if is_other(each)]
        if others:
            raise BenchmarkError(
                "measured_differently",
                f"{_measured(others)} with {what} than {new.path}",
                hint="omit these, or measure in the same way",
            )


def _differs(one: ResultFile, other: ResultFile) -> bool:
    return any(one.ways[each] != other.ways[each] for each in one.ways.keys() & other.ways.keys())


def _measured(files: Sequence[ResultFile]) -> str:
    return f"{_some([str(each.path) for each in files])} {'was' if len(files) == 1 else 'were'} measured"


def _some(texts: Sequence[str]) -> str:
    """Return the first few in one line, and how many more there are."""
    more = len(texts) - _NAMED
    return "; ".join(texts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
