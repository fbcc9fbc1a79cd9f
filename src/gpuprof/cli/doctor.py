# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor`: what works here, what is missing, and the mend; and what the machine can do at best."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuprof.doctor import Check

EXIT_BROKEN = 1
_COLORS = {"ok": "green", "missing": "yellow", "problem": "red", "info": "cyan"}


@click.command("doctor", short_help="Say what works on this machine and how to mend what does not.")
@click.option("--ceilings", is_flag=True, help="Measure what this machine can do at best, or show the cache.")
@click.option("--refresh", is_flag=True, help="With --ceilings: measure again whatever the cache holds.")
@click.option("--aa", is_flag=True, help="Measure false alarms, and the smallest change that shows here.")
@click.option(
    "--aa-seconds", type=click.FloatRange(min=1), metavar="S", help="With --aa: about how long; 60 without."
)
@click.option(
    "--aa-campaigns",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --aa, instead: how many comparisons of a program with itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@click.pass_context
def doctor(
    context: click.Context,
    ceilings: bool,
    refresh: bool,
    aa: bool,
    aa_seconds: float | None,
    aa_campaigns: int | None,
    as_json: bool,
) -> None:
    """Say what works on this machine and how to mend what does not.

    Exits with 1 when something that gpuprof cannot do without is broken.
    """
    if refresh and not ceilings:
        raise click.UsageError("--refresh goes with --ceilings.")
    if not aa and (aa_seconds is not None or aa_campaigns is not None):
        raise click.UsageError("--aa-seconds and --aa-campaigns go with --aa.")
    if aa_seconds is not None and (aa_campaigns is not None or not math.isfinite(aa_seconds)):
        raise click.UsageError("--aa-seconds: give a number of seconds, or --aa-campaigns instead.")
    if aa and ceilings:
        raise click.UsageError("--aa and --ceilings measure one after the other: ask for one of them.")
    if aa:
        _print_self_check(aa_seconds, aa_campaigns, as_json)
    elif ceilings:
        _print_ceilings(refresh, as_json)
    else:
        context.exit(_print_checks(as_json))


def _print_self_check(seconds: float | None, campaigns: int | None, as_json: bool) -> None:
    """Show what comparisons are worth here; after Ctrl-C what there is of it."""
    from gpuprof.bench.self_check import SECONDS, self_check

    whole_s = SECONDS if seconds is None else seconds
    about = f"{whole_s:.0f} seconds" if campaigns is None else f"{campaigns} comparisons"
    with _progress(f"launching, for about {about} ...") as progress:

        def launched(launches: int, done: int, elapsed_s: float) -> None:
            progress(f"{launches} launches, {done} comparisons, {elapsed_s:.0f} s")

        found = self_check(seconds=whole_s, campaigns=campaigns, progress=launched)
    click.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else found)
    if found.interrupted:
        raise KeyboardInterrupt


def _print_checks(as_json: bool) -> int:
    from gpuprof.doctor import examine, is_broken

    checks = examine()
    healthy = not any(map(is_broken, checks))
    if as_json:
        values = {"ok": healthy, "checks": [dataclasses.asdict(check) for check in checks]}
        click.echo(json.dumps(values, indent=2))
    else:
        for check in checks:
            click.echo(_line(check, widest=max(len(check.name) for check in checks)))
        click.echo(f"\n{_verdict(checks, healthy=healthy)}")
    return 0 if healthy else EXIT_BROKEN


def _verdict(checks: Sequence[Check], *, healthy: bool) -> str:
    if not healthy:
        return "gpuprof cannot work here as it is."
    problems = sum(check.status == "problem" for check in checks)
    if problems:
        return f"gpuprof can record, but for {'the problem' if problems == 1 else 'the problems'} above."
    return "gpuprof can record here."


def _line(check: Check, widest: int) -> str:
    from gpuprof.text.sanitize import escape_text

    status = click.style(f"{check.status:<7}", fg=_COLORS[check.status])
    mend = f"; mend: {check.mend}" if check.mend else ""
    return f"{status}  {check.name:<{widest}}  {escape_text(check.detail + mend)}"


def _print_ceilings(refresh: bool, as_json: bool) -> None:
    """Show the ceilings; those of the cache are compared with a quick new measurement."""
    from gpuprof.analyze.ceilings.cache import are_cached, load_ceilings, load_gpu_ceilings
    from gpuprof.analyze.ceilings.cpu import measure_ceilings
    from gpuprof.analyze.ceilings.text import ceilings_table, drift_text, gpu_ceilings_table

    # How long GPUs take nobody knows before a process of their own has looked.
    takes = "again, for about 2" if not refresh and are_cached() else "for about 10"
    with _progress(f"measuring the processors {takes} seconds ...") as progress:
        ceilings, fresh = load_ceilings(refresh, progress)
        drifts = None if fresh else ceilings.drift_to(measure_ceilings(quick=True, progress=progress))
        gpus, gpu_notes = load_gpu_ceilings(refresh, progress)
    for gpu in gpus:
        if gpu.later is not None:
            drifts = [*(drifts or []), *gpu.drifts]
    if as_json:
        values = {
            "ceilings": ceilings.as_dict(),
            "gpus": [{"device": gpu.device, "ceilings": gpu.ceilings.as_dict()} for gpu in gpus],
            "gpu_notes": gpu_notes,
            "from_cache": not fresh,
            "drift": None if drifts is None else [dataclasses.asdict(drift) for drift in drifts],
        }
        click.echo(json.dumps(values, indent=2))
        return
    click.echo(ceilings_table(ceilings))
    for gpu in gpus:
        click.echo(f"\n{gpu_ceilings_table(gpu.ceilings, gpu.device)}")
    for note in gpu_notes:
        click.echo(f"note: {note}")
    if drifts is not None:
        click.echo(drift_text(drifts))


@contextlib.contextmanager
def _progress(plain: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is measured: a line that changes, or one line where it goes to a file."""
    if not sys.stderr.isatty():
        click.echo(plain, err=True)
        yield lambda _what: None
        return
    from rich.console import Console

    with Console(stderr=True).status("measuring") as status:
        yield lambda what: status.update(f"measuring {what}")
