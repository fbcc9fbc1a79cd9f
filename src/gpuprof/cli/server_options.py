# SPDX-License-Identifier: Apache-2.0
"""Options of commands that put load on a server, and the target that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.options import FINITE, Command, WholeNumber, numbers, seconds
from gpuprof.cli.usage import BadParameter

if TYPE_CHECKING:
    from gpuprof.load.targets.server_target import ServerTarget

# The names of the values that `server_options` adds.
SERVER_OPTIONS = (
    *("allowed_hosts", "headers", "method", "body", "model", "prompt_tokens", "output_tokens", "endpoint"),
    *("batch", "shapes", "is_binary", "timeout_s", "ca_file"),
)


def _headers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        name, colon, value = text.partition(":")
        if not colon:
            raise BadParameter("invalid_header", f"{name!r} is not a header; hint: write NAME:VALUE.")
        found[name.strip()] = value.strip()
    return found


def _shapes(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    found = {}
    for text in values:
        name, colon, sizes = text.rpartition(":")
        if not colon:
            raise BadParameter("invalid_shape", f"{text!r} is not a shape; hint: write NAME:1,8.")
        found[name] = numbers(context, parameter, sizes) or ()
    return found


def server_options(command: Command) -> Command:
    """Add the options of servers to a command."""
    count = WholeNumber(min=1)
    options = (
        click.option("--allow-remote", "allowed_hosts", multiple=True, metavar="HOST",
                     help="Allow requests to HOST, which is another machine. Repeatable."),
        click.option("--header", "headers", multiple=True, callback=_headers, metavar="NAME:VALUE",
                     help="Send a header with each request. Repeatable."),
        click.option("--method", default="", metavar="NAME",
                     help="Use this HTTP method. Default: POST with a body, GET without."),
        click.option("--body", default="", metavar="FILE[:WEIGHT,...]",
                     help="Send these files, at random by weight; {{index}} in them is the number of the "
                          "request."),
        click.option("--model", default="", metavar="NAME", help="Name the model of an OpenAI-compatible "
                                                                 "server."),
        click.option("--prompt-tokens", type=count, default=128, show_default=True, metavar="N",
                     help="Send prompts of about N tokens."),
        click.option("--output-tokens", type=count, default=64, show_default=True, metavar="N",
                     help="Request at most N tokens."),
        click.option("--endpoint", type=click.Choice(["chat/completions", "completions"]),
                     default="chat/completions", show_default=True, help="Use this OpenAI endpoint."),
        click.option("--batch", type=count, default=1, show_default=True, metavar="N",
                     help="Send N samples per KServe request."),
        click.option("--server-input", "shapes", multiple=True, callback=_shapes, metavar="NAME:1,8",
                     help="Set the shape of a KServe input with unknown sizes. Repeatable."),
        click.option("--binary/--json-tensors", "is_binary", default=True, show_default=True,
                     help="Send KServe tensors in the binary extension, or as JSON."),
        click.option("--ca", "ca_file", default="", metavar="FILE",
                     help="Check the server's certificate with the CAs in FILE (PEM). Default: those of the "
                          "system."),
        click.option("--timeout", "timeout_s", type=FINITE, callback=seconds, default=30.0, show_default=True,
                     metavar="S", help="End a request after S seconds; it counts as late."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def target_of_options(
    address: str, values: Mapping[str, Any], *, concurrency: int | None, seed: int
) -> ServerTarget:
    """Return the target of an address and the values of `server_options`; raises GpuprofError."""
    from gpuprof.load.targets.http import CONCURRENCY
    from gpuprof.load.targets.server_target import server_target

    options = {name: values[name] for name in SERVER_OPTIONS}
    allowed = options.pop("allowed_hosts")
    limit = CONCURRENCY if concurrency is None else concurrency
    return server_target(address, allowed_hosts=allowed, concurrency=limit, seed=seed, **options)
