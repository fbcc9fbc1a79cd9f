# SPDX-License-Identifier: Apache-2.0
"""Runs a comparison: process runs of all variants in a random and counterbalanced order, with a journal.

A variant that fails to load, crashes or hangs does not affect the others. A completed process run is in the
journal and is not measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from gpuprof.bench.compare.plan import ComparisonPlan, Variant
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.results.session import SessionResult
from gpuprof.bench.serialization import decode, encode
from gpuprof.bench.workers.schedule import ProcessRun, Schedule, Watcher, ignore
from gpuprof.bench.workers.session import Session
from gpuprof.errors import BenchmarkError

T = TypeVar("T")


@dataclass(slots=True)
class VariantResult:
    """What was measured of a variant; `run` is the recorded run next to it."""

    variant: Variant
    session: SessionResult
    run: Path | None = None
    run_unavailable: Failure | None = None


@dataclass(slots=True)
class ComparisonResult:
    """What was measured of all variants, in the plan's order.

    `kept` counts for each variant the process runs of an earlier time, which are among `runs_done`.
    `left_out` are those of the round that was interrupted, which the journal has. If `is_paired`, a variant
    is compared with the baseline in the rounds in which both have a process run.
    """

    plan: ComparisonPlan
    variants: list[VariantResult] = field(default_factory=list)
    runs_done: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    measured_s: float = 0.0
    left_out: int = 0
    is_paired: bool = False

    @property
    def baseline(self) -> VariantResult:
        """What the others are compared with."""
        return self.of(self.plan.baseline.name)

    def of(self, name: str) -> VariantResult:
        """Return a variant's results."""
        return next(each for each in self.variants if each.variant.name == name)


