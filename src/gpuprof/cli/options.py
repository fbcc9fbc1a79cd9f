# SPDX-License-Identifier: Apache-2.0
"""Options of several commands, the parsers of their values, and new and old runs on one command line."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import click

from gpuprof.cli.usage import BadParameter, UsageError

T = TypeVar("T")
Command = Callable[..., None]
_MOST_DIGITS = 12  # Python refuses a number of several thousand digits


class FiniteFloat(click.types.FloatParamType):
    """A number; NaN and infinities are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number. Raises BadParameter."""
        return finite(super().convert(value, param, ctx), value)


class FiniteRange(click.FloatRange):
    """A number between limits. NaN, which is within any, and infinities are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number. Raises BadParameter."""
        return finite(super().convert(value, param, ctx), value)


class WholeNumber(click.IntRange):
    """A whole number between limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a whole number. Raises BadParameter."""
        try:
            int(value)
        except ValueError:
            raise BadParameter(
                "not_whole", f"{value!r} is not a whole number; hint: write one, such as {self.min or 1}."
            ) from None
        return int(super().convert(value, param, ctx))


def finite(number: float, given: object) -> float:
    """Return a number. Raises BadParameter for NaN and infinities, with the value as `given`."""
    if not math.isfinite(number):
        raise BadParameter(
            "not_finite", f"{given!r} is not a finite number; hint: write a number, such as 2."
        )
    return number


FINITE = FiniteFloat()


def numbers(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse 1,8,32; `auto` is an empty tuple."""
    if value is None:
        return None
    if value == "auto" and parameter.name == "batch_sizes":
        return ()
    words = [word.strip() for word in value.replace("x", ",").split(",")]
    if not all(
        word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) for word in words
    ):
        raise BadParameter(
            "invalid_batch_sizes", f"{value!r} is not a list of positive integers; hint: write 1,8."
        )
    return tuple(map(int, words))


def seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse a value that is not a positive, finite time."""
    # A comparison with NaN is false.
    if value is not None and not 0 < value < float("inf"):
        raise BadParameter(
            "invalid_time", f"{value} is not a time; hint: write seconds above 0, such as 600."
        )
    return value


def address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Refuse what cannot be an address; an empty one would be that of all interfaces."""
    try:
        is_name = bool(value.strip() and value.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise BadParameter(
            "no_address",
            f"{value!r} is no address; hint: write an IP address of this machine, such as 127.0.0.1.",
        )
    return value


def not_empty(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty path, such as that of a variable that is not set: it would be the current folder."""
    if value == "":
        name = str(parameter.metavar).strip("[]")
        raise BadParameter("empty_path", f"{name} is empty; hint: write a name, or omit it.")
    return value


def fraction(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Parse 2% or 0.02 as a fraction."""
    text = value.strip()
    try:
        value_read = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise BadParameter(
            "invalid_fraction", f"{value!r} is not a fraction; hint: write 2% or 0.02."
        ) from None
    if 1 <= value_read < 100 and not text.endswith("%"):
        raise BadParameter(
            "invalid_fraction", f"{value!r} is not a fraction; hint: write {text}% or {value_read / 100:g}."
        )
    if not 0 <= value_read < 1:
        raise BadParameter(
            "invalid_fraction", f"{value!r} is not between 0% and 100%; hint: write 2% or 0.02."
        )
    return value_read


def typed(options: Callable[..., T]) -> Callable[[Callable[[T], None]], Command]:
    """Pass the option values to a command as one dataclass."""

    def decorate(command: Callable[[T], None]) -> Command:
        @functools.wraps(command)
        def called(**values: object) -> None:
            command(options(**values))

        return called

    return decorate


def measuring_options(
    process_runs: int, iterations_aliases: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Add the options of `bench.options.MeasuringOptions`; `process_runs` is the default of `--launches`."""
    # Other commands use this module's parsers, and start without the benchmark.
    from gpuprof.bench.config import DEVICES, DTYPES

    count = WholeNumber(min=1)
    options = (
        click.option("--framework", default="auto", metavar="NAME",
                     help="Run models in NAME: pytorch, jax, onnxruntime, ... In gpuprof bench, both is "
                          "pytorch and jax. Default: chosen by MODEL."),
        click.option("--batch-sizes", "--batch-size", "batch_sizes", default="1", callback=numbers,
                     metavar="1,8", help="Measure these batch sizes. In gpuprof bench, auto doubles the "
                                         "size up to the memory limit. Default: 1."),
        click.option("--iterations", *iterations_aliases, "iterations", type=count, metavar="N",
                     help="Measure N calls. Default: until the interval of the median is 1% wide."),
        click.option("--warmup", type=WholeNumber(min=0), metavar="N",
                     help="Make N warm-up calls. Default: until the times are steady."),
        click.option("--duration", type=FINITE, callback=seconds, metavar="S",
                     help="Limit the time per batch size and process run. Default: 10, or none with "
                          "--iterations."),
        click.option("--launches", type=count, default=process_runs, show_default=True, metavar="N",
                     help="Measure each model in N process runs (fresh processes)."),
        click.option("--caches", type=click.Choice(["warm", "cold"]), default="warm", show_default=True,
                     help="With cold, empty the caches of the processor before each call."),
        click.option("--dtype", type=click.Choice(DTYPES),
                     help="Convert weights and inputs to this dtype. Default: that of the model."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True,
                     help="Run models on this device."),
        click.option("--input-shape", callback=numbers, metavar="3,224,224",
                     help="Set the shape of one sample. Default: that of the model or data."),
        click.option("--data", default="synthetic", show_default=True, metavar="D",
                     help="Take inputs from D: synthetic, a folder of images in class folders, a .npz file, "
                          "or python:module:function, which returns batches."),
        click.option("--stream", is_flag=True,
                     help="Load a new batch of --data for each call, and time the loading. Default: repeat "
                          "one batch."),
        click.option("--seed", type=int, default=0, show_default=True, metavar="N",
                     help="Set the seed of weights, data and order."),
        click.option("--slo", metavar="'p99<20ms'",
                     help="Check a target. Exit with 1 if it is missed, with 3 if the result is "
                          "inconclusive."),
        click.option("--memory-budget", metavar="12GiB", help="Limit the memory of a batch. Default: no "
                                                              "limit."),
        click.option("--profile", is_flag=True, help="Also record a run with a few calls of each model."),
        click.option("--trust-pickle", is_flag=True,
                     help="Load pickled files and .pt2, which can run any code."),
        click.option("--time-limit", type=FINITE, callback=seconds, default=600.0, show_default=True,
                     metavar="S", help="Limit the time of one step: loading, compiling, a call."),
        click.option("--json", "as_json", is_flag=True, help="Print machine-readable results."),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class ListsCommand(click.Command):
    """A command whose list options take several words too: `--batch-sizes 1 8 32` is `1,8,32`.

    `lists` has for each option whether a later word belongs to its list; the first one always does.
    """

    lists: ClassVar[Mapping[str, Callable[[str], bool]]] = {
        "--batch-sizes": lambda word: word.replace(",", "").isdigit(),
        "--models": lambda word: not word.startswith("-"),
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line with each list as one word."""
        return super().parse_args(ctx, join_lists(args, self.lists))


def join_lists(words: Sequence[str], lists: Mapping[str, Callable[[str], bool]]) -> list[str]:
    """Return `words` with the values of each list option joined by commas, up to a `--`.

    Raises UsageError for a list without a value.
    """
    joined: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*joined, word, *left]
        name, separator, first = word.partition("=")
        if name not in lists:
            joined.append(word)
            continue
        values = [first] if separator else []
        while left and not left[0].startswith("-") and (not values or lists[name](left[0])):
            values.append(left.pop(0))
        if not values:
            raise UsageError("no_value", f"{name} has no value; hint: write them after it, as {name} A,B.")
        joined += [name, ",".join(values)]
    return joined


AGAINST = "--against"


class SidesCommand(click.Command):
    """A command whose `--against` takes all runs after it, as from a shell pattern."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line with `--against` before each old run."""
        if not set(args).isdisjoint(ctx.help_option_names):
            return super().parse_args(ctx, args)
        valued = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        return super().parse_args(ctx, name_older_runs(args, valued))


def name_older_runs(words: Sequence[str], valued: set[str]) -> list[str]:
    """Return `words` with `--against` before each old run, if the new runs come first.

    `valued` are the options that take a value. Raises UsageError if the side of a run is ambiguous.
    """
    given: list[str] = []
    new: list[str] = []
    apart: list[str] = []
    has_sides, is_after, is_value = False, False, False
    for index, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--":
            given += words[index:]
            apart += words[index + 1 :] if has_sides else []
            break
        elif word.startswith("-") and word != "-":
            is_value = word in valued
            is_after = word.partition("=")[0] == AGAINST
            has_sides |= is_after
        elif not has_sides:
            new.append(word)
        elif new and is_after:
            given.append(AGAINST)
        else:
            apart.append(word)
        given.append(word)
    if apart and (new or len(apart) > 1):
        raise UsageError(
            "ambiguous_run",
            f"{apart[-1]} may be new or old; hint: name the new runs first: NEW... {AGAINST} "
            "OLD..., then options.",
        )
    return given


def check_sides(runs: tuple[str, ...], against: tuple[str, ...]) -> None:
    """Refuse several runs without an old one."""
    if len(runs) > 1 and not against:
        raise UsageError(
            "needs_against",
            f"{len(runs)} runs without an older one; hint: add --against OLD, or use one run.",
        )


def system_options(command: Command) -> Command:
    """Add the options of `bench.options.SystemOptions` but the seed, where a target may be a model."""
    from gpuprof.bench.config import DEVICES, DTYPES

    options = (
        click.option("--framework", default="auto", metavar="NAME",
                     help="Run a model in NAME: pytorch, jax, onnxruntime. Default: chosen by the model."),
        click.option("--dtype", type=click.Choice(DTYPES),
                     help="Convert weights and inputs of a model to this dtype. Default: that of the model."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True,
                     help="Run a model on this device."),
        click.option("--input-shape", callback=numbers, metavar="3,224,224",
                     help="Set the shape of one sample of a model. Default: its own."),
        click.option("--data", default="synthetic", show_default=True, metavar="D",
                     help="Take inputs of a model from D: synthetic, a folder of images in class folders, or "
                          "a .npz file."),
        click.option("--trust-pickle", is_flag=True,
                     help="Load pickled files and .pt2, which can run any code."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
