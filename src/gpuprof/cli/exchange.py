# SPDX-License-Identifier: Apache-2.0
"""Other tools: `gpuprof export` writes a run for one, `import` and `nsys` make a run of what one recorded."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Literal

import click

from gpuprof.cli.pages import check_output, echo_path
from gpuprof.cli.usage import UsageError
from gpuprof.run.facts import damage_in, notes_of
from gpuprof.run.messages import damage_text, not_imported_text, note_text


class _FormatOption(click.Option):
    """Lists the formats in its help, and imports them only there."""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        from gpuprof.render.export import FORMATS

        self.help = f"Write to TRACE, in the format of its extension: {' '.join(FORMATS)}"
        return super().get_help_record(context)


@click.command("export")
@click.argument("run", metavar="RUN")
@click.option(
    "-o",
    "--output",
    metavar="TRACE",
    required=True,
    cls=_FormatOption,
)
def export(run: str, output: str) -> None:
    """Write RUN for Perfetto, chrome://tracing, TensorBoard, speedscope, scripts or data frames."""
    from gpuprof import api
    from gpuprof.render.export import format_of

    path = Path(output)
    format_of(path)
    check_output(path)
    echo_path(api.open(run).export(path))


_EXTENSIONS = (".gz", ".json", ".sqlite", ".db", ".trace", ".pt")


@click.command("import")
@click.argument("trace", metavar="TRACE")
@click.option(
    "-o",
    "--output",
    "out",
    metavar="RUN",
    help="Write the run to this new folder. Default: the name of the trace with .gpuprof.",
)
def import_trace(trace: str, out: str | None) -> None:
    """Convert TRACE to a run: Kineto or Chrome JSON (also .gz), or the SQLite export of Nsight Systems."""
    from gpuprof import api
    from gpuprof.cli.header import outline
    from gpuprof.text.sanitize import escape_text

    run = api.import_trace(trace, Path(out) if out is not None else default_run(Path(trace)))
    left_out = not_imported_text(run.meta.get("not_imported") or ())
    lines = [damage_text(each) for each in damage_in(run.meta)]
    lines += [f"not imported: {left_out}"] if left_out else []
    for line in (*lines, *(note_text(each) for each in notes_of(run.meta))):
        click.echo(f"gpuprof: {escape_text(line)}", err=True)
    command = escape_text(f"gpuprof summary {shlex.quote(str(run.path))}")
    click.echo(
        f"gpuprof: wrote {escape_text(str(run.path))} ({outline(run.meta)}); view it with: {command}",
        err=True,
    )
    echo_path(run.path)


def default_run(trace: Path) -> Path:
    """Return the run's path next to the trace: net.pt.trace.json.gz gives net.gpuprof."""
    name = trace.name
    while Path(name).suffix in _EXTENSIONS and Path(name).stem:
        name = Path(name).stem
    return trace.with_name(f"{name}.gpuprof")


EXIT_UNAVAILABLE = 2


@click.command(
    "nsys",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--out",
    metavar="RUN",
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
        raise UsageError("no_command", "no command to run; hint: name it after --.")
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
