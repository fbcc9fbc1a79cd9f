# SPDX-License-Identifier: Apache-2.0
"""Record a program, and return its run.

`gpuprof run` imports no more than this: what only the program's own process needs delays its end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.errors import NothingRecordedError, NotRecordedError, RunError
from gpuprof.record.options import RecordingOptions, WhichCeilings

if TYPE_CHECKING:
    from gpuprof.analyze.ceilings.ceiling import Ceilings
    from gpuprof.opened_run import Run
    from gpuprof.record.supervise import ProgramResult

CLOSING_SHOWN_S = 1.0


def run_program(
    target: str,
    arguments: Sequence[str] = (),
    *,
    options: RecordingOptions | None = None,
    is_module: bool = False,
    out: Path | None = None,
    on_measuring: Callable[[], None] | None = None,
    on_closing: Callable[[], None] | None = None,
    while_closing: Callable[[Path], AbstractContextManager[object]] = contextlib.nullcontext,
) -> tuple[int, Run | RunError]:
    """Run a script or module under a recording; returns its exit code and the run.

    If the run could not be written, an error takes its place: the program ran without it. It is a
    NotRecordedError if the recording could not begin, which standard error reported. The run of a program
    that failed before anything was recorded is removed, unless `out` names it. `options.profiler` uses that
    profiler instead: "pyinstrument" is as `python` without other sources, the result of others is imported.
    `on_measuring` is called before this machine's ceilings are measured for `work`, which takes seconds, and
    `on_closing` by another thread if the run is not written a second after the end of the program. The run is
    written within `while_closing`, of its folder.
    """
    from gpuprof.record.supervise import run_program as supervise
    from gpuprof.record.supervise import target_path

    options = options or RecordingOptions()
    if options.profiler == "pyinstrument":
        options = options.stacks_only()
    elif options.profiler is not None:
        return _run_under(options.profiler, target, arguments, is_module=is_module, out=out)

    # A target that does not exist is refused below, without a delay.
    can_run = not target_path(target, is_module=is_module, out=out).exists()
    before = measure_wanted(options.ceilings) if can_run else None
    result = supervise(
        target, arguments, options, is_module=is_module, out=out, meanwhile=_import_reader_of_runs
    )
    keep_empty = out is not None or result.exit_code == 0
    recorded = _run_of(result, before, on_measuring, on_closing, while_closing, keep_empty=keep_empty)
    return result.exit_code, recorded


def _import_reader_of_runs() -> None:
    """Import what closes the run of a program without spans, while the program's interpreter starts.

    This is shorter than that start. NumPy and DuckDB, which close all other runs, are left for the end: they
    would still be imported while the program runs, and disturb it.
    """
    import gpuprof.opened_run
    import gpuprof.run.folder  # noqa: F401


def _run_of(
    result: ProgramResult,
    before: Ceilings | None,
    on_measuring: Callable[[], None] | None,
    on_closing: Callable[[], None] | None,
    while_closing: Callable[[Path], AbstractContextManager[object]],
    *,
    keep_empty: bool,
) -> Run | RunError:
    """Return the run of a program, with its ceilings, or the error."""
    from gpuprof.opened_run import Run
    from gpuprof.run.database import enough_memory

    if result.was_refused:
        return NotRecordedError(
            "not_recorded",
            f"the recording into {result.run_path} could not begin",
            hint="see the reason that was printed before the program started",
        )
    if result.was_removed:
        return RunError(
            "no_such_run",
            f"{result.run_path} was removed while the program ran",
            hint="record again, and leave the folder until the program has ended",
        )
    try:
        with enough_memory(f"to complete {result.run_path}"):
            with called_after(CLOSING_SHOWN_S, on_closing), while_closing(result.run_path):
                run = Run(result.run_path)
            if run.meta.get("work"):
                from gpuprof.analyze.ceilings.of_run import add_ceilings

                if on_measuring is not None:
                    on_measuring()
                add_ceilings(run.path, run.meta["work"], before)
                run = Run(result.run_path)
    except RunError as error:
        return error
    if not keep_empty and run.meta["totals"]["spans"] == 0:
        import shutil

        shutil.rmtree(result.run_path, ignore_errors=True)
        return NothingRecordedError(
            "nothing_recorded",
            "the program failed before anything was recorded, so its run was removed",
            hint="name a folder with --out to keep it",
        )
    return run


@contextlib.contextmanager
def called_after(delay_s: float, function: Callable[[], None] | None) -> Iterator[None]:
    """Call a function in another thread if the block takes longer; it is not called after the block."""
    if function is None:
        yield
        return
    timer = threading.Timer(delay_s, function)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _run_under(
    profiler: str, target: str, arguments: Sequence[str], *, is_module: bool, out: Path | None
) -> tuple[int, Run | RunError]:
    from gpuprof.opened_run import Run
    from gpuprof.run.profiled import run_profiled

    result, failure = run_profiled(target, arguments, is_module=is_module, out=out, profiler=profiler)
    return result.exit_code, failure if failure is not None else Run(result.run_path)


def measure_wanted(which: WhichCeilings) -> Ceilings | None:
    """Measure the ceilings of this machine before a recording, if that is wanted."""
    if which == "cached":
        return None
    from gpuprof.analyze.ceilings.of_run import measure_before

    return measure_before()
