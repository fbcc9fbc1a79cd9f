# SPDX-License-Identifier: Apache-2.0
"""Carries out a comparison: launches of all variants in a random and counterbalanced order.

A variant that fails to load, crashes or hangs leaves the others be. What ended as it should is in the journal
and is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpuprof.bench.campaign.journal import Entry, Journal
from gpuprof.bench.campaign.plan import CampaignPlan, Variant
from gpuprof.bench.launches import launch_order
from gpuprof.bench.process import Event, refuse_in_launch
from gpuprof.bench.session import Session, SessionResult
from gpuprof.errors import BenchmarkError


class CampaignWatcher(Protocol):
    """Who is told how far a comparison is: `done` of `planned` launches, and what the running one does."""

    def __call__(self, variant: str, done: int, planned: int, event: Event) -> None:
        """Take one event of a launch; the event `ended` is the last."""
        ...


def _ignore(variant: str, done: int, planned: int, event: Event) -> None:  # noqa: ARG001
    return None


@dataclass(slots=True)
class VariantResult:
    """What was measured of a variant; `run` is the recorded run beside it."""

    variant: Variant
    session: SessionResult
    run: Path | None = None
    run_unavailable: str | None = None


@dataclass(slots=True)
class CampaignResult:
    """What was measured of all variants, in the plan's order.

    `launches_kept` came from an earlier time, `kept` of them of each variant.
    """

    plan: CampaignPlan
    variants: list[VariantResult] = field(default_factory=list)
    launches_done: int = 0
    launches_kept: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    measured_s: float = 0.0

    @property
    def baseline(self) -> VariantResult:
        """What the others are held against."""
        return self.of(self.plan.baseline.name)

    def of(self, name: str) -> VariantResult:
        """Return a variant's results."""
        return next(each for each in self.variants if each.variant.name == name)


class Campaign:
    """Measures what a plan says; `result` holds what there is, at each moment."""

    def __init__(self, plan: CampaignPlan, folder: Path, watch: CampaignWatcher = _ignore) -> None:
        self.plan, self.folder = plan, folder
        self.result = CampaignResult(plan)
        self._watch = watch
        self._sessions: dict[str, Session] = {}
        self._fingerprints: dict[str, str] = {}
        for variant in plan.variants:
            session = Session(variant.spec, plan.job_of(variant), self._watching(variant))
            self._sessions[variant.name] = session
            self.result.variants.append(VariantResult(variant, session.result))

    @property
    def planned(self) -> int:
        """How many launches there are in all, those of an earlier time among them."""
        return self.plan.launches * len(self.plan.variants)

    def run(self, journal: Journal) -> CampaignResult:
        """Measure what is not in the journal. Failures are in the result; an interrupt goes through.

        Raises BenchmarkError where a model's file changes meanwhile.
        """
        refuse_in_launch()
        self._fingerprints = {each.name: self.plan.fingerprint(each) for each in self.plan.variants}
        self._restore(journal)
        try:
            for variant, launch in self._order():
                if (self._fingerprints[variant.name], launch) not in journal.entries:
                    self._launch(journal, variant, launch)
        finally:
            for each in self.result.variants:
                for batch in each.session.batches:
                    batch.launches.sort(key=lambda launch: launch.position)
        if self.plan.profile:
            self._record_runs()
        return self.result

    def _order(self) -> Iterator[tuple[Variant, int]]:
        """Yield each launch, numbered within its variant."""
        variants = {each.name: each for each in self.plan.variants}
        counts = dict.fromkeys(variants, 0)
        for name in launch_order(list(variants), self.plan.launches, self.plan.seed):
            counts[name] += 1
            yield variants[name], counts[name]

    def _restore(self, journal: Journal) -> None:
        for variant in self.plan.variants:
            for launch in range(1, self.plan.launches + 1):
                entry = journal.restored((self._fingerprints[variant.name], launch))
                if entry is not None:
                    self._restore_one(journal, variant, entry)
                    self.result.launches_kept += 1
                    self.result.kept[variant.name] = self.result.kept.get(variant.name, 0) + 1
                    self.result.launches_done += 1
                    self.result.measured_s += entry.took_s

    def _restore_one(self, journal: Journal, variant: Variant, entry: Entry) -> None:
        try:
            self._sessions[variant.name].restore(entry.noted)
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise BenchmarkError(
                f"{journal.path}: launch {entry.key[1]} of {variant.name} is damaged: add --fresh to measure "
                "all of it again, or name another --output-dir"
            ) from error

    def _launch(self, journal: Journal, variant: Variant, launch: int) -> None:
        session = self._sessions[variant.name]
        begin_s = time.monotonic()
        session.run(launches=1, first=launch, time_limit_s=self.plan.time_limit_s)
        took_s = time.monotonic() - begin_s
        self.result.launches_done += 1
        self.result.measured_s += took_s
        self._refuse_changed(variant)
        noted = session.noted(launch)
        if noted["failure"] is None and noted["batches"]:
            journal.add(Entry(self._fingerprints[variant.name], variant.name, noted, took_s))
        self._watch(
            variant.name, self.result.launches_done, self.planned, {"event": "ended", **_short(noted)}
        )

    def _refuse_changed(self, variant: Variant) -> None:
        """Two programs are not launches of one variant."""
        if self.plan.fingerprint(variant) != self._fingerprints[variant.name]:
            raise BenchmarkError(
                f"{variant.name}: {variant.spec.model} has changed while it was measured: the same command "
                "measures it again, and keeps what the others gave"
            )

    def _record_runs(self) -> None:
        for each in self.result.variants:
            if each.session.batches:
                self._record_run(each)

    def _record_run(self, each: VariantResult) -> None:
        import shutil

        session = self._sessions[each.variant.name]
        run = self.folder / "runs" / f"{file_name(each.variant.name)}.gpuprof"
        try:
            shutil.rmtree(run, ignore_errors=True)
            run.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            each.run_unavailable = f"{run.parent} cannot be made: {error.strerror}"
            return
        failure, launch = session.result.failure, self.plan.launches + 1
        session.record_profile(str(run), launch, self.plan.time_limit_s, work=True)
        # That there is no run says nothing against the figures.
        session.result.failure = failure
        each.run = run if session.result.profile is not None else None
        each.run_unavailable = session.noted(launch)["failure"]

    def _watching(self, variant: Variant) -> Any:
        def watch(_launch: int, event: Event) -> None:
            self._watch(variant.name, self.result.launches_done, self.planned, event)

        return watch


def _short(noted: dict[str, Any]) -> dict[str, Any]:
    sizes = [each["batch_size"] for each in noted["batches"]]
    return {
        "failure": noted["failure"],
        "batch_sizes": sizes,
        "skipped": not sizes and noted["failure"] is None,
    }


def file_name(name: str) -> str:
    """Return a name that any file system takes; two names that become alike are told apart by a number."""
    import zlib

    plain = "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "_" for each in name)
    is_same = name and plain == name and not plain.startswith(".") and len(plain) <= 60
    return (
        plain
        if is_same
        else f"{plain[:50].lstrip('.')}-{zlib.crc32(name.encode(errors='surrogateescape')):08x}"
    )
