# SPDX-License-Identifier: Apache-2.0
"""`gpuprof export`: write a run for another tool."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.cli.flamegraph import check_output


@click.command("export", short_help="Write a run for Perfetto, speedscope and other tools.")
@click.argument("run", metavar="R")
@click.option(
    "-o",
    "--output",
    metavar="TRACE",
    required=True,
    help="Write to TRACE, in the format of its extension: .pftrace .json .pt.trace.json .speedscope.json "
    ".folded .parquet",
)
def export(run: str, output: str) -> None:
    """Write the run R for Perfetto, chrome://tracing, TensorBoard, speedscope, scripts or data frames."""
    from gpuprof import api
    from gpuprof.render.export import format_of

    path = Path(output)
    format_of(path)
    check_output(path)
    click.echo(api.open(run).export(path))
