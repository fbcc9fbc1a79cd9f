# SPDX-License-Identifier: Apache-2.0
"""Runs a soak test: cycles of load and rest, with all meters read while no request is in flight."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bench.results.files import to_json, write_whole
from gpuprof.bench.serialization import to_finite
from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.leaks import FEWEST_READINGS, MeterGrowth, SoakVerdict, overall, trim_memory
from gpuprof.load.out_folder import SOAK_RESULT
from gpuprof.load.reasons import SOAK_QUESTION, LoadReason
from gpuprof.load.requests import Rows, is_ok, service_ns
from gpuprof.load.result import LoadSettings
from gpuprof.load.run import SOAK, LoadOptions, Scenario, checked, run_load, server_of, sizes_of
from gpuprof.load.soak import ServiceDrift, SoakReport, soak_report
from gpuprof.load.soak_readings import SoakReadings
from gpuprof.load.stopping import TargetStoppedError, check_client, check_success, keeping_results
from gpuprof.load.targets.base import BatchTarget, LoopTarget, Target, ThreadTarget
from gpuprof.load.targets.finding import find_target
from gpuprof.load.targets.server_target import ServerTarget
from gpuprof.load.throttling import Throttling
from gpuprof.text.table import wrapped
from gpuprof.text.units import counted

CYCLES = 4 * FEWEST_READINGS
# Called after each cycle with the number of cycles that ended, and of requests.
AfterCycle = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak test found. `failed` of `requests` had no successful response.

    `stopped` is why the target could not be measured until the end.
    """

    settings: LoadSettings
    report: SoakReport
    requests: int
    failed: int
    cycles: int
    interrupted: bool = False
    stopped: LoadReason | None = None

    @property
    def verdict(self) -> SoakVerdict:
        """The worst of all verdicts: yes is a leak, slower service, or throttling that slowed it down."""
        throttling = [each.verdict for each in self.report.throttling]
        return overall([self.report.leaks.verdict, self.report.drift.verdict, *throttling])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds, null is unavailable."""
        leaks, drift = self.report.leaks, self.report.drift
        plain: dict[str, Any] = to_finite(
            {
                "kind": SOAK,
                "settings": asdict(self.settings),
                "requests": self.requests,
                "failed": self.failed,
                "cycles": self.cycles,
                "interrupted": self.interrupted,
                "stopped": None if self.stopped is None else self.stopped.to_dict(),
                "verdict": str(self.verdict),
                "memory": [
                    {**_plain(each), "meter": str(each.meter), "unit": each.unit} for each in leaks.meters
                ],
                "drift": {**_plain(drift), "changes_s": list(drift.changes_s)},
                "throttling": [
                    {
                        "cause": str(each.cause),
                        "verdict": str(each.verdict),
                        "throttled_fraction": each.throttled_fraction,
                        "low": each.low,
                        "high": each.high,
                        "reason": each.reason.to_dict(),
                    }
                    for each in self.report.throttling
                ],
            }
        )
        return plain

    def save(self, folder: Path) -> Path:
        """Write `soak.json` to a folder. Raises RunError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / SOAK_RESULT, to_json(self.to_dict()))
        except OSError as error:
            raise RunError(
                "cannot_write",
                f"{folder}: cannot be written ({error.strerror})",
                hint="free disk space, or use another --out",
            ) from error
        return folder / SOAK_RESULT

    def __str__(self) -> str:
        leaks, drift = self.report.leaks, self.report.drift
        judged: list[MeterGrowth | ServiceDrift | Throttling] = [*leaks.meters, drift]
        judged += self.report.throttling
        requests, cycles = counted(self.requests, "request"), counted(self.cycles, "cycle")
        lines = [f"{requests} in {cycles}, {self.failed:,} failed", ""]
        lines += [wrapped(f"{each.verdict!s:<13} {each.reason}", indent=" " * 14) for each in judged]
        lines += ["", f"{SOAK_QUESTION}: {self.verdict}"]
        lines += [] if self.stopped is None else [str(self.stopped)]
        return "\n".join([*lines, *(["note: interrupted"] if self.interrupted else [])])


