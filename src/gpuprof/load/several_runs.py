# SPDX-License-Identifier: Apache-2.0
"""Several runs against one target: the highest rate that meets a target, and a sweep over concurrency."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.results.files import to_json, write_whole
from gpuprof.bench.results.target import parse_target
from gpuprof.bench.serialization import to_finite
from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.correlated import BATCHES, quantile_of_run, relative_rate_error
from gpuprof.load.driver import check_threads
from gpuprof.load.figures import latencies_s
from gpuprof.load.out_folder import RATE_RESULT, SWEEP_RESULT
from gpuprof.load.reasons import LoadReason
from gpuprof.load.requests import is_ok
from gpuprof.load.result import LoadResult, LoadSettings
from gpuprof.load.run import CLOSED, LoadOptions, Scenario, check_requests, checked, run_load, server_of
from gpuprof.load.schedules import check_count
from gpuprof.load.search import RUNS, AfterRate, MaxRate, RateProbe, find_max_rate, lowest_rate
from gpuprof.load.stopping import TargetStoppedError, check_client, check_success, keeping_results
from gpuprof.load.sweep import ConcurrencyRun, ConcurrencySweep, sweep_of
from gpuprof.stats.distributions import student_quantile
from gpuprof.stats.quantiles import CONFIDENCE, samples_needed
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import format_duration, format_number, format_rate

if TYPE_CHECKING:
    from gpuprof.load.intervals import QueueQuantile
    from gpuprof.stats.arrays import Floats

FIRST_RATE = 10.0
_SHOWN_QUANTILE = 0.99
Ends = tuple[float, float] | None
# Called before each run with its rate or concurrency.
BeforeRun = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class MaxRateResult:
    """The highest rate at which a target meets `settings.slo`, and the runs that showed it.

    `achieved` are the requests per second of the runs at each rate. `stopped` is why the target could not be
    measured any more.
    """

    settings: LoadSettings
    found: MaxRate
    interrupted: bool = False
    achieved: dict[float, tuple[float, ...]] = field(default_factory=dict)
    stopped: LoadReason | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; rates are per second, times in seconds, null is unavailable."""
        plain: dict[str, Any] = to_finite(
            {
                "kind": "max_rate",
                "settings": asdict(self.settings),
                "low": self.found.low,
                "value": self.found.value,
                "is_estimate": self.found.is_estimate,
                "is_in_order": self.found.is_in_order,
                "high": self.found.high,
                "interrupted": self.interrupted,
                "rates": [
                    {
                        "rate": each.rate,
                        "quantile_s": each.quantile.value,
                        "low_s": each.quantile.low,
                        "high_s": each.quantile.high,
                        "verdict": str(each.verdict),
                        "achieved": list(self.achieved.get(each.rate, ())),
                    }
                    for each in self.found.probes
                ],
                "reasons": [each.to_dict() for each in self.found.reasons],
                "stopped": _plain(self.stopped),
            }
        )
        return plain

    def save(self, folder: Path) -> Path:
        """Write `max_rate.json` to a folder. Raises RunError."""
        return _save(self.to_dict(), folder, RATE_RESULT)

    def __str__(self) -> str:
        columns = [Column("rate"), Column("quantile"), Column("99% CI"), Column("verdict", right=False)]
        rows = [
            [
                format_rate(each.rate),
                _time(each.quantile.value),
                _interval(each.quantile),
                str(each.verdict),
            ]
            for each in self.found.probes
        ]
        lines = [f"highest rate with {self.settings.slo}: {_rates(self.found)}"]
        lines += ["", text_table(columns, rows)] if rows else []
        lines += [f"note: {each}" for each in self.found.reasons]
        lines += [] if self.stopped is None else [str(self.stopped)]
        lines += ["note: interrupted: rates that were not measured are missing"] if self.interrupted else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Closed-loop runs of a target over concurrency.

    Means are of the requests that succeeded; in a p99, those that failed are infinitely late.
    `throughputs` and `p99s` are 95% intervals of the run at each concurrency, None where it has none.
    `failed` are the requests that failed. `stopped` is why the target could not be measured any more.
    """

    settings: LoadSettings
    found: ConcurrencySweep
    p99_s: dict[int, float | None]
    interrupted: bool = False
    throughputs: dict[int, Ends] = field(default_factory=dict)
    p99s: dict[int, Ends] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    stopped: LoadReason | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; throughput is per second, times in seconds, null is unavailable."""
        plain: dict[str, Any] = to_finite(
            {
                "kind": "concurrency_sweep",
                "settings": asdict(self.settings),
                "runs": [
                    {
                        **asdict(each),
                        "throughput_ends": self.throughputs.get(each.concurrency),
                        "p99_s": self.p99_s[each.concurrency],
                        "p99_ends_s": self.p99s.get(each.concurrency),
                        "failed": self.failed.get(each.concurrency, 0),
                    }
                    for each in self.found.runs
                ],
                "saturation": self.found.saturation,
                "law": None if self.found.law is None else asdict(self.found.law),
                "interrupted": self.interrupted,
                "stopped": _plain(self.stopped),
            }
        )
        return plain

    def save(self, folder: Path) -> Path:
        """Write `sweep.json` to a folder. Raises RunError."""
        return _save(self.to_dict(), folder, SWEEP_RESULT)

    def __str__(self) -> str:
        columns = [Column("concurrency"), Column("requests/s"), Column("mean"), Column("p99")]
        columns += [Column("failed")] if any(self.failed.values()) else []
        rows = [
            [
                f"{each.concurrency}",
                format_number(each.throughput),
                _time(each.mean_latency_s),
                _time(self.p99_s[each.concurrency]),
                *([f"{self.failed.get(each.concurrency, 0):,}"] if any(self.failed.values()) else []),
            ]
            for each in self.found.runs
        ]
        lines = [text_table(columns, rows), "", _saturation(self.found)] if rows else []
        law = self.found.law
        if law is not None and law.peak is not None:
            lines.append(
                f"highest throughput by the scalability law: concurrency {law.peak:.3g} "
                f"(95% CI {_end(law.peak_low)} to {_end(law.peak_high)})"
            )
        wrong = [str(each.concurrency) for each in self.found.inconsistent]
        if wrong:
            lines.append(f"warning: concurrency {', '.join(wrong)}: contradicts Little's law by over 10%")
        lines += [] if self.stopped is None else [str(self.stopped)]
        if self.interrupted:
            lines.append("note: interrupted: what was not measured or fitted is missing")
        return "\n".join(lines)


