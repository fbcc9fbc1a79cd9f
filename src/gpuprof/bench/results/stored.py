# SPDX-License-Identifier: Apache-2.0
"""Result files read back: one file with its figures, and the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from gpuprof.bench.failures import reason_of
from gpuprof.bench.results.files import FORMAT_VERSION
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.run_figures import RunFigures, RunMetric, run_figures
from gpuprof.errors import BenchmarkError

MACHINE = ("processor", "architecture", "cores", "usable_cores")


class Configuration(NamedTuple):
    """What makes two results comparable; None where a system does not report it.

    `load` is how requests arrive, None for calls one after the other.
    """

    framework: str | None
    model: str | None
    device_type: str | None
    dtype: str | None
    input_shape: str | None
    batch_size: int | None
    load: str | None = None

    def __str__(self) -> str:
        words = (self.model, self.framework, self.device_type, self.dtype, self.input_shape, self.load)
        size = "" if self.batch_size is None else f", batch {self.batch_size}"
        return " ".join(word for word in words if word) + size


_ROW = Configuration._fields[:-1]  # a result of calls has no load


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
                "damaged", f"{self.path}: {text!r} is not a time stamp", hint="measure it again"
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
            "damaged", f"{path}: its results cannot be read ({reason_of(error)})", hint="measure again"
        ) from error
    if not results:
        raise BenchmarkError("no_results", f"{path} holds no results", hint="measure again")
    return found


def read_configurations(path: Path) -> dict[Configuration, Result]:
    """Read the results of a file with all samples. Raises BenchmarkError for any other file."""
    document = _document(path)
    try:
        return _results(document)
    except (BenchmarkError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(
            "damaged", f"{path}: its results cannot be read ({reason_of(error)})", hint="measure again"
        ) from error


def _results(document: Mapping[str, Any]) -> dict[Configuration, Result]:
    return {
        Configuration(*(each["row"][name] for name in _ROW)): Result.from_dict(each)
        for each in document["results"]
    }


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(
            "cannot_read", f"{path} cannot be read ({error.strerror})", hint="specify a result file"
        ) from error
    except ValueError as error:
        raise BenchmarkError(
            "not_a_result",
            f"{path} is not a result file: invalid JSON",
            hint="specify the .json of gpuprof bench",
        ) from error
    except RecursionError as error:
        raise BenchmarkError(
            "not_a_result",
            f"{path} is not a result file: it is nested too deep",
            hint="specify the .json of gpuprof bench",
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise BenchmarkError(
            "not_a_result", f"{path} is not a result file", hint="specify the .json of gpuprof bench"
        )
    if document.get("format") != FORMAT_VERSION:
        raise BenchmarkError(
            "unknown_format",
            f"{path} has {format_name(document)}, and this version reads {FORMAT_VERSION}",
            hint="measure again, or upgrade gpuprof (pip install --upgrade gpuprof-native)",
        )
    return document


def format_name(document: Mapping[str, Any]) -> str:
    """Return the version of the format of a document as text, such as `format 1`."""
    return "no format" if document.get("format") is None else f"format {document['format']!r}"


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
