# SPDX-License-Identifier: Apache-2.0
"""A benchmark from its settings to its files: what the command and `run_benchmark_suite` share."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.failures import DoesNotFitError, failure_of
from gpuprof.bench.measure.scaling import ProbeOutcome, largest_batch
from gpuprof.bench.results.batch import Stamp, row_of
from gpuprof.bench.results.files import document_of, to_csv, to_json
from gpuprof.bench.results.session import BenchFinding, SessionResult
from gpuprof.bench.results.target import LatencyTarget
from gpuprof.bench.results.text import to_markdown
from gpuprof.bench.workers.schedule import Watcher, ignore
from gpuprof.bench.workers.session import Session
from gpuprof.bench.workers.startup import measure_startup
from gpuprof.errors import GpuprofError
from gpuprof.stats.quantiles import samples_needed

Probed = Callable[[int, ProbeOutcome], None]
# A search looks at many sizes: shortly, and longer and in more process runs only near the limit. These differ
# by some percent, which the interval of a single one does not know.
_PROBE_S, _LONGEST_PROBE_S = 2.0, 30.0
_PROBE_RUNS = 5
_MARGIN_OF_ONE_RUN = 0.1
_ENOUGH = 1.2  # of the samples that a quantile needs, since none may lie beyond


@dataclass(frozen=True, slots=True)
class Request:
    """What `gpuprof bench` was asked for."""

    spec: SystemSpec
    job: JobSettings
    runs: int = 1
    time_limit_s: float = 600.0
    target: LatencyTarget | None = None
    find_largest: bool = False
    until_memory_ends: bool = False
    cold_start: bool = False


class Benchmark:
    """Carries out a request; `finding` holds what was found, at each moment."""

    def __init__(self, request: Request, watch: Watcher = ignore, probed: Probed | None = None) -> None:
        self.request = request
        self._watch = watch
        self._probed = probed
        self._search_failure: GpuprofError | None = None
        self.finding = BenchFinding(self._session(request.job).result)

    def _session(self, job: JobSettings) -> Session:
        return Session(self.request.spec, job, self._watch)

    def run(self) -> BenchFinding:
        """Do all of it. Failures are in the finding; an interrupt goes through, and is in the finding too."""
        try:
            return self._run()
        except KeyboardInterrupt:
            self.finding.interrupted = True
            raise

    def _run(self) -> BenchFinding:
        request, job = self.request, self.request.job
        try:
            if request.find_largest:
                job = self._with_largest(job)
            if request.cold_start:
                self.finding.startup = measure_startup(
                    request.spec, batch_size=job.batch_sizes[0], time_limit_s=request.time_limit_s
                )
        except GpuprofError as error:
            self.finding.session.failure = error
            return self.finding
        session = self._session(job)
        self.finding.session = session.result
        session.run(runs=request.runs, time_limit_s=request.time_limit_s)
        session.result.failure = session.result.failure or self._search_failure
        self._judge()
        return self.finding

    def _with_largest(self, job: JobSettings) -> JobSettings:
        """Search the largest batch size; returns the job with it among the others."""
        self.finding.largest = found = largest_batch(self._probe)
        sizes = {*job.batch_sizes, *([found.batch_size] if found.batch_size is not None else [])}
        return dataclasses.replace(job, batch_sizes=tuple(sorted(sizes)))

    def _judge(self) -> None:
        session = self.finding.session
        if (
            self.request.until_memory_ends
            and isinstance(session.failure, DoesNotFitError)
            and session.batches
        ):
            self.finding.memory_ended, session.failure = failure_of(session.failure), None
        if self.request.target is not None:
            target = self.request.target
            self.finding.verdicts = {each.batch_size: target.verdict(each.result) for each in session.batches}

    def _probe(self, batch_size: int) -> ProbeOutcome:
        """Measure one batch size shortly, in a process of its own: it may end with the memory."""
        job = JobSettings((batch_size,), self._probing(), self.request.job.memory_budget_bytes)
        session = Session(self.request.spec, job)
        outcome: ProbeOutcome = "open"
        try:
            for number in range(1, _PROBE_RUNS + 1):
                session.run(first=number, time_limit_s=self.request.time_limit_s)
                outcome = self._outcome(session.result, number)
                if outcome != "open":
                    break
        finally:
            # What an interrupt of the search leaves to be shown.
            searched = {
                each.batch_size: each for each in (*self.finding.session.batches, *session.result.batches)
            }
            self.finding.session.batches = [searched[size] for size in sorted(searched)]
        if self._probed is not None:
            self._probed(batch_size, outcome)
        return outcome

    def _probing(self) -> Settings:
        """Return how a probe measures: as was asked for, by default as long as the target's quantile needs.

        Without a target one call shows whether the batch fits, and nothing is timed.
        """
        target, asked = self.request.target, self.request.job.measuring
        if target is None:
            return Settings(iterations=1, warmup=0)
        share = 0.5 if target.share is None else target.share
        duration_s = asked.duration_s
        if duration_s is None and asked.iterations is None:
            at_limit_s = _ENOUGH * samples_needed(share) * target.limit_s
            duration_s = min(max(_PROBE_S, at_limit_s), _LONGEST_PROBE_S)
        limit_s = min(_PROBE_S, asked.warmup_limit_s)
        return dataclasses.replace(asked, duration_s=duration_s, warmup_limit_s=limit_s, quantile=share)

    def _outcome(self, session: SessionResult, number: int) -> ProbeOutcome:
        if isinstance(session.failure, DoesNotFitError):
            return "does not fit"
        if session.failure is not None:
            if session.settings.batch_sizes == (1,):
                raise session.failure  # not even one sample: there is nothing to search
            self._search_failure = self._search_failure or session.failure
            return "failed"
        target = self.request.target
        if target is None:
            return "ok"
        margin = _MARGIN_OF_ONE_RUN if number == 1 else 0.0
        result = session.batches[0].result
        if target.scaled(1 - margin).verdict(result) == "met":
            return "ok"
        return "missed" if target.scaled(1 + margin).verdict(result) == "missed" else "open"


def now() -> datetime.datetime:
    """Return the local time, with its zone."""
    return datetime.datetime.now().astimezone()


def stamp_of(session: SessionResult, at: datetime.datetime) -> Stamp:
    """Return the time and the revision, which the environment of the first batch size holds."""
    environment = session.batches[0].environment if session.batches else {}
    return Stamp(at.isoformat(timespec="seconds"), environment.get("revision"))


def result_texts(
    sessions: Sequence[SessionResult], at: datetime.datetime, notes: Sequence[str] = (), **more: Any
) -> dict[str, str]:
    """Return the result files of what was measured, by format."""
    stamp = stamp_of(sessions[0], at)
    batches = [batch for session in sessions for batch in session.batches]
    return {
        "csv": to_csv(map(row_of, batches)),
        "json": to_json(document_of(batches, stamp, **more)),
        "md": "\n".join(to_markdown(session, stamp, notes) for session in sessions),
    }
