# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run`: record an unmodified program; `gpuprof demo`: record the installed example."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.options import WholeNumber, numbers
from gpuprof.cli.usage import UsageError
from gpuprof.cli.windows import NAMES as WINDOW_NAMES
from gpuprof.cli.windows import check_for_windows, record_windows, requested_windows, window_options
from gpuprof.errors import GpuprofError, NothingRecordedError, NotRecordedError, RunError
from gpuprof.record.options import GpuOption, OtherProfiler, RecordingOptions, WhichCeilings

if TYPE_CHECKING:
    from gpuprof.api import Run


_PROGRAM = "gpuprof.program"
# Modules, and commands that are Python scripts.
_LAUNCHERS = frozenset(
    (
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.accelerate_cli",
        "accelerate.commands.launch",
        "torchrun",
        "accelerate",
    )
)


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: a script or a module, and every argument that belongs to it."""

    target: str
    arguments: list[str]
    is_module: bool

    @property
    def is_launcher(self) -> bool:
        """Whether the program only starts the processes that do the work."""
        return (self.target if self.is_module else Path(self.target).name) in _LAUNCHERS


def split_program(words: list[str], takes_value: frozenset[str]) -> tuple[list[str], Program | None]:
    """Split `words` into gpuprof's own options and the program, as `python` splits its own.

    The program begins at `-m` or at the first word that is not an option. All later words belong to it,
    also those that look like options of gpuprof. `takes_value` are the options with a value.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word.startswith("-m"):
            rest = [word[2:], *words[index + 1 :]] if len(word) > 2 else words[index + 1 :]
            return words[:index], Program(rest[0], rest[1:], is_module=True) if rest else None
        if word == "--" or not word.startswith("-") or word == "-":
            rest = words[index + (word == "--") :]
            return words[:index], Program(rest[0], rest[1:], is_module=False) if rest else None
        index += 2 if word in takes_value else 1
    return words, None


