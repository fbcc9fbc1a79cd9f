# SPDX-License-Identifier: Apache-2.0
"""`gpuprof import`: convert another tool's trace to a run."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gpuprof.run.facts import damage_in, notes_of
from gpuprof.text.facts import damage_text, not_imported_text, note_text

_EXTENSIONS = (".gz", ".json", ".sqlite", ".db", ".trace", ".pt")


@click.command("import", short_help="Convert another tool's trace to a run.")
@click.argument("trace", metavar="TRACE")
@click.option(
    "-o",
    "--output",
    "out",
    metavar="R",
    help="Write the run to this new folder. Default: the name of the trace with .gpuprof.",
)
def import_trace(trace: str, out: str | None) -> None:
    """Convert TRACE to a run: Kineto or Chrome JSON (also .gz), or the SQLite export of Nsight Systems."""
    from gpuprof import api
    from gpuprof.cli.header import outline
    from gpuprof.text.sanitize import escape_text

    run = api.import_trace(trace, Path(out) if out is not None else default_run(Path(trace)))
    left_out = not_imported_text(run.meta.get("not_imported") or ())
    lines = [damage_text(each.to_plain()) for each in damage_in(run.meta)]
    lines += [f"not imported: {left_out}"] if left_out else []
    for line in (*lines, *(note_text(each.to_plain()) for each in notes_of(run.meta))):
        click.echo(f"gpuprof: {escape_text(line)}", err=True)
    command = escape_text(f"gpuprof summary {shlex.quote(str(run.path))}")
    click.echo(
        f"gpuprof: wrote {escape_text(str(run.path))} ({outline(run.meta)}); view it with: {command}",
        err=True,
    )
    click.echo(run.path)


def default_run(trace: Path) -> Path:
    """Return the run's path next to the trace: net.pt.trace.json.gz gives net.gpuprof."""
    name = trace.name
    while Path(name).suffix in _EXTENSIONS and Path(name).stem:
        name = Path(name).stem
    return trace.with_name(f"{name}.gpuprof")
