# SPDX-License-Identifier: Apache-2.0
"""`gpuprof load`: latencies of requests that arrive by a plan."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.bench.options import SystemOptions
from gpuprof.cli.load_progress import live_figures, search_progress
from gpuprof.cli.measuring import (
    EXIT_INCONCLUSIVE,
    EXIT_MISSED,
    OccasionalLines,
    exit_for_targets,
    reporting_interrupt,
)
from gpuprof.cli.options import FINITE, WholeNumber, finite, numbers, seconds, system_options, typed
from gpuprof.cli.server_options import server_options, target_of_options
from gpuprof.cli.termination import terminated_like_interrupted
from gpuprof.cli.usage import BadParameter, UsageError, refuse_others
from gpuprof.load.out_folder import check_out, new_folder
from gpuprof.load.targets.address import is_address
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.load.result import LoadResult, LoadSettings
    from gpuprof.load.several_runs import MaxRateResult, SweepResult
    from gpuprof.load.soak_run import SoakResult
    from gpuprof.load.targets.server_target import ServerTarget

RESULTS_FOLDER = "gpuprof-load"
_EXIT_INTERRUPTED = 130
_COUNT = WholeNumber(min=1)
_OF_PROBE = ("probe", "target", "as_json")
# Those of loads that LoadGen has not are refused with errors of their own.
_OF_LOADS = ("pattern", "mix", "concurrency", "report", "find_max_rate")
_OF_SYSTEMS = tuple(each.name for each in dataclasses.fields(SystemOptions))
_OWN_OF_MLPERF = "mlperf target scenario rate duration count slo seed max_batch out as_json"
_OF_MLPERF = (*_OWN_OF_MLPERF.split(), *_OF_LOADS, *_OF_SYSTEMS)


def _rate(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Parse 200 or 200/s."""
    if value is None:
        return None
    try:
        found = float(value.strip().removesuffix("/s"))
    except ValueError:
        raise BadParameter("invalid_rate", f"{value!r} is not a rate; hint: write 200 or 200/s.") from None
    return finite(found, value)


def _time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    from gpuprof.load.schedules import parse_time

    return None if value is None else parse_time(value)


