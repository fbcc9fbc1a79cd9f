# SPDX-License-Identifier: Apache-2.0
"""The command `gpuprof`: its subcommands, and the conversion of errors to exit codes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from typing import NamedTuple, NoReturn

import click

from gpuprof.errors import MEMORY_HINT, GpuprofError, memory_ran_out
from gpuprof.text.sanitize import escape_text

_FIRST_STEPS = """\
gpuprof run train.py               # record a program: layers, operators, GPU
gpuprof summary train.gpuprof      # print where its time goes
gpuprof flamegraph train.gpuprof   # write its flame graph and timeline as one HTML page

All commands: gpuprof --help. Example: gpuprof demo. Check the installation: gpuprof doctor."""


class Listed(NamedTuple):
    """A command in the list of commands: its module in this package, and its line of help."""

    module: str
    help: str


# Each is an attribute of its module, of the same name but for `import`.
COMMANDS = {
    "alert": Listed("alert", "Print alerts of a run, a process or results, by rules."),
    "bench": Listed("bench", "Measure latency, throughput, memory and energy of a model."),
    "capacity": Listed("capacity", "Plan how many machines a load needs."),
    "compare": Listed("compare", "Compare variants of a model."),
    "dashboard": Listed("dashboard", "Serve a page of runs and results, live and over time."),
    "demo": Listed("run", "Record an example program and write its page."),
    "doctor": Listed("doctor", "Check what works on this machine."),
    "explain": Listed("explain", "Print causes of lost time in a run, with fixes and gains."),
    "export": Listed("exchange", "Write a run for Perfetto, speedscope and other tools."),
    "flamegraph": Listed("pages", "Write the flame graph and timeline of a run as one page."),
    "gate": Listed("gate", "Fail if new results are worse than a baseline."),
    "import": Listed("exchange", "Convert another tool's trace to a run."),
    "load": Listed("load", "Send requests at planned times and measure latencies."),
    "metrics": Listed("metrics", "Export live figures for Prometheus and OpenTelemetry."),
    "nsys": Listed("exchange", "Capture a program with Nsight Systems."),
    "optimize": Listed("optimize", "Write a quantized, pruned or distilled model as a file."),
    "roofline": Listed("pages", "Print the bottleneck of each layer and operator."),
    "run": Listed("run", "Run a Python program and record where its time goes."),
    "startup": Listed("startup", "Measure the time until a model or a server is ready."),
    "suite": Listed("compare", "Compare the variants in a TOML file."),
    "summary": Listed("summary", "Print where the time goes, or what changed between runs."),
    "top": Listed("top", "Show live figures of a program or the machine."),
    "whatif": Listed("whatif", "Predict the wall time of a run with changes."),
}
_ATTRIBUTES = {"import": "import_trace"}
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a shell reports for a program killed by SIGPIPE


class Commands(MutableMapping[str, click.Command]):
    """The subcommands by name; a module is imported when its command is used."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | None] = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        command = self._known[name]
        if command is None:
            try:
                module = importlib.import_module(f"gpuprof.cli.{COMMANDS[name].module}")
            except KeyboardInterrupt:
                click.echo("interrupted before the command began", err=True)
                raise
            command = self._known[name] = getattr(module, _ATTRIBUTES.get(name, name))
            command.short_help = COMMANDS[name].help
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class ListedGroup(click.Group):
    """A group whose help lists its commands without importing them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, listed.help) for name, listed in COMMANDS.items()])


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from gpuprof import __version__

        click.echo(f"gpuprof {__version__}")
        context.exit()


@click.group(
    "gpuprof",
    cls=ListedGroup,
    commands=Commands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Profile and benchmark neural networks.

    Record a program with `gpuprof run train.py`, then print its summary with `gpuprof summary train.gpuprof`.
    """
    if context.invoked_subcommand is None:
        click.echo(_FIRST_STEPS, err=True)
        context.exit(EXIT_BAD_INPUT)


def main() -> NoReturn:
    """Run the command of `sys.argv` and exit."""
    exit_code = execute(sys.argv[1:])
    # Python would search all objects for cycles before it ends, which takes 10 ms.
    gc.freeze()
    sys.exit(exit_code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; an error is one line on standard error."""
    try:
        return _invoke(arguments)
    except click.UsageError as error:
        return _refuse(_usage_text(error))
    except click.ClickException as error:
        return _refuse(f"{error.format_message()}; hint: see gpuprof --help")
    except GpuprofError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        _forget_standard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if _is_of_output(error):
            _forget_standard_output()
            return _refuse(
                f"cannot write to standard output: {error.strerror}; hint: free disk space, or "
                "redirect the output"
            )
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _refuse(f"{what}; hint: check the path, its permissions and the free disk space")
    except _library_errors() as error:
        if memory_ran_out(error):
            return _refuse(f"there is too little memory for this command; hint: {MEMORY_HINT}")
        if isinstance(error, ImportError):
            raise
        reason = str(error).partition("\n")[0]
        return _refuse(f"the run's tables are damaged ({reason}); hint: restore them from a copy")
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED


def _usage_text(error: click.UsageError) -> str:
    """Return the message of a wrong command line; errors of click have no hint of their own."""
    message = error.format_message()
    help_command = f"{error.ctx.command_path if error.ctx else 'gpuprof'} --help"
    if "hint: " in message:
        return f"{message} See: {help_command}"
    return f"{message.rstrip('.')}; hint: see {help_command}"


def _invoke(arguments: Sequence[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape a name that the terminal's encoding lacks, instead of an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = 0
    try:
        with cli.make_context("gpuprof", list(arguments)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        code = end.exit_code
    # Here and not at the interpreter's exit, where a closed pipe could no longer be handled.
    _flush_output()
    return code


def _flush_output() -> None:
    # None if the command was started with standard output closed.
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_of_output(error: OSError) -> bool:
    """Whether printing failed: such an error names no file."""
    printing = (click.echo.__code__, _flush_output.__code__)
    return any(frame.f_code in printing for frame, _ in traceback.walk_tb(error.__traceback__))


def _library_errors() -> tuple[type[BaseException], ...]:
    """Return errors of memory, and DuckDB's if DuckDB is loaded: most commands start faster without it."""
    duckdb = sys.modules.get("duckdb")
    return (MemoryError, ImportError, *(() if duckdb is None else (duckdb.Error,)))


def _refuse(message: str) -> int:
    with contextlib.suppress(OSError):
        click.echo(f"gpuprof: error: {escape_text(message)}", err=True)
    return EXIT_BAD_INPUT


def _forget_standard_output() -> None:
    """Redirect standard output to nothing: buffered text cannot raise again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
