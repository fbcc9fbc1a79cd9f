# SPDX-License-Identifier: Apache-2.0
"""Options of all commands that take a number refuse NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Iterator

import click
import pytest
from refusals import refused_command

from gpuprof.cli.main import cli
from gpuprof.cli.usage import BadParameter
from gpuprof.errors import GpuprofError


def floats_in(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from floats_in(each)
    elif isinstance(value, dict):
        yield from floats_in(list(value.values()))


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("name", list(cli.commands))
def test_no_option_of_any_command_reads_a_number_that_is_not_finite(name: str, text: str) -> None:
    command = cli.commands[name]
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        given = f"name={text}" if option.multiple else text
        try:
            value = option.process_value(click.Context(command), (given,) if option.multiple else given)
        except (click.UsageError, GpuprofError):
            continue
        assert all(map(math.isfinite, floats_in(value))), f"{name} {option.opts[0]} {given} is {value}"


@pytest.mark.parametrize("text", ["x", "1.5", ""])
@pytest.mark.parametrize("name", sorted(cli.commands))
def test_a_whole_number_that_is_none_is_called_so(name: str, text: str) -> None:
    command = cli.commands[name]
    for option in command.params:
        if isinstance(option.type, click.IntRange):
            with pytest.raises(BadParameter, match=f"^{text!r} is not a whole number; hint: ") as refused:
                option.process_value(click.Context(command), (text,) if option.multiple else text)
            assert refused.value.code == "not_whole"


@pytest.mark.parametrize("command", ["top", "metrics", "alert"])
def test_an_interval_that_is_no_number_is_one_line(command: str) -> None:
    refused_command([command, "--once", "--interval", "nan"], "not_finite")
