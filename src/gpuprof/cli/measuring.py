# SPDX-License-Identifier: Apache-2.0
"""What commands that measure for long share: progress, interrupts, and exit codes of latency targets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from gpuprof.bench.verdicts import TargetVerdict

EXIT_MISSED, EXIT_INCONCLUSIVE = 1, 3
FIRST_S, EVERY_S = 20.0, 10.0


@contextlib.contextmanager
def reporting_interrupt() -> Iterator[None]:
    """Report an interrupt that goes through: what was measured until then is no result."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted before there was a result", err=True)
        raise


@contextlib.contextmanager
def progress_bar(*more: ProgressColumn) -> Iterator[Progress]:
    """Show a bar on standard error; it is disabled where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *more, TimeElapsedColumn())
    # Once per second, because drawing takes CPU time from the model.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True, refresh_per_second=1
    ) as bar:
        yield bar


class OccasionalLines:
    """Writes at most one line every 10 s, and none in the first 20 s: a log shows that the command runs."""

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._next_s = clock() + FIRST_S

    def add(self, line: str) -> None:
        """Write the line if the last one, or the start, was long enough ago."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._write(line)


def exit_for_targets(verdicts: Collection[TargetVerdict | None]) -> None:
    """Exit with 1 for a missed target, with 3 for an inconclusive one; return if it is met."""
    if "missed" in verdicts:
        click.get_current_context().exit(EXIT_MISSED)
    if "inconclusive" in verdicts:
        click.get_current_context().exit(EXIT_INCONCLUSIVE)
