# SPDX-License-Identifier: Apache-2.0
"""Capacity plans from what was measured: result files, results, and plain numbers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.results.result import Result
from gpuprof.bench.results.stored import Configuration, read_configurations
from gpuprof.bench.results.target import parse_target
from gpuprof.errors import BenchmarkError
from gpuprof.load.capacity import plan_farm
from gpuprof.load.capacity_plan import CapacityPlan, Load, MachineModel, Router, ServiceRun
from gpuprof.load.gate_side import configuration_of
from gpuprof.load.requests import is_ok, service_ns
from gpuprof.load.result import REQUESTS_FILE, RESULT_FILE, LoadResult, LoadSettings, open_result
from gpuprof.load.run import Scenario

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

_HINT = (
    "give a result file, a folder of gpuprof load, results of gpuprof.benchmark, or seconds of each process "
    "run"
)


def plan_measured(
    measured: Any,
    rate: float,
    slo: str,
    *,
    growth: float,
    peak: float,
    seasons: Sequence[float],
    arrivals_s: Sequence[float] | None,
    router: str,
    replicas: int,
    largest_batch: int,
    price_per_hour: float | None,
    model: str | None,
    seed: int,
) -> CapacityPlan:
    """Return the plan of `gpuprof.plan_capacity`. Raises BenchmarkError."""
    if seed < 0:
        raise BenchmarkError("invalid_seed", f"seed {seed}", hint="use a whole number from 0")
    if router not in [*Router] or replicas < 1 or largest_batch < 1:
        raise BenchmarkError(
            "invalid_machine",
            f"router {router!r}, {replicas} replicas, batches of {largest_batch}",
            hint=f"use {' or '.join(Router)}, and numbers from 1",
        )
    gaps = None if arrivals_s is None else np.diff(np.asarray(arrivals_s, dtype=np.float64))
    return plan_farm(
        service_runs(measured, model),
        Load(rate, growth, peak, gaps, tuple(seasons)),
        parse_target(slo),
        MachineModel(replicas, largest_batch, Router(router)),
        price_per_hour=price_per_hour,
        seed=seed,
    )


def service_runs(measured: Any, model: str | None = None) -> list[ServiceRun]:
    """Return the service times of what was measured. Raises BenchmarkError.

    `measured` is a result file of `gpuprof bench`, a folder of `gpuprof load`, several of these folders, a
    `LoadResult`, a `Result`, results of several batch sizes of one model, a
    sequence of ServiceRun, or a sequence with the seconds of each process run (batch size 1). `model` chooses
    one of several models in a file. Several results are process runs of the same target, each given once.
    """
    if isinstance(measured, (str, os.PathLike)):
        return _of_file(Path(measured), model)[1]
    given: Any = [measured] if isinstance(measured, (Result, LoadResult)) else measured
    if not isinstance(given, Sequence) or not given:
        raise _refused(f"{type(measured).__name__} has no service times")
    if all(isinstance(each, Result) for each in given):
        return _of_results({each.batch_size or 1: each for each in given})
    if all(isinstance(each, (str, os.PathLike)) for each in given):
        return _of_files([Path(each) for each in given], model)
    if all(isinstance(each, LoadResult) for each in given):
        _check_same([(each.settings.target, _measured_by(each.settings)) for each in given])
        return _with_shared_sizes([_of_load(each) for each in given])
    if all(isinstance(each, ServiceRun) for each in given):
        return list(given)
    return [ServiceRun({1: _seconds(each)}) for each in given]


def _refused(what: str) -> BenchmarkError:
    return BenchmarkError("no_service_times", what, hint=_HINT)


def _seconds(values: Any) -> Floats:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise _refused(f"{type(values).__name__} is no sequence of seconds") from None
    if found.ndim != 1 or not len(found) or not (np.isfinite(found) & (found > 0)).all():
        raise _refused("a process run needs seconds of its requests, all above 0")
    return found


def _with_shared_sizes(runs: list[ServiceRun]) -> list[ServiceRun]:
    if not set.intersection(*(set(run.times_s) for run in runs)):
        raise _refused("the results have no number of requests in service in common")
    return runs


def _of_load(result: LoadResult) -> ServiceRun:
    """Return the service times of a load, by the requests that the target had in service.

    That is the size of the batch, or the requests that were sent and had not ended when this one was sent.
    """
    rows = result.rows[result.rows["sent_ns"] > 0]
    if result.batch_sizes is None:
        started = np.searchsorted(np.sort(rows["sent_ns"]), rows["sent_ns"], "right")
        in_service = started - np.searchsorted(np.sort(rows["end_ns"]), rows["sent_ns"], "right")
    else:
        _, first, size = np.unique(rows["sent_ns"], return_index=True, return_counts=True)
        rows, in_service = rows[first], size
    times_s, succeeded = service_ns(rows) / 1e9, is_ok(rows)
    levels = np.unique(in_service[succeeded])
    if not len(levels):
        raise _refused("no request of the load succeeded")
    return ServiceRun({int(each): times_s[succeeded & (in_service == each)] for each in levels})


def _of_files(paths: Sequence[Path], model: str | None) -> list[ServiceRun]:
    seen = set()
    for path in paths:
        whole = _folder_of(path).resolve()
        if whole in seen:
            raise BenchmarkError(
                "same_result", f"{path} is given twice", hint="give a folder for each process run"
            )
        seen.add(whole)
    found = [_of_file(path, model) for path in paths]
    _check_same([(str(path), by) for path, (by, _runs) in zip(paths, found, strict=True)])
    return _with_shared_sizes([run for _by, runs in found for run in runs])


def _check_same(measured: Sequence[tuple[str, Configuration]]) -> None:
    """Raise BenchmarkError for results of which two measured something else."""
    first_name, first = measured[0]
    for name, other in measured[1:]:
        if other != first:
            is_other = other.model != first.model
            raise BenchmarkError(
                "different_targets",
                f"{name} is of {other.model}, and {first_name} of {first.model}"
                if is_other
                else f"{name} was measured with another command, device or batching than {first_name}",
                hint="give process runs of one target; plan another target by itself",
            )


def _measured_by(settings: LoadSettings) -> Configuration:
    """Return whose service times a load has; the rate and the concurrency may differ."""
    samples = Scenario.MULTI_STREAM if settings.scenario == Scenario.MULTI_STREAM else Scenario.SERVER
    same = dataclasses.replace(settings, scenario=str(samples), rate=None, pattern=None, concurrency=None)
    return configuration_of(same)


def _folder_of(path: Path) -> Path:
    return path.parent if path.name == RESULT_FILE else path


def _of_file(path: Path, model: str | None) -> tuple[Configuration, list[ServiceRun]]:
    """Return what was measured, and its process runs."""
    folder = _folder_of(path)
    if (folder / REQUESTS_FILE).exists() or path.is_dir():
        load = open_result(folder)
        return _measured_by(load.settings), [_of_load(load)]
    results = {
        key: result
        for key, result in read_configurations(path).items()
        if model is None or key.model == model
    }
    keys = {key._replace(batch_size=None) for key in results}
    names = sorted(map(str, keys))
    if len(names) != 1:
        found = ", ".join(names) if names else "no result of that model"
        raise BenchmarkError(
            "several_models", f"{path} has {found}", hint="name one of its models with --model"
        )
    return keys.pop(), _of_results({key.batch_size or 1: result for key, result in results.items()})


def _of_results(results: Mapping[int, Result]) -> list[ServiceRun]:
    """Return the process runs that completed at every batch size."""
    for result in results.values():
        if result.settings.mode != "latency":
            raise BenchmarkError(
                "no_service_times",
                f"{result.name} was measured in throughput mode, which has no service times of single calls",
                hint="measure it without --mode throughput",
            )
    completed = [
        {size: times for size, times in zip(results, run, strict=True) if times is not None}
        for run in _process_runs(results.values())
    ]
    runs = [ServiceRun(each) for each in completed if len(each) == len(results)]
    if not runs:
        raise _refused("no process run completed at every batch size")
    return runs


def _process_runs(results: Iterable[Result]) -> Iterable[tuple[Floats | None, ...]]:
    """Yield the seconds of each process run, one for each result; None where it did not complete."""
    columns = [
        [
            run.measurement.samples
            if run.measurement is not None and len(run.measurement.samples_ns) and run.failure is None
            else None
            for run in result.launches
        ]
        for result in results
    ]
    return zip(*columns, strict=False)