class ComparisonRun:
    """Measures the variants of a plan; `result` holds what there is, at each moment."""

    def __init__(self, plan: ComparisonPlan, folder: Path, watch: Watcher = ignore) -> None:
        self.plan, self.folder = plan, folder
        self._watch = watch
        self._sessions = {
            each.name: Session(each.spec, plan.job_of(each), watch, name=each.name) for each in plan.variants
        }
        variants = [VariantResult(each, self._sessions[each.name].result) for each in plan.variants]
        self.result = ComparisonResult(plan, variants)
        self._fingerprints: dict[str, str] = {}
        self._made: set[tuple[str, int]] = set()
        self._restored: set[tuple[str, int]] = set()
        self._written: set[tuple[str, int]] = set()
        self._last_round = 0

    @property
    def planned(self) -> int:
        """How many process runs there are in all, those of an earlier time among them."""
        return self.plan.launches * len(self.plan.variants)

    def run(self, journal: Journal) -> ComparisonResult:
        """Measure what is not in the journal. Failures are in the result; an interrupt goes through.

        Raises BenchmarkError where a model's file changes meanwhile.
        """
        plan = self.plan
        self._fingerprints = {each.name: plan.fingerprint(each) for each in plan.variants}
        for variant, number in itertools.product(plan.variants, range(1, plan.launches + 1)):
            self._restore(journal, variant.name, number)
        schedule = Schedule(
            plan.launches,
            plan.seed,
            plan.time_limit_s,
            is_done=lambda name, number: (self._fingerprints[name], number) in journal.entries,
            ended=lambda made: self._ended(journal, made),
            watch=self._watch,
        )
        try:
            schedule.run(list(self._sessions.values()))
        finally:
            for each in self.result.variants:
                for batch in each.session.batches:
                    batch.launches.sort(key=lambda run: run.position)
        for each in self.result.variants if plan.profile else ():
            if each.session.batches:
                self._record_run(each)
        return self.result

    def leave_out_interrupted_round(self) -> None:
        """Leave out of the result the round that was interrupted, and pair the process runs of the others.

        Otherwise a variant would be compared with more or fewer process runs than the baseline has, and over
        all batch sizes with others than at each. The round stays if nothing can be compared without it. The
        journal keeps the process runs that completed.
        """
        if len(self._made) == self.planned:
            return  # what was interrupted came after the process runs
        self.result.is_paired = True
        names, cut = [each.name for each in self.plan.variants], self._last_round
        if all((name, cut) in self._made for name in names) or not self._is_comparable_without(cut):
            return
        for each in self.result.variants:
            for batch in each.session.batches:
                batch.launches[:] = [run for run in batch.launches if run.position != cut]
            each.session.batches[:] = [batch for batch in each.session.batches if batch.launches]
        left_out = {(name, cut) for name in names}
        self.result.left_out = len(left_out & self._written)
        self.result.runs_done -= len(left_out & self._made)
        self.result.kept -= Counter(name for name, _ in left_out & self._restored)

    def _is_comparable_without(self, cut: int) -> bool:
        baseline = self.plan.baseline.name
        others = [each.name for each in self.plan.variants if each.name != baseline] or [baseline]
        rounds = {number for name, number in self._written if name == baseline and number != cut}
        return any((other, number) in self._written for other in others for number in rounds)

    def _restore(self, journal: Journal, name: str, number: int) -> None:
        entry = journal.restored((self._fingerprints[name], number))
        if entry is None:
            return
        try:
            self._sessions[name].restore(entry.noted)
        except (BenchmarkError, KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise BenchmarkError(
                "damaged", f"{journal.path}: process run {number} of {name} is damaged", hint=_FRESH
            ) from error
        self._made.add((name, number))
        self._restored.add((name, number))
        self._written.add((name, number))
        self.result.kept[name] += 1
        self.result.runs_done += 1
        self.result.measured_s += entry.took_s

    def _ended(self, journal: Journal, made: ProcessRun) -> None:
        self._last_round = made.number
        if made.failure is not None and made.failure.code is FailureCode.INTERRUPTED:
            return
        self._made.add((made.name, made.number))
        self.result.runs_done += 1
        self.result.measured_s += made.elapsed_s
        variant = self.result.of(made.name).variant
        if self.plan.fingerprint(variant) != self._fingerprints[variant.name]:
            # Two programs are not process runs of one variant.
            raise BenchmarkError(
                "model_changed",
                f"{variant.name}: {variant.spec.model} has changed while it was measured",
                hint="run the same command: it measures this variant again, and keeps the others",
            )
        noted = self._sessions[made.name].record(made.number)
        if made.failure is None and noted["batches"]:
            journal.add(Entry(self._fingerprints[made.name], made.name, noted, made.elapsed_s))
            self._written.add((made.name, made.number))

    def _record_run(self, each: VariantResult) -> None:
        session = self._sessions[each.variant.name]
        run = self.folder / "runs" / f"{file_name(each.variant.name)}.gpuprof"
        try:
            shutil.rmtree(run, ignore_errors=True)
            run.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{run.parent} cannot be made: {error.strerror}"
            each.run_unavailable = Failure(FailureCode.FAILED, message)
            return
        before, number = (session.result.failure, session.result.failed_runs), self.plan.launches + 1
        session.record_profile(str(run), number, self.plan.time_limit_s, work=True)
        # A missing run does not affect the figures.
        session.result.failure, session.result.failed_runs = before
        each.run = run if session.result.profile is not None else None
        each.run_unavailable = session.failure(number)


def file_name(name: str) -> str:
    """Return a name that any file system takes; two names that become alike differ by a number."""
    plain = "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "_" for each in name)
    is_same = name and plain == name and not plain.startswith(".") and len(plain) <= 60
    number = zlib.crc32(name.encode(errors="surrogateescape"))
    return plain if is_same else f"{plain[:50].lstrip('.')}-{number:08x}"


_FRESH = "add --fresh to measure all of it again, or use another --output-dir"
FORMAT_VERSION = 2
FILE_NAME = "journal.jsonl"
_END = b'{"kind": "end"}\n'
_MACHINE = ("processor", "architecture", "cores", "usable_cores", "python", "versions", "variables")


@dataclass(frozen=True, slots=True)
class Entry:
    """A process run of a variant that completed: `noted` is the argument of Session.restore."""

    fingerprint: str
    variant: str
    noted: dict[str, Any]
    took_s: float

    @property
    def key(self) -> tuple[str, int]:
        """What is measured once."""
        return self.fingerprint, int(self.noted["launch"])

    def without_samples(self) -> Entry:
        """Return what shows that there is one: the samples of all process runs fill memory."""
        return dataclasses.replace(self, noted={"launch": self.noted["launch"]})


class Journal:
    """The process runs of one folder. Only one process writes at a time.

    One whose comparison had completed begins again, unless `resume` is set; one that was cut off continues,
    unless `fresh` is.
    """

    def __init__(self, folder: Path, *, fresh: bool = False, resume: bool = False) -> None:
        self.path = folder / FILE_NAME
        self.entries: dict[tuple[str, int], Entry] = {}
        self._fresh, self._resume = fresh, resume
        self._file: IO[bytes] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Journal]:
        """Read what there is and stay open for more. Raises BenchmarkError."""
        with contextlib.ExitStack() as stack:
            with self._refusing():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Not truncated on opening: the lock comes first.
                file = stack.enter_context(self.path.open("ab+"))
                self._lock(file)
                self._file = file
                self._begin(file)
            try:
                yield self
            finally:
                self._file = None

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise BenchmarkError for a file that cannot be written."""
        try:
            yield
        except OSError as error:
            raise BenchmarkError(
                "cannot_write",
                f"{self.path} cannot be written ({error.strerror})",
                hint="use another --output-dir",
            ) from error

    def _lock(self, file: IO[bytes]) -> None:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchmarkError(
                "journal_locked",
                f"{self.path} is being written by another comparison",
                hint="wait for its end, or use another --output-dir",
            ) from error

    def add(self, entry: Entry) -> None:
        """Keep a process run, on the disk too."""
        self.entries[entry.key] = entry.without_samples()
        self._write(encode(entry) + b"\n")

    def restored(self, key: tuple[str, int]) -> Entry | None:
        """Return an earlier process run, once: its samples are then held by the caller."""
        entry = self.entries.get(key)
        if entry is not None:
            self.entries[key] = entry.without_samples()
        return entry

    def finish(self) -> None:
        """Write that the comparison and its report are complete."""
        self._write(_END)

    def _begin(self, file: IO[bytes]) -> None:
        is_complete = _is_complete(file)
        file.seek(0)
        head = file.readline()
        if self._fresh or not head.endswith(b"\n") or (is_complete and not self._resume):
            file.truncate(0)
            head = encode({"format": FORMAT_VERSION, "kind": "journal", "machine": _machine()})
            self._write(head + b"\n")
            return
        self._check(head)
        whole = len(head)
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                file.truncate(whole)
                break
            whole += len(line)
            if line != _END:
                self._read(line, number)

    def _check(self, head: bytes) -> None:
        found = self._decoded(head, 1, dict[str, Any])
        if found.get("kind") != "journal" or found.get("format") != FORMAT_VERSION:
            raise BenchmarkError(
                "not_a_journal", f"{self.path} is not a journal of this version", hint=f"{_FRESH}"
            )
        here, there = _machine(), found.get("machine")
        other = sorted(name for name in here if not isinstance(there, dict) or there.get(name) != here[name])
        if other:
            raise BenchmarkError(
                "other_machine",
                f"{self.path} was begun on another machine or with other versions ({', '.join(other)})",
                hint=_FRESH,
            )

    def _read(self, line: bytes, number: int) -> None:
        entry = self._decoded(line, number, Entry)
        try:
            _compact(entry.noted)
            self.entries[entry.key] = entry
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._damaged(number) from error

    def _decoded(self, line: bytes, number: int, kind: type[T]) -> T:
        try:
            return decode(line, kind)
        except BenchmarkError as error:
            raise self._damaged(number) from error

    def _damaged(self, number: int) -> BenchmarkError:
        return BenchmarkError(
            "damaged", f"{self.path}, line {number}: damaged", hint=f"remove the line, or {_FRESH}"
        )

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        with self._refusing():
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())


def mark_finished(folder: Path) -> None:
    """Note that a comparison and its report are written: the next one in the folder begins again."""
    with Journal(folder, resume=True).opened() as journal:
        journal.finish()


def _is_complete(file: IO[bytes]) -> bool:
    end = b"\n" + _END
    file.seek(max(0, file.seek(0, os.SEEK_END) - len(end)))
    return file.read() == end


def _compact(noted: Mapping[str, Any]) -> None:
    """Hold samples as numbers of 8 bytes: as objects of Python, those of many process runs fill memory."""
    for each in noted["batches"]:
        measured = each.get("launch", {}).get("measurement") or {}
        for name in ("samples_ns", "enqueue_ns"):
            if measured.get(name) is not None:
                measured[name] = np.asarray(measured[name], dtype=np.int64)


def _machine() -> dict[str, Any]:
    environment = describe_environment()
    # Through JSON, since it is compared with what was read from there.
    return decode(encode({name: environment.get(name) for name in _MACHINE}), dict[str, Any])