def _report_formats(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Read formats, and refuse what cannot be written before anything is measured."""
    formats = tuple(filter(None, (word.strip() for word in value.split(","))))
    if formats:
        from gpuprof.load.report import check_formats

        check_formats(formats)
    return formats


def _folder(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """Return the given folder; empty for a new one, which is made when the test starts."""
    if value == "":
        raise BadParameter("empty_path", "the folder has no name; hint: write --out DIR, or omit it.")
    return value or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommandOptions(SystemOptions):
    """The options of `gpuprof load`."""

    target: str | None
    scenario: str
    rate: float | None
    duration: float | None
    count: int | None
    pattern: str | None
    mix: str | None
    concurrency: tuple[int, ...] | None
    slo: str | None
    drain: float
    out: str
    report: tuple[str, ...]
    find_max_rate: bool
    runs: int
    probe: bool
    mlperf: bool
    max_batch: int | None
    batch_wait: float | None
    as_json: bool
    profile: bool
    allowed_hosts: tuple[str, ...]
    headers: dict[str, str]
    method: str
    body: str
    model: str
    prompt_tokens: int
    output_tokens: int
    endpoint: str
    batch: int
    shapes: dict[str, tuple[int, ...]]
    is_binary: bool
    timeout_s: float
    ca_file: str

    @property
    def makes_several_runs(self) -> bool:
        """Whether the options are those of a search or a sweep."""
        return self.find_max_rate or len(self.concurrency or ()) > 1

    @property
    def single_concurrency(self) -> int | None:
        """The concurrency of one run; None without it, and for a sweep."""
        return self.concurrency[0] if self.concurrency is not None and len(self.concurrency) == 1 else None

    @property
    def profile_folder(self) -> Path | None:
        """Where the requests are recorded; None for nowhere."""
        from gpuprof.load.result import PROFILE_FOLDER

        return Path(self.out) / PROFILE_FOLDER if self.profile else None

    def settings(self) -> LoadSettings:
        """Return what is to be run."""
        from gpuprof.load.result import LoadSettings

        if self.target is None:
            raise UsageError(
                "no_target", "no TARGET; hint: name a model, as in model.py:build, or add --probe."
            )
        return LoadSettings(
            target=self.target,
            scenario=self.scenario,
            pattern=self.pattern,
            rate=self.rate,
            duration_s=self.duration,
            count=self.count,
            concurrency=self.single_concurrency,
            mix=self.mix,
            slo=self.slo,
            seed=self.seed,
            system=self.spec(self.target),
            max_batch=self.max_batch,
            batch_wait_s=self.batch_wait,
        )


@click.command("load")
@click.argument("target", metavar="[TARGET]", required=False)
@click.option(
    "--scenario",
    default="server",
    show_default=True,
    metavar="NAME",
    help="Select when requests are sent: single-stream, multi-stream, server (Poisson), offline, "
    "closed-loop, constant, burst, ramp, trace or soak.",
)
@click.option("--rate", metavar="200", callback=_rate, help="Plan this many requests per second.")
@click.option("--duration", metavar="30s", callback=_time, help="Send requests for this time. Default: 10s.")
@click.option(
    "--count",
    type=_COUNT,
    metavar="N",
    help="Send N requests in the scenarios offline and closed-loop. Default of offline: 1000.",
)
@click.option(
    "--pattern",
    metavar="P",
    help="Change the rate over time: constant, poisson, gamma:0.5, burst:5x,2s,every=30s, ramp:10-500, "
    "diurnal:24h@1h, or a file with a time on each line. Default: that of the scenario.",
)
@click.option("--mix", metavar="batch=1:80,8:20", help="Mix batch sizes, with their weights.")
@click.option(
    "--concurrency",
    callback=numbers,
    metavar="1,2,4,8",
    help="Handle at most N requests at once; the others wait. With several values, run a closed loop at "
    "each. Default: 1 for a model in this process.",
)
@click.option(
    "--find-max-rate",
    is_flag=True,
    help="Search the highest rate that meets --slo, beginning at --rate, with --runs runs at each rate.",
)
@click.option(
    "--runs",
    type=WholeNumber(min=5),
    default=8,
    show_default=True,
    metavar="N",
    help="With --find-max-rate: make N independent runs at each rate.",
)
@click.option(
    "--slo",
    metavar="'p99<20ms'",
    help="Check a target. Exit with 1 if it is missed, with 3 if the result is inconclusive.",
)
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Set the seed of the plan.",
)
@click.option(
    "--drain",
    type=FINITE,
    callback=seconds,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Wait S seconds for responses after the last request. Missing responses count as late.",
)
@click.option(
    "--out",
    callback=_folder,
    metavar="DIR",
    help="Write result.json and requests.parquet to DIR, a new or empty folder. Default: "
    f"{RESULTS_FOLDER}, numbered if it exists.",
)
@click.option(
    "--report",
    metavar="html,md,csv,json,pdf",
    default="",
    callback=_report_formats,
    help="Write reports in these formats to DIR.",
)
@click.option(
    "--max-batch",
    type=_COUNT,
    metavar="N",
    help="Call a model with up to N waiting requests at once (dynamic batching). With --mlperf: the batch "
    "size of offline.",
)
@click.option(
    "--batch-wait",
    metavar="2ms",
    callback=_time,
    help="With --max-batch: let the oldest request wait at most this long for a full batch. Default: 0.",
)
@click.option(
    "--mlperf",
    is_flag=True,
    help="Run a model under LoadGen, MLPerf's load generator, in its four scenarios.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Record this process while it serves the requests, and show what the slowest ones spent their time "
    "on.",
)
@system_options
@server_options
@click.option("--probe", is_flag=True, help="Measure how exactly gpuprof sends requests, without a TARGET.")
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(LoadCommandOptions)
def load(options: LoadCommandOptions) -> None:
    """Send requests to TARGET at planned times. Measure each latency from the planned time.

    TARGET is a model as in gpuprof bench, python:module:function, or the address of a server: http://,
    kserve+http://, kserve+grpc:// or openai+http://.
    """
    _check_profile(options)
    if options.probe:
        refuse_others("--probe", _OF_PROBE)
        _print_probe(options)
        return
    if options.mlperf:
        refuse_others("--mlperf", _OF_MLPERF)
    with _out_folder(options) as folder:
        _load_into(dataclasses.replace(options, out=str(folder)))


def _out_folder(options: LoadCommandOptions) -> contextlib.AbstractContextManager[Path]:
    if not options.out:
        return new_folder(Path(RESULTS_FOLDER))
    check_out(Path(options.out), may_exist=options.mlperf)  # each run has logs of its own there
    return contextlib.nullcontext(Path(options.out))


def _load_into(options: LoadCommandOptions) -> None:
    if options.mlperf:
        _mlperf(options)
        return
    if options.scenario == "soak":
        _soak(options)
        return
    if options.makes_several_runs:
        _several_runs(options)
        return
    with terminated_like_interrupted(), reporting_interrupt():
        found = _one_load(options)
    _report(found, options)


def _one_load(options: LoadCommandOptions) -> LoadResult:
    from gpuprof.load.run import LoadOptions, run_load

    settings = options.settings()
    target = _target(options, settings)
    with live_figures(Path(options.out), settings) as progress:
        how = LoadOptions(drain_s=options.drain, progress=progress, profile=options.profile_folder)
        return run_load(target, settings, options=how)


def _check_profile(options: LoadCommandOptions) -> None:
    """Refuse --profile where there is not one load of a target in this process."""
    several = {
        "--probe": options.probe,
        "--mlperf": options.mlperf,
        "--scenario soak": options.scenario == "soak",
        "--find-max-rate": options.find_max_rate,
        "several numbers for --concurrency": len(options.concurrency or ()) > 1,
    }
    with_it = [name for name, is_used in several.items() if is_used]
    if options.profile and with_it:
        raise UsageError("profile_of_one_load", f"--profile records one load of a target, and "
                         f"{with_it[0]} is another; hint: omit one of them.")  # fmt: skip


def _target(options: LoadCommandOptions, settings: LoadSettings) -> str | ServerTarget:
    if not is_address(settings.target):
        return settings.target
    values = dataclasses.asdict(options)
    limit = max(options.concurrency) if options.concurrency else None
    return target_of_options(settings.target, values, concurrency=limit, seed=options.seed)


def _mlperf(options: LoadCommandOptions) -> None:
    """Run LoadGen; exit with 1 where its verdict is invalid, with 3 where the run was too short for one."""
    from gpuprof.load.loadgen_run import run_mlperf

    if options.report or options.makes_several_runs:
        raise UsageError("options_of_one_run", "--mlperf has no --report, --find-max-rate or sweep; "
                         "hint: omit them.")  # fmt: skip
    with terminated_like_interrupted(), reporting_interrupt():
        found = run_mlperf(options.settings(), Path(options.out), options.max_batch)
    try:
        click.echo(json.dumps(found.to_dict()) if options.as_json else str(found))
    finally:  # if a pipe is closed, too
        file = found.save(Path(options.out))
    _written(file, options)
    if not options.as_json:
        click.echo(f"logs of LoadGen: {click.format_filename(found.loadgen.folder)}", err=True)
    exit_for_targets([found.verdict])


def _soak(options: LoadCommandOptions) -> None:
    """Run a soak test; exit with 1 for a leak, slower service or throttling, with 3 if it is inconclusive."""
    from gpuprof.load.run import LoadOptions
    from gpuprof.load.soak_run import run_soak

    if options.report or options.makes_several_runs or options.slo is not None:
        raise UsageError("options_of_one_run", "--scenario soak has no --report, --find-max-rate, --slo or "
                         "sweep; hint: omit them.")  # fmt: skip
    settings, lines = options.settings(), OccasionalLines(partial(click.echo, err=True))
    with terminated_like_interrupted(), reporting_interrupt():
        found = run_soak(
            _target(options, settings),
            settings,
            options=LoadOptions(drain_s=options.drain),
            after_cycle=lambda cycles, requests: lines.add(
                f"{counted(cycles, 'cycle')}, {counted(requests, 'request')}"
            ),
        )
    is_no = found.verdict == "yes" or 0 < found.requests == found.failed
    is_conclusive = found.verdict not in ("open", "inconclusive")
    _show_several(found, options, is_missed=is_no, is_conclusive=is_conclusive)


def _several_runs(options: LoadCommandOptions) -> None:
    """Search the highest rate, or sweep over concurrency."""
    from gpuprof.load.run import LoadOptions
    from gpuprof.load.several_runs import find_rate, sweep_concurrency

    if options.find_max_rate and len(options.concurrency or ()) > 1:
        raise UsageError(
            "two_searches", "--find-max-rate has one concurrency; hint: write one, as in --concurrency 4."
        )
    settings = options.settings()
    target, how = _target(options, settings), LoadOptions(drain_s=options.drain)
    found: MaxRateResult | SweepResult
    is_conclusive = True
    with terminated_like_interrupted(), reporting_interrupt():
        if options.find_max_rate:
            with search_progress(options.runs, options.slo) as watch:
                found = searched = find_rate(target, settings, options=how, runs=options.runs, **watch)
            is_conclusive = searched.found.is_conclusive
        else:
            lines = OccasionalLines(partial(click.echo, err=True))
            found = sweep_concurrency(
                target,
                settings,
                options.concurrency or (),
                options=how,
                before_run=lambda value: lines.add(f"measuring concurrency {value:,.4g}"),
            )
    _show_several(found, options, is_conclusive=is_conclusive)


def _show_several(
    result: MaxRateResult | SweepResult | SoakResult,
    options: LoadCommandOptions,
    *,
    is_missed: bool = False,
    is_conclusive: bool = True,
) -> None:
    from gpuprof.load.soak_run import SoakResult

    # Neither a full disk nor a closed pipe must lose it.
    try:
        click.echo(json.dumps(result.to_dict()) if options.as_json else str(result))
    finally:
        file = result.save(Path(options.out))
    reports: list[Path] = []
    if options.report and not isinstance(result, SoakResult):
        from gpuprof.load.several_report import write_several

        reports = write_several(result, options.report, Path(options.out))
    _written(file, options, reports=reports)
    if result.interrupted:
        click.get_current_context().exit(_EXIT_INTERRUPTED)
    if is_missed or result.stopped is not None:
        click.get_current_context().exit(EXIT_MISSED)
    if not is_conclusive:
        click.get_current_context().exit(EXIT_INCONCLUSIVE)


def _report(found: LoadResult, options: LoadCommandOptions) -> None:
    try:
        click.echo(json.dumps(found.to_dict()) if options.as_json else str(found))
        if found.profile is not None and not options.as_json:
            click.echo(f"\n{found.profiled}")
    finally:
        folder = found.save(Path(options.out))
    reports: list[Path] = []
    if options.report:
        from gpuprof.load.report import write_report

        reports = write_report(found, options.report, folder)
    _written(folder, options, reports=reports, profile=found.profile)
    if found.run.interrupted:
        click.get_current_context().exit(_EXIT_INTERRUPTED)
    if found.run.client_code is not None:
        click.get_current_context().exit(EXIT_INCONCLUSIVE)
    if found.is_failed:
        click.get_current_context().exit(EXIT_MISSED)
    exit_for_targets([found.verdict])


def _written(
    path: Path, options: LoadCommandOptions, *, reports: Sequence[Path] = (), profile: Path | None = None
) -> None:
    """Print where the result and its reports are, and the command for its profile."""
    if options.as_json:
        return
    for each in (path, *reports):
        click.echo(f"written: {click.format_filename(each)}", err=True)
    if profile is not None:
        quoted = shlex.quote(click.format_filename(profile))
        click.echo(f"profile: gpuprof flamegraph {quoted}", err=True)


def _print_probe(options: LoadCommandOptions) -> None:
    from dataclasses import asdict

    from gpuprof.load.probe import probe_machine
    from gpuprof.text.units import format_duration

    if options.target is not None:
        raise UsageError("probe_and_target", "--probe measures the generator alone; hint: omit TARGET.")
    found = probe_machine()
    if options.as_json:
        click.echo(json.dumps(asdict(found)))
        return
    late = [format_duration(None if each is None else each * 1e9)
            for each in (found.lateness_p50_s, found.lateness_p99_s)]  # fmt: skip
    click.echo(f"ceiling on a target that does nothing: {found.ceiling_per_s:,.0f} requests/s")
    click.echo(f"lateness at 1,000 requests/s: p50 {late[0]}, p99 {late[1]}")
