# SPDX-License-Identifier: Apache-2.0
"""What was measured of one system: its batch sizes, the start-up of each process run, and what ended it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.failures import Failure, failure_of
from gpuprof.bench.measure.scaling import LargestBatch, saturation_point
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import GpuprofError


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds from the start of a process to its first inference; the parts add up to `total_s`.

    `interpreter_s` until Python runs our code, `import_s` the framework, `load_s` the model onto the device,
    `compile_s` making the inputs and compiling for them, `first_run_s` the first call.
    """

    interpreter_s: float
    import_s: float
    load_s: float
    compile_s: float
    first_run_s: float

    @property
    def total_s(self) -> float:
        """From the start to the first inference."""
        return float(sum(asdict(self).values()))

    def to_dict(self) -> dict[str, float]:
        """Return the parts and the total."""
        return {**asdict(self), "total_s": self.total_s}


@dataclass(slots=True)
class SessionResult:
    """The batch sizes that were measured, the start-up of each process run, and what ended the session.

    `failed_runs` counts the process runs that failed; `failure` is that of the first one.
    """

    spec: SystemSpec
    settings: JobSettings
    batches: list[BatchResult] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    failure: GpuprofError | None = None
    failed_runs: int = 0
    profile: str | None = None

    def batch(self, batch_size: int) -> BatchResult | None:
        """Return what was measured of a batch size."""
        return next((each for each in self.batches if each.batch_size == batch_size), None)

    @property
    def throughputs(self) -> dict[int, float]:
        """Samples per second by batch size."""
        rates = {batch.batch_size: batch.items_per_s for batch in self.batches}
        return {size: rate for size, rate in rates.items() if rate is not None}


@dataclass(slots=True)
class BenchFinding:
    """What a benchmark found besides the figures of each batch size; `interrupted` before its end."""

    session: SessionResult
    verdicts: dict[int, TargetVerdict] = field(default_factory=dict)
    largest: LargestBatch | None = None
    startup: dict[str, Startup | None] = field(default_factory=dict)
    memory_ended: Failure | None = None
    interrupted: bool = False

    def more(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        session = self.session
        return {
            "asked": {"spec": to_plain(session.spec), "settings": to_plain(session.settings)},
            "error": None if session.failure is None else to_plain(failure_of(session.failure)),
            "startups": [each.to_dict() for each in session.startups],
            "startup": {
                name: None if each is None else each.to_dict() for name, each in self.startup.items()
            },
            "scaling": {
                "knee": saturation_point(session.throughputs),
                "memory_ended": to_plain(self.memory_ended),
            },
            "verdicts": self.verdicts,
            "largest_batch": to_plain(self.largest),
            "profile": session.profile,
            "interrupted": self.interrupted,
        }
