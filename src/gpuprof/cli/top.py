# SPDX-License-Identifier: Apache-2.0
"""`gpuprof top`: figures of a running program, its run or the machine, interval by interval."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuprof.live.feed import Feed

_CLEAR = "\x1b[H\x1b[2J"


@click.command("top")
@click.argument("target", metavar="[RUN|PID]", required=False)
@click.option("--once", is_flag=True, help="Print one interval and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per interval.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    metavar="SECONDS",
    help="Length of an interval. Default: 1.",
)
def top(target: str | None, once: bool, as_json: bool, interval: float) -> None:
    """Print live figures of RUN while it is recorded, of the process PID, or of the machine.

    The program is not touched: only its run and /proc are read. Ctrl-C ends the view, not the program.
    """
    from gpuprof.live.target import open_feed

    feed = open_feed(target)
    try:
        while True:
            time.sleep(interval)
            _show(feed, as_json=as_json, clears=not once and sys.stdout.isatty())
            if once or feed.is_over:
                return
    except KeyboardInterrupt:
        return


def _show(feed: Feed, *, as_json: bool, clears: bool) -> None:
    from gpuprof.live.text import snapshot_text

    snapshot = feed.poll()
    if as_json:
        click.echo(json.dumps(snapshot.to_plain()))
    else:
        click.echo((_CLEAR if clears else "") + snapshot_text(snapshot))
    sys.stdout.flush()
