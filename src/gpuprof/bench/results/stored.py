# SPDX-License-Identifier: Apache-2.0
"""Result files read back: one file with its machine, and the history of many files in the order of time."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.failures import reason_of
from gpuprof.bench.results.files import FORMAT_VERSION
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.run_figures import RunFigures, RunMetric, run_figures
from gpuprof.errors import BenchmarkError

MACHINE = ("processor", "architecture", "cores", "usable_cores")


class Configuration(NamedTuple):
    """What makes two results comparable; None where a system does not report it."""

    framework: str | None
    model: str | None
    device_type: str | None
    dtype: str | None
    input_shape: str | None
    batch_size: int | None

    def __str__(self) -> str:
        words = (self.model, self.framework, self.device_type, self.dtype, self.input_shape)
        size = "" if self.batch_size is None else f", batch {self.batch_size}"
        return " ".join(word for word in words if word) + size


_NAMED = 3  # files in one line, before "and N more"


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One result file: the medians of its completed process runs, by configuration, and how it was measured.

    `aborted` counts the process runs that are left out, of how many; `ways` are mode and caches; `more` are
    the other figures of each process run.
    """

    path: Path
    timestamp: str
    revision: str | None
    machine: dict[str, Any]
    data: str | None
    versions: dict[str, str]
    profile: Path | None
    medians_s: dict[Configuration, tuple[float, ...]]
    ways: Mapping[Configuration, tuple[str, str]]
    aborted: Mapping[Configuration, tuple[int, int]] = field(default_factory=dict)
    more: Mapping[Configuration, RunFigures] = field(default_factory=dict)

    def figures(self, configuration: Configuration, metric: RunMetric) -> tuple[float, ...]:
        """Return one figure of each completed process run; empty where there are none."""
        if metric is RunMetric.P50:
            return self.medians_s.get(configuration, ())
        return self.of(configuration).values.get(metric, ())

    def of(self, configuration: Configuration) -> RunFigures:
        """Return the figures besides the median."""
        return self.more.get(configuration, RunFigures())

    @property
    def at(self) -> datetime:
        """The time of measuring. Raises BenchmarkError."""
        text = self.timestamp
        try:
            at = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
        except ValueError:
            raise BenchmarkError(
                "damaged", f"{self.path}: {text!r} is not a time stamp: measure it again"
            ) from None
        return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)

    def __str__(self) -> str:
        return f"{self.timestamp} ({self.revision[:10]})" if self.revision else self.timestamp

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: which file this is."""
        return {"path": str(self.path), "timestamp": self.timestamp, "revision": self.revision}


def read_result_file(path: Path) -> ResultFile:
    """Read the JSON of a benchmark. Raises BenchmarkError for any other file."""
    document = _document(path)
    try:
        results = _results(document)
        medians_s = {each: completed_medians_s(result) for each, result in results.items()}
        first: Mapping[str, Any] = document["results"][0] if results else {"environment": {}}
        environment, described = first["environment"], first.get("description") or {}
        machine = {name: environment.get(name) for name in MACHINE} | {
            "device": described.get("device"),
            "threads": (described.get("details") or {}).get("threads"),
        }
        revision = document.get("git_commit")
        found = ResultFile(
            path=path,
            timestamp=str(document["timestamp"]),
            revision=None if revision is None else str(revision),
            machine=machine,
            data=((document.get("asked") or {}).get("spec") or {}).get("data"),
            versions={str(key): str(value) for key, value in (environment.get("versions") or {}).items()},
            profile=_profile(path, document),
            medians_s=medians_s,
            ways={each: (result.settings.mode, result.settings.caches) for each, result in results.items()},
            aborted={
                each: (len(result.launches) - len(medians_s[each]), len(result.launches))
                for each, result in results.items()
            },
            more={each: run_figures(result) for each, result in results.items()},
        )
    except (BenchmarkError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(
            "damaged", f"{path}: its results cannot be read ({reason_of(error)}): measure again"
        ) from error
    if not results:
        raise BenchmarkError("no_results", f"{path} holds no results: measure again")
    return found


def read_configurations(path: Path) -> dict[Configuration, Result]:
    """Read the results of a file with all samples. Raises BenchmarkError for any other file."""
    document = _document(path)
    try:
        return _results(document)
    except (BenchmarkError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(
            "damaged", f"{path}: its results cannot be read ({reason_of(error)}): measure again"
        ) from error


def _results(document: Mapping[str, Any]) -> dict[Configuration, Result]:
    return {
        Configuration(*(each["row"][name] for name in Configuration._fields)): Result.from_dict(each)
        for each in document["results"]
    }


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(
            "cannot_read", f"{path} cannot be read ({error.strerror}); hint: specify a result file"
        ) from error
    except ValueError as error:
        raise BenchmarkError(
            "not_a_result",
            f"{path} is not a result file: invalid JSON; hint: specify the .json of gpuprof bench",
        ) from error
    except RecursionError as error:
        raise BenchmarkError("not_a_result", f"{path} is not a result file: it is nested too deep") from error
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise BenchmarkError(
            "not_a_result", f"{path} is not a result file; hint: specify the .json of gpuprof bench"
        )
    if document.get("format") != FORMAT_VERSION:
        raise BenchmarkError(
            "unknown_format",
            f"{path} has format {document.get('format')!r}, and this version reads {FORMAT_VERSION}: "
            "measure again, or upgrade gpuprof",
        )
    return document


def _profile(path: Path, document: Mapping[str, Any]) -> Path | None:
    """Return the run next to the results, where it still is or has moved with them."""
    told = document.get("profile")
    if not isinstance(told, str):
        return None
    found = (place for place in (Path(told), path.with_name(Path(told).name)) if place.is_dir())
    return next(found, None)


def completed_medians_s(result: Result) -> tuple[float, ...]:
    """Return the median seconds of a call for each process run that completed."""
    return tuple(each.median_s for each in result.measurements if each.is_complete)


@dataclass(frozen=True, slots=True)
class History:
    """Files in the order of time, the candidates that are compared with them, and notes on the choice."""

    files: tuple[ResultFile, ...]
    candidates: tuple[ResultFile, ...]
    notes: tuple[Diagnostic, ...]


def read_history(places: Sequence[str], candidates: Sequence[Path], *, any_machine: bool = False) -> History:
    """Read the files of folders, patterns and names, and the candidates.

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
            f"--history {' '.join(places)} holds no results from before {new[0].path} ({new[0].timestamp}): "
            "name the folder of older results",
        )
    notes += more + _machines([*kept, *new[:-1]], new[-1], any_machine)
    _check_ways([*kept, *new[:-1]], new[-1])
    return History(tuple(kept), tuple(new), tuple(notes))


