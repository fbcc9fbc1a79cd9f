# SPDX-License-Identifier: Apache-2.0
"""Record a block of code, and return its run."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from gpuprof.errors import GpuprofError, RecordingError, RunError, UnavailableError
from gpuprof.opened_run import PathLike, Run
from gpuprof.record.device_samples import has_driver
from gpuprof.record.options import GpuOption, PythonOption, RecordingOptions, WhichCeilings
from gpuprof.record.python_stacks import INSTALL_PYINSTRUMENT, NO_PYINSTRUMENT, has_pyinstrument
from gpuprof.record.recording import Recording, pause_for_program, resume_after
from gpuprof.record.recording_folder import create_folder
from gpuprof.record.stack_sampler import why_not
from gpuprof.recorded_program import measure_wanted
from gpuprof.run.quick_switching import quick_switching
from gpuprof.run.temporary import TemporaryFolder

if TYPE_CHECKING:
    import torch

    from gpuprof.analyze.ceilings.ceiling import Ceilings

_SWITCHES = ("layers", "operators", "work", "counters")


class Profile:
    """The context manager that `profile` returns. `run` is the finished run, after the block."""

    def __init__(
        self,
        recording: Recording,
        *,
        temporary: TemporaryFolder | None,
        ceilings: WhichCeilings = "cached",
    ) -> None:
        self._recording = recording
        self._temporary = temporary
        self._which_ceilings = ceilings
        self._ceilings_before: Ceilings | None = None
        self._process_id = os.getpid()
        self._state: Literal["new", "recording", "ended"] = "new"
        self._failure: GpuprofError | None = None
        self._run: Run | None = None
        self._outer: Recording | None = None  # that of `gpuprof run`, which pauses during this one

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._recording.path

    @property
    def run(self) -> Run:
        """The finished run. Raises RunError inside the block, and if the run could not be written."""
        if self._failure is not None:
            raise self._failure
        if self._state != "ended":
            raise RunError(
                "still_recording", "the run is still being recorded", hint="read it after the `with` block"
            )
        if self._run is None:
            self._run = Run(self.path)
            self._run._temporary = self._temporary
        return self._run

    def __enter__(self) -> Profile:
        if self._state != "new":
            raise RecordingError(
                "entered_twice", "a profile can be entered only once", hint="call gpuprof.profile(...) again"
            )
        with quick_switching():
            self._begin()
        self._state = "recording"
        return self

    def _begin(self) -> None:
        # Import before the block what closing needs, so that it does not delay the measured code.
        from gpuprof.run import writer

        writer.preload()
        create_folder(self.path)
        self._outer = pause_for_program()
        try:
            self._ceilings_before = measure_wanted(self._which_ceilings)
            self._recording.start()
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            resume_after(self._outer)
            raise

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an interrupt the program must end soon.
        hurry = error_type is not None and not issubclass(error_type, Exception)
        with quick_switching():
            self._end(count=not hurry)
        if self._recording.was_interrupted and error is None:
            raise KeyboardInterrupt

    def _end(self, *, count: bool) -> None:
        self._recording.stop(count=count)
        self._state = "ended"
        resume_after(self._outer)
        if os.getpid() != self._process_id:
            self._failure = RunError(
                "forked_child",
                "this is a forked child: the run belongs to the process that started it",
                hint="read the run in that process",
            )
            return
        from gpuprof.run.writer import close_run

        try:
            meta = close_run(self.path)
            if meta.get("work"):
                from gpuprof.analyze.ceilings.of_run import add_ceilings

                add_ceilings(self.path, meta["work"], self._ceilings_before)
        except GpuprofError as failure:
            # The measured program continues without its profile.
            self._failure = failure
            warnings.warn(f"gpuprof: {failure}", RuntimeWarning, stacklevel=3)


def profile(
    *modules: torch.nn.Module,
    out: PathLike | None = None,
    layers: bool = True,
    operators: bool = True,
    gpu: GpuOption = "auto",
    python: PythonOption = False,
    work: bool = False,
    ceilings: WhichCeilings = "cached",
    counters: bool = False,
) -> Profile:
    """Record the code inside the `with` block.

    - `modules`: the models whose layers are recorded; without any, every module that is called.
    - `out`: the run's folder, which must not exist; without it the run exists as long as the `Run` object.
    - `layers`, `operators`: record layers of models, and PyTorch's operators.
    - `gpu`: "auto" samples devices and records GPU work if there is an NVIDIA driver, False does neither;
      "whole-graphs" is as "auto", with each replay of a CUDA graph as one unit without its kernels.
    - `python`: sample Python stacks, which appear above the layers and operators that they called.
    - `work`: retain the arguments of each model's first call, and count its FLOPs and bytes after the block,
      for `run.roofline()`. The block itself does not change.
    - `ceilings`: the ceilings of `run.roofline()`: "cached" are the best ones of this machine; "around"
      measures them directly before and after the block (two seconds each), for shared machines.
    - `counters`: as `work`, and repeat these calls to read the GPU's hardware counters (bytes of its memory,
      tensor operations). If they are unavailable, a note in the run gives the reason.

    Raises RecordingError, or UnavailableError for what this version or machine lacks.
    """
    options = RecordingOptions(
        layers=layers,
        operators=operators,
        gpu=gpu,
        python=python,
        work=work,
        ceilings=ceilings,
        counters=counters,
    )
    _check_options(options)
    _check_modules(modules)
    if out is not None:
        _check_out(out)
    temporary = None
    if out is None:
        temporary = TemporaryFolder()
        out = temporary.path / "run.gpuprof"
    recording = Recording(Path(out), options, modules=modules)
    return Profile(recording, temporary=temporary, ceilings=ceilings)


def _check_options(options: RecordingOptions) -> None:
    for name in _SWITCHES:
        # Other values are true or false too, such as the text "no".
        if (value := getattr(options, name)) not in (True, False):
            raise RecordingError(
                "invalid_option", f"profile({name}={value!r}) is not known", hint="use True or False"
            )
    _refuse_unavailable(options)
    if options.ceilings not in get_args(WhichCeilings):
        raise RecordingError(
            "invalid_option",
            f"profile(ceilings={options.ceilings!r}) is not known",
            hint='use "cached" or "around"',
        )
    if options.ceilings == "around" and not options.counts_work:
        raise RecordingError(
            "needs_work", 'profile(ceilings="around") needs counted work', hint="add work=True"
        )
    if options.counts_work and not (options.layers and options.operators):
        option = "work" if options.work else "counters"
        raise RecordingError(
            "needs_operators", f"profile({option}=True) needs layers and operators", hint="leave both on"
        )


def _refuse_unavailable(options: RecordingOptions) -> None:
    if options.gpu not in ("auto", "whole-graphs", True, False):
        raise RecordingError(
            "invalid_option",
            f"profile(gpu={options.gpu!r}) is not known",
            hint='use "auto", "whole-graphs", True or False',
        )
    if options.gpu is True and not has_driver():
        raise UnavailableError(
            "no_driver", "profile(gpu=True): no NVIDIA driver", hint="leave gpu out, or install a driver"
        )
    if options.python not in ("auto", "pyinstrument", True, False):
        raise RecordingError(
            "invalid_option",
            f"profile(python={options.python!r}) is not known",
            hint='use "auto", "pyinstrument", True or False',
        )
    needs_pyinstrument = options.python == "pyinstrument" or (
        options.python is True and why_not() is not None
    )
    if needs_pyinstrument and not has_pyinstrument():
        raise UnavailableError(
            "not_installed",
            f"profile(python={options.python!r}): {NO_PYINSTRUMENT}",
            hint=INSTALL_PYINSTRUMENT,
        )


def _check_out(out: PathLike) -> None:
    if out == "":
        raise RecordingError(
            "no_folder_name", 'profile(out="") is not a folder', hint="name a folder, or leave it out"
        )
    try:
        Path(out)
    except TypeError:
        raise RecordingError(
            "invalid_option",
            f"profile(out=...) takes a path, not {type(out).__name__}",
            hint="name the folder to write",
        ) from None


def _check_modules(modules: tuple[Any, ...]) -> None:
    import sys

    torch = sys.modules.get("torch")
    for module in modules:
        if torch is None or not isinstance(module, torch.nn.Module):
            raise RecordingError(
                "not_a_torch_module",
                f"profile() takes torch.nn.Module objects, not {type(module).__name__}",
                hint="pass the model, or nothing to record every module",
            )
