# SPDX-License-Identifier: Apache-2.0
"""`gpuprof alert`: apply rules to running programs or to a folder of results."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.options import FiniteRange, not_empty, typed
from gpuprof.text.sanitize import print_warning
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.live.alerts.engine import Alert
    from gpuprof.live.alerts.rules import AlertRule
    from gpuprof.live.alerts.webhook import Webhook

EXIT_FIRED = 1


def close_webhook(webhook: Webhook) -> None:
    """Wait for the last alerts, and print a warning if some were not taken."""
    webhook.close()
    if webhook.lost:
        lost = counted(webhook.lost, "alert")
        click.echo(f"warning: the webhook did not take {lost}", err=True)


def alert_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that applies rules."""
    for option in (
        click.option(
            "--allow-remote",
            metavar="HOST",
            multiple=True,
            help="Let --webhook post to HOST, which is not this machine. Repeatable.",
        ),
        click.option("--webhook", metavar="URL", help="Post each alert that fires or clears as JSON to URL."),
        click.option(
            "--rules", metavar="FILE.toml", help="Apply the rules in this file. Default: built-in rules."
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOptions:
    """The options of `gpuprof alert`."""

    target: str | None
    rules: str | None
    once: bool
    interval: float
    webhook: str | None
    allow_remote: tuple[str, ...]
    as_json: bool


@click.command("alert")
@click.argument("target", metavar="[RUN|PID|FOLDER]", required=False, callback=not_empty)
@click.option("--once", is_flag=True, help="Apply the rules to one interval and exit.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.1, max=3600),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Length of an interval.",
)
@alert_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per alert.")
@typed(AlertOptions)
def alert(options: AlertOptions) -> None:
    """Print alerts of RUN while it is recorded, of the process PID, or of all runs in FOLDER.

    In a FOLDER of results of gpuprof bench, compare the newest file with those since the last change. Without
    a target, apply the rules to the machine. Exit with 1 if an alert fired, with 0 if none did,
    with 2 for bad input, such as a RUN that has ended.
    """
    from gpuprof.live.alerts.results import results_of
    from gpuprof.live.alerts.rules import BUILT_IN_RULES
    from gpuprof.live.alerts.rules_file import read_rules

    rules = BUILT_IN_RULES if options.rules is None else read_rules(Path(options.rules))
    printed = _Printed(options)
    with contextlib.closing(printed):
        folder = (
            Path(options.target) if options.target is not None and Path(options.target).is_dir() else None
        )
        if folder is not None and (results := results_of(folder)):
            _of_results(folder, results, rules, printed)
        else:
            _of_programs(options, rules, printed)
    click.get_current_context().exit(EXIT_FIRED if printed.fired else 0)


class _Printed:
    """Prints alerts, and sends them to the webhook."""

    def __init__(self, options: AlertOptions) -> None:
        self.fired = 0
        self._as_json = options.as_json
        self._webhook: Webhook | None = None
        if options.webhook is not None:
            from gpuprof.live.alerts.webhook import Webhook

            self._webhook = Webhook(options.webhook, options.allow_remote)

    def show(self, source: str, alert: Alert) -> None:
        from gpuprof.live.alerts.engine import AlertState
        from gpuprof.live.alerts.watch import alert_document

        self.fired += alert.state is AlertState.FIRING
        document = alert_document(source, alert)
        click.echo(json.dumps(document) if self._as_json else alert.line(source))
        sys.stdout.flush()
        if self._webhook is not None:
            self._webhook.send(document)

    def show_none(self, checked: str) -> None:
        """Print that no alert fired, and what was checked: an empty output could also be a wrong target."""
        if not self.fired and not self._as_json:
            click.echo(f"no alert is active: {checked}")

    def close(self) -> None:
        if self._webhook is not None:
            close_webhook(self._webhook)


def _of_results(folder: Path, results: list[Path], rules: tuple[AlertRule, ...], printed: _Printed) -> None:
    from gpuprof.live.alerts.results import result_alerts
    from gpuprof.live.alerts.rules import RegressionRule

    rule = next((each for each in rules if isinstance(each, RegressionRule)), None)
    for each in () if rule is None else result_alerts(folder, results, rule):
        printed.show("", each)
    printed.show_none(f"{counted(int(rule is not None), 'rule')}, {counted(len(results), 'result')}")


def _of_programs(options: AlertOptions, rules: tuple[AlertRule, ...], printed: _Printed) -> None:
    from gpuprof.cli.termination import terminated_like_interrupted
    from gpuprof.live.alerts.watch import AlertWatch
    from gpuprof.live.snapshot import RunState
    from gpuprof.live.watched_feeds import WatchedFeeds

    feeds = WatchedFeeds(options.target)
    watch = AlertWatch(rules, is_folder=feeds.is_folder, is_one_look=options.once)
    with contextlib.closing(feeds), terminated_like_interrupted(), contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(options.interval)
            sources = 0
            for source, snapshot in feeds.poll():
                sources += 1
                if snapshot.state is RunState.GONE and feeds.is_over:
                    print_warning(
                        f"{snapshot.run} was removed or moved; its program may still run: watch its PID"
                    )
                for each in watch.update(source, snapshot):
                    printed.show(source, each)
            for source in feeds.ended:
                for each in watch.forget(source):
                    printed.show(source, each)
            if options.once:
                # Among several sources, the first one is the machine.
                runs = f", {counted(sources - 1, 'run')}" if feeds.is_folder else ""
                printed.show_none(f"{counted(len(rules), 'rule')}{runs}")
            if options.once or feeds.is_over:
                return
