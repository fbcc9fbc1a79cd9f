# SPDX-License-Identifier: Apache-2.0
"""`gpuprof top`: figures of a running program, its run, a load test or the machine, interval by interval."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.options import FiniteRange, not_empty
from gpuprof.cli.usage import UsageError

if TYPE_CHECKING:
    from gpuprof.live.feed import Feed

_COMMAND = "gpuprof.command"
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_START_PERIOD_S = 0.05
_SIGNALS = 128


class CommandAfterDashes(click.Command):
    """A command whose line may end with `-- CMD ARGS...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what is before the dashes."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[place + 1 :] if place < len(args) else None
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- CMD ARGS...]"]


@click.command("top", cls=CommandAfterDashes)
@click.argument("target", metavar="[RUN|PID]", required=False, callback=not_empty)
@click.option("--once", is_flag=True, help="Print one interval and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per interval.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.1, max=3600),
    default=1.0,
    metavar="SECONDS",
    help="Length of an interval. Default: 1.",
)
@click.option(
    "--out",
    metavar="RUN",
    help="With CMD: write the run to this new folder. Default: NAME.gpuprof, numbered if it exists.",
)
@click.option(
    "--output",
    metavar="FILE",
    help="With CMD: write the program's output to FILE. Default: RUN.log.",
)
@click.pass_context
def top(
    context: click.Context,
    /,
    *,
    target: str | None,
    once: bool,
    as_json: bool,
    interval: float,
    out: str | None,
    output: str | None,
) -> None:
    """Show live figures of RUN while it is recorded, of the process PID, of CMD, or of the machine.

    The program is not touched: only its run and /proc are read. In a terminal the view refreshes (h: help);
    otherwise one text is printed for each interval. The end of the view does not end the program. CMD is
    recorded as by gpuprof run, and its exit code is passed through; Ctrl-C reaches it too.
    """
    from gpuprof.cli.termination import exiting_when_terminated

    command = context.meta[_COMMAND]
    shown = _Shown(interval, once=once, as_json=as_json)
    if command is None:
        if out is not None or output is not None:
            raise UsageError("needs_command", "--out and --output need a CMD; hint: add -- CMD ARGS...")
        with exiting_when_terminated():
            shown.show(_opened(target), None if target is None else Path(target))
        return
    if target is not None:
        raise UsageError("target_and_command", f"{target} and a CMD; hint: omit one of them.")
    with exiting_when_terminated():
        code = _run_command(command, shown, out, output)
    context.exit(code)


def _opened(target: str | None) -> Feed:
    from gpuprof.live.target import open_feed

    return open_feed(target)


@dataclass(slots=True)
class _Shown:
    """How a feed is shown: in a terminal that refreshes, as texts, or as JSON."""

    interval_s: float
    once: bool
    as_json: bool

    def show(self, feed: Feed, run: Path | None, output: Path | None = None) -> bool:
        """Show a feed to its end, or until the user ends the view; returns whether the feed has ended."""
        from gpuprof.live.terminal import can_refresh

        try:
            if self.once or self.as_json or not can_refresh():
                return self._print(feed)
            return self._refresh(feed, run, output)
        except KeyboardInterrupt:
            return False
        finally:
            feed.close()

    def _print(self, feed: Feed) -> bool:
        from gpuprof.live.text import snapshot_text

        while True:
            time.sleep(self.interval_s)
            snapshot = feed.poll()
            text = json.dumps(snapshot.to_plain()) if self.as_json else snapshot_text(snapshot)
            click.echo(text)
            sys.stdout.flush()
            if self.once or feed.is_over:
                return True

    def _refresh(self, feed: Feed, run: Path | None, output: Path | None) -> bool:
        from gpuprof.live.terminal import Terminal, has_colors
        from gpuprof.live.view import LiveView
        from gpuprof.record.supervise import free_name

        terminal = Terminal()
        view = LiveView(
            feed,
            terminal,
            self.interval_s,
            run=feed.run,
            output=output,
            profile_name=lambda: free_name("top" if run is None else f"{run.stem}-top"),
            colors=has_colors(),
        )
        try:
            with terminal.opened():
                return view.run()
        finally:
            click.echo(view.last_frame())
            if view.page is not None:
                click.echo(f"profile: {click.format_filename(view.page)}")


# ---- a command ---------------------------------------------------------------------------------------------


def _run_command(command: list[str], shown: _Shown, out: str | None, output: str | None) -> int:
    """Record a command and show it; returns its exit code, as a shell has it."""
    from gpuprof.record.helper_process import module_command
    from gpuprof.record.supervise import free_name

    words = _words_of(command)
    name = words[1] if words[0] == "-m" and len(words) > 1 else Path(words[0]).stem
    run = Path(out) if out is not None else free_name(name.rpartition(".")[2] or "program")
    log = Path(output) if output is not None else run.with_name(f"{run.name}.log")
    if run.exists():
        raise UsageError("exists", f"{run} exists; hint: set --out to another folder, or remove it.")
    try:
        file = log.open("wb")
    except OSError as error:
        raise UsageError(
            "cannot_write", f"{log}: cannot be written ({error.strerror}); hint: set --output."
        ) from None
    with file:
        process = subprocess.Popen(
            module_command("gpuprof", "run", "--out", str(run), *words),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    end = _show_command(process, run, log, shown)
    if end is _CommandEnd.LEFT and process.poll() is None:
        click.echo("gpuprof: waiting for the program to end; Ctrl-C interrupts it", err=True)
    code = _wait_for(process)
    output_file = f"output: {click.format_filename(log)}"
    if run.is_dir():
        click.echo(f"gpuprof: run: {click.format_filename(run)}, {output_file}", err=True)
    elif end is not _CommandEnd.REPORTED:
        click.echo(f"gpuprof: nothing recorded; {output_file}", err=True)
    return code if code >= 0 else _SIGNALS - code


def _words_of(command: list[str]) -> list[str]:
    """Return a command as `gpuprof run` takes it: without the interpreter. Raises UsageError."""
    if command and _PYTHON.fullmatch(Path(command[0]).name):
        command = command[1:]
        if command and command[0].startswith("-") and not command[0].startswith("-m"):
            raise UsageError(
                "interpreter_option",
                f"{command[0]}: options of Python cannot be passed; hint: write -- python SCRIPT.py, or use "
                "gpuprof run.",
            )
    if not command:
        raise UsageError("no_program", "no program to run; hint: write -- python SCRIPT.py ARGS...")
    return command


class _CommandEnd(Enum):
    """How the view of a command ended: the user left it, the program ended, its output has the reason."""

    LEFT = "left"
    ENDED = "ended"
    REPORTED = "reported"


def _show_command(process: subprocess.Popen[Any], run: Path, log: Path, shown: _Shown) -> _CommandEnd:
    """Show the run of a process from when it is recorded."""
    from gpuprof.errors import RunError
    from gpuprof.live.feed import Feed
    from gpuprof.record.recording_folder import RECORDING_FILE

    try:
        while process.poll() is None and not (run / RECORDING_FILE).exists():
            time.sleep(_START_PERIOD_S)
        feed = Feed(run)
    except KeyboardInterrupt:
        return _CommandEnd.LEFT
    except RunError:
        # It ended before the first interval, or could not begin: its output has the reason.
        reason = log.read_text(encoding="utf-8", errors="backslashreplace")
        click.echo(reason, nl=False, err=True)
        return _CommandEnd.REPORTED if reason.strip() else _CommandEnd.ENDED
    return _CommandEnd.ENDED if shown.show(feed, run, log) else _CommandEnd.LEFT


def _wait_for(process: subprocess.Popen[Any]) -> int:
    """Wait for the end, which Ctrl-C does not change: the program gets it from the terminal, too."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
