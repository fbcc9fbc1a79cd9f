# SPDX-License-Identifier: Apache-2.0
"""Errors of command lines: as click has them, with a code as every error of gpuprof."""

from __future__ import annotations

import click


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
