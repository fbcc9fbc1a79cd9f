# SPDX-License-Identifier: Apache-2.0
"""`gpuprof whatif`: the predicted wall time of a run with changes."""

from __future__ import annotations

import json
import math

import click

from gpuprof.cli.options import WholeNumber
from gpuprof.cli.usage import BadParameter, UsageError


def _factors(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Parse NAME=2. A name may contain `=`."""
    found = {}
    for value in values:
        name, equals, number = value.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not (equals and name) or (math.isnan(factor) and number.strip().lower() != "nan"):
            raise BadParameter("not_a_factor", f"{value!r} is not NAME=FACTOR; hint: write 'layers.*.mlp=2'.")
        if not 0 < factor < math.inf:
            raise BadParameter(
                "invalid_factor",
                f"{number!r} is not a factor for {name!r}; hint: 2 means twice as fast; --remove removes all "
                "time.",
            )
        if name in found:
            raise BadParameter("factor_twice", f"{name!r} has two factors; hint: give one.")
        found[name] = factor
    return found


@click.command("whatif")
@click.argument("run", metavar="RUN")
@click.option("--remove", metavar="NAME", multiple=True, help="Remove all calls of this name. Repeatable.")
@click.option(
    "--speed-up",
    metavar="NAME=FACTOR",
    multiple=True,
    callback=_factors,
    help="Make what has this name faster, as in 'layers.*.mlp=2'. Repeatable.",
)
@click.option(
    "--workers",
    type=WholeNumber(min=1),
    metavar="N",
    help="Fetch with N workers of the data loader instead of in the main process.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def whatif(
    run: str, remove: tuple[str, ...], speed_up: dict[str, float], workers: int | None, as_json: bool
) -> None:
    """Replay RUN with changes, and print the predicted wall time as an interval.

    NAME may contain * for any text, and may begin with a kind: operator:aten::mm, kernel:*gemm*, gc:*,
    python:DataLoader.__next__. The replay keeps the order of each thread and stream, and the dependencies
    between them.
    """
    from gpuprof import api
    from gpuprof.cli.header import incomplete_line

    if not (remove or speed_up or workers):
        raise UsageError(
            "no_change", "nothing is changed; hint: add --remove NAME, --speed-up NAME=2 or --workers N."
        )
    opened = api.open(run)
    found = opened.whatif(remove=remove, speed_up=speed_up, workers=workers)
    if as_json:
        click.echo(json.dumps({"run": run, "whatif": found.to_dict()}, indent=2))
    else:
        if line := incomplete_line(opened.meta):
            click.echo(line)
        click.echo(str(found))
