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
    """Pass the option values to a command as one dataclass."""

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
                     help="Run models in NAME: pytorch, jax, onnxruntime, ... Default: by MODEL."),
        click.option("--batch-sizes", "--batch-size", "batch_sizes", default="1", callback=numbers,
                     metavar="1,8", help="Measure these numbers of samples per call; bench: auto doubles "
                                         "up to the memory limit. "
                          "Default: 1."),
        click.option("--iterations", type=count, metavar="N",
                     help="Measure N calls. Default: until the interval of the median is 1% wide."),
        click.option("--warmup", type=click.IntRange(min=0), metavar="N",
                     help="Make N warm-up calls. Default: until the times are steady."),
        click.option("--duration", type=float, callback=seconds, metavar="S",
                     help="Limit the time per batch size and process run. Default: 10 without --iterations."),
        click.option("--launches", type=count, default=launches, show_default=True, metavar="N",
                     help="Measure each model in N process runs (fresh processes)."),
        click.option("--dtype", type=click.Choice(DTYPES),
                     help="Convert weights and inputs to this dtype. Default: that of the model."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True,
                     help="Run models on this device."),
        click.option("--input-shape", callback=numbers, metavar="3,224,224",
                     help="Set the shape of one sample. Default: that of the model or data."),
        click.option("--data", default="synthetic", show_default=True, metavar="D",
                     help="Take inputs from D: synthetic, a folder of images in class folders, or a .npz "
                          "file."),
        click.option("--seed", type=int, default=0, show_default=True, help="Set the seed of weights, "
                                                                            "data and order."),
        click.option("--slo", metavar="'p99<20ms'",
                     help="Check a target: exit with 1 if it is missed, with 3 if that is inconclusive."),
        click.option("--memory-budget", metavar="12GiB", help="Limit the memory of a batch. Default: no "
                                                              "limit."),
        click.option("--profile", is_flag=True, help="Record a run with a few calls of each model."),
        click.option("--trust-pickle", is_flag=True,
                     help="Load pickled files and .pt2, which can run any code."),
        click.option("--time-limit", type=float, callback=seconds, default=600.0, show_default=True,
                     metavar="S", help="Limit the time of one step: loading, compiling, a call."),
        click.option("--json", "as_json", is_flag=True, help="Print machine-readable results."),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