class ProgramCommand(click.Command):
    """A command whose line ends with a program and its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the program only."""
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        takes_value = frozenset(name for option in options if not option.is_flag for name in option.opts)
        own, ctx.meta[_PROGRAM] = split_program(args, takes_value)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the program in the usage line."""
        return [*super().collect_usage_pieces(ctx), "SCRIPT.py ARGS... | -m MODULE ARGS..."]


@click.command("run", cls=ProgramCommand)
@click.option(
    "--out",
    metavar="RUN",
    help="Write the run to this new folder. Default: NAME.gpuprof, numbered if it exists.",
)
@click.option("--no-operators", is_flag=True, help="Do not record PyTorch's operators.")
@click.option("--no-layers", is_flag=True, help="Do not record layers of models.")
@click.option("--no-gpu", is_flag=True, help="Do not sample GPUs and do not record their work.")
@click.option(
    "--whole-graphs", is_flag=True, help="Record a replay of a CUDA graph as one unit, without its kernels."
)
@click.option(
    "--work", is_flag=True, help="Count FLOPs and bytes after the program has ended, for gpuprof roofline."
)
@click.option(
    "--ceilings",
    type=click.Choice(["cached", "around"]),
    default="cached",
    help="With --work: use the cached ceilings (highest measured rates) of this machine, or measure them "
    "before and after the program. Default: cached.",
)
@click.option(
    "--counters",
    is_flag=True,
    help="Like --work. Also read hardware counters of the GPU: bytes of its memory, tensor operations.",
)
@click.option(
    "--children/--no-children",
    default=None,
    help="Also record Python processes that the program starts. Default: only for torchrun and accelerate.",
)
@click.option(
    "--python/--no-python",
    default=None,
    help="Sample the Python stacks of all threads. Default: if the native sampler works here.",
)
@click.option(
    "--profiler",
    type=click.Choice(["torch", "pyinstrument", "cprofile", "line"], case_sensitive=False),
    help="Use this profiler instead of gpuprof's recording. line: measure each line of the script.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Record calls of a model instead of a program. MODEL is named as in gpuprof bench.",
)
@click.option(
    "--dataset",
    "--data",
    "data",
    metavar="D",
    help="With --model: load a batch of D for each call. Default: synthetic inputs.",
)
@click.option(
    "--batch-size",
    type=WholeNumber(min=1),
    metavar="N",
    help="With --model: samples per call. Default: 1.",
)
@click.option(
    "--calls", type=WholeNumber(min=1), metavar="N", help="With --model: number of calls. Default: 20."
)
@click.option(
    "--input-shape", callback=numbers, metavar="3,224,224", help="With --model: shape of one sample."
)
@click.option(
    "--use-cuda", is_flag=True, help="With --model: run the model on the GPU. Default: if there is one."
)
@click.option(
    "--trust-pickle", is_flag=True, help="With --model: load pickled files, which can run any code."
)
@click.option("--save-dir", metavar="DIR", help="Write the run to a new folder in DIR.")
@window_options
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    out: str | None,
    no_operators: bool,
    no_layers: bool,
    no_gpu: bool,
    whole_graphs: bool,
    work: bool,
    ceilings: WhichCeilings,
    counters: bool,
    children: bool | None,
    python: bool | None,
    profiler: OtherProfiler | None,
    save_dir: str | None,
    **of_model: Any,
) -> None:
    """Run a Python program and record where its time goes.

    All arguments after SCRIPT.py or MODULE are passed to the program. Its output, exit code and traceback
    do not change. At the end, gpuprof prints the name of the run and the largest findings to standard error.
    """
    options = RecordingOptions(
        operators=not no_operators,
        layers=not no_layers,
        gpu=_gpu_option(no_gpu=no_gpu, whole_graphs=whole_graphs),
        work=work,
        ceilings=ceilings,
        counters=counters,
        children=bool(children),
        python="auto" if python is None else python,
        profiler=profiler,
    )
    windows = requested_windows({name: of_model.pop(name) for name in WINDOW_NAMES})
    program = _with_model(context.meta[_PROGRAM], of_model, profiler)
    if program is None:
        raise UsageError("no_program", "no program to run; hint: name a script, or a module after -m.")
    if out == "":
        raise UsageError("no_folder_name", "--out is empty; hint: name a new folder, or leave it out.")
    program = _resolved(program)
    _check(options)
    if windows is not None:
        check_for_windows(options)
        context.exit(record_windows(program, options, windows, out))
    name = of_model["model"] or program.target
    if save_dir is not None or of_model["model"] is not None:
        out = _out_of(save_dir, out, name)
    if children is None and program.is_launcher and options.profiler is None:
        options = options._replace(children=True)
    exit_code, recorded = _record(program, options, out)
    # A closed standard error does not change the program's exit code.
    with contextlib.suppress(OSError):
        for line in _last_lines(recorded, options):
            click.echo(f"gpuprof: {line}", err=True)
    context.exit(exit_code)


def _last_lines(recorded: Run | RunError, options: RecordingOptions) -> Iterator[str]:
    """Yield what was written, what is missing in it, and the first figures, which take a moment."""
    from gpuprof.cli.header import missing_counters, without_sampler

    meta = None if isinstance(recorded, RunError) else recorded.meta
    if meta is not None and options.counters and (missing := missing_counters(meta)):
        yield missing
    if not isinstance(recorded, NotRecordedError):  # printed before the program began
        yield _ending(recorded)
    if meta is not None and (missing := without_sampler(meta)):
        yield missing
    yield from _first_lines(recorded)


def _with_model(
    program: Program | None, of_model: Mapping[str, Any], profiler: OtherProfiler | None
) -> Program | None:
    """Return the program that calls the model, where one is named. Raises GpuprofError."""
    model = of_model["model"]
    given = [name for name, value in of_model.items() if value and name != "model"]
    if model is None:
        if given:
            option = "--" + given[0].replace("_", "-")
            raise UsageError("needs_model", f"{option} needs a model; hint: add --model FILE.")
        return program
    if program is not None:
        raise UsageError(
            "model_and_program", f"--model and the program {program.target}; hint: leave one of them out."
        )
    if profiler == "line":
        raise UsageError(
            "profiler_conflict", "--profiler line times the lines of a script; hint: leave --model out."
        )
    from gpuprof.bench.config import SystemSpec
    from gpuprof.bench.model_program import CALLS, ModelRequest
    from gpuprof.bench.validation import check_spec

    spec = SystemSpec(
        model,
        device="cuda" if of_model["use_cuda"] else "auto",
        input_shape=of_model["input_shape"],
        data=of_model["data"] or "synthetic",
        trust_pickle=of_model["trust_pickle"],
    )
    check_spec(spec)
    request = ModelRequest(spec, of_model["batch_size"] or 1, of_model["calls"] or CALLS)
    return Program("gpuprof.bench.model_program", request.to_words(), is_module=True)


def _out_of(folder: str | None, out: str | None, name: str) -> str:
    """Return the run's folder: `out`, or one named after the model or program. Raises GpuprofError."""
    from gpuprof.record.supervise import free_name

    if out is not None and folder is not None:
        raise UsageError("out_and_save_dir", "--out and --save-dir; hint: leave one of them out.")
    if out is not None:
        return out
    stem = name.rpartition(":")[2] if ".py:" in name else Path(name).stem
    if folder is None:
        return str(free_name(stem))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpuprofError(
            "cannot_write",
            f"--save-dir {folder}: cannot be written ({error.strerror})",
            hint="use another folder",
        ) from error
    return str(free_name(stem, Path(folder)))


