# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor`: what works here, what is missing, and the mend."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuprof.doctor import Check

EXIT_BROKEN = 1
_COLORS = {"ok": "green", "missing": "yellow", "problem": "red", "info": "cyan"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Say what works on this machine and how to mend what does not.

    Exits with 1 when something that gpuprof cannot do without is broken.
    """
    from gpuprof.doctor import examine, is_broken

    checks = examine()
    healthy = not any(map(is_broken, checks))
    if as_json:
        values = {"ok": healthy, "checks": [dataclasses.asdict(check) for check in checks]}
        click.echo(json.dumps(values, indent=2))
    else:
        for check in checks:
            click.echo(_line(check, widest=max(len(check.name) for check in checks)))
        click.echo("\ngpuprof can record here." if healthy else "\ngpuprof cannot work here as it is.")
    context.exit(0 if healthy else EXIT_BROKEN)


def _line(check: Check, widest: int) -> str:
    from gpuprof.analyze.text_table import escape_text

    status = click.style(f"{check.status:<7}", fg=_COLORS[check.status])
    mend = f"; mend: {check.mend}" if check.mend else ""
    return f"{status}  {check.name:<{widest}}  {escape_text(check.detail + mend)}"
