# SPDX-License-Identifier: Apache-2.0
"""A benchmark from its settings to its files: what the command and `run_benchmark_suite` share."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.bench.failures import DoesNotFitError
from gpuprof.bench.job import JobSettings
from gpuprof.bench.report import throughputs, to_markdown
from gpuprof.bench.results import ResultFiles, Stamp, document_of, row_of, to_csv, to_json
from gpuprof.bench.scaling import LargestBatch, Outcome, knee, largest_batch
from gpuprof.bench.session import Session, SessionResult, Watcher
from gpuprof.bench.settings import Settings
from gpuprof.bench.spec import SystemSpec
from gpuprof.bench.startup import Startup, measure_startup
from gpuprof.bench.target import Target, Verdict
from gpuprof.errors import GpuprofError

Probed = Callable[[int, Outcome], None]
PROBE = Settings(duration_s=2.0, warmup_limit_s=2.0)


@dataclass(frozen=True, slots=True)
class Request:
    """What `gpuprof bench` was asked for."""

    spec: SystemSpec
    job: JobSettings
    launches: int = 1
    time_limit_s: float = 600.0
    target: Target | None = None
    find_largest: bool = False
    until_memory_ends: bool = False
    cold_start: bool = False


@dataclass(slots=True)
class Finding:
    """What a benchmark found beside the figures of each batch size."""

    session: SessionResult
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    largest: LargestBatch | None = None
    startup: dict[str, Startup | None] = field(default_factory=dict)
    memory_ended: str | None = None

    def more(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        session, largest = self.session, self.largest
        return {
            "asked": {"spec": session.spec.to_dict(), "settings": session.settings.to_dict()},
            "error": None if session.failure is None else str(session.failure),
            "startups": [each.to_dict() for each in session.startups],
            "startup": {
                name: None if each is None else each.to_dict() for name, each in self.startup.items()
            },
            "scaling": {"knee": knee(throughputs(session.batches)), "memory_ended": self.memory_ended},
            "verdicts": self.verdicts,
            "largest_batch": None if largest is None else dataclasses.asdict(largest),
            "profile": session.profile,
        }


class Benchmark:
    """Carries out a request; `finding` holds what was found, at each moment."""

    def __init__(self, request: Request, watch: Watcher | None = None, probed: Probed | None = None) -> None:
        self.request = request
        self._watch = watch
        self._probed = probed
        self.finding = Finding(self._session(request.job).result)

    def _session(self, job: JobSettings) -> Session:
        spec = self.request.spec
        return Session(spec, job, self._watch) if self._watch else Session(spec, job)

    def run(self) -> Finding:
        """Do all of it. Failures are in the finding; an interrupt goes through."""
        request, job = self.request, self.request.job
        try:
            if request.find_largest:
                self.finding.largest = largest_batch(self._probe)
                size = self.finding.largest.batch_size
                sizes = sorted({*job.batch_sizes, *([size] if size is not None else [])})
                job = dataclasses.replace(job, batch_sizes=tuple(sizes))
            if request.cold_start:
                self.finding.startup = measure_startup(
                    request.spec, batch_size=job.batch_sizes[0], time_limit_s=request.time_limit_s
                )
        except GpuprofError as error:
            self.finding.session.failure = error
            return self.finding
        session = self._session(job)
        self.finding.session = session.result
        session.run(launches=request.launches, time_limit_s=request.time_limit_s)
        self._judge()
        return self.finding

    def _judge(self) -> None:
        session = self.finding.session
        if (
            self.request.until_memory_ends
            and isinstance(session.failure, DoesNotFitError)
            and session.batches
        ):
            self.finding.memory_ended, session.failure = str(session.failure), None
        if self.request.target is not None:
            target = self.request.target
            self.finding.verdicts = {each.batch_size: target.verdict(each.result) for each in session.batches}

    def _probe(self, batch_size: int) -> Outcome:
        """Measure one batch size shortly, in a process of its own: it may end with the memory."""
        measuring = PROBE if self.request.target is not None else Settings(iterations=1, warmup=0)
        job = JobSettings((batch_size,), measuring, self.request.job.memory_budget_bytes)
        result = Session(self.request.spec, job).run(time_limit_s=self.request.time_limit_s)
        outcome: Outcome = "ok"
        if isinstance(result.failure, DoesNotFitError):
            outcome = "does not fit"
        elif result.failure is not None:
            raise result.failure
        elif self.request.target is not None and not self.request.target.seems_met(result.batches[0].result):
            outcome = "missed"
        if self._probed is not None:
            self._probed(batch_size, outcome)
        return outcome


def now() -> datetime.datetime:
    """Return the local time, with its zone."""
    return datetime.datetime.now().astimezone()


def stamp_of(session: SessionResult, at: datetime.datetime) -> Stamp:
    """Return the time and the revision, which the environment of the first batch size holds."""
    environment = session.batches[0].environment if session.batches else {}
    return Stamp(at.isoformat(timespec="seconds"), environment.get("revision"))


def write_finding(
    finding: Finding, files: ResultFiles, at: datetime.datetime, notes: list[str]
) -> list[Path]:
    """Write the result files; none where nothing was measured."""
    session = finding.session
    if not session.batches:
        files.discard()
        return []
    stamp = stamp_of(session, at)
    texts = {
        "csv": to_csv(row_of(each, stamp) for each in session.batches),
        "json": to_json(document_of(session.batches, stamp, **finding.more())),
        "md": to_markdown(session, stamp, notes),
    }
    return files.write(texts)
