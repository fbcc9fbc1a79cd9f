# SPDX-License-Identifier: Apache-2.0
"""Load results as a side of a gate: one figure of each run, and the error that is known from within a run.

Of several runs the run is the sampling unit. Requests of a single run are correlated: the errors of its
figures are those of `gpuprof.load.correlated`, and a run that is too short for them has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.measure.diagnostics import BACKGROUND_LOAD
from gpuprof.bench.results.run_figures import RunFigures, RunLog, RunMetric
from gpuprof.bench.results.stored import MACHINE, Configuration, ResultFile
from gpuprof.errors import BenchmarkError
from gpuprof.load.correlated import BATCHES, fraction_of, quantile_of_run, relative_rate_error
from gpuprof.load.figures import latencies_s, quantile, requests_judged
from gpuprof.load.requests import first_ns, is_ok, service_ns
from gpuprof.load.result import LoadResult, LoadSettings, open_result
from gpuprof.load.stored_streams import good_streams, stored_objectives
from gpuprof.load.targets.address import is_address
from gpuprof.stats.quantiles import samples_needed
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NORMAL_WIDTH = 2 * 1.959964  # of a 95% interval, in standard errors
_FREEDOM = BATCHES - 1
_LEAST_SHARE = 1e-6  # of requests that succeeded, since nothing is no factor of a fraction
_USUAL_PATTERNS = ("poisson", "constant")
_PLAIN = "auto"


@dataclass(frozen=True)
class LoadedRun:
    """A run, and what its figures are made of. The flags are 1 for good requests."""

    folder: Path
    result: LoadResult
    objectives: tuple[str, ...]

    @cached_property
    def times_s(self) -> dict[RunMetric, tuple[float, Floats]]:
        """Return by metric its quantile, and the times in the order of the requests."""
        rows = self.result.rows
        latencies, ok = latencies_s(rows), is_ok(rows)
        service = service_ns(rows[ok]) / 1e9
        found = {
            RunMetric.P50: (0.5, latencies),
            RunMetric.P99: (0.99, latencies),
            RunMetric.SERVICE_P50: (0.5, service),
            RunMetric.SERVICE_P99: (0.99, service),
        }
        if (rows["first_ns"][ok] > 0).any():
            ttft = np.where(ok & (rows["first_ns"] > 0), first_ns(rows) / 1e9, np.inf)
            found[RunMetric.TTFT_P99] = 0.99, ttft
        return found

    @cached_property
    def flags(self) -> dict[RunMetric, Floats]:
        """Return which requests succeeded, and which met the target."""
        rows = self.result.rows
        found = {RunMetric.SUCCESS: is_ok(rows).astype(np.float64)}
        if self.objectives:
            good = good_streams(self.folder, rows, self.objectives)
            found[RunMetric.GOODPUT] = good.astype(np.float64)
        elif self.result.target is not None:
            good = latencies_s(rows) < self.result.target.limit_s
            found[RunMetric.GOODPUT] = good.astype(np.float64)
        return found

    @property
    def goal(self) -> str | None:
        """The target of the goodput."""
        return ", ".join(self.objectives) or self.result.settings.slo

    @property
    def is_busy(self) -> bool:
        """Whether other processes or machines used the processor."""
        return any(each.code in BACKGROUND_LOAD for each in self.result.run.machine_warnings)


def read_side(folders: Sequence[Path]) -> ResultFile:
    """Read folders of `gpuprof load`, of which each is an independent run. Raises GpuprofError."""
    return side_of([read_run(each) for each in folders])


def read_run(folder: Path) -> LoadedRun:
    """Read a folder of `gpuprof load`. Raises GpuprofError."""
    result = open_result(folder)
    if not len(result.rows):
        raise BenchmarkError("no_results", f"{folder} holds no requests", hint="run the load again")
    return LoadedRun(folder, result, stored_objectives(folder))


def side_of(runs: Sequence[LoadedRun], model: str | None = None) -> ResultFile:
    """Return runs as one side; `model` is its name in place of the target's. Raises BenchmarkError."""
    first, environment = runs[0], runs[0].result.run.environment
    each = configuration_of(first.result.settings, model)
    for other in runs[1:]:
        if configuration_of(other.result.settings, model) != each or other.goal != first.goal:
            raise BenchmarkError(
                "different_loads",
                f"{other.folder} is another load than {first.folder}",
                hint="runs of one side have the same target, rate, concurrency and --slo",
            )
    figures = _figures(runs)
    machine: dict[str, Any] = {name: environment.get(name) for name in MACHINE}
    machine |= {"device": None, "threads": environment.get("threads")}
    return ResultFile(
        path=first.folder,
        timestamp=str(environment.get("date", "")),
        revision=environment.get("revision"),
        machine=machine,
        data=None,
        versions={str(key): str(value) for key, value in (environment.get("versions") or {}).items()},
        profile=None,
        medians_s={each: figures.values.get(RunMetric.P50, ())},
        ways={each: ("load", "")},
        more={each: figures},
    )


def configuration_of(settings: LoadSettings, model: str | None = None) -> Configuration:
    """Return what makes two loads comparable: the target, and how its requests arrive.

    With a name for the `model`, how it is run may differ: then it is a variant.
    """
    system = settings.system if model is None else None
    shape = None if system is None or system.input_shape is None else str(list(system.input_shape))
    return Configuration(
        framework=None if system is None or system.framework == _PLAIN else system.framework,
        model=_target_name(settings.target) if model is None else model,
        device_type=None if system is None or system.device == _PLAIN else system.device,
        dtype=None if system is None else system.dtype,
        input_shape=shape,
        batch_size=None,
        load=", ".join(_arrivals(settings)),
    )


