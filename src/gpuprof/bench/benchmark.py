# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.benchmark`: a callable or a model with its inputs, here or in fresh processes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpuprof import _native
from gpuprof.bench.config import Settings
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.diagnostics import Flag
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.models.importing import Plan, name_of
from gpuprof.bench.results.result import Launch, Result
from gpuprof.bench.workers.launches import TIME_LIMIT_S, run_launches
from gpuprof.errors import BenchmarkError
from gpuprof.stats.distributions import require_scipy


def benchmark_here(target: Any, inputs: Any, settings: Settings, name: str | None) -> Result:
    """Measure in this process. Raises BenchmarkError; its `result` holds what was measured before."""
    require_scipy()
    system = CallableSystem(target, inputs, name=name)
    before = system.inputs_fingerprint()
    measured = measure(system, settings)
    flags = []
    if _native.is_recording():
        flags.append(Flag("recording", "a recording was on: its cost is part of the figures"))
    if system.inputs_fingerprint() != before:
        line = "the calls change their inputs: each computes something else than the one before"
        flags.append(Flag("inputs", line))
    described = system.describe()
    result = Result(
        name=described.model,
        description=asdict(described),
        settings=settings,
        launches=(Launch(0, measured, measured.failure, {}),),
        environment=describe_environment(),
        in_process=True,
        more_flags=tuple(flags),
    )
    if measured.stopped_by == "interrupted":
        # Whoever interrupts a program wants it to end; the samples go with the exception.
        raise KeyboardInterrupt(result)
    if measured.failure is not None:
        raise BenchmarkError(f"{described.model}: {measured.failure}", result)
    return result


def benchmark_in_launches(
    target: Any,
    inputs: Any,
    settings: Settings,
    name: str | None,
    *,
    launches: int,
    time_limit_s: float = TIME_LIMIT_S,
) -> Result:
    """Measure in fresh processes, which find the function by its name. Raises BenchmarkError."""
    label = name or str(getattr(target, "__qualname__", target))
    plan = plan_for(target, inputs, settings, name=name)
    done = run_launches({label: plan}, launches, time_limit_s=time_limit_s)
    result = done.results().get(label)
    if done.interrupted:
        raise KeyboardInterrupt(result)
    if result is None or not result.measurements:
        failure = None if result is None else result.launches[0].failure
        raise BenchmarkError(f"{label}: no launch gave a sample: {failure}", result)
    return result


def plan_for(
    target: Any, inputs: Any = None, settings: Settings | None = None, *, name: str | None = None
) -> Plan:
    """Return the plan by which launches measure a function that stands at the top of a module.

    `inputs` is None or such a function too, which makes them. Raises BenchmarkError for what has no name.
    """
    arguments = {
        "target": name_of(target, "what is measured"),
        "inputs": None if inputs is None else name_of(inputs, "the inputs (a function that makes them)"),
        "name": name,
    }
    return Plan("gpuprof.bench.workers.job:make_callable", arguments, settings or Settings())
