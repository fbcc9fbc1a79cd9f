# SPDX-License-Identifier: Apache-2.0
"""The result of one configuration: its process runs, their figures, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.measure.diagnostics import warnings_of
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.messages import stop_text, title
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.errors import BenchmarkError
from gpuprof.record.facts import Severity
from gpuprof.stats.quantiles import (
    Estimate,
    PooledSamples,
    SummaryFigures,
    quantile_of,
    samples_needed,
    summarize,
)
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import Column, text_table, wrapped
from gpuprof.text.units import counted, format_duration

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
FORMAT = 1
Interval = tuple[float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class ProcessRunResult:
    """One process that measured, or one that failed.

    `position` is its place in the order of the process runs of all configurations. `extra` holds
    what else was recorded: seconds of loading and preparing (`load_s`, `prepare_s`), memory.
    """

    position: int
    measurement: Measurement | None
    failure: Failure | None
    extra: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration, measured in one process run or several.

    `samples` are seconds of a call, of all process runs in their order; `quantile()` returns figures, or None
    where the samples do not suffice. `str()` is a table for people, `to_dict()` plain data for JSON.
    """

    name: str
    description: Mapping[str, Any] | None
    settings: Settings
    in_process: bool = False
    batch_size: int | None = None
    launches: tuple[ProcessRunResult, ...]
    environment: Mapping[str, Any]
    more_warnings: tuple[Diagnostic, ...] = ()

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements of the process runs that gave samples."""
        found = (run.measurement for run in self.launches)
        return tuple(each for each in found if each is not None and len(each.samples_ns))

    @cached_property
    def samples(self) -> Floats:
        """Seconds of a call, raw; in throughput mode of the mean call of each window."""
        parts = [measurement.samples for measurement in self.measurements]
        return np.concatenate(parts) if parts else np.zeros(0)

    @overload
    def quantile(self, quantile: float) -> float | None: ...
    @overload
    def quantile(self, quantile: float, *, interval: Literal[False]) -> float | None: ...
    @overload
    def quantile(self, quantile: float, *, interval: Literal[True]) -> Interval | None: ...
    def quantile(self, quantile: float, *, interval: bool = False) -> float | Interval | None:
        """Return a quantile in seconds; None where the samples do not suffice for a 95% interval.

        With `interval`, (low, value, high). Of one process run the interval is that of order statistics and
        is for this run alone; of several it shows how they differ, and an end that so few runs do not give
        is None. Raises ValueError outside 0 to 1.
        """
        found = self.estimate(quantile)
        if found is None:
            return None
        return (found.low, found.value, found.high) if interval else found.value

    def plain_quantile(self, quantile: float) -> float | None:
        """Return a quantile of the samples in seconds, whatever their number; None without samples."""
        return self._pooled.value(quantile) if len(self.samples) else None

    def estimate(self, quantile: float) -> Estimate | None:
        """Return a quantile with its interval; None where the samples do not suffice."""
        return self._pooled.quantile(quantile)

    @property
    def mean_estimate(self) -> Estimate | None:
        """The mean with its interval; None for fewer than two samples."""
        return self._pooled.mean()

    @property
    def count(self) -> int:
        """The samples by which quantiles are judged: fewer than there are where runs differ in length."""
        return self._pooled.count

    @cached_property
    def _pooled(self) -> PooledSamples:
        """All samples; each process run has the same weight, an aborted one by its fraction."""
        measured = self.measurements
        usual = statistics.median([len(each.samples_ns) for each in measured if each.is_complete] or [0])
        shares = [
            1.0 if each.is_complete or not usual else min(1.0, len(each.samples_ns) / usual)
            for each in measured
        ]
        return PooledSamples([each.samples for each in measured], shares)

    def launch_figures(self, quantile: float = 0.5) -> tuple[float, ...]:
        """Return the quantile of each process run that has enough samples, for `gpuprof.stats.ratio_test`."""
        found = (quantile_of(each.samples, quantile) for each in self.measurements)
        return tuple(each.value for each in found if each is not None)

    @property
    def summary(self) -> SummaryFigures | None:
        """Mean, standard deviation, extremes and quartiles of all samples; None without any."""
        return summarize(self.samples) if len(self.measurements) < 2 else self._pooled.summary()

    @property
    def calls_per_s(self) -> float | None:
        """Calls over the time that they took, one after the other; None without samples."""
        summary = self.summary
        return 1 / summary.mean if summary is not None and summary.mean > 0 else None

    @property
    def items_per_s(self) -> float | None:
        """Calls per second times the batch size; None without one."""
        calls = self.calls_per_s
        return None if calls is None or self.batch_size is None else calls * self.batch_size

    @cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """The warnings about the figures, each code once, with the values of the first process run."""
        device = (self.description or {}).get("device_type", "cpu")
        found: dict[str, list[Diagnostic]] = {}
        for measurement in self.measurements:
            for each in warnings_of(measurement, device):
                found.setdefault(each.code, []).append(each)
        total = len(self.launches)
        of_runs = (
            replace(each[0], values={**each[0].values, "affected_runs": len(each), "process_runs": total})
            for each in found.values()
        )
        return (*self.more_warnings, *self._run_warnings(), *of_runs)

    def _run_warnings(self) -> Iterator[Diagnostic]:
        failed = [str(run.failure) for run in self.launches if run.failure is not None]
        if failed:
            values = {"failed": len(failed), "process_runs": len(self.launches), "first": failed[0]}
            yield Diagnostic("failed_process_runs", Severity.WARNING, values)
        if len(self.launches) == 1:
            yield Diagnostic("one_process_run", Severity.WARNING)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the raw samples, and the figures for readers of the file."""
        summary = self.summary
        return {
            "format": FORMAT,
            **to_plain(self),
            "more_warnings": [each.to_dict() for each in self.more_warnings],
            "figures": {
                "summary_s": None if summary is None else asdict(summary),
                "quantiles_s": {str(q): self.quantile(q, interval=True) for q in _QUANTILES},
                "calls_per_s": self.calls_per_s,
                "items_per_s": self.items_per_s,
                "warnings": [each.to_dict() for each in self.warnings],
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Return what `to_dict()` described; figures are worked out again. Raises BenchmarkError."""
        if data.get("format") != FORMAT:
            raise BenchmarkError(
                "unknown_format",
                f"this is not a result of format {FORMAT}",
                hint="measure again with this version",
            )
        more = data.get("more_warnings", data.get("more_flags", ()))
        found = from_plain({**_with_typed_failures(data), "more_warnings": ()}, cls, "a result")
        return replace(found, more_warnings=tuple(map(Diagnostic.from_dict, more)))

    def __str__(self) -> str:
        return _table(self)


def _with_typed_failures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result whose failures are typed: earlier versions wrote them as texts."""

    def typed(plain: Any) -> Any:
        if not isinstance(plain, Mapping) or not isinstance(plain.get("failure"), str):
            return plain
        return {**plain, "failure": to_plain(Failure(FailureCode.FAILED, plain["failure"]))}

    runs = data.get("launches")
    if not isinstance(runs, list):
        return dict(data)
    found = [
        typed({**each, "measurement": typed(each.get("measurement"))}) if isinstance(each, Mapping) else each
        for each in runs
    ]
    return {**data, "launches": found}


# --- text ----------------------------------------------------------------------------------------

_COLUMNS = (Column("", right=False), Column("time"), Column("95% interval"), Column("width"))


def _table(result: Result) -> str:
    """Return the figures, their method, and their warnings."""
    warnings = (f"! {title(each.code)}: {each}" for each in result.warnings)
    lines = [escape_text(result.name), "", text_table(_COLUMNS, [*_quantile_rows(result)]), ""]
    lines += map(wrapped, (*_figure_lines(result), *_origin_lines(result), *warnings))
    return "\n".join(lines)


def _quantile_rows(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for quantile in _QUANTILES:
        name = f"p{quantile * 100:.6g}"
        found = result.estimate(quantile)
        if found is None:
            needed = f"needs {samples_needed(quantile):,}"
            yield name, f"too few samples (n={result.count:,})", needed, "-"
            continue
        width = found.relative_width
        ends = f"{_seconds(found.low)} to {_seconds(found.high)}"
        yield name, _seconds(found.value), ends, _width(width)


def _figure_lines(result: Result) -> Iterator[str]:
    figures = result.summary
    if figures is None:
        yield "no samples"
        return
    parts = {"mean": figures.mean, "std": figures.std, "min": figures.minimum, "max": figures.maximum}
    times = "  ".join(f"{name} {_seconds(value)}" for name, value in parts.items())
    yield f"{times}  relative IQR {figures.relative_iqr:.1%}"
    rate = f"{result.calls_per_s:,.4g} calls/s, one after the other"
    yield rate if result.items_per_s is None else f"{rate}, {result.items_per_s:,.4g} items/s"


def _origin_lines(result: Result) -> Iterator[str]:
    settings, measured = result.settings, result.measurements
    calls = sum(each.calls for each in measured)
    runs = counted(len(result.launches), "process run")
    kinds = f"{settings.mode} mode, {settings.caches} caches"
    yield f"{counted(len(result.samples), 'sample')} of {counted(calls, 'call')} in {runs}, {kinds}"
    if measured and measured[0].calls_per_sample > 1:
        yield f"each sample is the mean of {measured[0].calls_per_sample:,} calls: quantiles are of those"
    for run in result.launches[:1]:
        each = run.measurement
        if each is not None:
            yield f"warm-up: {each.warmup}"
            yield f"stopped: {stop_text(each)}"
            first = None if each.warmup is None else each.warmup.first_call_s
            parts = {
                "load": run.extra.get("load_s"),
                "prepare": run.extra.get("prepare_s"),
                "first call": first,
            }
            yield "  ".join(f"{name} {_seconds(value)}" for name, value in parts.items() if value is not None)
            empty = f"a call that does nothing reads {_seconds(each.timer_ns / 1e9)}"
            yield "; ".join([empty, *_settings_notes(each.settings)])


def _settings_notes(settings: Settings) -> Iterator[str]:
    yield f"Python's garbage collector: {'on' if settings.collect_garbage else 'off'} inside the timed part"
    if settings.caches == "cold":
        yield "cold: caches flushed before each call, outside the timed part"


def _width(width: float | None) -> str:
    if width is None:
        return "-"
    return f"{width:.2%}" if width < 1 else f"{width:.1f}x"


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else format_duration(seconds * 1e9)