def find_rate(
    target: Any,
    settings: LoadSettings,
    inputs: Any = None,
    options: LoadOptions | None = None,
    *,
    runs: int = RUNS,
    before_run: BeforeRun | None = None,
    after_rate: AfterRate | None = None,
) -> MaxRateResult:
    """Search the highest rate at which a target meets `settings.slo`; `settings.rate` is the first one.

    Each rate has `runs` independent runs of `settings.duration_s` with seeds of their own. Ctrl-C, a run in
    which every request fails, and a server that has ended, end the search and keep the rates that were
    measured. Raises BenchmarkError, before the first run, for what cannot work.
    """
    if settings.slo is None:
        raise BenchmarkError(
            "no_latency_bound", "the highest rate needs a latency target", hint="add --slo 'p99<20ms'"
        )
    goal, first = parse_target(settings.slo), settings.rate or FIRST_RATE
    wanted = dataclasses.replace(settings, rate=first, slo=None)
    if Scenario(checked(wanted).scenario) not in (Scenario.SERVER, Scenario.CONSTANT):
        raise BenchmarkError(
            "invalid_load",
            f"--scenario {settings.scenario} has no single rate",
            hint="use server or constant",
        )
    duration_s = checked(wanted).duration_s or 0.0
    check_requests(settings, check_count(first * duration_s))
    each_run = (options or LoadOptions()).of_several
    achieved: dict[float, tuple[float, ...]] = {}

    def measure(rate: float, seed: int) -> Floats:
        if before_run is not None:
            before_run(rate)
        now = dataclasses.replace(wanted, rate=rate, seed=seed)
        with keeping_results(has_some=bool(achieved)):
            result = _uninterrupted(run_load(target, now, inputs, each_run))
        check_success(result)
        achieved[rate] = (*achieved.get(rate, ()), result.achieved_rate)
        return latencies_s(result.rows)

    ended_by: list[BaseException] = []
    found = find_max_rate(
        measure,
        goal,
        first,
        runs=runs,
        lowest=lowest_rate(goal, duration_s),
        seed=settings.seed,
        ended_by=ended_by,
        after_rate=after_rate,
    )
    stopped = [each.reason for each in ended_by if isinstance(each, TargetStoppedError)]
    interrupted = len(ended_by) > len(stopped)
    return MaxRateResult(settings, found, interrupted, achieved, stopped[0] if stopped else None)


