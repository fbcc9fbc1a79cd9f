# SPDX-License-Identifier: Apache-2.0
"""What one process does: jobs as plain data, which name the function that does them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.serialization import decode, encode, from_plain, to_plain
from gpuprof.errors import BenchmarkError

CALL = "call"  # the span around each call of a recorded run


class Job(Protocol):
    """A dataclass that goes to a worker process.

    `entry` is the `module:function` that does it, called with the job and with where its events go. Only the
    worker imports it. Where `keeps_collector`, what `import gpuprof` offers to frameworks is not taken back.
    """

    entry: ClassVar[str]

    @property
    def keeps_collector(self) -> bool:
        """Whether the process records a run."""
        ...


@dataclass(frozen=True, slots=True)
class FactorySpec:
    """A system that a function makes in the worker process, as `gpuprof.bench.frameworks.protocol.System`.

    `factory` names it, as `package.module:function` or `path/to/file.py:function`; `arguments` are plain
    data, `path` the module search path to find it by.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Measure a model; where there is a `factory`, the system that it makes, and `spec` only names it."""

    entry: ClassVar[str] = "gpuprof.bench.workers.measuring:run_measure_job"

    spec: SystemSpec
    settings: JobSettings
    factory: FactorySpec | None = None

    @property
    def keeps_collector(self) -> bool:
        """Whether the process records a run."""
        return self.settings.profile is not None


@dataclass(frozen=True, slots=True)
class _Envelope:
    """A job on its way: the class of the job, as `module:class`, and its fields."""

    kind: str
    values: dict[str, Any]


def encode_job(job: Job) -> bytes:
    """Return a job as one line. Raises BenchmarkError for values that are no plain data."""
    kind = type(job)
    try:
        return encode(_Envelope(f"{kind.__module__}:{kind.__qualname__}", to_plain(job))) + b"\n"
    except TypeError as error:
        raise BenchmarkError(
            "cannot_send", f"a job cannot be sent to a worker process ({error})", hint="use plain data"
        ) from error


def decode_job(line: bytes) -> Job:
    """Return the job of a line."""
    envelope = decode(line, _Envelope)
    job: Job = from_plain(envelope.values, load_entry(envelope.kind))
    return job


def load_entry(entry: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)
