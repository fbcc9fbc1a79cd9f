# SPDX-License-Identifier: Apache-2.0
"""`gpuprof dashboard`: a folder of runs and results as a page that follows it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import click

from gpuprof.cli.alert import alert_options, close_webhook
from gpuprof.cli.options import WholeNumber, address, not_empty, typed

DEFAULT_PORT = 8321


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """The options of `gpuprof dashboard`."""

    folder: str
    port: int
    host: str
    token: bool
    rules: str | None
    webhook: str | None
    allow_remote: tuple[str, ...]


@click.command("dashboard")
@click.argument("folder", metavar="[FOLDER]", default=".", callback=not_empty)
@click.option(
    "--port",
    type=WholeNumber(min=0, max=65535),
    default=DEFAULT_PORT,
    metavar="P",
    help=f"Listen on this port; 0 takes any free one. Default: {DEFAULT_PORT}.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    callback=address,
    metavar="ADDRESS",
    help="Listen on this address. Default: 127.0.0.1. Any address but loopback needs --token.",
)
@click.option("--token", is_flag=True, help="Require a random token, which the printed address contains.")
@alert_options
@typed(DashboardOptions)
def dashboard(options: DashboardOptions) -> None:
    """Serve a page of the runs and results in FOLDER and below. Default: the current folder.

    The page shows runs while they are recorded, the history of results with change points, flame graphs and
    comparisons. Nothing in FOLDER is changed. Ctrl-C ends the server, not the programs.
    """
    from gpuprof.cli.termination import exiting_when_terminated
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
    from gpuprof.live.alerts.rules import BUILT_IN_RULES
    from gpuprof.live.alerts.rules_file import read_rules
    from gpuprof.live.alerts.webhook import Webhook

    rules = BUILT_IN_RULES if options.rules is None else read_rules(Path(options.rules))
    with contextlib.ExitStack() as stack:
        stack.enter_context(exiting_when_terminated())
        webhook = None
        if options.webhook is not None:
            webhook = Webhook(options.webhook, options.allow_remote)
            stack.callback(close_webhook, webhook)
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        serve(
            Path(options.folder),
            options.host,
            options.port,
            with_token=options.token,
            announce=lambda address: _announce(options.host, address),
            rules=rules,
            webhook=webhook,
        )


def _announce(host: str, address: str) -> None:
    from gpuprof.live.dashboard.security import is_loopback, is_wildcard

    if not is_loopback(host):
        click.echo(
            "warning: other machines can connect; the page and the token are sent unencrypted", err=True
        )
    if is_wildcard(host):
        click.echo(f"on other machines, replace {host} with the name of this machine", err=True)
    click.echo(f"{address}\nCtrl-C ends it.")
