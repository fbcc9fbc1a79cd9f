# SPDX-License-Identifier: Apache-2.0
"""New runs and older ones on one command line."""

from __future__ import annotations

from collections.abc import Sequence

import click

AGAINST = "--against"


class SidesCommand(click.Command):
    """A command whose `--against` takes all runs behind it, as a shell's pattern leaves them there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line as click does, with the older runs named one by one."""
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
    """Return `words` with `--against` before each run behind it, where the new runs stand before it.

    `valued` are the options that take a value. Raises UsageError where the side of a run is not clear.
    """
    given: list[str] = []
    new: list[str] = []
    apart: list[str] = []
    has_sides, is_behind, is_value = False, False, False
    for place, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--":
            given += words[place:]
            apart += words[place + 1 :] if has_sides else []
            break
        elif word.startswith("-") and word != "-":
            is_value = word in valued
            is_behind = word.partition("=")[0] == AGAINST
            has_sides |= is_behind
        elif not has_sides:
            new.append(word)
        elif new and is_behind:
            given.append(AGAINST)
        else:
            apart.append(word)
        given.append(word)
    if apart and (new or len(apart) > 1):
        raise click.UsageError(
            f"is {apart[-1]} new or old? Name the new runs first: NEW... {AGAINST} OLD..., then options."
        )
    return given


def check_sides(runs: tuple[str, ...], against: tuple[str, ...]) -> None:
    """Refuse several runs that nothing is held against."""
    if len(runs) > 1 and not against:
        raise click.UsageError(
            f"{len(runs)} runs are named and no older one: add --against OLD, or name one run."
        )
