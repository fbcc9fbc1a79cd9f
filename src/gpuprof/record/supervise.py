# SPDX-License-Identifier: Apache-2.0
"""Runs a program under a recording, in a process of its own.

The parent only waits. So a program that ends by `os._exit`, by a signal or by a crash still leaves
a run, and closing the run takes nothing from the program.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType

from gpuprof.errors import RecordingError
from gpuprof.record.environment import environment_for
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording_folder import (
    LOCK_FILE,
    RECORDING_FILE,
    SEGMENTS,
    DiskFullError,
    create_folder,
    is_marked_refused,
)

_INTERPRETER = re.compile(r"python[\d.]*(\.exe)?")
_FILE_HEAD = 512  # bytes; those of a program have zeros, those of a script have none
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How the program ended, as a shell would report it, and the folder that it was recorded into.

    Where the recording `was_refused`, a line on standard error had the reason before the program began. The
    folder `was_removed` if it was gone when the program had ended.
    """

    exit_code: int
    run_path: Path
    was_refused: bool = False
    was_removed: bool = False


def run_program(
    target: str,
    arguments: Sequence[str],
    options: RecordingOptions,
    *,
    is_module: bool,
    out: Path | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> ProgramResult:
    """Run a script, or a module by its name, with `arguments`; its streams are this process's own.

    `meanwhile` is called while the program's interpreter starts. It should take less than that.
    Raises RecordingError when the target or the folder is unusable; then nothing was run. Where the disk
    is full already the program still runs, unrecorded, and the folder is removed.
    """
    path = target_path(target, is_module=is_module, out=out)
    command = program_command(target, arguments, is_module=is_module)
    try:
        create_folder(path)
    except DiskFullError as error:
        return ProgramResult(run_without(command, "being recorded", error), path, was_refused=True)
    described = {
        "out": str(path.resolve()),
        "options": options.to_plain(),
        "target": target,
        "arguments": list(arguments),
    }
    exit_code = run_command(command, environment_for(described), meanwhile)
    was_refused, was_removed = is_marked_refused(path), not path.exists()
    if not (path / RECORDING_FILE).exists():
        remove_unused(path)
    return ProgramResult(exit_code, path, was_refused, was_removed)


def target_path(target: str, *, is_module: bool, out: Path | None, suffix: str = ".gpuprof") -> Path:
    """Return the run's folder. Raises RecordingError where the script or module cannot be run."""
    (_check_module if is_module else _check_script)(target)
    return out if out is not None else free_name(_stem(target, is_module=is_module), suffix=suffix)


def program_command(target: str, arguments: Sequence[str], *, is_module: bool) -> list[str]:
    """Return the command that has Python run the program."""
    words = ["-m", target] if is_module else [target]
    return [sys.executable, *_interpreter_flags(), *words, *arguments]


def _interpreter_flags() -> list[str]:
    """Return the flags that this interpreter was started with, for the program's."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _check_module(target: str) -> None:
    """Refuse a module that cannot be run, as far as that shows without importing its parents."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        top = importlib.util.find_spec(target.partition(".")[0])
    except (ImportError, ValueError):
        top = None
    finally:
        del sys.path[0]
    if top is None:
        raise RecordingError(
            "no_such_module", f"no module named {target}", hint="check the name and the current folder"
        )
    if "." in target or top.submodule_search_locations is None:
        return
    if PathFinder.find_spec(f"{target}.__main__", list(top.submodule_search_locations)) is None:
        raise RecordingError(
            "no_main", f"the package {target} has no __main__ to run", hint="specify a module in it"
        )


def _is_interpreter(target: str) -> bool:
    """Whether the target is Python itself: a command of this name, or a program file and no script."""
    path = Path(target)
    if _INTERPRETER.fullmatch(path.name) is None or (path / "__main__.py").exists():
        return False
    if not path.is_file():
        return path.name == target
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(_FILE_HEAD)
    except OSError:
        return False


def _check_script(target: str) -> None:
    path = Path(target)
    if _is_interpreter(target):
        raise RecordingError(
            "is_interpreter",
            f"{target} is the Python interpreter, which is started anyway",
            hint="specify only the script, or -m and a module",
        )
    if not path.exists():
        raise RecordingError(
            "no_such_script", f"no such script: {target}", hint="check the path, or use -m for a module"
        )
    if path.is_dir() and not (path / "__main__.py").exists():
        raise RecordingError(
            "no_main", f"{target} is a folder without a __main__.py", hint="specify the script in it"
        )


def _stem(target: str, *, is_module: bool) -> str:
    return target.rsplit(".", 1)[-1] if is_module else (Path(target).resolve().stem or "program")


def numbered_names(stem: str, folder: Path = Path(), suffix: str = ".gpuprof") -> Iterator[Path]:
    """Yield STEM.gpuprof, STEM-2.gpuprof, ... in `folder`."""
    yield folder / f"{stem}{suffix}"
    yield from (folder / f"{stem}-{count}{suffix}" for count in itertools.count(2))


def free_name(stem: str, folder: Path = Path(), suffix: str = ".gpuprof") -> Path:
    """Return the first of the numbered names that does not exist in `folder`."""
    return next(path for path in numbered_names(stem, folder, suffix) if not path.exists())


def run_without(command: list[str], what: str, error: DiskFullError) -> int:
    """Print why there is no recording, and run the command: it is worth more than its profile."""
    from gpuprof.text.sanitize import print_warning  # seldom needed

    print_warning(f"the program runs without {what}: {error}")
    return run_command(command, dict(os.environ))


def run_command(
    command: list[str], environment: dict[str, str], meanwhile: Callable[[], None] | None = None
) -> int:
    """Run a command to its end, signals passed on; returns its exit code as a shell has it."""
    # What the shell opened for the program beyond the three standard files is its, too.
    process = subprocess.Popen(command, env=environment, close_fds=False)
    with _signals_for(process):
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on. A terminal sends Ctrl-C to both: the program decides, and this process waits."""

    def forward(number: int, _: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    # Not SIGINT: the program may have got it too, and a second one would interrupt its clean-up.
    former = {number: signal.signal(number, forward) for number in _FORWARDED}
    former[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def remove_unused(path: Path) -> None:
    """Take back a folder that nothing was recorded into; anything else in it stays."""
    with contextlib.suppress(OSError):
        (path / LOCK_FILE).unlink(missing_ok=True)
    for part in (path / SEGMENTS, path):
        with contextlib.suppress(OSError):
            part.rmdir()
