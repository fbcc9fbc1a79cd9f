# SPDX-License-Identifier: Apache-2.0
"""`gpuprof nsys`: a capture under Nsight Systems, from the program to a run."""

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
    short_help="Run a program under Nsight Systems and make a run of it.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--out", metavar="R", help="Run to write; the default is NAME.gpuprof, numbered if it exists.")
@click.option(
    "--range",
    "capture_range",
    type=click.Choice(["cuda", "nvtx"]),
    help="Capture only inside `gpuprof.nsight_range()`, by CUDA's profiler calls or its NVTX range.",
)
@click.option(
    "--domain", "domains", multiple=True, metavar="D", help="Keep only this NVTX domain; repeatable."
)
@click.option("--python", is_flag=True, help="Sample Python's call stacks too.")
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
    """Run COMMAND under Nsight Systems and make a run of what it captured.

    The command's exit code is passed through. Where there is no nsys, the command lines for a machine that
    has it are printed, and the exit code is 2.
    """
    from gpuprof.run.nsys_session import Capture, elsewhere, find_nsys, run_capture

    if not command:
        raise click.UsageError("Nothing to run: name the command after --.")
    target = Path(out) if out is not None else _default_run(command)
    capture = Capture(command, capture_range, domains, python)
    found = find_nsys(os.environ)
    if found is None:
        for line in elsewhere(capture, target):
            click.echo(line)
        click.echo(
            "gpuprof: error: there is no nsys here: install Nsight Systems, or run the lines above "
            "where it is and import the result",
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
    return escape_text(f"wrote {target}; see it with: gpuprof summary {shlex.quote(str(target))}")