def _paths(places: Sequence[str]) -> list[Path]:
    """Return the files of places, each once. Raises BenchmarkError for a place without any."""
    found: dict[Path, Path] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(path.glob("*.json"))
        elif path.exists():
            files = [path]
        else:
            files = [Path(each) for each in sorted(glob.glob(place, recursive=True))]  # noqa: PTH207 - absolute ones too
        if not files:
            raise BenchmarkError(
                "no_results",
                f"--history {place}: no result file there; hint: specify a folder or 'FOLDER/*.json'",
            )
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def _read_all(paths: Iterable[Path], option: str) -> list[ResultFile]:
    """Read files; all that cannot be read are named in one line."""
    found, failures = [], []
    for path in paths:
        try:
            found.append(_checked(read_result_file(path)))
        except BenchmarkError as error:
            failures.append(str(error))
    if failures:
        raise BenchmarkError(
            "unusable_history",
            f"{option}: {_some(failures)}; hint: repair these files, or move them to another folder",
        )
    return found


def _checked(file: ResultFile) -> ResultFile:
    """Return a file of a history, all of whose configurations have figures. Raises BenchmarkError."""
    empty = next((each for each, figures in file.medians_s.items() if not figures), None)
    if empty is not None:
        raise BenchmarkError(
            "no_process_run", f"{file.path}: no process run of {empty} completed: measure it again"
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
        f"{what} or with other threads than {new.path} ({told}); hint: remove these from --history, or add "
        "--any-machine",
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
                f"{_measured(others)} with {what} than {new.path}; hint: omit these, or measure in the "
                "same way",
            )


def _differs(one: ResultFile, other: ResultFile) -> bool:
    return any(one.ways[each] != other.ways[each] for each in one.ways.keys() & other.ways.keys())


def _measured(files: Sequence[ResultFile]) -> str:
    return f"{_some([str(each.path) for each in files])} {'was' if len(files) == 1 else 'were'} measured"


def _some(texts: Sequence[str]) -> str:
    """Return the first few in one line, and how many more there are."""
    more = len(texts) - _NAMED
    return "; ".join(texts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
