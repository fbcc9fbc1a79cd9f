# SPDX-License-Identifier: Apache-2.0
"""Result files read back: what a benchmark of some other time measured, and on what machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuprof.bench.measurement import ENDED_EARLY
from gpuprof.bench.result import Result
from gpuprof.bench.results import FORMAT_VERSION
from gpuprof.errors import BenchmarkError

_MACHINE = ("processor", "architecture", "cores", "usable_cores")


class Configuration(NamedTuple):
    """What makes two results comparable; None where a system does not tell it."""

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


@dataclass(frozen=True, slots=True)
class StoredResults:
    """The results of one file, by configuration, and the run beside them, where there is one."""

    path: Path
    results: dict[Configuration, Result]
    timestamp: str
    machine: dict[str, Any]
    data: str | None
    versions: dict[str, str]
    profile: Path | None
    revision: str | None = None


def read_stored(path: Path) -> StoredResults:
    """Read the JSON of a benchmark. Raises BenchmarkError for any other file."""
    document = _document(path)
    try:
        results = {_configuration(each["row"]): Result.from_dict(each) for each in document["results"]}
        environment: Mapping[str, Any] = document["results"][0]["environment"] if results else {}
        first: Mapping[str, Any] = document["results"][0] if results else {}
        described = first.get("description") or {}
        machine = {name: environment.get(name) for name in _MACHINE}
        machine |= {
            "device": described.get("device"),
            "threads": (described.get("details") or {}).get("threads"),
        }
        data = ((document.get("asked") or {}).get("spec") or {}).get("data")
        versions = {str(key): str(value) for key, value in (environment.get("versions") or {}).items()}
        timestamp = str(document["timestamp"])
    except BenchmarkError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(f"{path}: its results cannot be read ({error!r}): measure again") from error
    if not results:
        raise BenchmarkError(f"{path} holds no results: measure again")
    profile, revision = _profile(path, document), document.get("git_commit")
    return StoredResults(
        path, results, timestamp, machine, data, versions, profile, revision and str(revision)
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read ({error.strerror}): name a result file") from error
    except ValueError as error:
        raise BenchmarkError(
            f"{path} is no result file: it holds no JSON; name the .json of gpuprof bench"
        ) from error
    except RecursionError as error:
        raise BenchmarkError(f"{path} is no result file: it is nested too deep") from error
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise BenchmarkError(f"{path} is no result file: name the .json of gpuprof bench")
    if document.get("format") != FORMAT_VERSION:
        raise BenchmarkError(
            f"{path} has format {document.get('format')!r}, and this version reads {FORMAT_VERSION}: "
            "measure again, or upgrade gpuprof"
        )
    return document


def _configuration(row: Mapping[str, Any]) -> Configuration:
    return Configuration(*(row[name] for name in Configuration._fields))


def _profile(path: Path, document: Mapping[str, Any]) -> Path | None:
    """Return the run beside the results, where it still is or has moved with them."""
    told = document.get("profile")
    if not isinstance(told, str):
        return None
    found = (place for place in (Path(told), path.with_name(Path(told).name)) if place.is_dir())
    return next(found, None)


def launch_medians_s(result: Result) -> list[float]:
    """Return the median seconds of a call for each launch that came to its end."""
    return [
        float(np.median(each.samples))
        for each in result.measurements
        if len(each.wall_ns) and each.stopped_by not in ENDED_EARLY
    ]


def ended_early(result: Result) -> int:
    """Return how many launches did not come to their end: they count in no comparison."""
    return len(result.launches) - len(launch_medians_s(result))