def run_soak(
    target: Any,
    settings: LoadSettings,
    inputs: Any = None,
    options: LoadOptions | None = None,
    *,
    cycles: int = CYCLES,
    after_cycle: AfterCycle | None = None,
) -> SoakResult:
    """Put load on a target for `settings.duration_s`, and judge memory, drift and throttling.

    With a rate, requests arrive by the plan of `settings.pattern` (Poisson); without one, each of
    `settings.concurrency` clients waits for its response. The memory is that of this process: that of a
    server is unavailable. Ctrl-C keeps the cycles that ended. A first cycle in which every request fails, and
    a server that has ended, end the test. Raises BenchmarkError, before the first request, for what cannot
    work.
    """
    if settings.duration_s is None:
        raise BenchmarkError(
            "invalid_load", "a soak test without a duration", hint="set --duration, as in 10m"
        )
    for name, value in (("--count", settings.count), ("--max-batch", settings.max_batch)):
        if value is not None:
            raise BenchmarkError("invalid_load", f"a soak test with {name}", hint=f"omit {name}")
    _check_cycles(settings.rate, settings.duration_s, cycles)
    scenario = Scenario.CLOSED_LOOP if settings.rate is None else Scenario.SERVER
    each = dataclasses.replace(
        settings, scenario=str(scenario), duration_s=settings.duration_s / cycles, slo=None
    )
    checked(each)
    kept = _kept(target, inputs, each)
    how = (options or LoadOptions()).of_several
    # Rows that stay in memory would be found as a leak.
    with tempfile.TemporaryFile(prefix="gpuprof-soak-") as file:
        run, stopped, interrupted = _Soak(kept, each, how, file, cycles), None, False
        try:
            run.measure(after_cycle)
        except KeyboardInterrupt:
            interrupted = True
            if not run.cycles:
                raise
        except TargetStoppedError as end:
            stopped = end.reason
        finally:
            _close(kept)
        return run.result(settings, interrupted=interrupted, stopped=stopped)


def _check_cycles(rate: float | None, duration_s: float, cycles: int) -> None:
    """Raise BenchmarkError for a rate that has no request in a cycle."""
    if rate is not None and 0 < rate * duration_s < cycles:
        raise BenchmarkError(
            "too_few_requests",
            f"a soak test has {cycles} cycles, and the plan has {rate * duration_s:,.4g} requests",
            hint=f"use a --duration of {math.ceil(cycles / rate):,}s or longer, or a higher --rate",
        )


class _Soak:
    def __init__(
        self, target: Any, settings: LoadSettings, options: LoadOptions, file: Any, cycles: int
    ) -> None:
        self._target, self._settings, self._options, self._file = target, settings, options, file
        self._cycles = cycles
        self._is_own_process = not isinstance(target, ServerTarget)
        self._readings = SoakReadings(cycles + 1, has_memory=self._is_own_process)
        self._readings.read(0)
        self.requests = self.failed = self.cycles = 0

    def measure(self, after_cycle: AfterCycle | None) -> None:
        for number in range(self._cycles):
            now = dataclasses.replace(self._settings, seed=self._settings.seed + number)
            with keeping_results(has_some=self.cycles > 0):
                result = run_load(self._target, now, None, self._options)
                if not result.run.interrupted:
                    check_client(result)
            if result.run.interrupted:
                raise KeyboardInterrupt
            self._add(result.rows)
            self.cycles += 1
            trim_memory()
            self._readings.read(self.requests)
            if not number:
                check_success(result)
            del result
            if after_cycle is not None:
                after_cycle(self.cycles, self.requests)

    def _add(self, rows: Rows) -> None:
        answered = rows[is_ok(rows)]
        order = np.argsort(answered["end_ns"], kind="stable")
        pairs = np.stack([answered["end_ns"], service_ns(answered)], axis=1)[order]
        self._file.write(np.ascontiguousarray(pairs, np.int64).tobytes())
        self.requests += len(rows)
        self.failed += len(rows) - len(answered)

    def result(self, settings: LoadSettings, *, interrupted: bool, stopped: LoadReason | None) -> SoakResult:
        self._file.seek(0)
        pairs = np.frombuffer(self._file.read(), np.int64).reshape(-1, 2).astype(np.float64)
        _before, *memory = self._readings.memory()
        report = soak_report(
            memory,
            [*self._readings.throttling()],
            pairs[:, 0],
            pairs[:, 1] / 1e9,
            is_own_process=self._is_own_process,
        )
        return SoakResult(settings, report, self.requests, self.failed, self.cycles, interrupted, stopped)


# --- a target that stays loaded over all cycles --------------------------------------------------


class _KeptThreadTarget:
    def __init__(self, target: ThreadTarget) -> None:
        target.prepare()
        self.call, self.target = target.call, target

    def prepare(self) -> None:
        """Do nothing: it is loaded."""

    def close(self) -> None:
        """Do nothing: more cycles follow."""


def _kept(target: Any, inputs: Any, settings: LoadSettings) -> Any:
    """Return a target that is loaded once; a server and a coroutine function have nothing to load."""
    server = server_of(target, settings)
    if server is not None:
        return server
    found: Target = find_target(target, inputs, sizes_of(settings), settings.system)
    if isinstance(found, BatchTarget):
        raise BenchmarkError(
            "unknown_target", "a soak test calls single requests, not batches", hint="use a function"
        )
    return found if isinstance(found, LoopTarget) else _KeptThreadTarget(found)


def _close(kept: Any) -> None:
    if isinstance(kept, _KeptThreadTarget):
        kept.target.close()


def _plain(found: Any) -> dict[str, Any]:
    return {
        "verdict": str(found.verdict),
        "low": found.low,
        "value": found.value,
        "high": found.high,
        "reason": found.reason.to_dict(),
    }
