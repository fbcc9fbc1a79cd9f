# SPDX-License-Identifier: Apache-2.0
"""The public functions of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gpuprof import _native, load
from gpuprof.errors import BenchmarkError, GpuprofError, RecordingError, RunError, UnavailableError, WorkError
from gpuprof.opened_run import (
    Run,
    SummaryKind,
    flamegraph_difference,
    import_trace,
    open,  # noqa: A004 - the contract's name
    summary_difference,
    write_flamegraph,
)
from gpuprof.profiling import Profile, profile
from gpuprof.record.decorate import decorate
from gpuprof.record.ranges import attach_tool, nsight_range
from gpuprof.recorded_program import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuprof.always_on import Windows
    from gpuprof.analyze.work import Work
    from gpuprof.bench.results.result import Result
    from gpuprof.load.capacity_plan import CapacityPlan
    from gpuprof.opened_run import PathLike
    from gpuprof.record.options import GpuOption, PythonOption

__all__ = [
    "BenchmarkError",
    "GpuprofError",
    "Profile",
    "RecordingError",
    "Run",
    "RunError",
    "SummaryKind",
    "UnavailableError",
    "WorkError",
    "__version__",
    "benchmark",
    "count_work",
    "flamegraph_difference",
    "import_trace",
    "load",
    "nsight_range",
    "open",
    "plan_capacity",
    "profile",
    "run_program",
    "span",
    "summary_difference",
    "windows",
    "write_flamegraph",
]

__version__: str = _native.build_info()["version"]
span = _native.span
_native._set_decorate_hook(decorate)
attach_tool()


def count_work(model: Any, inputs: Any = (), *, backward: bool = False, fake: bool = False) -> Work:
    """Run `model(inputs)` once, untimed, and count the FLOPs and bytes of each operator (docs/work.md).

    `model` is a module or any callable. `inputs` is one argument, a tuple of positional arguments, a
    dictionary of keyword arguments, or a function that returns one of these. `backward` also counts a
    backward pass from all outputs. `fake` runs on shapes only, without memory or time for a large model; it
    fails for a model that reads values. Parameters, buffers, gradients, inputs and random generators are
    restored. Raises WorkError; its `work` contains what was counted before the failure.
    """
    try:
        from gpuprof.record.work.run import PassError, count_operators
    except ImportError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(
            "not_installed", "count_work() needs PyTorch", hint="pip install torch"
        ) from error
    from gpuprof.analyze.work import Work

    try:
        counted = count_operators(model, inputs, backward=backward, fake=fake)
    except PassError as failure:
        work = Work(tuple(failure.counted.rows), tuple(failure.counted.unknown))
        raise WorkError("not_counted", failure.reason, work, hint=failure.hint) from failure.__cause__
    return Work(tuple(counted.rows), tuple(counted.unknown))


def benchmark(
    callable_or_model: Any,
    inputs: Any = None,
    *,
    iterations: int | None = None,
    warmup: int | None = None,
    duration_s: float | None = None,
    launches: int = 1,
    quantile: float = 0.5,
    precision: float = 0.01,
    mode: Literal["latency", "throughput"] = "latency",
    caches: Literal["warm", "cold"] = "warm",
    check_outputs: bool = False,
    stream: bool = False,
    name: str | None = None,
) -> Result:
    """Measure what a call costs, with the uncertainty of the figures (docs/benchmarking.md).

    `inputs` is one argument, a tuple of positional arguments, a dictionary of keyword arguments, or a
    function that returns one of these; None is no argument. The default warm-up ends when the times are
    steady. The measurement ends when the interval of `quantile` is narrower than `precision` times its value,
    or after 10 s. `warmup` and `iterations` set numbers of calls instead. `result.samples` are the seconds of
    each call, none removed; `result.quantile(0.99)` is None with too few samples; `print(result)` is a table.

    With `stream`, `inputs` is an iterable of batches, such as a DataLoader: each measured call gets the next
    one, and `result.measurements[0].loading` is what loading them took. The first batch is for the warm-up. A
    batch is an array, a tensor or a dictionary of keyword arguments; of a tuple or list, the first element
    (the others are labels). An iterator has one pass, which ends the measurement.

    `launches` is the number of process runs. One runs in this process and does not show how process runs
    differ. More run in fresh processes, which find the functions by name. Raises BenchmarkError if a call
    fails; its `result` contains the samples before the failure.
    """
    from gpuprof.bench.benchmark import benchmark_here, benchmark_in_processes
    from gpuprof.bench.config import Settings

    if isinstance(launches, bool) or not isinstance(launches, int) or launches < 1:
        raise BenchmarkError(
            "invalid_launches",
            f"launches={launches!r} is not a number of process runs",
            hint="give an integer from 1",
        )
    settings = Settings(
        mode=mode,
        caches=caches,
        iterations=iterations,
        duration_s=duration_s,
        quantile=quantile,
        precision=precision,
        warmup=warmup,
        check_outputs=check_outputs,
        stream=stream,
    )
    if launches == 1:
        return benchmark_here(callable_or_model, inputs, settings, name)
    return benchmark_in_processes(callable_or_model, inputs, settings, name, runs=launches)


def plan_capacity(
    measured: Any,
    rate: float,
    slo: str,
    *,
    growth: float = 1.0,
    peak: float = 1.0,
    seasons: Sequence[float] = (),
    arrivals_s: Sequence[float] | None = None,
    router: Literal["least-loaded", "random"] = "least-loaded",
    replicas: int = 1,
    largest_batch: int = 1,
    price_per_hour: float | None = None,
    model: str | None = None,
    seed: int = 0,
) -> CapacityPlan:
    """Return how many machines meet a latency target at a rate, by simulation (docs/commands/capacity.md).

    `measured` is a result file of `gpuprof bench`, a folder of `gpuprof load` (or several), a result of
    `gpuprof.benchmark`, results of several batch sizes, or a sequence with the seconds of each process run.
    `rate` is requests per second, `slo` a quantile and its limit, such as `p99<100ms`. The planned rate is
    `rate` times `growth` times `peak` times the largest of `seasons`. Requests arrive as a Poisson process,
    or with the gaps of `arrivals_s`. `replicas` and `largest_batch` are requests that a machine serves at a
    time: as many must have been measured.

    `plan.machines` has the number and its 95% interval over process runs, which needs three of them;
    `print(plan)` is a table. Raises BenchmarkError for what cannot be planned.
    """
    from gpuprof.load.planning import plan_measured

    return plan_measured(
        measured,
        rate,
        slo,
        growth=growth,
        peak=peak,
        seasons=seasons,
        arrivals_s=arrivals_s,
        router=router,
        replicas=replicas,
        largest_batch=largest_batch,
        price_per_hour=price_per_hour,
        model=model,
        seed=seed,
    )


def windows(
    *,
    out: PathLike | None = None,
    every: float | str = 60.0,
    duration: float | str = 2.0,
    when: str | None = None,
    keep: int = 20,
    disk: int | str = "2GB",
    layers: bool = True,
    operators: bool = True,
    gpu: GpuOption = "auto",
    python: PythonOption = False,
) -> Windows:
    """Record a window of `duration` seconds each `every` seconds of the `with` block (docs/always-on.md).

    `out` is a new folder, by default PROGRAM.windows. `when` begins another window after a step such as
    `step > 1.5x` (of the median), `step > p99` or `step > 200ms`, at most one in each `every`. Half of the
    `keep` retained windows are those with the slowest steps, half a sample of all; together they take at most
    `disk` bytes. Another process closes them. Raises RecordingError for what cannot be recorded.
    """
    import sys
    from pathlib import Path

    from gpuprof.always_on import Windows
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.window_options import WindowOptions, parse_bytes, parse_seconds
    from gpuprof.run.windows import free_windows_name

    options = WindowOptions(
        every_s=parse_seconds(every) if isinstance(every, str) else float(every),
        duration_s=parse_seconds(duration) if isinstance(duration, str) else float(duration),
        when=when,
        keep=keep,
        disk_bytes=parse_bytes(disk) if isinstance(disk, str) else int(disk),
    )
    stem = Path(getattr(sys, "argv", [""])[0] or "program").stem
    path = Path(out) if out is not None else free_windows_name(stem)
    recording = RecordingOptions(layers=layers, operators=operators, gpu=gpu, python=python)
    return Windows(path, options, recording)
