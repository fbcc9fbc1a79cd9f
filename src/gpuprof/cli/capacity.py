# SPDX-License-Identifier: Apache-2.0
"""`gpuprof capacity`: how many machines a load needs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import click

from gpuprof.cli.options import FINITE, WholeNumber, finite, typed
from gpuprof.cli.usage import BadParameter

_UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3_600.0}
_NUMBER = WholeNumber(min=1)


def rate(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Parse 3000, 3000/s, 90/min or 5000/h as a rate per second."""
    number, _, unit = value.strip().partition("/")
    try:
        found = float(number.replace(",", "").replace("_", "")) / _UNITS_S[unit.strip()]
    except (ValueError, KeyError):
        found = math.nan
    if not 0 < found < math.inf:
        raise BadParameter("invalid_rate", f"{value!r} is not a rate; hint: write 3000/s, 90/min or 5000/h.")
    return found


def _factors(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
    """Parse 0.5,1,1.6."""
    try:
        factors = tuple(float(word) for word in value.split(",")) if value else ()
    except ValueError:
        raise BadParameter(
            "invalid_factors", f"{value!r} is not a list of factors; hint: write 0.5,1,1.6."
        ) from None
    return tuple(finite(factor, value) for factor in factors)


def _arrivals(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[float] | None:
    """Read a file with one time in seconds a line."""
    if value is None:
        return None
    try:
        lines = Path(value).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _invalid_arrivals(f"{value}: {reason}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found += [float(word) for word in line.split()]
        except ValueError:
            raise _invalid_arrivals(f"{value}: line {number} is no number") from None
    return found


def _invalid_arrivals(what: str) -> BadParameter:
    return BadParameter("invalid_arrivals", f"{what}; hint: write one time in seconds a line.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """The options of `gpuprof capacity`."""

    results: tuple[str, ...]
    rate: float
    slo: str
    growth: float
    peak: float
    seasons: tuple[float, ...]
    arrivals: list[float] | None
    router: str
    replicas: int
    batch_size: int
    price: float | None
    model: str | None
    seed: int
    as_json: bool


@click.command("capacity")
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@click.option(
    "--rate", required=True, metavar="3000/s", callback=rate, help="Plan for this rate of requests."
)
@click.option("--slo", required=True, metavar="'p99<100ms'", help="Meet this latency target.")
@click.option(
    "--growth",
    type=FINITE,
    default=1.0,
    show_default=True,
    metavar="X",
    help="Multiply the rate with the growth to plan for.",
)
@click.option(
    "--peak",
    type=FINITE,
    default=1.0,
    show_default=True,
    metavar="X",
    help="Multiply the rate with the busiest time over the mean.",
)
@click.option(
    "--seasons",
    metavar="0.5,1,1.6",
    callback=_factors,
    help="Plan each part of a day, at these rates over the mean.",
)
@click.option(
    "--arrivals",
    metavar="FILE",
    callback=_arrivals,
    help="Use the gaps of these arrivals: one time in seconds a line. Default: a Poisson process.",
)
@click.option(
    "--router",
    type=click.Choice(["least-loaded", "random"]),
    default="least-loaded",
    show_default=True,
    help="Send a request to the machine with the fewest requests, or to any.",
)
@click.option(
    "--replicas",
    type=_NUMBER,
    default=1,
    show_default=True,
    metavar="N",
    help="Run N replicas next to each other on a machine.",
)
@click.option(
    "--batch-size",
    type=_NUMBER,
    default=1,
    show_default=True,
    metavar="N",
    help="Serve up to N waiting requests as a batch.",
)
@click.option(
    "--price", type=FINITE, metavar="X", help="Compute the cost at this price of a machine and hour."
)
@click.option("--model", metavar="NAME", help="Plan this model of RESULT.")
@click.option(
    "--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Set the seed of the simulation."
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(CapacityOptions)
def capacity(options: CapacityOptions) -> None:
    """Simulate machines with the service times of RESULT, and print how many meet a target.

    RESULT is a result file of gpuprof bench, or a folder of gpuprof load. The 95% interval is over process
    runs: --launches 3 or more of gpuprof bench, or three folders or more. Batches and replicas need measured
    service times: gpuprof bench --batch-sizes 1,8, or gpuprof load --max-batch 8.
    """
    from gpuprof import api

    found = api.plan_capacity(
        options.results[0] if len(options.results) == 1 else list(options.results),
        options.rate,
        options.slo,
        growth=options.growth,
        peak=options.peak,
        seasons=options.seasons,
        arrivals_s=options.arrivals,
        router="random" if options.router == "random" else "least-loaded",
        replicas=options.replicas,
        largest_batch=options.batch_size,
        price_per_hour=options.price,
        model=options.model,
        seed=options.seed,
    )
    if options.as_json:
        click.echo(json.dumps({"result": ", ".join(options.results), "capacity": found.to_dict()}, indent=2))
    else:
        click.echo(str(found))
