# SPDX-License-Identifier: Apache-2.0
"""`gpuprof explain`: causes of lost time in a run, and whether their predicted gains came true."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuprof.analyze.findings.engine import Findings


@click.command("explain")
@click.argument("run", metavar="RUN")
@click.option(
    "--against",
    metavar="OLD",
    help="Compare RUN with the gains that the findings of this older run predict; write the score to RUN.",
)
@click.option(
    "--rerun",
    is_flag=True,
    help="Measure gains again: execute recorded work on new inputs, without and with the fix. Needs PyTorch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def explain(run: str, against: str | None, rerun: bool, as_json: bool) -> None:
    """Print what holds up the program of RUN, where, what to change, and the predicted gain.

    The gain is an interval of wall time. Findings are ordered by its low end; gains do not add up.
    """
    from gpuprof import api
    from gpuprof.analyze.findings.promises import plain_score
    from gpuprof.analyze.findings.text import explanation, plain, score_text

    opened = api.open(run)
    score = None if against is None else opened.score(api.open(against))
    findings = opened.findings(rerun=rerun)
    if as_json:
        values = {"run": run, **plain(findings)}
        if score is not None:
            values["score"] = plain_score(score)
        click.echo(json.dumps(values, indent=2))
        _exit_if_interrupted(findings)
        return
    from gpuprof.cli.header import incomplete_line, phases_header

    if line := incomplete_line(opened.meta):
        click.echo(line)
    if lines := phases_header(opened.phases()):
        click.echo(lines)
        click.echo()
    if score is not None:
        click.echo(score_text(score))
        click.echo()
    click.echo(explanation(findings, shlex.quote(run)))
    _exit_if_interrupted(findings)


def _exit_if_interrupted(findings: Findings) -> None:
    """Exit as an interrupted program, after printing what was measured until then."""
    from gpuprof.analyze.findings.finding import RerunProblem

    problems = [each.rerun.problem for each in findings if each.rerun is not None]
    if RerunProblem.INTERRUPTED in (*problems, *(each.problem for each in findings.results)):
        sys.stdout.flush()
        raise KeyboardInterrupt
