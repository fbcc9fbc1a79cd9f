# SPDX-License-Identifier: Apache-2.0
"""What `gpuprof load` shows while it measures: figures of one load, and the rates of a search."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.measuring import OccasionalLines, progress_bar
from gpuprof.text.units import counted, format_rate

if TYPE_CHECKING:
    from gpuprof.load.driver import Progress
    from gpuprof.load.requests import Rows
    from gpuprof.load.result import LoadSettings


@contextmanager
def search_progress(runs: int, slo: str | None) -> Iterator[dict[str, Any]]:
    """Show each rate with its verdict on a line of standard error, and the run that is being made.

    Yields the callbacks of `find_rate`.
    """
    from gpuprof.bench.results.target import parse_target
    from gpuprof.load.search import RateProbe
    from gpuprof.load.several_runs import rate_line

    figure = "" if slo is None else parse_target(slo).figure
    made: Counter[float] = Counter()
    lines = OccasionalLines(partial(click.echo, err=True))
    with progress_bar() as bar:
        task = bar.add_task("starting", total=runs)

        def before_run(rate: float) -> None:
            if not made:  # what was refused searches nothing
                searching = f"searching the highest rate with {slo}: {counted(runs, 'run')} at each rate"
                click.echo(searching, err=True)
            made[rate] += 1
            doing = f"rate {format_rate(rate)}: run {made[rate]} of {runs}"
            bar.update(task, description=doing, completed=made[rate] - 1)
            if bar.disable:
                lines.add(doing)

        def after_rate(probe: RateProbe) -> None:
            click.echo(rate_line(probe, figure), err=True)

        yield {"before_run": before_run, "after_rate": after_rate}


@contextmanager
def live_figures(folder: Path, settings: LoadSettings) -> Iterator[Progress]:
    """Yield what publishes figures for gpuprof top, and shows them on a line of a terminal."""
    from gpuprof.load.published import publishing
    from gpuprof.load.run import CLOSED

    is_terminal = sys.stderr.isatty()
    has_plan = settings.scenario not in CLOSED or settings.count is not None
    with publishing(folder, settings.target, settings.scenario, has_plan=has_plan) as publisher:

        def progress(rows: Rows) -> None:
            publisher.update(rows)
            if is_terminal:
                _show(rows)

        try:
            yield progress
        finally:
            if is_terminal:
                sys.stderr.write("\r\033[K")


def _show(rows: Rows) -> None:
    import numpy as np

    from gpuprof.load.figures import latencies_s, quantile
    from gpuprof.text.units import format_duration

    ended = rows[rows["end_ns"] > 0]
    recent = np.sort(latencies_s(ended[-1000:]))
    p99 = quantile(recent, 0.99) if len(recent) else float("inf")
    shown = format_duration(p99 * 1e9) if p99 < float("inf") else "-"
    waiting = int((rows["sent_ns"] > 0).sum()) - len(ended)
    sys.stderr.write(
        f"\r\033[K{len(ended):,} of {len(rows):,} requests ended, {waiting:,} in service, p99 of the last "
        f"1,000: {shown}"
    )
    sys.stderr.flush()
