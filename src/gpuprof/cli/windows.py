# SPDX-License-Identifier: Apache-2.0
"""Options of `gpuprof run` that record windows of a long program, and the table of a folder of windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuprof.cli.options import WholeNumber
from gpuprof.cli.usage import UsageError

if TYPE_CHECKING:
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.window_options import WindowOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])
NAMES = ("every", "for_", "when", "keep", "disk")


def window_options(command: _Command) -> _Command:
    """Add the options of windows to a command."""
    options = [
        click.option(
            "--every",
            metavar="60s",
            help="Record only windows of the program: one in each interval of this length.",
        ),
        click.option("--for", "for_", metavar="2s", help="With --every: length of a window. Default: 2s."),
        click.option(
            "--when",
            metavar="CONDITION",
            help="Record a window after a slow step: 'step > 1.5x' (of the median), 'step > p99', "
            "'step > 200ms'. At most one window per --every, which is 60s by default.",
        ),
        click.option(
            "--keep",
            type=WholeNumber(min=2),
            metavar="N",
            help="With --every: retain N windows: half the slowest, half a random sample. Default: 20.",
        ),
        click.option(
            "--disk",
            metavar="2GB",
            help="With --every: limit the size of all windows together. Default: 2GB.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def requested_windows(given: dict[str, Any]) -> WindowOptions | None:
    """Return the windows that the options ask for, None for a whole recording. Raises GpuprofError."""
    from gpuprof.record.window_options import WindowOptions, parse_bytes, parse_seconds

    if given["every"] is None and given["when"] is None:
        others = {"--for": given["for_"], "--keep": given["keep"], "--disk": given["disk"]}
        if missing := next((name for name, value in others.items() if value is not None), None):
            raise UsageError("needs_every", f"{missing} needs an interval; hint: add --every 60s.")
        return None
    return WindowOptions(
        every_s=parse_seconds(given["every"] or "60s"),
        duration_s=parse_seconds(given["for_"] or "2s"),
        when=given["when"],
        keep=given["keep"] or 20,
        disk_bytes=parse_bytes(given["disk"] or "2GB"),
    )


def check_for_windows(options: RecordingOptions) -> None:
    """Refuse options of a whole recording that windows do not support."""
    refused = {
        "--work": options.work,
        "--counters": options.counters,
        "--children": options.children,
        f"--profiler {options.profiler}": options.profiler is not None,
    }
    if given := next((name for name, is_on in refused.items() if is_on), None):
        raise UsageError("windows_conflict", f"--every cannot be combined with {given}; hint: leave one out.")


def record_windows(program: Any, options: RecordingOptions, windows: WindowOptions, out: str | None) -> int:
    """Run a program with windows, print one line at its end, and return its exit code."""
    import contextlib

    from gpuprof.always_on import run_windows
    from gpuprof.text.sanitize import escape_text

    code, folder, index = run_windows(
        program.target,
        program.arguments,
        options,
        windows,
        is_module=program.is_module,
        out=None if out is None else Path(out),
    )
    if index is None:
        return code
    with contextlib.suppress(OSError):
        click.echo(escape_text(f"gpuprof: {_recorded(folder, index, windows)}"), err=True)
    return code


def _recorded(folder: Path, index: dict[str, Any], options: WindowOptions) -> str:
    """Return how many windows there are and how to view them, or why there is none and what to do."""
    import shlex

    from gpuprof.text.units import counted

    kept, failed = len(index["windows"]), index["failed"]
    if kept:
        left_out = sum(_counts(index).values())
        more = f", {left_out} left out" if left_out else ""
        return (
            f"{counted(kept, 'window')} in {folder}{more}; view: gpuprof summary {shlex.quote(str(folder))}"
        )
    return f"no window in {folder}: {_why_none(index, failed, options, folder)}"


def _why_none(index: dict[str, Any], failed: int, options: WindowOptions, folder: Path) -> str:
    """Return why a folder has no window: what is known of it, and else only when one was due."""
    last = index.get("last_failure")
    shown = "" if last is None else f", last: {last}"
    if failed:
        return f"{failed} could not be written{shown}"
    if skipped := _counts(index):
        main = max(skipped, key=lambda reason: skipped[reason])
        return (
            f"left out: {_reasons(skipped)}{shown if 'failed' in skipped else ''}{_SKIP_HINTS.get(main, '')}"
        )
    if index.get("ran_s") is None and _is_full(folder):
        return f"too little disk space is free{_SKIP_HINTS['disk_full']}"
    hint = "hint: set a shorter --every, or omit it to record the whole program"
    ran_s = index.get("ran_s")
    if ran_s is not None and ran_s < options.every_s:
        return f"the program ended before its first window, which begins after {options.every_s:g} s; {hint}"
    return f"none had begun when the program ended; the first is due after {options.every_s:g} s; {hint}"


def _is_full(folder: Path) -> bool:
    """Whether the disk is why a program that ended has left no facts."""
    import contextlib

    from gpuprof.record.window_sampler import has_room

    with contextlib.suppress(OSError):
        return not has_room(folder)
    return False


def _counts(index: dict[str, Any]) -> dict[str, int]:
    """Return how many windows were left out, by reason."""
    return dict(index.get("skipped") or {})


def _reasons(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count} {_SKIPPED.get(reason, reason)}" for reason, count in skipped.items())


_SKIPPED = {
    "recording_active": "while the program recorded itself",
    "unclosed": "while two others were not closed",
    "disk_full": "because too little disk space was free",
    "failed": "that could not begin",
}
_SKIP_HINTS = {
    "recording_active": "; hint: omit --every, or gpuprof.profile() in the program",
    "unclosed": "; hint: set a longer --every",
    "disk_full": "; hint: free disk space, or set --out to another disk",
}


def print_windows(folder: Path, *, as_json: bool) -> None:
    """Print the windows of a folder, oldest first."""
    from gpuprof.run.windows import open_windows
    from gpuprof.text.sanitize import escape_text
    from gpuprof.text.units import counted, format_duration

    index = open_windows(folder)
    if as_json:
        click.echo(json.dumps({"windows": str(folder), **index, "runs": index["windows"]}, indent=2))
        return
    rows = index["windows"]
    counts = f"{counted(len(rows), 'window')}, {index['removed']} removed, {index['failed']} failed"
    if skipped := {reason: count for reason, count in _counts(index).items() if count}:
        counts += f"; left out: {_reasons(skipped)}"
    click.echo(escape_text(f"{folder}: {counts}"))
    if not rows:
        return
    click.echo()
    click.echo(
        f"{'run':<16} {'begin (UTC)':<20} {'reason':<9} {'kept as':<15} {'steps':>6} {'slowest step':>13}"
    )
    for row in rows:
        begin_ns = row.get("begin_unix_ns")
        begin = (
            "-"
            if begin_ns is None
            else datetime.fromtimestamp(begin_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        )
        trigger = row.get("trigger") or {}
        slowest_ns = max(row.get("slowest_step_ns") or 0, trigger.get("step_ns") or 0)
        slowest = format_duration(slowest_ns) if slowest_ns else "-"
        steps = "-" if row.get("steps") is None else str(row["steps"])
        kept_as = ", ".join(row["kept_as"])
        line = f"{row['run']:<16} {begin:<20} {row['reason']:<9} {kept_as:<15} {steps:>6} {slowest:>13}"
        click.echo(escape_text(line))
    click.echo()
    click.echo(escape_text(f"view a window with: gpuprof summary {folder / rows[-1]['run']}"))
