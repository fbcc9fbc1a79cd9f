# SPDX-License-Identifier: Apache-2.0
"""`gpuprof roofline`: the bottleneck of each layer and operator of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.flamegraph import check_output
from gpuprof.errors import RunError

if TYPE_CHECKING:
    from gpuprof.analyze.roofline.rows import RooflineKind


@click.command("roofline", short_help="Print the bottleneck of each layer and operator.")
@click.argument("run", metavar="R")
@click.option("-o", "--output", metavar="F.html", help="Also write the plot to F.html as one offline page.")
@click.option(
    "--by",
    type=click.Choice(["layer", "operator", "kernel"]),
    default="operator",
    help="List these. Default: operator.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the N longest rows. Default: all above 0.5% of the time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def roofline(run: str, output: str | None, by: RooflineKind, top: int | None, as_json: bool) -> None:
    """Print the bottleneck of each layer and operator of the run R, with utilization and confidence.

    The run needs counted work: gpuprof run --work, or gpuprof.profile(model, work=True).
    """
    from gpuprof import api

    path = Path(output) if output is not None else None
    if path is not None:
        if path.is_dir():
            raise click.ClickException(
                f"{path} is a folder; hint: give -o the name of a file, such as roofline.html"
            )
        check_output(path)
    recorded = api.open(run)
    found = recorded.roofline(path)
    if by == "kernel" and not found.kernels:
        raise RunError(f"{recorded.path}: no kernel was recorded; hint: use --by operator or --by layer")
    if as_json:
        click.echo(json.dumps({"run": str(recorded.path), "roofline": found.to_dict()}, indent=2))
        return
    click.echo(found.to_text(by, top))
    if path is not None:
        click.echo(f"\nwrote {path}")