def _resolved(program: Program) -> Program:
    """Return the program with the path of a Python script that is a command, as `torchrun`."""
    if program.is_module or os.sep in program.target or Path(program.target).exists():
        return program
    import shutil

    path = shutil.which(program.target)
    return program if path is None or not _is_python_script(path) else replace(program, target=path)


def _is_python_script(path: str) -> bool:
    try:
        with Path(path).open("rb") as script:
            first = script.read(512)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in b"".join(first.splitlines()[:2])


def _gpu_option(*, no_gpu: bool, whole_graphs: bool) -> GpuOption:
    if no_gpu and whole_graphs:
        raise UsageError("needs_gpu", "--whole-graphs needs GPU records; hint: leave --no-gpu out.")
    return False if no_gpu else "whole-graphs" if whole_graphs else "auto"


def _check(options: RecordingOptions) -> None:
    """Refuse options that contradict each other, or that this installation does not support."""
    if options.counts_work and not (options.layers and options.operators):
        option = "--work" if options.work else "--counters"
        raise UsageError(
            "needs_operators",
            f"{option} needs layers and operators; hint: leave --no-layers and --no-operators out.",
        )
    if options.profiler is not None:
        _check_alone(options)
    if options.ceilings == "around" and not options.counts_work:
        raise UsageError("needs_work", "--ceilings around needs counted work; hint: add --work.")
    if options.counters and options.gpu is False:
        raise UsageError("needs_gpu", "--counters needs the GPU; hint: leave --no-gpu out.")
    if options.profiler == "line":
        _check_line_profiler()
    elif options.profiler == "pyinstrument":
        _check_pyinstrument("--profiler pyinstrument")
    elif options.python is True:
        _check_sampler()


def _record(program: Program, options: RecordingOptions, out: str | None) -> tuple[int, Run | RunError]:
    from gpuprof.cli.termination import named_when_terminated
    from gpuprof.recorded_program import run_program

    return run_program(
        program.target,
        program.arguments,
        options=options,
        is_module=program.is_module,
        out=None if out is None else Path(out),
        on_measuring=print_measuring,
        on_closing=print_closing,
        while_closing=named_when_terminated,
    )


def print_measuring() -> None:
    """Print on a terminal that ceilings are measured, which takes seconds after the program has ended."""
    _print_on_terminal("measuring the ceilings of this machine, for gpuprof roofline")


def print_closing() -> None:
    """Print on a terminal that the program has ended, and that its run is written."""
    _print_on_terminal("the program has ended; writing the run")