def _target_name(target: str) -> str:
    """Return a target without the port of this machine, which changes with each start of a server."""
    if not is_address(target):
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname in _LOOPBACK else target


def _arrivals(settings: LoadSettings) -> Iterator[str]:
    yield settings.scenario if settings.rate is None else f"{settings.scenario} {settings.rate:g}/s"
    if settings.pattern not in (None, *_USUAL_PATTERNS):
        yield str(settings.pattern)
    if settings.concurrency is not None:
        yield f"concurrency {settings.concurrency}"
    if settings.mix is not None:
        yield settings.mix
    if settings.max_batch is not None:
        wait = f" within {settings.batch_wait_s:g} s" if settings.batch_wait_s else ""
        yield f"batches of {settings.max_batch}{wait}"
    if settings.scenario == "offline":
        yield counted(settings.count or 0, "request")


# --- figures -------------------------------------------------------------------------------------


def _figures(runs: Sequence[LoadedRun]) -> RunFigures:
    values: dict[RunMetric, tuple[float, ...]] = {}
    missing: dict[RunMetric, Diagnostic] = {}
    logs: dict[RunMetric, RunLog] = {}
    undecided: dict[RunMetric, Diagnostic] = {}
    for metric in runs[0].times_s:
        series = [run.times_s[metric] for run in runs if metric in run.times_s]
        why = next(filter(None, (_why_no_quantile(share, times) for share, times in series)), None)
        if why is not None or len(series) < len(runs):
            missing |= {} if why is None else {metric: why}
            continue
        values[metric] = tuple(quantile(np.sort(times), share) for share, times in series)
        known = _log_of_quantile(*series[0]) if len(runs) == 1 else _log_of_runs(values[metric])
        if isinstance(known, RunLog):
            logs[metric] = known
        else:
            undecided[metric] = known
    rates = [run.result.units_per_s for run in runs]
    if min(rates) > 0:
        values[RunMetric.THROUGHPUT] = tuple(rates)
        found = _log_of_rate(runs[0].result) if len(runs) == 1 else _log_of_runs(rates)
        logs |= {} if found is None else {RunMetric.THROUGHPUT: found}
    for metric in runs[0].flags:
        flags = [run.flags[metric] for run in runs]
        values[metric] = tuple(max(float(each.mean()), _LEAST_SHARE) for each in flags)
        fewest = min(map(len, flags))
        if fewest < 2 * BATCHES:
            undecided[metric] = note("load_few_requests", requests=fewest, needed=2 * BATCHES)
        else:
            logs[metric] = _log_of_fraction(flags)
    busy = sum(run.is_busy for run in runs)
    return RunFigures(values, missing, busy, len(runs), logs=logs, open=undecided, goal=runs[0].goal)


def _why_no_quantile(share: float, times: Floats) -> Diagnostic | None:
    needed = requests_judged(share)
    if len(times) < needed:
        return note("load_few_requests", requests=len(times), needed=needed)
    is_known = math.isfinite(quantile(np.sort(times), share))
    return None if is_known else note("load_failures_decide")


def _log_of_quantile(share: float, times: Floats) -> RunLog | Diagnostic:
    """Return the logarithm of a quantile of one run, or why its error is unknown."""
    found = quantile_of_run(times, share)
    if found.is_correlated:
        return note("load_correlated")
    if found.low is None or found.high is None:
        return note("load_too_few", effective=round(found.effective), needed=samples_needed(share))
    if not math.isfinite(found.high):
        return note("load_failures_decide")
    width = math.log(found.high / found.low)
    return RunLog(math.log(found.value), width / _NORMAL_WIDTH, _FREEDOM)


def _log_of_runs(values: Sequence[float]) -> RunLog:
    logs = np.log(values)
    return RunLog(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)


def _log_of_rate(result: LoadResult) -> RunLog | None:
    """Return the logarithm of the throughput of one run, with its error over parts of its time."""
    rows = result.rows[is_ok(result.rows)]
    units = rows["units"].astype(np.float64)
    error = relative_rate_error(rows["end_ns"], units, result.run.start_ns, result.run.end_ns)
    return None if error is None else RunLog(math.log(result.units_per_s), error, _FREEDOM)


def _log_of_fraction(runs: Sequence[Floats]) -> RunLog:
    """Return the logarithm of a fraction of good requests.

    Requests that fail do so together: within a run its batches show how many count as one, and the runs, if
    they differ by more. The error is that of a fraction with one more of each kind (Agresti and Caffo,
    American Statistician 54, 2000), so that it is not 0 where no request fails.
    """
    found = [fraction_of(1 - flags) for flags in runs]
    weights = np.array([len(flags) / each.inflation for flags, each in zip(runs, found, strict=True)])
    failed = np.array([each.value for each in found])
    share = float((failed * weights).sum() / weights.sum())
    freedom = float(_FREEDOM)
    excess = 1.0
    if len(runs) > 1 and 0 < share < 1:
        between = float((weights * (failed - share) ** 2).sum()) / (len(runs) - 1)
        excess = max(between / (share * (1 - share)), 1.0)
        freedom = freedom if excess == 1.0 else float(len(runs) - 1)
    count = float(weights.sum()) / excess
    smoothed = (share * count + 1) / (count + 2)
    error = math.sqrt(smoothed / ((1 - smoothed) * count))
    return RunLog(math.log(max(1 - share, _LEAST_SHARE)), error, freedom)
