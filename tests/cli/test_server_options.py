# SPDX-License-Identifier: Apache-2.0
"""The options of servers become a target."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gpuprof.cli.server_options import SERVER_OPTIONS, server_options, target_of_options
from gpuprof.load.targets.server_target import ServerTarget

found: list[ServerTarget] = []


@click.command()
@click.argument("address")
@server_options
def command(address: str, **values: object) -> None:
    assert set(values) == set(SERVER_OPTIONS)
    found.append(target_of_options(address, values, concurrency=None, seed=3))


def test_options_become_a_target() -> None:
    words = ["--model", "m", "--prompt-tokens", "9", "--header", "A: b:c", "--timeout", "5"]
    words += ["--server-input", "x:y:1,8", "--json-tensors", "--endpoint", "completions"]
    done = CliRunner().invoke(command, ["openai+http://localhost:1/v1", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    target = found.pop()
    assert (target.model, target.prompt_tokens, target.output_tokens) == ("m", 9, 64)
    assert (target.headers, target.shapes) == ({"A": "b:c"}, {"x:y": (1, 8)})
    assert (target.is_binary, target.endpoint, target.timeout_s, target.seed) == (
        False,
        "completions",
        5.0,
        3,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--header", "A"],
        ["--server-input", "8"],
        ["--server-input", "x:no"],
        ["--timeout", "0"],
        ["--batch", "0"],
    ],
)
def test_values_that_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(command, ["http://localhost:1/", *words])
    assert done.exit_code == 2
    assert not found
