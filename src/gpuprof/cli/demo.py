# SPDX-License-Identifier: Apache-2.0
"""`gpuprof demo`: record the installed example, print its summary, write its page."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from gpuprof.errors import RunError


@click.command("demo", short_help="Record the installed example and write its page.")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default=".",
    help="Write the run and the page to FOLDER. Default: the current folder.",
)
@click.pass_context
def demo(context: click.Context, output: str) -> None:
    """Record a small transformer, print where its time goes, and write its page.

    The run is `demo.gpuprof`, numbered if it exists; the page has the same name.
    """
    from gpuprof import api
    from gpuprof.analyze.summary import DEFAULT_TOP
    from gpuprof.cli.flamegraph import default_output
    from gpuprof.cli.header import header
    from gpuprof.record.supervise import free_name

    folder = Path(output)
    if not folder.is_dir():
        raise click.ClickException(f"cannot write to {output}: the folder does not exist; hint: create it")
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("the demo needs PyTorch, which is not installed; hint: pip install torch")
    code, recorded = api.run_program(str(example()), out=free_name("demo", folder))
    if isinstance(recorded, RunError):
        raise recorded
    click.echo()
    click.echo(header(recorded.path, recorded.meta))
    click.echo()
    click.echo(recorded.summary().to_text(DEFAULT_TOP))
    page = recorded.flamegraph(default_output(recorded.path))
    click.echo()
    click.echo(f"flame graph and timeline: {page}")
    context.exit(code)


def example() -> Path:
    """Return the example's path: it is installed next to the compiled core."""
    from gpuprof import _native

    return Path(_native.__file__).with_name("examples") / "transformer.py"