def _print_on_terminal(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            click.echo(f"gpuprof: {text}", err=True)


def _check_alone(options: RecordingOptions) -> None:
    others = {
        "--python": options.python is True,
        "--no-python": options.python is False,
        "--no-operators": not options.operators,
        "--no-layers": not options.layers,
        "--no-gpu": options.gpu is False,
        "--whole-graphs": options.gpu == "whole-graphs",
        "--work": options.work,
        "--counters": options.counters,
        "--children": options.children,
        "--ceilings": options.ceilings != "cached",
    }
    given = [option for option, on in others.items() if on]
    if given:
        raise UsageError(
            "profiler_conflict",
            f"--profiler {options.profiler} cannot be combined with {given[0]}; hint: leave one of them out.",
        )


def _check_sampler() -> None:
    from gpuprof.record.stack_sampler import why_not

    if why_not() is not None:
        _check_pyinstrument("--python")


def _check_pyinstrument(option: str) -> None:
    from gpuprof.record.python_stacks import INSTALL_PYINSTRUMENT, NO_PYINSTRUMENT, has_pyinstrument

    if not has_pyinstrument():
        raise UsageError("not_installed", f"{option}: {NO_PYINSTRUMENT}; hint: {INSTALL_PYINSTRUMENT}.")


def _check_line_profiler() -> None:
    from gpuprof.record.line_program import INSTALL_LINE_PROFILER, NO_LINE_PROFILER, has_line_profiler

    if not has_line_profiler():
        raise UsageError(
            "not_installed", f"--profiler line: {NO_LINE_PROFILER}; hint: {INSTALL_LINE_PROFILER}."
        )


def _first_lines(recorded: Run | RunError) -> list[str]:
    """Return the wall time and the largest findings of a program with steps."""
    from gpuprof.cli.header import first_lines
    from gpuprof.run.database import enough_memory

    if isinstance(recorded, RunError):
        return []
    try:
        with enough_memory(f"to read {recorded.path}"):
            return first_lines(recorded)
    except RunError:
        return []  # gpuprof summary shows what is damaged


def _ending(recorded: Run | RunError) -> str:
    """Return one line: what was written and how to view it, or why nothing was written."""
    import shlex

    from gpuprof.cli.header import outline
    from gpuprof.text.sanitize import escape_text

    if isinstance(recorded, NothingRecordedError):
        return str(recorded)
    if isinstance(recorded, RunError):
        return escape_text(f"the program ran, but no run was written: {recorded}")
    path = escape_text(str(recorded.path))
    command = escape_text(f"gpuprof summary {shlex.quote(str(recorded.path))}")
    return f"wrote {path} ({outline(recorded.meta)}); view it with: {command}"


@click.command("demo")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default=".",
    help="Write the run and the page to FOLDER. Default: the current folder.",
)
@click.pass_context
def demo(context: click.Context, output: str) -> None:
    """Record a small transformer, print where its time goes, and write its page.

    The run is `demo.gpuprof`, numbered if it exists; the page has the same name.
    """
    from gpuprof.analyze.summary import DEFAULT_TOP
    from gpuprof.cli.header import first_findings, header
    from gpuprof.cli.pages import default_output
    from gpuprof.record.supervise import free_name
    from gpuprof.recorded_program import run_program

    folder = Path(output)
    if not folder.is_dir():
        raise GpuprofError(
            "no_such_folder", f"cannot write to {output}: the folder does not exist", hint="create it"
        )
    if importlib.util.find_spec("torch") is None:
        raise GpuprofError(
            "not_installed", "the demo needs PyTorch, which is not installed", hint="pip install torch"
        )
    # As `gpuprof run` records without options.
    options = RecordingOptions(python="auto")
    code, recorded = run_program(str(example()), options=options, out=free_name("demo", folder))
    if isinstance(recorded, RunError):
        raise recorded
    click.echo()
    phases = recorded.phases()
    findings = first_findings(recorded, phases)
    click.echo(header(recorded.path, recorded.meta, phases=phases, findings=findings))
    click.echo()
    click.echo(recorded.summary().to_text(DEFAULT_TOP))
    page = recorded.flamegraph(default_output(recorded.path))
    click.echo()
    click.echo(f"flame graph and timeline: {page}")
    context.exit(code)


def example() -> Path:
    """Return the example's path: it is installed next to the compiled core."""
    from gpuprof import _native

    return Path(_native.__file__).with_name("examples") / "transformer.py"
