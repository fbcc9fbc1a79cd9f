# SPDX-License-Identifier: Apache-2.0
"""Comparisons under load, of `gpuprof compare` and `gpuprof suite`: run, report, exit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.measuring import EXIT_INCONCLUSIVE, OccasionalLines, exit_for_targets
from gpuprof.cli.termination import terminated_like_interrupted
from gpuprof.cli.usage import UsageError
from gpuprof.text.sanitize import escape_text

if TYPE_CHECKING:
    from gpuprof.load.comparison_plan import LoadComparisonPlan


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of both commands for their output."""

    fresh: bool
    resume: bool
    reports: tuple[str, ...]
    output_dir: str | None
    as_json: bool


def run_loads(plan: LoadComparisonPlan, options: ReportOptions) -> None:
    """Put the load on the variants, print and write what was found, and exit by it."""
    from gpuprof.bench.compare.runner import file_name
    from gpuprof.load.comparison_report import write_comparison
    from gpuprof.load.comparison_run import run_load_comparison
    from gpuprof.load.report import check_formats

    if options.fresh and options.resume:
        raise UsageError(
            "fresh_and_resume", "--fresh and --resume contradict each other; hint: use one of them."
        )
    check_formats(options.reports)
    name = file_name(plan.comparison.name)
    folder = Path("results") / name if options.output_dir is None else Path(options.output_dir)
    lines = OccasionalLines(partial(click.echo, err=True))
    with terminated_like_interrupted():
        found = run_load_comparison(
            plan,
            folder,
            fresh=options.fresh,
            resume=options.resume,
            before_run=lambda variant, number, runs: lines.add(
                escape_text(f"run {number} of {runs}: {variant}")
            ),
        )
        paths = write_comparison(found, options.reports, folder)
        if options.as_json:
            click.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False, default=str))
        else:
            click.echo(str(found))
            for path in paths:
                click.echo(escape_text(f"wrote {path}"), err=True)
        if found.interrupted:
            click.echo(escape_text(f"interrupted: run the same command to continue ({folder})"), err=True)
            raise KeyboardInterrupt
    if found.choice is None:
        click.get_current_context().exit(EXIT_INCONCLUSIVE)
    exit_for_targets([found.choice.target_verdict])
