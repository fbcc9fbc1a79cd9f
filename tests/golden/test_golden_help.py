# SPDX-License-Identifier: Apache-2.0
"""The `--help` texts of every command and option; click's layout is not tested."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import pytest
from golden_files import GoldenFiles

from gpuprof.cli.main import cli


def lines_of(command: click.Command) -> Iterator[str]:
    yield inspect.cleandoc(command.help or "")
    yield f"short: {command.short_help}"
    for each in command.params:
        if isinstance(each, click.Option):
            each.get_help_record(click.Context(command))  # some make their text when it is shown
            words = "/".join([*each.opts, *each.secondary_opts])
            has_default = isinstance(each.default, (str, int, float)) and not each.is_flag
            default = f" (default {each.default})" if has_default else ""
            yield f"{words} {each.metavar or each.type.name}{default}: {each.help}"
        else:
            yield f"{each.human_readable_name} {each.metavar}"


@pytest.mark.parametrize("name", ["gpuprof", *cli.commands])
def test_help(golden: GoldenFiles, name: str) -> None:
    lines = lines_of(cli.commands.get(name, cli))
    golden.check(f"help/{name}.txt", "\n".join(lines) + "\n")
