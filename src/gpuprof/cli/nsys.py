# SPDX-License-Identifier: Apache-2.0
"""`gpuprof nsys`: capture a program with Nsight Systems and import the result."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Literal

import click

EXIT_UNAVAILABLE = 2


@click.command(
    "nsys",
    short_help="Capture a program with Nsight Systems.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--out",
    metavar="R",
    help="Write the run to this new folder. Default: NAME.gpuprof, numbered if it exists.",
)
@click.option(
    "--range",
    "capture_range",
    type=click.Choice(["cuda", "nvtx"]),
    help="Capture only inside `gpuprof.nsight_range()`, by its CUDA profiler calls or its NVTX range. "
    "Default: the whole program.",
)
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="D",
    help="Import only this NVTX domain. Repeatable. Default: all domains.",
)
@click.option("--python", is_flag=True, help="Sample Python stacks with nsys, for its report.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
@click.pass_context
def nsys(
    context: click.Context,
    out: str | None,
    capture_range: Literal["cuda", "nvtx"] | None,
    domains: tuple[str, ...],
    python: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND under Nsight Systems and import the capture.

    The exit code is that of COMMAND. Without nsys, print the command lines for a machine that has it, and
    exit with 2.
    """
    from gpuprof.run.nsys_session import Capture, elsewhere, find_nsys, run_capture

    if not command:
        raise click.UsageError("no command to run; hint: name it after --.")
    target = Path(out) if out is not None else _default_run(command)
    capture = Capture(command, capture_range, domains, python)
    found = find_nsys(os.environ)
    if found is None:
        for line in elsewhere(capture, target):
            click.echo(line)
        click.echo(
            "gpuprof: error: nsys was not found; hint: install Nsight Systems, or run the lines "
            "above on a machine "
            "that has it and import the result",
            err=True,
        )
        context.exit(EXIT_UNAVAILABLE)
    code, failure = run_capture(found, capture, target)
    with contextlib.suppress(OSError):
        click.echo(f"gpuprof: {_ending(target, failure)}", err=True)
    context.exit(code)


def _default_run(command: tuple[str, ...]) -> Path:
    from gpuprof.record.supervise import free_name

    scripts = [word for word in command if word.endswith(".py")]
    return free_name(Path(scripts[0] if scripts else command[0]).stem or "capture")


def _ending(target: Path, failure: Exception | None) -> str:
    from gpuprof.text.sanitize import escape_text

    if failure is not None:
        return escape_text(str(failure))
    return escape_text(f"wrote {target}; view it with: gpuprof summary {shlex.quote(str(target))}")
