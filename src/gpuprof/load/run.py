# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: what is wrong is refused before the target is loaded, then plan, drive, and the result."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.bench.facts import TextEnum
from gpuprof.bench.measure.diagnostics import machine_warnings
from gpuprof.bench.measure.host import MachineState, describe_environment, read_state, use_between
from gpuprof.bench.results.target import parse_target
from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.driver import DRAIN_S, MOST_CLOSED, DrivenLoad, DriveSettings, Progress, drive, drive_closed
from gpuprof.load.figures import requests_judged
from gpuprof.load.probe import probe_ceiling
from gpuprof.load.requests import Nanoseconds
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.schedules import AllAtOnce, check_count, check_positive, parse_mix, parse_pattern
from gpuprof.load.targets.address import is_address
from gpuprof.load.targets.base import LoopTarget, Target, ThreadTarget
from gpuprof.load.targets.finding import check_no_model_options, find_target
from gpuprof.load.targets.http import CONCURRENCY
from gpuprof.load.targets.in_process import SystemBatchTarget, SystemTarget
from gpuprof.load.targets.server_target import ServerTarget, server_target
from gpuprof.load.warnings import LoadWarning, load_warning
from gpuprof.stats.quantiles import samples_needed

if TYPE_CHECKING:
    from gpuprof.load.profiling import ProfiledLoad
    from gpuprof.load.server_result import ServerResult

MULTI_STREAM_SAMPLES = 8
DURATION_S = 10.0
OFFLINE_COUNT = 1000


class Scenario(TextEnum):
    """How requests arrive."""

    SINGLE_STREAM = "single-stream"  # each when the one before it ended
    MULTI_STREAM = "multi-stream"  # the same with 8 samples a request
    SERVER = "server"  # Poisson
    OFFLINE = "offline"  # all at the start
    CLOSED_LOOP = "closed-loop"  # as many clients as the concurrency, each waits for its response
    CONSTANT = "constant"
    BURST = "burst"
    RAMP = "ramp"
    TRACE = "trace"


