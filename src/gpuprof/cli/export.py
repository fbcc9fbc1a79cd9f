# SPDX-License-Identifier: Apache-2.0
"""`gpuprof export`: write a run for another tool."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.cli.flamegraph import check_output


class _FormatOption(click.Option):
    """Lists the formats in its help, and imports them only there."""

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        from gpuprof.render.export import FORMATS

        self.help = f"Write to TRACE, in the format of its extension: {' '.join(FORMATS)}"
        return super().get_help_record(context)


@click.command("export", short_help="Write a run for Perfetto, speedscope and other tools.")
@click.argument("run", metavar="R")
@click.option(
    "-o",
    "--output",
    metavar="TRACE",
    required=True,
    cls=_FormatOption,
)
def export(run: str, output: str) -> None:
    """Write the run R for Perfetto, chrome://tracing, TensorBoard, speedscope, scripts or data frames."""
    from gpuprof import api
    from gpuprof.render.export import format_of

    path = Path(output)
    format_of(path)
    check_output(path)
    click.echo(api.open(run).export(path))
