# SPDX-License-Identifier: Apache-2.0
"""`gpuprof metrics`: figures of running programs for Prometheus and OpenTelemetry."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.options import FiniteRange, WholeNumber, address, not_empty, typed

if TYPE_CHECKING:
    from gpuprof.live.metrics.collector import MetricsCollector
    from gpuprof.live.metrics.otlp import OtlpPusher
    from gpuprof.live.metrics.server import MetricsServer
    from gpuprof.live.snapshot import Snapshot
    from gpuprof.live.watched_feeds import WatchedFeeds

TOKEN_VARIABLE = "GPUPROF_TOKEN"  # noqa: S105 - the name of a variable
_LONGEST_TOKEN = 4096
_FIRST_READING_S = 3.0  # at most, for the first reading of devices
_READING_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """The options of `gpuprof metrics`."""

    target: str | None
    host: str
    port: int
    token_file: str | None
    otlp: str | None
    once: bool
    interval: float
    top: int


@click.command("metrics")
@click.argument("target", metavar="[RUN|PID|FOLDER]", required=False, callback=not_empty)
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=9464,
    show_default=True,
    help="Listen on PORT; 0 takes a free one.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    callback=address,
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address. Any but loopback needs a token.",
)
@click.option(
    "--token-file",
    metavar="F",
    help="Require the bearer token in this file. Default: that of GPUPROF_TOKEN, if it is set.",
)
@click.option("--otlp", metavar="ENDPOINT", help="Also push to this collector by OTLP over HTTP.")
@click.option("--once", is_flag=True, help="Print the metrics, or push them with --otlp, and exit.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.1, max=3600),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Read the run, and push, in each interval.",
)
@click.option(
    "--top",
    type=WholeNumber(0, 1000),
    metavar="N",
    default=20,
    show_default=True,
    help="Export N layers of a run, N operators, N spans and N kernels by name, the others as `other`.",
)
@typed(MetricsOptions)
def metrics(options: MetricsOptions) -> None:
    """Export figures of RUN while it is recorded, of the process PID, or of all runs in FOLDER.

    Without one, export those of the machine. Serves OpenMetrics at http://HOST:PORT/metrics. The programs are
    not touched: only their runs and /proc are read.
    """
    from gpuprof import __version__
    from gpuprof.cli.termination import terminated_like_interrupted
    from gpuprof.live.metrics.collector import MetricsCollector
    from gpuprof.live.watched_feeds import WatchedFeeds

    feeds = WatchedFeeds(options.target)
    collector = MetricsCollector(__version__, top=options.top)
    with contextlib.closing(feeds), terminated_like_interrupted(), contextlib.suppress(KeyboardInterrupt):
        pusher = _pusher(options, collector, __version__)
        if options.once:
            _poll_until_devices_are_read(feeds, collector)
            _once(collector, pusher)
            return
        _poll(feeds, collector)
        with _served(options, collector):
            if pusher is not None:
                pusher.start(options.interval, lambda worked: _report_push(pusher.endpoint, worked))
            while True:
                time.sleep(options.interval)
                _poll(feeds, collector)


def _poll(feeds: WatchedFeeds, collector: MetricsCollector) -> bool:
    """Take in the figures; return whether a device has no reading yet, since a process reads them."""
    is_waiting = False
    for source, snapshot in feeds.poll():
        collector.update(source, snapshot)
        is_waiting |= _awaits_devices(snapshot)
    for source in feeds.ended:
        collector.forget(source)
    return is_waiting


def _awaits_devices(snapshot: Snapshot) -> bool:
    from gpuprof.live.snapshot import MissingReason, Unavailable

    if snapshot.run is not None:  # its recording reads devices, or does not
        return False
    if isinstance(snapshot.devices, Unavailable):
        return snapshot.devices.reason is MissingReason.NO_READING
    return any(not each.readings and not each.is_lost for each in snapshot.devices)


def _poll_until_devices_are_read(feeds: WatchedFeeds, collector: MetricsCollector) -> None:
    end = time.monotonic() + _FIRST_READING_S
    while _poll(feeds, collector) and time.monotonic() < end:
        time.sleep(_READING_PAUSE_S)


def _once(collector: MetricsCollector, pusher: OtlpPusher | None) -> None:
    from gpuprof.errors import GpuprofError
    from gpuprof.live.metrics.exposition import TextFormat
    from gpuprof.text.sanitize import visible_text

    if pusher is None:
        text = collector.text(TextFormat.PROMETHEUS).decode()
        # A name may contain what moves the cursor; Prometheus reads it as it is.
        click.echo(visible_text(text, kept="\n") if sys.stdout.isatty() else text, nl=False, color=True)
    elif not pusher.push():
        raise GpuprofError(
            "not_pushed",
            f"{pusher.endpoint} did not take the metrics",
            hint="check that a collector listens there",
        )


def _pusher(options: MetricsOptions, collector: MetricsCollector, version: str) -> OtlpPusher | None:
    if options.otlp is None:
        return None
    from gpuprof.live.metrics.otlp import OtlpPusher

    return OtlpPusher(options.otlp, collector, version)


def _report_push(endpoint: str, worked: bool) -> None:
    click.echo(f"{'pushing to' if worked else 'cannot push to'} {endpoint}", err=True)


def _text_of(path: Path) -> str:
    """Return the begin of a file; bytes that are no text become characters that no token has."""
    with path.open("rb") as file:
        return file.read(_LONGEST_TOKEN).decode("ascii", "replace")


@contextlib.contextmanager
def _served(options: MetricsOptions, collector: MetricsCollector) -> Iterator[MetricsServer]:
    from gpuprof.live.metrics.server import MetricsServer

    token = _token(options.token_file)
    server = MetricsServer(options.host, options.port, collector.text, token=token)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    click.echo(f"metrics: {server.url}{'' if token is None else ' (token required)'}", err=True)
    if not server.is_local:
        click.echo("warning: other machines can connect; the token is sent unencrypted", err=True)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _token(path: str | None) -> str | None:
    """Return the token of a file or of the environment. Raises GpuprofError for one that is empty."""
    from gpuprof.errors import GpuprofError

    where = TOKEN_VARIABLE if path is None else path
    token = os.environ.get(TOKEN_VARIABLE) if path is None else _text_of(Path(path))
    if token is None:
        return None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise GpuprofError("bad_token", f"{where} has no token", hint="write one: openssl rand -hex 32")
    return token
