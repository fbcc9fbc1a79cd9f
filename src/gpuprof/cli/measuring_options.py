# SPDX-License-Identifier: Apache-2.0
"""The options that `gpuprof bench` and `gpuprof compare` have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import click

from gpuprof.bench.config import DEVICES, DTYPES
from gpuprof.cli.options import numbers, seconds

T = TypeVar("T")
Command = Callable[..., None]


def typed(options: Callable[..., T]) -> Callable[[Callable[[T], None]], Command]:
    """Hand the values of a command to it as one dataclass."""

    def decorate(command: Callable[[T], None]) -> Command:
        @functools.wraps(command)
        def called(**values: object) -> None:
            command(options(**values))

        return called

    return decorate


def measuring_options(launches: int) -> Callable[[Command], Command]:
    """Add the options of `bench.options.MeasuringOptions`; `launches` is the default of that option."""
    count = click.IntRange(min=1)
    options = (
        click.option("--framework", default="auto", metavar="NAME",
                     help="Run models in NAME: pytorch, jax, onnxruntime, ...; the default suits MODEL."),
        click.option("--batch-sizes", "--batch-size", "batch_sizes", default="1", callback=numbers,
                     metavar="1,8", help="Samples in a call; for bench, auto doubles until memory ends."),
        click.option("--iterations", type=count, metavar="N",
                     help="Calls to measure; by default until the median's interval is narrow."),
        click.option("--warmup", type=click.IntRange(min=0), metavar="N",
                     help="Warm-up calls; by default until the times are stable."),
        click.option("--duration", type=float, callback=seconds, metavar="S",
                     help="Longest time for a batch size in a process run; 10 without --iterations."),
        click.option("--launches", type=count, default=launches, show_default=True, metavar="N",
                     help="Process runs (fresh processes) of each model."),
        click.option("--dtype", type=click.Choice(DTYPES),
                     help="Type of weights and inputs; by default the model's."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True,
                     help="Where models run."),
        click.option("--input-shape", callback=numbers, metavar="3,224,224", help="Shape of one sample."),
        click.option("--data", default="synthetic", metavar="D",
                     help="Inputs: synthetic, a folder of images in class folders, or a .npz file."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of weights, data and order."),
        click.option("--slo", metavar="'p99<20ms'",
                     help="A target; exit code 1 where it is missed, 3 where that is inconclusive."),
        click.option("--memory-budget", metavar="12GiB", help="The most memory that a batch may take."),
        click.option("--profile", is_flag=True, help="Record a run of a few calls of each model."),
        click.option("--trust-pickle", is_flag=True,
                     help="Read pickled files and .pt2, which can run any code."),
        click.option("--time-limit", type=float, callback=seconds, default=600.0, show_default=True,
                     metavar="S", help="The longest that a step may take: loading, compiling, a call."),
        click.option("--json", "as_json", is_flag=True, help="Print machine-readable results."),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