def sweep_concurrency(
    target: Any,
    settings: LoadSettings,
    levels: Sequence[int],
    inputs: Any = None,
    options: LoadOptions | None = None,
    *,
    before_run: BeforeRun | None = None,
) -> SweepResult:
    """Run a closed loop at each concurrency. Raises BenchmarkError.

    Ctrl-C, a run in which every request fails, and a server that has ended, end the sweep and keep the runs
    before. Ctrl-C while the scalability law is fitted keeps all runs, without the law.
    """
    if Scenario(settings.scenario) not in (Scenario.CLOSED_LOOP, Scenario.SERVER):
        raise BenchmarkError(
            "invalid_load",
            f"--scenario {settings.scenario} has no concurrency to sweep",
            hint="use closed-loop",
        )
    closed = dataclasses.replace(settings, scenario=str(Scenario.CLOSED_LOOP), concurrency=None)
    assert Scenario.CLOSED_LOOP in CLOSED
    checked(closed)
    most = max(levels, default=None)
    checked(dataclasses.replace(closed, concurrency=most))
    if server_of(target, closed) is None:
        check_threads(most)
    each_run = (options or LoadOptions()).of_several
    measured: list[ConcurrencyRun] = []
    p99_s: dict[int, float | None] = {}
    throughputs: dict[int, Ends] = {}
    p99s: dict[int, Ends] = {}
    failed: dict[int, int] = {}
    interrupted, stopped = False, None
    for level in levels:
        if before_run is not None:
            before_run(level)
        try:
            now = dataclasses.replace(closed, concurrency=level)
            with keeping_results(has_some=bool(measured)):
                result = _uninterrupted(run_load(target, now, inputs, each_run))
            check_success(result)
            ends = _throughput_ends(result), _p99_ends(result)
        except KeyboardInterrupt:
            if not measured:
                raise
            interrupted = True
            break
        except TargetStoppedError as end:
            stopped = end.reason
            break
        mean_s = result.service.mean or 0.0  # some request succeeded
        measured.append(ConcurrencyRun(level, result.achieved_rate, mean_s))
        p99_s[level], failed[level] = result.latency.p99, int((~is_ok(result.rows)).sum())
        throughputs[level], p99s[level] = ends
    found, is_cut = _sweep_of(measured)
    return SweepResult(closed, found, p99_s, interrupted or is_cut, throughputs, p99s, failed, stopped)


def _sweep_of(measured: Sequence[ConcurrencyRun]) -> tuple[ConcurrencySweep, bool]:
    """Return the sweep, and whether Ctrl-C ended the fit of its law, which resamples and takes a second."""
    if not measured:
        return ConcurrencySweep((), None, None), False
    try:
        return sweep_of(measured), False
    except KeyboardInterrupt:
        return sweep_of(measured, with_law=False), True


def _throughput_ends(result: LoadResult) -> Ends:
    rows = result.rows[is_ok(result.rows)]
    error = relative_rate_error(rows["end_ns"], np.ones(len(rows)), result.run.start_ns, result.run.end_ns)
    if error is None:
        return None
    width = math.exp(float(student_quantile(1 - CONFIDENCE, BATCHES - 1)) * error)
    return result.achieved_rate / width, result.achieved_rate * width


def _p99_ends(result: LoadResult) -> Ends:
    values = latencies_s(result.rows)
    if len(values) < samples_needed(_SHOWN_QUANTILE) or result.latency.p99 is None:
        return None
    found = quantile_of_run(values, _SHOWN_QUANTILE)
    if found.low is None or found.high is None or not math.isfinite(found.high):
        return None
    return found.low, found.high


def _uninterrupted(result: LoadResult) -> LoadResult:
    """Return a run that ended by itself; one that was cut is no sample of its rate."""
    if result.run.interrupted:
        raise KeyboardInterrupt
    check_client(result)
    return result


def _save(plain: dict[str, Any], folder: Path, name: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, to_json(plain))
    except OSError as error:
        raise RunError(
            "cannot_write",
            f"{folder}: cannot be written ({error.strerror})",
            hint="free disk space, or use another --out",
        ) from error
    return folder / name


def _plain(stopped: LoadReason | None) -> dict[str, Any] | None:
    return None if stopped is None else stopped.to_dict()


def _saturation(found: ConcurrencySweep) -> str:
    if found.saturation is not None:
        return f"saturation: concurrency {found.saturation}"
    return "throughput still grows" if found.has_growth else "saturation: unknown with fewer than 3 numbers"


def rate_line(probe: RateProbe, figure: str) -> str:
    """Return one rate of a search with its quantile, which is called `figure`, and its verdict."""
    interval = f" (99% CI {_interval(probe.quantile)})" if probe.quantile.is_sufficient else ""
    return f"{format_rate(probe.rate)}: {figure} {_time(probe.quantile.value)}{interval}: {probe.verdict}"


def _rates(found: MaxRate) -> str:
    if found.value is not None and found.low is not None and found.high is not None:
        kind = "estimate between" if found.is_estimate else "between"
        ends = f"{format_number(found.low)} and {format_number(found.high)}"
        return f"{_highest(found.value, found.low, found.high)} ({kind} {ends})"
    if found.low is not None:
        return f"at least {format_rate(found.low)}"
    return "unknown" if found.high is None else f"below {format_rate(found.high)}"


def _highest(value: float, low: float, high: float) -> str:
    """Return the highest rate, rounded to below the missed one."""
    shown = format_rate(value)
    return format_rate(low) if shown == format_rate(high) else shown


def _time(value_s: float | None) -> str:
    return "-" if value_s is None or value_s == float("inf") else format_duration(value_s * 1e9)


def _interval(found: QueueQuantile) -> str:
    return f"{_time(found.low)} to {_time(found.high)}" if found.is_sufficient else "-"


def _end(value: float | None) -> str:
    return "beyond the data" if value is None else f"{value:.3g}"
