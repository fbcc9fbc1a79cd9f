# SPDX-License-Identifier: Apache-2.0
"""`gpuprof dashboard`: a folder of runs and results as a page that follows it."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT_PORT = 8321


@click.command("dashboard")
@click.argument("folder", metavar="[FOLDER]", default=".")
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=DEFAULT_PORT,
    metavar="P",
    help=f"Listen on this port; 0 takes any free one. Default: {DEFAULT_PORT}.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Listen on this address. Default: 127.0.0.1. Any address but loopback needs --token.",
)
@click.option("--token", is_flag=True, help="Require a random token, which the printed address contains.")
def dashboard(folder: str, port: int, host: str, token: bool) -> None:
    """Serve a page of the runs and results in FOLDER and below. Default: the current folder.

    The page shows runs while they are recorded, the history of results with change points, flame graphs and
    comparisons. Nothing in FOLDER is changed. Ctrl-C ends the server, not the programs.
    """
    from gpuprof.errors import UnavailableError

    try:
        from gpuprof.live.dashboard.serving import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        raise UnavailableError(
            "not_installed",
            f"gpuprof dashboard needs {error.name}",
            hint="pip install 'gpuprof-native[serve]'",
        ) from None
    try:
        serve(
            Path(folder),
            host,
            port,
            with_token=token,
            announce=lambda address: click.echo(f"{address}\nCtrl-C ends it."),
        )
    except KeyboardInterrupt:
        return
