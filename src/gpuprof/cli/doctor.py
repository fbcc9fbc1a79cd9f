# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor`: check the installation, measure ceilings and the repeatability of comparisons."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gpuprof.cli.options import FiniteRange, WholeNumber
from gpuprof.cli.usage import UsageError
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.doctor import Check

EXIT_BROKEN = 1
_COLORS = {"ok": "green", "missing": "yellow", "problem": "red", "info": "cyan"}


@click.command("doctor")
@click.option(
    "--ceilings",
    is_flag=True,
    help="Print the highest rates of the processors; measure them if they are not cached.",
)
@click.option("--refresh", is_flag=True, help="With --ceilings: measure again.")
@click.option(
    "--aa",
    is_flag=True,
    help="Measure the false differences and the minimum detectable effect of comparisons.",
)
@click.option(
    "--aa-seconds",
    type=FiniteRange(min=1),
    metavar="S",
    help="With --aa: measure for about S seconds. Default: 60.",
)
@click.option(
    "--aa-comparisons",
    type=WholeNumber(min=1),
    metavar="N",
    help="With --aa: make N comparisons instead of a fixed time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@click.pass_context
def doctor(
    context: click.Context,
    ceilings: bool,
    refresh: bool,
    aa: bool,
    aa_seconds: float | None,
    aa_comparisons: int | None,
    as_json: bool,
) -> None:
    """Check what works on this machine, and print how to fix what does not.

    Exit with 1 if something that gpuprof needs is broken.
    """
    if refresh and not ceilings:
        raise UsageError("needs_ceilings", "--refresh needs --ceilings; hint: add --ceilings.")
    if not aa and (aa_seconds is not None or aa_comparisons is not None):
        raise UsageError("needs_aa", "--aa-seconds and --aa-comparisons need --aa; hint: add --aa.")
    if aa_seconds is not None and aa_comparisons is not None:
        raise UsageError(
            "two_lengths", "--aa-seconds and --aa-comparisons cannot be combined; hint: use one of them."
        )
    if aa and ceilings:
        raise UsageError("aa_and_ceilings", "--aa and --ceilings cannot be combined; hint: use one of them.")
    if aa:
        _print_self_check(aa_seconds, aa_comparisons, as_json)
    elif ceilings:
        _print_ceilings(refresh, as_json)
    else:
        context.exit(_print_checks(as_json))


def _print_self_check(seconds: float | None, comparisons: int | None, as_json: bool) -> None:
    """Print the repeatability of comparisons; after Ctrl-C the results so far."""
    from gpuprof.doctor.self_check import SECONDS, self_check

    whole_s = SECONDS if seconds is None else seconds
    about = f"{whole_s:.0f} seconds" if comparisons is None else counted(comparisons, "comparison")
    with _progress(f"comparing a program with itself, for about {about} ...") as progress:

        def show(runs: int, done: int, elapsed_s: float) -> None:
            progress(f"{counted(runs, 'process run')}, {counted(done, 'comparison')}, {elapsed_s:.0f} s")

        found = self_check(seconds=whole_s, comparisons=comparisons, progress=show)
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
        return "gpuprof cannot record here: fix the problems above."
    problems = sum(check.status == "problem" for check in checks)
    if problems:
        return f"gpuprof can record here, except for the {'problem' if problems == 1 else 'problems'} above."
    return "gpuprof can record here."


def _line(check: Check, widest: int) -> str:
    from gpuprof.text.sanitize import escape_text

    status = click.style(f"{check.status:<7}", fg=_COLORS[check.status])
    hint = f"; hint: {check.hint}" if check.hint else ""
    return f"{status}  {check.name:<{widest}}  {escape_text(check.detail + hint)}"


def _print_ceilings(refresh: bool, as_json: bool) -> None:
    """Print the ceilings; compare cached ones with a quick new measurement."""
    from gpuprof.analyze.ceilings.cache import are_cached, load_ceilings, load_gpu_ceilings
    from gpuprof.analyze.ceilings.cpu import measure_ceilings
    from gpuprof.analyze.ceilings.text import (
        ceiling_note_text,
        ceilings_table,
        drift_text,
        gpu_ceilings_table,
    )

    # The time for GPUs is unknown before their own process has started.
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
            "gpu_notes": [dataclasses.asdict(note) for note in gpu_notes],
            "from_cache": not fresh,
            "drift": None if drifts is None else [dataclasses.asdict(drift) for drift in drifts],
        }
        click.echo(json.dumps(values, indent=2))
        return
    click.echo(ceilings_table(ceilings))
    for gpu in gpus:
        click.echo(f"\n{gpu_ceilings_table(gpu.ceilings, gpu.device)}")
    for note in gpu_notes:
        click.echo(f"note: {ceiling_note_text(note)}")
    if drifts is not None:
        click.echo(drift_text(drifts))


@contextlib.contextmanager
def _progress(plain: str) -> Iterator[Callable[[str], None]]:
    """Show the progress on standard error: a changing line on a terminal, otherwise one line."""
    if not sys.stderr.isatty():
        click.echo(plain, err=True)
        yield lambda _what: None
        return
    from rich.console import Console

    with Console(stderr=True).status("measuring") as status:
        yield lambda what: status.update(f"measuring {what}")
