# SPDX-License-Identifier: Apache-2.0
"""`gpuprof flamegraph`: one offline page with the run's call tree."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command("flamegraph")
@click.argument("run", metavar="R")
@click.option("-o", "--output", metavar="F.html", help="File to write; the default is the run's name, .html.")
@click.option(
    "--weight",
    type=click.Choice(["cpu", "gpu"]),
    help="What the widths show; the default is gpu where the run holds GPU work.",
)
def flamegraph(run: str, output: str | None, weight: Literal["cpu", "gpu"] | None) -> None:
    """Write the flame graph and timeline of the run R as one HTML file and print its path."""
    from gpuprof import api

    recorded = api.open(run)
    path = Path(output) if output is not None else default_output(recorded.path)
    check_output(path)
    recorded.flamegraph(path, weight=weight)
    click.echo(path)


def default_output(run: Path) -> Path:
    """Return the page's path beside the run: demo.gpuprof gives demo.html."""
    run = run.resolve() if run.name in ("", "..") else run
    return run.with_name(run.name.removesuffix(".gpuprof") + ".html")


def check_output(path: Path) -> None:
    """Refuse a path that cannot be a file, before any work is done for it."""
    if path.is_dir():
        raise click.ClickException(f"{path} is a folder: give -o the name of a file, such as flame.html")
    if not path.parent.is_dir():
        raise click.ClickException(f"cannot write {path}: the folder {path.parent} does not exist; create it")
