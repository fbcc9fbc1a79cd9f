# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.benchmark`: a callable or a model with its inputs, in this process or in fresh ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpuprof import _native
from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.measure.callable import callable_system
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measure import MeasuringLoop
from gpuprof.bench.measure.resources import ResourceMonitor
from gpuprof.bench.models.importing import name_of
from gpuprof.bench.results.result import ProcessRunResult, Result
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.workers.job import FactorySpec, encode_job
from gpuprof.bench.workers.schedule import INTERRUPTED, TIME_LIMIT_S, ProcessRun, Schedule
from gpuprof.bench.workers.session import Session
from gpuprof.errors import BenchmarkError
from gpuprof.record.facts import Severity
from gpuprof.stats.distributions import require_scipy

Made = Callable[[ProcessRun, int, int], None]


def benchmark_here(target: Any, inputs: Any, settings: Settings, name: str | None) -> Result:
    """Measure in this process. Raises BenchmarkError; its `result` holds what was measured before."""
    require_scipy()
    system = callable_system(target, inputs, name, stream=settings.stream)
    before = system.inputs_fingerprint()
    monitor = ResourceMonitor(devices=system.describe().device_type == "cuda")
    loop = MeasuringLoop(system, settings, progress=lambda *_: monitor.read_early())
    with monitor:
        measured = loop.run()
    extra = {"series": to_plain(monitor.resources(loop.began_ns / 1e9))}
    warnings = []
    if _native.is_recording():
        warnings.append(Diagnostic("recording", Severity.WARNING))
    if not settings.stream and system.inputs_fingerprint() != before:
        warnings.append(Diagnostic("changed_inputs", Severity.WARNING))
    described = system.describe()
    result = Result(
        name=described.model,
        description=asdict(described),
        settings=settings,
        launches=(ProcessRunResult(0, measured, measured.failure, extra),),
        environment=describe_environment(),
        in_process=True,
        more_warnings=tuple(warnings),
    )
    if measured.stopped_by == "interrupted":
        # An interrupt must end the program; the samples go with the exception.
        raise KeyboardInterrupt(result)
    if measured.failure is not None:
        failure = measured.failure
        raise BenchmarkError("failed", f"{described.model}: {failure.message}", result, hint=failure.hint)
    return result


@dataclass(frozen=True, slots=True)
class CallablePlan:
    """What process runs measure of a system that a function makes; `batch_size` None where it has none."""

    factory: FactorySpec
    settings: Settings = field(default_factory=Settings)
    batch_size: int | None = None


def plan_for(
    target: Any, inputs: Any = None, settings: Settings | None = None, *, name: str | None = None
) -> CallablePlan:
    """Return the plan by which process runs measure a function at the top of a module.

    `inputs` is None or such a function too, which makes them. Raises BenchmarkError for what has no name.
    """
    arguments = {
        "target": name_of(target, "what is measured"),
        "inputs": None if inputs is None else name_of(inputs, "the inputs (a function that makes them)"),
        "name": name,
        "stream": settings is not None and settings.stream,
    }
    factory = FactorySpec("gpuprof.bench.workers.measuring:make_callable", arguments)
    return CallablePlan(factory, settings or Settings())


class CallableRuns:
    """Process runs of several plans, in the order of their making; `interrupted` after Ctrl-C."""

    def __init__(self, plans: Mapping[str, CallablePlan]) -> None:
        self.interrupted = False
        self.runs: list[ProcessRun] = []
        self._plans = plans
        self.sessions = {name: _session(name, plan) for name, plan in plans.items()}

    def result_of(self, run: ProcessRun) -> ProcessRunResult:
        """Return what one process run measured."""
        batches = self.sessions[run.name].result.batches
        found = (each for batch in batches for each in batch.launches if each.position == run.number)
        return next(found, ProcessRunResult(run.number, None, run.failure, {}))

    def results(self) -> dict[str, Result]:
        """Return one result for each plan that was run at least once."""
        return {
            name: self._result(name) for name in self._plans if any(each.name == name for each in self.runs)
        }

    def _result(self, name: str) -> Result:
        plan, batches = self._plans[name], self.sessions[name].result.batches
        return Result(
            name=name,
            description=asdict(batches[0].description) if batches else None,
            settings=plan.settings,
            launches=tuple(self.result_of(each) for each in self.runs if each.name == name),
            environment=batches[0].environment if batches else {},
            batch_size=plan.batch_size,
        )


def _session(name: str, plan: CallablePlan) -> Session:
    factory = replace(plan.factory, path=tuple(sys.path))
    settings = JobSettings((plan.batch_size or 1,), plan.settings)
    session = Session(SystemSpec(name), settings, factory=factory, tries_again=True)
    job = session.job(1)
    assert job is not None
    encode_job(job)  # before anything is measured: its arguments are plain data
    return session


def run_callables(
    plans: Mapping[str, CallablePlan],
    runs: int,
    *,
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Made | None = None,
) -> CallableRuns:
    """Measure each plan in so many process runs, in turns. One that fails or hangs has a failure.

    `progress(run, done, planned)` is called after each. Ctrl-C ends the running one with all that it started
    and returns what there is, with `interrupted` set. Raises BenchmarkError in a worker process.
    """
    done = CallableRuns(plans)
    planned = runs * len(plans)

    def ended(run: ProcessRun) -> None:
        done.runs.append(run)
        if progress is not None and run.failure is not INTERRUPTED:
            progress(run, len(done.runs), planned)

    schedule = Schedule(runs, seed, time_limit_s, ended=ended)
    try:
        schedule.run(list(done.sessions.values()))
    except KeyboardInterrupt:
        done.interrupted = True
    return done


def benchmark_in_processes(
    target: Any, inputs: Any, settings: Settings, name: str | None, *, runs: int
) -> Result:
    """Measure in fresh processes, which find the function by its name. Raises BenchmarkError."""
    label = name or str(getattr(target, "__qualname__", target))
    done = run_callables({label: plan_for(target, inputs, settings, name=name)}, runs)
    result = done.results().get(label)
    if done.interrupted:
        raise KeyboardInterrupt(result)
    if result is None or not result.measurements:
        failure = None if result is None else result.launches[0].failure
        raise BenchmarkError(
            "no_samples",
            f"{label}: no process run has a sample{f': {failure.message}' if failure else ''}",
            result,
            hint=failure.hint if failure and failure.hint else "call it once yourself to see why",
        )
    return result