SOAK = "soak"  # of a command of its own, which runs several loads
CLOSED = (Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM, Scenario.CLOSED_LOOP)
_PATTERNS = {
    Scenario.SERVER: "poisson",
    Scenario.CONSTANT: "constant",
    Scenario.BURST: "burst:5x,2s,every=30s",
}
_PATTERN_STARTS = {Scenario.BURST: "burst", Scenario.RAMP: "ramp"}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a run is made besides its settings. `probe` measures the generator's ceiling first.

    `profile` is the folder of the run that records the requests, None for none. `describe` asks for the
    machine and its packages, which takes 20 ms and two processes.
    """

    drain_s: float = DRAIN_S
    probe: bool = True
    log_path: Path | None = None
    progress: Progress | None = None
    profile: Path | None = None
    describe: bool = True

    @property
    def of_several(self) -> LoadOptions:
        """The options of one of several runs, of which only the rows are used."""
        return replace(self, probe=False, describe=False)


def run_load(
    target: Any, settings: LoadSettings, inputs: Any = None, options: LoadOptions | None = None
) -> LoadResult:
    """Run a scenario against a target, and return what was measured until its end or Ctrl-C.

    `target` is the name of one, a callable, a coroutine function, a module with its `inputs`, or a Target.
    Raises GpuprofError, before the target is loaded, for what cannot work.
    """
    options = options or LoadOptions()
    server = server_of(target, settings)
    if server is not None:
        if options.profile is not None:
            raise BenchmarkError(
                "profile_of_server",
                f"--profile records this process, and {settings.target} is served by another",
                hint="start the server with gpuprof run",
            )
        return _run_on_server(server, settings, options)
    settings = checked(settings)
    generator = np.random.default_rng(settings.seed)
    arrivals = None if Scenario(settings.scenario) in CLOSED else _arrivals(settings, generator)
    sizes = sizes_of(settings, None if arrivals is None else len(arrivals), generator)
    found = find_target(target, inputs, sizes, settings.system)
    if arrivals is None and isinstance(found, LoopTarget):
        raise BenchmarkError(
            "closed_loop_of_coroutines",
            f"{settings.scenario} calls a function, and the target is a coroutine function",
            hint="use --scenario server with a --rate",
        )
    if settings.max_batch is not None:
        found = _batched(found, settings)
    check_requests(settings, None if arrivals is None else len(arrivals))
    return _measured(found, settings, arrivals, options)


def _batched(found: Target, settings: LoadSettings) -> SystemBatchTarget:
    """Return the model that is meant, after a queue that batches. Raises BenchmarkError for other targets."""
    assert settings.max_batch is not None
    if not isinstance(found, SystemTarget):
        raise _invalid(
            "--max-batch batches the samples of a model, and the target is another",
            "name a model, as in model.py:build, or use BatchedCallableTarget",
        )
    return SystemBatchTarget(found.make, settings.max_batch, round((settings.batch_wait_s or 0.0) * 1e9))


def server_of(target: Any, settings: LoadSettings) -> ServerTarget | None:
    """Return the server that is meant; None for targets in this process."""
    if isinstance(target, str) and is_address(target):
        limit = CONCURRENCY if settings.concurrency is None else settings.concurrency
        return server_target(target, seed=settings.seed, concurrency=limit)
    if not isinstance(target, ServerTarget):
        return None
    return target if settings.concurrency is None else replace(target, concurrency=settings.concurrency)


def _run_on_server(server: ServerTarget, settings: LoadSettings, options: LoadOptions) -> ServerResult:
    from gpuprof.load.server_result import ServerResult, client_ceiling_per_s
    from gpuprof.load.streaming_metrics import StreamMetric, parse_stream_objectives
    from gpuprof.load.targets.client_process import drive_server, drive_server_closed

    check_no_model_options(settings.target, settings.system)
    if settings.mix is not None:
        raise _invalid("--mix sets the batch sizes of a model, not of a server", "set weights in --body")
    if settings.max_batch is not None:
        raise _invalid("--max-batch batches for a model, and a server has its own queue", "omit it")
    objectives = []
    if server.is_stream and settings.slo is not None:
        objectives = parse_stream_objectives([settings.slo])
        settings = replace(settings, slo=None)
    settings = checked(settings)
    is_closed = Scenario(settings.scenario) in CLOSED
    if is_closed and settings.scenario != Scenario.CLOSED_LOOP:
        server = replace(server, concurrency=1)
    settings = replace(settings, concurrency=server.concurrency)
    how = DriveSettings(server.concurrency, options.drain_s, progress=options.progress)
    before = read_state()
    with tempfile.TemporaryDirectory(prefix="gpuprof-load-") as folder:
        if is_closed:
            count = settings.count or _MOST_ON_SERVER
            load = drive_server_closed(server, count, Path(folder), how, duration_s=settings.duration_s)
        else:
            arrivals = _arrivals(settings, np.random.default_rng(settings.seed))
            check_requests(settings, len(arrivals))
            for each in objectives:
                if each.metric != StreamMetric.ITL:  # of which a request has many
                    _check_requests(each.text, each.target.share, len(arrivals), settings.scenario)
            load = drive_server(server, arrivals, Path(folder), how)
    environment = describe_environment() if options.describe else {}
    found = _result(load.driven, settings, client_ceiling_per_s(load), before, environment)
    return ServerResult(found.settings, found.run, found.rows, load, server.is_stream, tuple(objectives))


_MOST_ON_SERVER = 1 << 22  # requests of a closed loop without a count
_LONGEST_WAIT_S = 3_600.0
_MOST_SIZES = 1 << 16  # a closed loop draws its batch sizes again after as many requests


def checked(settings: LoadSettings) -> LoadSettings:
    """Return settings with the defaults of their scenario. Raises BenchmarkError for what cannot work."""
    scenario = _scenario(settings.scenario)
    if settings.slo is not None:
        parse_target(settings.slo)
    if settings.mix is not None:
        _check_mix(settings, scenario)
    _check_batching(settings, scenario)
    if settings.concurrency is not None:
        DriveSettings(concurrency=settings.concurrency)
    if settings.rate is not None:
        check_positive(settings.rate, "rate", "requests per second above 0, as in 200")
    if settings.duration_s is not None:
        check_positive(settings.duration_s, "duration", "a time above 0, as in 30s")
    if settings.count is not None:
        check_count(settings.count)
    if scenario in CLOSED or scenario is Scenario.OFFLINE:
        return _checked_without_rate(settings, scenario)
    if settings.count is not None:
        raise _invalid("a number of requests with a rate", "set --duration instead of --count")
    is_trace = scenario is Scenario.TRACE
    if is_trace and (settings.rate is not None or settings.duration_s is not None):
        raise _invalid("a trace has the times of its file", "omit --rate and --duration")
    if scenario is Scenario.RAMP and settings.rate is not None:
        more = "" if settings.pattern else ", and set --pattern, as in ramp:10-500"
        raise _invalid("a ramp has two rates in its pattern", f"omit --rate{more}")
    pattern = settings.pattern or _PATTERNS.get(scenario)
    if pattern is None:
        wanted = "the path of a file with times" if is_trace else "as in ramp:10-500"
        raise _invalid(f"--scenario {scenario} without a pattern", f"set --pattern, {wanted}")
    start = _PATTERN_STARTS.get(scenario)
    if start is not None and not pattern.startswith(start):
        raise _invalid(f"--scenario {scenario} with --pattern {pattern}", "omit one of them")
    if settings.pattern is None and settings.rate is None:  # of a pattern that was given it depends on it
        message, hint = f"--scenario {scenario} without a rate", "set --rate in requests per second"
        raise BenchmarkError("invalid_schedule", message, hint=hint)
    duration_s = settings.duration_s or (None if is_trace else DURATION_S)
    return replace(settings, pattern=pattern, duration_s=duration_s)


def _scenario(text: str) -> Scenario:
    try:
        return Scenario(text)
    except ValueError:
        raise BenchmarkError(
            "unknown_scenario",
            f"scenario {text!r} is not known",
            hint=f"use {', '.join(Scenario)}, or gpuprof.bench.sustained_load_test for a soak test",
        ) from None


def _check_mix(settings: LoadSettings, scenario: Scenario) -> None:
    assert settings.mix is not None
    mix = parse_mix(settings.mix)
    if mix.name != "batch":
        raise _invalid(f"--mix {settings.mix}: requests have no {mix.name}", "use batch=1:80,8:20")
    if scenario is Scenario.MULTI_STREAM:
        raise _invalid("multi-stream has 8 samples in each request", "omit --mix")


def _check_batching(settings: LoadSettings, scenario: Scenario) -> None:
    wait_s = settings.batch_wait_s
    if wait_s is not None and settings.max_batch is None:
        raise _invalid("--batch-wait without --max-batch", "add --max-batch 8")
    if wait_s is not None and not 0 <= wait_s < _LONGEST_WAIT_S:
        raise _invalid(f"a batch wait of {wait_s} s", "write a time, as in 2ms")
    if settings.max_batch is None:
        return
    if settings.max_batch < 1:
        raise _invalid(f"batches of up to {settings.max_batch}", "use 1 or more")
    if settings.mix is not None:
        raise _invalid("--mix and --max-batch both set batch sizes", "omit one of them")
    if scenario in CLOSED:
        raise _invalid(f"--scenario {scenario} with --max-batch", "use server or offline")


def _checked_without_rate(settings: LoadSettings, scenario: Scenario) -> LoadSettings:
    given = {"rate": settings.rate, "pattern": settings.pattern}
    for name, value in given.items():
        if value is not None:
            raise _invalid(f"--scenario {scenario} with a {name}", f"omit --{name}")
    if scenario is Scenario.OFFLINE:
        if settings.duration_s is not None:
            raise _invalid("offline ends with its last request", "set --count instead of --duration")
        return replace(settings, count=settings.count or OFFLINE_COUNT)
    if scenario is not Scenario.CLOSED_LOOP and (settings.concurrency or 1) > 1:
        raise _invalid(f"--scenario {scenario} has one request at a time", "use closed-loop")
    if settings.count is None and settings.duration_s is None:
        return replace(settings, duration_s=DURATION_S)
    return settings


def _invalid(message: str, hint: str) -> BenchmarkError:
    return BenchmarkError("invalid_load", message, hint=hint)


# So many times the fewest requests give a verdict on a quantile if up to three are above its limit.
_SPARE = 3


def check_requests(settings: LoadSettings, planned: int | None) -> None:
    """Raise BenchmarkError where the plan has fewer requests than the quantile of the target needs."""
    target = None if settings.slo is None else parse_target(settings.slo)
    planned = settings.count if planned is None else planned
    if target is not None:
        _check_requests(target.text, target.share, planned, settings.scenario)


def _check_requests(text: str, share: float | None, planned: int | None, scenario: str) -> None:
    least = 0 if share is None else samples_needed(share)
    if share is None or planned is None or planned >= least:
        return
    conclusive = -(-max(_SPARE * least, requests_judged(share)) // 10) * 10
    ways = "use a longer --duration or a higher --rate"
    if scenario == Scenario.TRACE:
        ways = "use a longer trace"
    elif scenario == Scenario.OFFLINE or Scenario(scenario) in CLOSED:
        ways = "use a larger --count"
    raise BenchmarkError(
        "too_few_requests",
        f"--slo {text} needs at least {least:,} requests, and the plan has {planned:,}",
        hint=f"plan {conclusive:,} or more for a conclusive verdict: {ways}, or a lower quantile",
    )


def _arrivals(settings: LoadSettings, generator: np.random.Generator) -> Nanoseconds:
    if settings.scenario == Scenario.OFFLINE:
        return AllAtOnce(settings.count or OFFLINE_COUNT).arrivals_ns(generator)
    assert settings.pattern is not None
    schedule = parse_pattern(settings.pattern, rate=settings.rate, duration_s=settings.duration_s)
    return schedule.arrivals_ns(generator)


def sizes_of(
    settings: LoadSettings, count: int | None = None, generator: np.random.Generator | None = None
) -> npt.NDArray[np.int64]:
    """Return the batch sizes of requests, in turn; without a count so many that they repeat late."""
    if settings.mix is not None:
        generator = generator or np.random.default_rng(settings.seed)
        return parse_mix(settings.mix).draw(count or _MOST_SIZES, generator)
    samples = MULTI_STREAM_SAMPLES if settings.scenario == Scenario.MULTI_STREAM else 1
    return np.full(1, samples, np.int64)


def _measured(
    target: Target, settings: LoadSettings, arrivals: Nanoseconds | None, options: LoadOptions
) -> LoadResult:
    is_loop = isinstance(target, LoopTarget)
    probe = probe_ceiling(settings.concurrency, in_loop=is_loop) if options.probe else None
    how = DriveSettings(settings.concurrency, options.drain_s, options.log_path, options.progress)
    profile = None if options.profile is None else _profile_of(target, settings, arrivals, options.profile)
    target = target if profile is None else profile.profiled
    before = read_state()
    if arrivals is not None:
        load = drive(target, arrivals, how)
    else:
        assert isinstance(target, ThreadTarget)
        load = drive_closed(target, count=settings.count, duration_s=settings.duration_s, settings=how)
    environment = describe_environment() if options.describe else {}
    found = _result(load, settings, None if probe is None else probe.ceiling_per_s, before, environment)
    if profile is None:
        return found
    try:
        profile.close(load)
    except RunError as error:
        failed = replace(found.run, profile_warning=load_warning("no_profile", error=str(error)))
        return replace(found, run=failed)
    return replace(found, profile=profile.path)


def _profile_of(
    target: Target, settings: LoadSettings, arrivals: Nanoseconds | None, path: Path
) -> ProfiledLoad:
    from gpuprof.load.profiling import ProfiledLoad

    most = len(arrivals) if arrivals is not None else settings.count or MOST_CLOSED
    return ProfiledLoad(path, target, most)


def _result(
    load: DrivenLoad,
    settings: LoadSettings,
    ceiling: float | None,
    before: MachineState,
    environment: dict[str, Any],
) -> LoadResult:
    use, closed = use_between(before, read_state()), Scenario(settings.scenario) in CLOSED
    run = LoadRun(
        start_ns=load.start_ns,
        end_ns=load.end_ns,
        closed=closed,
        interrupted=load.interrupted,
        duplicates=load.duplicates,
        ceiling_per_s=ceiling,
        # Switches belong to threads that wait, which is what a generator does.
        machine_warnings=tuple(
            LoadWarning(each.code, dict(each.values))
            for each in machine_warnings(use, len(load.rows))
            if each.code != "involuntary_context_switches"
        ),
        environment=environment,
        first_failure=load.first_failure,
        batch_wait_s=load.batch_wait_s,
        client_code=load.client_code,
        is_full=closed and settings.count is None and len(load.rows) in (MOST_CLOSED, _MOST_ON_SERVER),
    )
    return LoadResult(settings, run, load.rows)
