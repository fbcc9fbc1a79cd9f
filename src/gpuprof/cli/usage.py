# SPDX-License-Identifier: Apache-2.0
"""Errors of command lines: as click has them, with a code as every error of gpuprof."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource


class UsageError(click.UsageError):
    """Arguments that cannot be combined, or that are missing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BadParameter(click.BadParameter):
    """A value that an argument or option does not take."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse_others(name: str, known: Collection[str]) -> None:
    """Raise UsageError for a given option that is not `known` and that `name`, another one, would ignore."""
    context = click.get_current_context()
    for each in context.command.params:
        is_given = context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
        if is_given and each.name not in known:
            raise UsageError("option_without_use", f"{name} has no {each.opts[0]}; hint: omit one of them.")
