# SPDX-License-Identifier: Apache-2.0
"""What a user of the package calls: `profile`, `open`, and the `Run` that both lead to.

This stands above the rooms, since a run's methods reach into all of them.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gpuprof import _native
from gpuprof.errors import BenchmarkError, GpuprofError, RecordingError, RunError, UnavailableError, WorkError
from gpuprof.record.decorate import decorate
from gpuprof.record.device_samples import has_driver
from gpuprof.record.nsight_range import nsight_range  # noqa: F401 - part of the package
from gpuprof.record.python_stacks import NO_PYINSTRUMENT, has_pyinstrument
from gpuprof.record.ranges import attach_tool
from gpuprof.record.recording import Recording, create_folder, pause_for_program, resume_after
from gpuprof.record.temporary import TemporaryFolder

if TYPE_CHECKING:
    import duckdb
    import torch

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.difference import Scaling
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.analyze.roofline.rows import Roofline
    from gpuprof.analyze.summary import Summary
    from gpuprof.analyze.weights import WeightName
    from gpuprof.analyze.work import Work
    from gpuprof.bench.result import Result
    from gpuprof.render.timeline import Slices
    from gpuprof.run.folder import RunFolder

__version__: str = _native.build_info()["version"]
span = _native.span
_native._set_decorate_hook(decorate)
attach_tool()

SummaryKind = Literal["layer", "operator", "kernel", "span", "python"]
PathLike = str | os.PathLike[str]


class Run:
    """A finished run: what was recorded, ready to be asked.

    Attributes: `path`, the folder; `meta`, what is known of the recording (see docs/run-format.md).
    """

    def __init__(self, path: PathLike) -> None:
        from gpuprof.run.folder import RunFolder

        self._folder = RunFolder(path)
        self._temporary: object = None  # what must live as long as the run does
        self.path: Path = self._folder.path
        self.meta: dict[str, Any] = self._folder.meta

    def __repr__(self) -> str:
        return f"gpuprof.open({str(self.path)!r})"

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Ask the run's tables (`spans`, `call_tree`, `samples`) with SQL; returns a DuckDB relation."""
        return self._folder.sql(query)

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `sql` can ask."""
        return self._folder.tables

    @cached_property
    def call_tree(self) -> CallTree:
        """All calls merged by path, with calls, total and own nanoseconds."""
        from gpuprof.analyze.load_tree import load_tree

        return load_tree(self._folder)

    def summary(self, by: SummaryKind = "layer", *, process: int | Literal["all"] | None = None) -> Summary:
        """Time by layer, operator or span; prints as a table, and has `rows` and `to_dict()`.

        `process` is a process id or "all"; without it, the process that started the recording.
        """
        from gpuprof.analyze.summary import summarize

        table = summarize(
            self.call_tree, by, process=process, why_empty=self._why_off(by if by == "python" else f"{by}s")
        )
        if not self.meta.get("complete"):
            note = "this run is incomplete: it holds what could be recovered"
            table = dataclasses.replace(table, notes=(*table.notes, note))
        if by == "layer" and self.meta.get("work") and table.processes == (self.meta.get("process_id"),):
            from gpuprof.analyze.summary_work import with_work

            return with_work(table, self._folder, self.call_tree)
        return table

    def _why_off(self, source: str) -> str | None:
        """Return why a source recorded nothing, as the run tells it."""
        method = str(self.meta.get("sources", {}).get(source, ""))
        if method.startswith("CUDA events"):
            return f"GPU times are of layers only ({method})"
        return method.removeprefix("off: ") if method.startswith("off: ") else None

    def flamegraph(
        self, path: PathLike, *, weight: WeightName | None = None, against: Run | Sequence[Run] = ()
    ) -> Path:
        """Write the flame graph and the timeline as one offline HTML page; returns its path.

        `weight` is what the widths show at first: the time of the program's threads ("cpu"), that of the
        kernels and transfers that they launched ("gpu", the default where the run holds any), "wall",
        "bytes", "flops" or "launches" (docs/commands/flamegraph.md); the page can switch between all that the
        run has.
        With `against`, one older run or several, the page shows what changed (docs/difference.md), without a
        timeline. Raises
        RunError for a weight that the run lacks.
        """
        from gpuprof.render.flame_page import run_page

        old = [against] if isinstance(against, Run) else list(against)
        if old:
            return flamegraph_difference(path, [self], old, weight=weight)
        target = Path(path)
        _write_page(
            target, run_page(self._folder, self.call_tree, weight, slices=_slices(self._folder, target))
        )
        return target

    def _loaded(self) -> tuple[RunFolder, CallTree]:
        return self._folder, self.call_tree

    def export(self, path: PathLike) -> Path:
        """Write the run for another tool; returns the path. The ending names the format.

        `.pftrace` is for Perfetto, `.json` for chrome://tracing and Perfetto, `.pt.trace.json` for
        TensorBoard with PyTorch's plugin, `.speedscope.json` for speedscope, `.folded` for flame graph
        scripts, `.parquet` for data frames. Raises RunError.
        """
        from gpuprof.render.export import export_run

        return export_run(self._folder, Path(path))

    def roofline(self, path: PathLike | None = None) -> Roofline:
        """Say what binds each layer and operator; with a path, write the plot as one offline page too.

        The run must have been recorded with `work=True`. Raises RunError where it was not.
        """
        from gpuprof.analyze.roofline.build import build_roofline

        found = build_roofline(self._folder)
        if path is not None:
            from gpuprof.render.roofline import roofline_page
            from gpuprof.render.titles import page_subtitle, page_title

            page = roofline_page(
                found, title=page_title(self.path, self.meta), subtitle=page_subtitle(self.meta)
            )
            _write_page(Path(path), page)
        return found


def _slices(run: RunFolder, target: Path) -> Slices | str:
    from gpuprof.render.timeline import read_timeline

    try:
        # Beside the page, since what is sorted there may be larger than a temporary folder.
        return read_timeline(run, target.parent)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}; name a file that can be written") from error


def _write_page(target: Path, page: str) -> None:
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}; name a file that can be written") from error


def open(path: PathLike) -> Run:  # noqa: A001 - the contract's name
    """Open a run folder; one that was never closed is recovered first. Raises RunError."""
    return Run(path)


def flamegraph_difference(
    path: PathLike, new: Sequence[Run], old: Sequence[Run], *, weight: WeightName | None = None
) -> Path:
    """Write the flame graph of what changed from `old` runs to `new` ones (docs/difference.md).

    Returns the path. With two runs or more on each side, a change is held against the spread from run to run.
    Raises RunError.
    """
    from gpuprof.render.flame_page import difference_page

    _check_sides(new, old)
    target = Path(path)
    _write_page(
        target, difference_page([run._loaded() for run in new], [run._loaded() for run in old], weight)
    )
    return target


def summary_difference(
    new: Sequence[Run], old: Sequence[Run], by: SummaryKind = "layer", *, scaling: Scaling = "none"
) -> DifferenceSummary:
    """Compare the own times of runs by name; prints as a table (docs/difference.md).

    `scaling` is "none" for times as they are, "calls" for the same number of repetitions, "total" for the
    same time overall. Raises RunError.
    """
    from gpuprof.analyze.difference_summary import compare_runs

    _check_sides(new, old)
    return compare_runs([run._loaded() for run in new], [run._loaded() for run in old], by, scaling)


def _check_sides(new: Sequence[Run], old: Sequence[Run]) -> None:
    if not new or not old:
        raise RunError("a comparison needs at least one run on each side")


def import_trace(trace: PathLike, out: PathLike) -> Run:
    """Make the run folder `out` of another tool's trace and open it (docs/commands/import.md).

    Reads Chrome's JSON format as torch.profiler writes it, plain or gzip, and the SQLite export of Nsight
    Systems. Raises RunError for any other file, RecordingError where `out` cannot be made.
    """
    from gpuprof.run.imports.trace_file import import_trace as write_run

    write_run(trace, out)
    return Run(out)


class Profile:
    """The context manager that `profile` returns. `run` is the finished run, after the block."""

    def __init__(self, recording: Recording, *, temporary: TemporaryFolder | None) -> None:
        self._recording = recording
        self._temporary = temporary
        self._process_id = os.getpid()
        self._state: Literal["new", "recording", "ended"] = "new"
        self._failure: GpuprofError | None = None
        self._run: Run | None = None
        self._outer: Recording | None = None  # of `gpuprof run`, while this one takes its place

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._recording.path

    @property
    def run(self) -> Run:
        """The finished run. Raises RunError inside the block, and when the run could not be written."""
        if self._failure is not None:
            raise self._failure
        if self._state != "ended":
            raise RunError("the run is ready after the `with` block: it is still being recorded")
        if self._run is None:
            self._run = Run(self.path)
            self._run._temporary = self._temporary
        return self._run

    def __enter__(self) -> Profile:
        if self._state != "new":
            raise RecordingError("a profile can be entered once: call gpuprof.profile(...) again")
        # What closing the run needs is imported before the block, where it delays nothing that is measured.
        from gpuprof.run import writer

        writer.preload()
        create_folder(self.path)
        self._outer = pause_for_program()
        try:
            self._recording.start()
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            resume_after(self._outer)
            raise
        self._state = "recording"
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Whoever interrupts a program wants it to end.
        hurry = error_type is not None and not issubclass(error_type, Exception)
        self._recording.stop(count=not hurry)
        self._state = "ended"
        resume_after(self._outer)
        if os.getpid() != self._process_id:
            self._failure = RunError("this is a forked child: the run belongs to the process that started it")
            return
        from gpuprof.run.writer import close_run

        try:
            meta = close_run(self.path)
            if meta.get("work"):
                from gpuprof.analyze.ceilings_of_run import add_ceilings

                add_ceilings(self.path, meta["work"])
        except GpuprofError as failure:
            # The measured program goes on, whatever becomes of its profile.
            self._failure = failure
            warnings.warn(f"gpuprof: {failure}", RuntimeWarning, stacklevel=2)


def profile(
    *modules: torch.nn.Module,
    out: PathLike | None = None,
    layers: bool = True,
    operators: bool = True,
    gpu: Literal["auto"] | bool = "auto",
    python: bool = False,
    work: bool = False,
) -> Profile:
    """Record what runs inside the `with` block.

    `modules` are the models whose layers are wanted; without any, every module that is called is named
    by itself. `out` is the run's folder, which must not exist; without it the run lives in a temporary
    folder as long as the `Run` object. `gpu` is for device samples so far: "auto" takes them where an
    NVIDIA driver is. `python` samples the stacks of Python's functions, which then stand above the layers and
    operators that they called. `work` keeps the arguments of each model's first call, and counts its FLOPs
    and bytes after the block has ended, for `run.roofline()`; the block itself runs as without. Raises
    RecordingError, or UnavailableError for what this version or machine lacks.
    """
    _refuse_unavailable(gpu=gpu, python=python)
    if work and not (layers and operators):
        raise RecordingError("profile(work=True) joins work to layers and operators: leave both switched on")
    _check_modules(modules)
    temporary = None
    if out is None:
        temporary = TemporaryFolder()
        out = temporary.path / "run.gpuprof"
    recording = Recording(
        Path(out), modules=modules, layers=layers, operators=operators, gpu=gpu, python=python, work=work
    )
    return Profile(recording, temporary=temporary)


def _refuse_unavailable(*, gpu: Literal["auto"] | bool, python: bool) -> None:
    if gpu is True and not has_driver():
        raise UnavailableError("profile(gpu=True) finds no NVIDIA driver here: leave it out, or install one")
    if python and not has_pyinstrument():
        raise UnavailableError(f"profile(python=True): {NO_PYINSTRUMENT}")


def _check_modules(modules: tuple[Any, ...]) -> None:
    import sys

    torch = sys.modules.get("torch")
    for module in modules:
        if torch is None or not isinstance(module, torch.nn.Module):
            raise RecordingError(
                f"profile() takes torch.nn.Module objects, not {type(module).__name__}: "
                "pass the model, or nothing to have every module named"
            )


def count_work(model: Any, inputs: Any = (), *, backward: bool = False, fake: bool = False) -> Work:
    """Run `model(inputs)` once, untimed, and count the FLOPs and bytes of each operator (docs/work.md).

    `model` is a module or any callable. `inputs` is one argument, a tuple of positional ones, a dictionary
    of keyword ones, or a function that returns any of them. `backward` counts a backward pass from all
    outputs too. `fake` runs on shapes alone, which needs no memory and no time for a large model, but not
    every model can do without values. Parameters, buffers, gradients, inputs and random generators are
    afterwards as they were. Raises WorkError; its `work` holds what was counted before the model failed.
    """
    try:
        from gpuprof.record.work.run import PassError, count_operators
    except ImportError as error:
        if error.name != "torch":
            raise
        raise UnavailableError("count_work() needs PyTorch: pip install torch") from error
    from gpuprof.analyze.work import Work

    try:
        counted = count_operators(model, inputs, backward=backward, fake=fake)
    except PassError as failure:
        work = Work(tuple(failure.counted.rows), tuple(failure.counted.notes))
        raise WorkError(failure.reason, work) from failure.__cause__
    return Work(tuple(counted.rows), tuple(counted.notes))


def benchmark(
    callable_or_model: Any,
    inputs: Any = None,
    *,
    iterations: int | None = None,
    warmup: int | None = None,
    duration_s: float | None = None,
    launches: int = 1,
    quantile: float = 0.5,
    precision: float = 0.01,
    mode: Literal["latency", "throughput"] = "latency",
    caches: Literal["warm", "cold"] = "warm",
    check_outputs: bool = False,
    name: str | None = None,
) -> Result:
    """Measure what a call costs, with the uncertainty of the figures (docs/benchmarking.md).

    `inputs` is one argument, a tuple of positional ones, a dictionary of keyword ones, or a function that
    returns any of them; None is no argument. By itself it warms up until the times have settled, and
    measures until the interval of `quantile` is narrower than `precision` times its value, for 10 s at most;
    `warmup` and `iterations` are counts of calls instead. `result.samples` are seconds of each call, none
    left out; `result.quantile(0.99)` is None where the samples do not suffice; `print(result)` is a table.

    One launch is measured in this process and tells nothing of how runs differ. More are fresh processes,
    which find the function, and the one that makes the inputs, by name. Raises BenchmarkError where a call
    fails; its `result` holds what was measured before.
    """
    from gpuprof.bench.benchmark import benchmark_here, benchmark_in_launches
    from gpuprof.bench.settings import Settings

    if isinstance(launches, bool) or not isinstance(launches, int) or launches < 1:
        raise BenchmarkError(f"launches={launches!r} cannot be measured: give a whole number from 1")
    settings = Settings(
        mode=mode,
        caches=caches,
        iterations=iterations,
        duration_s=duration_s,
        quantile=quantile,
        precision=precision,
        warmup=warmup,
        check_outputs=check_outputs,
    )
    if launches == 1:
        return benchmark_here(callable_or_model, inputs, settings, name)
    return benchmark_in_launches(callable_or_model, inputs, settings, name, launches=launches)


def run_program(
    target: str,
    arguments: Sequence[str] = (),
    *,
    is_module: bool = False,
    out: Path | None = None,
    layers: bool = True,
    operators: bool = True,
    gpu: Literal["auto"] | bool = "auto",
    python: bool = False,
    work: bool = False,
    profiler: Literal["torch", "pyinstrument", "cprofile"] | None = None,
) -> tuple[int, Run | RunError]:
    """Run a script or module under a recording; returns its exit code and the run.

    When the run could not be written the error stands in its place: the program ran all the same. A run
    that has the default name, of a program that failed before anything was recorded, is not kept. `profiler`
    runs the program under that one alone: with "pyinstrument" as with `python` and no other source, with the
    others the run is made of what they write.
    """
    from gpuprof.record.supervise import run_program as supervise

    if profiler == "pyinstrument":
        layers, operators, gpu, python = False, False, False, True
    elif profiler is not None:
        return _run_under(profiler, target, arguments, is_module=is_module, out=out)

    result = supervise(
        target,
        arguments,
        is_module=is_module,
        out=out,
        layers=layers,
        operators=operators,
        gpu=gpu,
        python=python,
        work=work,
    )
    try:
        run = Run(result.run_path)
        if run.meta.get("work"):
            from gpuprof.analyze.ceilings_of_run import add_ceilings

            add_ceilings(run.path, run.meta["work"])
            run = Run(result.run_path)
    except RunError as error:
        return result.exit_code, error
    if out is None and result.exit_code != 0 and run.meta["totals"]["spans"] == 0:
        shutil.rmtree(result.run_path, ignore_errors=True)
        return result.exit_code, RunError("it failed before anything was recorded: no run is kept")
    return result.exit_code, run


def _run_under(
    profiler: str, target: str, arguments: Sequence[str], *, is_module: bool, out: Path | None
) -> tuple[int, Run | RunError]:
    from gpuprof.run.profiled import run_profiled

    result, failure = run_profiled(target, arguments, is_module=is_module, out=out, profiler=profiler)
    return result.exit_code, failure if failure is not None else Run(result.run_path)
