# SPDX-License-Identifier: Apache-2.0
"""`gpuprof startup`: how long a model or a server takes from its start until it is ready."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.measuring import exit_for_targets, reporting_interrupt
from gpuprof.cli.options import FINITE, WholeNumber, seconds, system_options, typed
from gpuprof.cli.termination import terminated_like_interrupted
from gpuprof.cli.usage import UsageError

if TYPE_CHECKING:
    from gpuprof.bench.config import Device, Dtype
    from gpuprof.bench.ready_times import ReadyTimes
    from gpuprof.bench.workers.startup import StartupTimes

_RUNS = 6  # the fewest whose median has a 95% interval


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupOptions:
    """The options of `gpuprof startup`."""

    target: tuple[str, ...]
    ready: str | None
    runs: int
    stay: bool
    limit: float | None
    time_limit: float
    out: Path | None
    as_json: bool
    framework: str
    dtype: Dtype | None
    device: Device
    input_shape: tuple[int, ...] | None
    data: str
    trust_pickle: bool


@click.command("startup")
@click.argument("target", metavar="MODEL | -- COMMAND...", nargs=-1, required=True)
@click.option(
    "--ready",
    metavar="CONDITION",
    help="Start COMMAND until it is ready: http://HOST:PORT/PATH (status 2xx), tcp://HOST:PORT, file:PATH or "
    "output:TEXT.",
)
@click.option(
    "--runs", type=WholeNumber(min=1), default=_RUNS, show_default=True, help="Number of process runs."
)
@click.option("--stay", is_flag=True, help="Start COMMAND once, report when it is ready, and let it run on.")
@click.option(
    "--limit",
    type=FINITE,
    callback=seconds,
    metavar="S",
    help="Exit with 1 if the median is above S seconds.",
)
@click.option(
    "--time-limit",
    type=FINITE,
    callback=seconds,
    default=600.0,
    show_default=True,
    metavar="S",
    help="Give up a process run after S seconds.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the times as JSON."
)
@system_options
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(StartupOptions)
def startup(options: StartupOptions) -> None:
    """Measure the time from the start of a process until a model or a server is ready.

    MODEL is a model as of gpuprof bench: the parts of its start until the first inference, cold and warm.
    With --ready, COMMAND is any program, such as a server.
    """
    if options.ready is None:
        _refuse_command_options(options)
        _model_startup(options)
    elif options.stay:
        _stay(options, options.ready)
    else:
        _command_startup(options, options.ready)


def _refuse_command_options(options: StartupOptions) -> None:
    if len(options.target) > 1:
        raise UsageError(
            "needs_ready", "a command needs a condition; hint: add --ready http://127.0.0.1:8000/health."
        )
    if options.stay:
        raise UsageError(
            "stay_needs_ready", "--stay needs a command and --ready; hint: add --ready CONDITION."
        )


def _model_startup(options: StartupOptions) -> None:
    with reporting_interrupt():
        found = _measured_startups(options)
    _write(options, {"model": options.target[0], **found.to_dict()}, str(found))
    _judge(options, found)


def _measured_startups(options: StartupOptions) -> StartupTimes:
    from gpuprof.bench.options import SystemOptions
    from gpuprof.bench.workers.startup import measure_startups

    system = SystemOptions(
        framework=options.framework,
        dtype=options.dtype,
        device=options.device,
        input_shape=options.input_shape,
        data=options.data,
        trust_pickle=options.trust_pickle,
    )
    return measure_startups(
        system.spec(options.target[0]), runs=options.runs, time_limit_s=options.time_limit
    )


def _command_startup(options: StartupOptions, ready: str) -> None:
    from gpuprof.bench.ready_times import time_to_ready

    # SIGTERM must end the program too, which has a session of its own.
    with terminated_like_interrupted(), reporting_interrupt():
        times = time_to_ready(options.target, ready, runs=options.runs, time_limit_s=options.time_limit)
    _write(options, times.to_dict(), str(times))
    _judge(options, times)


def _judge(options: StartupOptions, found: ReadyTimes | StartupTimes) -> None:
    """Print whether the limit is met, and exit by it."""
    from gpuprof.text.units import format_duration

    if options.limit is None:
        return
    verdict = found.verdict(options.limit)
    if not options.as_json:
        click.echo(f"limit {format_duration(options.limit * 1e9)}: {verdict}")
    exit_for_targets([verdict])


def _stay(options: StartupOptions, ready: str) -> None:
    from gpuprof.bench.ready_times import run_once_ready

    def report(times: ReadyTimes) -> None:
        if options.out is not None:
            options.out.write_text(json.dumps(times.to_dict()) + "\n", encoding="utf-8")
        # The program has standard output for itself.
        click.echo(json.dumps(times.to_dict()) if options.as_json else f"gpuprof: {times}", err=True)

    code = run_once_ready(options.target, ready, time_limit_s=options.time_limit, on_ready=report)
    click.get_current_context().exit(code)


def _write(options: StartupOptions, plain: dict[str, object], text: str) -> None:
    document = json.dumps(plain)
    if options.out is not None:
        options.out.write_text(document + "\n", encoding="utf-8")
    click.echo(document if options.as_json else text)
