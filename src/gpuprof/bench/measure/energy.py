# SPDX-License-Identifier: Apache-2.0
"""Energy of a call: the device's counter over a second or more, without the idle energy.

The readings are those of a recording (`record/device_samples.py`): a process of its own asks NVML. The
counter steps every few tens of milliseconds, so a window under `SHORTEST_WINDOW_S` is useless. Where the
counter, or the driver, is not there, the energy is unavailable: None, and a reason.

- idle power: energy / window of a pause before the load, which begins when the device has been let go;
- net energy: energy of the load - idle power * window;
- energy per sample: net energy / samples. It may be negative where the load is less than the noise.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.devices import DeviceUse, device_use
from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.record.device_sampler import METRICS
from gpuprof.record.device_samples import DeviceSampleSource
from gpuprof.record.facts import Reason, SourceStatus
from gpuprof.run.database import connect as connect_database
from gpuprof.run.samples import read_samples

if TYPE_CHECKING:
    import duckdb


SHORTEST_WINDOW_S = 1.0
LOAD_S = 2.0
IDLE_S = 1.5
LONGEST_DISAGREEMENT = 0.1  # of the counter and the integral of power


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy of a load on one device, in joules, and how the device was used meanwhile.

    What is not available is None, and `unavailable` has the reason. `warning` is set where the counter and
    the integral of power disagree. `utilization_percent` are pairs of seconds since the load's start and
    readings.
    """

    energy_per_sample_j: float | None = None
    energy_j: float | None = None
    idle_w: float | None = None
    power_mean_w: float | None = None
    window_s: float | None = None
    samples: int = 0
    method: str | None = None
    unavailable: Diagnostic | None = None
    warning: Diagnostic | None = None
    utilization_mean_percent: float | None = None
    utilization_percent: list[tuple[float, float]] = field(default_factory=list)
    throttled: dict[str, float] = field(default_factory=dict)


class _Table:
    """Readings as the table `samples` that `device_use` asks."""

    tables = ["samples"]  # noqa: RUF012 - what the protocol calls it

    def __init__(self) -> None:

        self.connection = connect_database()
        self.connection.execute("CREATE TABLE readings(t_ns BIGINT, device INT, code INT, value DOUBLE)")
        names = ", ".join(f"({code}, '{name}')" for code, name in enumerate(METRICS, 1))
        self.connection.execute(f"CREATE TABLE names AS FROM (VALUES {names}) AS names(code, metric)")

    def add(self, columns: dict[str, Any]) -> None:
        """Take a batch of `read_samples`."""
        rows = list(zip(*(columns[key].tolist() for key in ("t_ns", "device", "code", "value")), strict=True))
        self.connection.executemany("INSERT INTO readings VALUES (?, ?, ?, ?)", rows)

    def narrow(self, window: tuple[int, int]) -> _Table:
        """Let `samples` be the readings of one stretch of time."""
        self.connection.execute(
            "CREATE OR REPLACE TABLE samples AS SELECT t_ns, device, metric, value FROM readings "
            "JOIN names USING (code) WHERE t_ns BETWEEN ? AND ?",
            list(window),
        )
        return self

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Ask."""
        return self.connection.sql(query)


def measure_energy(
    call: Callable[[], int],
    *,
    load_s: float = LOAD_S,
    idle_s: float = IDLE_S,
    pause: Callable[[float], None] = time.sleep,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> EnergyReading:
    """Pause, then call again and again for `load_s`; `call` waits for its work and returns its samples."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-energy-") as folder:
        source = DeviceSampleSource(Path(folder))
        status = source.start()
        if not status.is_on:
            return EnergyReading(unavailable=note("energy_not_read", status=status.to_plain()))
        try:
            idle = _stretch(lambda: pause(idle_s), clock_ns)
            samples, load = 0, (clock_ns(), clock_ns())
            while load[1] - load[0] < load_s * 1e9:
                samples += call()
                load = (load[0], clock_ns())
        finally:
            source.stop()
        table = _Table()
        found = read_samples(Path(folder), table.add, closed=True)
    if found.off is not None or not found.readings:
        off = found.off or SourceStatus.off(Reason.NO_READING)
        return EnergyReading(unavailable=note("energy_not_read", status=off.to_plain()))
    return _sum_up(table, found.devices, idle, load, samples)


def _stretch(action: Callable[[], object], clock_ns: Callable[[], int]) -> tuple[int, int]:
    begin = clock_ns()
    action()
    return begin, clock_ns()


def _sum_up(
    table: _Table,
    devices: list[Mapping[str, Any]] | list[dict[str, Any]],
    idle: tuple[int, int],
    load: tuple[int, int],
    samples: int,
) -> EnergyReading:
    if len(devices) > 1:
        return EnergyReading(unavailable=note("energy_of_several_devices", devices=len(devices)))
    at_rest = _only(device_use(table.narrow(idle), devices))
    at_work = _only(device_use(table.narrow(load), devices))
    if at_work is None or at_work.energy_j is None or at_work.window_s < SHORTEST_WINDOW_S:
        why = note("energy_not_reported", window_s=SHORTEST_WINDOW_S)
        return EnergyReading(unavailable=why, samples=samples)
    idle_w = None if at_rest is None else at_rest.power_mean_w
    net = None if idle_w is None else at_work.energy_j - idle_w * at_work.window_s
    # The readings cover a little less than the load: so do the samples that they are for.
    covered = samples * at_work.window_s / ((load[1] - load[0]) / 1e9)
    return EnergyReading(
        energy_per_sample_j=None if net is None else net / covered,
        energy_j=at_work.energy_j,
        idle_w=idle_w,
        power_mean_w=at_work.power_mean_w,
        window_s=at_work.window_s,
        samples=samples,
        method=at_work.energy_method,
        unavailable=note("idle_power_not_reported") if idle_w is None else None,
        warning=_cross_check(table, at_work),
        utilization_mean_percent=at_work.utilization_mean_percent,
        utilization_percent=_series(table, load[0]),
        throttled=dict(at_work.throttled),
    )


def _only(found: list[DeviceUse]) -> DeviceUse | None:
    return found[0] if len(found) == 1 else None


def _cross_check(table: _Table, used: DeviceUse) -> Diagnostic | None:
    """Hold the counter against the integral of the power readings."""
    if used.energy_method != "counter" or not used.energy_j:
        return None
    rows = table.sql("SELECT t_ns, value FROM samples WHERE metric = 'power_w' ORDER BY t_ns").fetchall()
    integral = sum((a[1] + b[1]) / 2 * (b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(rows))
    if len(rows) < 2 or abs(integral / used.energy_j - 1) <= LONGEST_DISAGREEMENT:
        return None
    return warning("energy_differs_from_power", counter_j=used.energy_j, integral_j=integral)


def _series(table: _Table, begin_ns: int) -> list[tuple[float, float]]:
    query = "SELECT t_ns, value FROM samples WHERE metric = 'utilization_percent' ORDER BY t_ns"
    return [((t_ns - begin_ns) / 1e9, value) for t_ns, value in table.sql(query).fetchall()]
