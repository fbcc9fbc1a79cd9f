# SPDX-License-Identifier: Apache-2.0
"""One figure of each process run for every metric that a gate compares.

The process run is the sampling unit of the mean, the tail, memory and energy too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuprof.bench.facts import Diagnostic, TextEnum, note
from gpuprof.bench.measure.diagnostics import BACKGROUND_LOAD, machine_warnings
from gpuprof.stats.quantiles import quantile_of, samples_needed

if TYPE_CHECKING:
    from gpuprof.bench.measure.measurement import Measurement
    from gpuprof.bench.results.result import Result


class RunMetric(TextEnum):
    """What is compared. Memory is that of the device's allocator, or of the model on the host.

    The last ones are of a load: the times from sending to the end, the time to the first token, and the
    fractions of requests that succeeded and that met the target.
    """

    P50 = "p50"
    P95 = "p95"
    P99 = "p99"
    MEAN = "mean"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    PROCESS_MEMORY = "process-memory"
    ENERGY = "energy"
    ACCURACY = "accuracy"
    SERVICE_P50 = "service-p50"
    SERVICE_P99 = "service-p99"
    TTFT_P99 = "ttft-p99"
    SUCCESS = "success"
    GOODPUT = "goodput"

    @property
    def unit(self) -> str:
        """The unit of its figures."""
        return _UNITS.get(self, "s")

    @property
    def is_higher_better(self) -> bool:
        """Whether a larger figure is the better one."""
        return self in (RunMetric.THROUGHPUT, RunMetric.ACCURACY, RunMetric.SUCCESS, RunMetric.GOODPUT)

    @property
    def depends_on_load(self) -> bool:
        """Whether other processes on the machine change it."""
        return self not in (
            RunMetric.MEMORY,
            RunMetric.PROCESS_MEMORY,
            RunMetric.ACCURACY,
            RunMetric.SUCCESS,
        )

    @property
    def is_fraction(self) -> bool:
        """Whether its figures are fractions of requests or samples."""
        return self in (RunMetric.ACCURACY, RunMetric.SUCCESS, RunMetric.GOODPUT)


_UNITS = {
    RunMetric.THROUGHPUT: "samples/s",
    RunMetric.MEMORY: "B",
    RunMetric.PROCESS_MEMORY: "B",
    RunMetric.ENERGY: "J/sample",
    RunMetric.ACCURACY: "fraction",
    RunMetric.SUCCESS: "fraction",
    RunMetric.GOODPUT: "fraction",
}
TAILS = {RunMetric.P95: 0.95, RunMetric.P99: 0.99}


@dataclass(frozen=True, slots=True)
class RunLog:
    """The logarithm of a figure, its standard error and degrees of freedom, known without other runs."""

    value: float
    error: float
    freedom: float


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of the completed process runs by metric, or why there are none of a metric.

    `busy` of the `completed` process runs had background load. An accuracy is one figure, of so many
    `labeled_samples`. `logs` are figures whose error is known from within a run, `open` why one has none.
    `goal` is the target of the goodput.
    """

    values: Mapping[RunMetric, tuple[float, ...]] = field(default_factory=dict)
    missing: Mapping[RunMetric, Diagnostic] = field(default_factory=dict)
    busy: int = 0
    completed: int = 0
    labeled_samples: int = 0
    logs: Mapping[RunMetric, RunLog] = field(default_factory=dict)
    open: Mapping[RunMetric, Diagnostic] = field(default_factory=dict)
    goal: str | None = None


def run_figures(result: Result) -> RunFigures:
    """Return the figures of one configuration. A metric that some process run lacks has none."""
    runs = [
        (run.measurement, run.extra)
        for run in result.launches
        if run.measurement is not None and run.measurement.is_complete
    ]
    measurements, extras = [each for each, _ in runs], [extra for _, extra in runs]
    means = [float(each.samples.mean()) for each in measurements]
    size = result.batch_size
    found: dict[RunMetric, list[float | None]] = {
        RunMetric.MEAN: [*means],
        RunMetric.THROUGHPUT: [None if size is None or not mean else size / mean for mean in means],
        RunMetric.ENERGY: [(extra.get("energy") or {}).get("energy_per_sample_j") for extra in extras],
        **_memory(extras),
    }
    missing = {}
    for metric, quantile in TAILS.items():
        why = _why_no_tail(measurements, quantile)
        if why is not None:
            missing[metric] = why
            continue
        estimates = (quantile_of(each.samples, quantile) for each in measurements)
        found[metric] = [None if each is None else each.value for each in estimates]
    busy = sum(map(_is_busy, measurements))
    return RunFigures(
        {each: tuple(_known(figures)) for each, figures in found.items()}, missing, busy, len(runs)
    )


def _known(figures: list[float | None]) -> list[float]:
    """Return the figures if every process run has one above zero, of which there is a ratio."""
    known = [each for each in figures if each is not None and each > 0]
    return known if len(known) == len(figures) else []


def _why_no_tail(measurements: list[Measurement], quantile: float) -> Diagnostic | None:
    if any(each.calls_per_sample > 1 for each in measurements):
        return note("quantiles_of_windows")
    fewest, needed = min((len(each.samples_ns) for each in measurements), default=0), samples_needed(quantile)
    return note("too_few_for_tail", samples=fewest, needed=needed) if fewest < needed else None


def _memory(extras: list[Mapping[str, Any]]) -> dict[RunMetric, list[float | None]]:
    # What a larger batch took may still be held.
    clean = [extra for extra in extras if not extra.get("after_larger")]
    readings = [extra.get("memory") or {} for extra in (clean if len(clean) > 1 else extras)]
    return {
        RunMetric.MEMORY: [
            each.get("allocator_peak_bytes") or each.get("host_own_bytes") for each in readings
        ],
        RunMetric.PROCESS_MEMORY: [each.get("host_resident_bytes") for each in readings],
    }


def _is_busy(measurement: Measurement) -> bool:
    use = measurement.machine
    found = () if use is None else machine_warnings(use, measurement.calls)
    return any(each.code in BACKGROUND_LOAD for each in found)
