# SPDX-License-Identifier: Apache-2.0
"""What is known of one configuration: all launches' samples, figures with intervals, their grounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.measure.diagnostics import warnings_of
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.errors import BenchmarkError
from gpuprof.record.facts import Severity
from gpuprof.stats.quantiles import Estimate, PooledSamples, SummaryFigures, quantile_of, summarize

if TYPE_CHECKING:
    import numpy.typing as npt


FORMAT = 1
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
Interval = tuple[float | None, float, float | None]


@dataclass(frozen=True, slots=True)
class Launch:
    """One process that measured, or one that failed.

    `position` is its place in the order in which launches of all configurations were made. `extra` holds
    what else was noted: seconds of loading and preparing (`load_s`, `prepare_s`), memory.
    """

    position: int
    measurement: Measurement | None
    failure: str | None
    extra: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        measured = None if self.measurement is None else self.measurement.to_dict()
        return {
            "position": self.position,
            "measurement": measured,
            "failure": self.failure,
            "extra": dict(self.extra),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Launch:
        """Return what `to_dict()` described."""
        measured = data["measurement"]
        return cls(
            position=data["position"],
            measurement=None if measured is None else Measurement.from_dict(measured),
            failure=data["failure"],
            extra=data["extra"],
        )


@dataclass(frozen=True)
class Result:
    """One configuration, measured in one launch or several.

    `samples` are seconds of a call, of all launches in their order; `quantile()` returns figures, or None
    where the samples do not suffice. `str()` is a table for people, `to_dict()` plain data for JSON.
    """

    name: str
    description: Mapping[str, Any] | None
    settings: Settings
    launches: tuple[Launch, ...]
    environment: Mapping[str, Any]
    in_process: bool = False
    batch_size: int | None = None
    more_warnings: tuple[Diagnostic, ...] = ()

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements of the launches that gave samples."""
        found = (launch.measurement for launch in self.launches)
        return tuple(each for each in found if each is not None and len(each.wall_ns))

    @cached_property
    def samples(self) -> npt.NDArray[np.float64]:
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

        With `interval`, (low, value, high). Of one launch the interval is that of order statistics and tells
        of this launch alone; of several it tells how launches differ, and an end that so few launches do
        not give is None. Raises ValueError outside 0 to 1.
        """
        found = self.estimate(quantile)
        if found is None:
            return None
        return (found.low, found.value, found.high) if interval else found.value

    def estimate(self, quantile: float) -> Estimate | None:
        """Return a quantile with its interval; None where the samples do not suffice."""
        return self._pooled.quantile(quantile)

    @property
    def mean_estimate(self) -> Estimate | None:
        """The mean with its interval; None for fewer than two samples."""
        return self._pooled.mean()

    @property
    def count(self) -> int:
        """The samples by which quantiles are judged: fewer than there are where launches differ in length."""
        return self._pooled.count

    @cached_property
    def _pooled(self) -> PooledSamples:
        """All samples; each launch weighs the same, one that did not get to its end as it got on."""
        measured = self.measurements
        whole = [len(each.wall_ns) for each in measured if each.stopped_by not in ("failure", "interrupted")]
        usual = float(np.median(whole)) if whole else 0.0
        shares = [
            1.0 if each.stopped_by not in ("failure", "interrupted") or not usual
            else min(1.0, len(each.wall_ns) / usual)
            for each in measured
        ]  # fmt: skip
        return PooledSamples([each.samples for each in measured], shares)

    def launch_figures(self, quantile: float = 0.5) -> tuple[float, ...]:
        """Return the quantile of each launch that has enough samples, for `gpuprof.stats.ratio_test`."""
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
        failed = [launch.failure for launch in self.launches if launch.failure]
        if failed:
            values = {"failed": len(failed), "process_runs": len(self.launches), "first": failed[0]}
            yield Diagnostic("failed_process_runs", Severity.WARNING, values)
        if len(self.launches) == 1:
            yield Diagnostic("one_process_run", Severity.WARNING)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the raw samples, and the figures beside them for who reads it."""
        summary = self.summary
        return {
            "format": FORMAT,
            "name": self.name,
            "description": None if self.description is None else dict(self.description),
            "settings": self.settings.to_dict(),
            "in_process": self.in_process,
            "batch_size": self.batch_size,
            "launches": [launch.to_dict() for launch in self.launches],
            "environment": dict(self.environment),
            "more_warnings": [each.to_dict() for each in self.more_warnings],
            "figures": {
                "summary_s": None if summary is None else asdict(summary),
                "quantiles_s": {str(q): self.quantile(q, interval=True) for q in QUANTILES},
                "calls_per_s": self.calls_per_s,
                "items_per_s": self.items_per_s,
                "warnings": [each.to_dict() for each in self.warnings],
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Return what `to_dict()` described; figures are worked out again. Raises BenchmarkError."""
        if data.get("format") != FORMAT:
            raise BenchmarkError(f"this is no result of format {FORMAT}: measure again with this version")
        return cls(
            name=data["name"],
            description=data["description"],
            settings=Settings.from_dict(data["settings"]),
            launches=tuple(Launch.from_dict(each) for each in data["launches"]),
            environment=data["environment"],
            in_process=data["in_process"],
            batch_size=data["batch_size"],
            more_warnings=tuple(
                Diagnostic.from_dict(each) for each in data.get("more_warnings", data.get("more_flags", ()))
            ),
        )

    def __str__(self) -> str:
        from gpuprof.bench.results.text import result_table

        return result_table(self)
