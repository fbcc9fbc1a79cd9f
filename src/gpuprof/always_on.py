# SPDX-License-Identifier: Apache-2.0
"""Record windows of a long program: of this process, or of a program in a process of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.errors import RecordingError
from gpuprof.opened_run import Run
from gpuprof.record.environment import environment_for
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording_folder import LOCK_FILE, DiskFullError
from gpuprof.record.window_options import WindowOptions
from gpuprof.record.window_sampler import WindowRecorder
from gpuprof.run.windows import (
    FOLDER_SUFFIX,
    create_windows,
    finish,
    keep_windows,
    keeper_command,
    open_windows,
)

if TYPE_CHECKING:
    import subprocess

_LONGEST_WAIT_S = 2.0  # for the process that closes windows, once the program has ended


class Windows:
    """The context manager that `windows` returns. `runs` are the retained windows."""

    def __init__(self, path: Path, options: WindowOptions, recording_options: RecordingOptions) -> None:
        self.path = path
        self._options = options
        self._recording_options = recording_options
        self._recorder: WindowRecorder | None = None
        self._last_end_ns: int | None = None
        self._process_id = os.getpid()

    def __enter__(self) -> Windows:
        if self._recorder is not None:
            raise RecordingError("entered_twice", "windows are entered twice", hint="call windows again")
        create_windows(self.path, self._options, [sys.executable, *getattr(sys, "argv", [])])
        recorder = WindowRecorder(self.path, self._options, self._recording_options)
        recorder.start()
        self._recorder = recorder
        self._start_keeper()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._recorder is not None
        self._recorder.stop()
        if os.getpid() == self._process_id:
            finish(self.path)

    def step_ended(self) -> None:
        """Report the end of a step that is neither an optimizer's nor a call of a model."""
        assert self._recorder is not None
        if self._last_end_ns is not None:
            self._recorder.sampler.step_ended(self._last_end_ns, time.monotonic_ns())
        self._last_end_ns = time.monotonic_ns()

    @property
    def index(self) -> dict[str, Any]:
        """What `windows.json` holds: the retained windows, and why each was kept."""
        return open_windows(self.path)

    @property
    def runs(self) -> list[Run]:
        """The retained windows, oldest first."""
        return [Run(self.path / each["run"]) for each in self.index["windows"]]

    def _start_keeper(self) -> None:
        if _native.adopts_orphans():
            # A detached process would be this program's child in the end: a thread closes windows here.
            threading.Thread(target=keep_windows, args=(self.path,), daemon=True).start()
            return
        words = [os.fsencode(word) for word in keeper_command(self.path)]
        environment = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            _native.start_detached(words, environment, null)
        finally:
            os.close(null)


def run_windows(
    target: str,
    arguments: Sequence[str],
    options: RecordingOptions,
    windows_options: WindowOptions,
    *,
    is_module: bool,
    out: Path | None,
) -> tuple[int, Path, dict[str, Any] | None]:
    """Run a program with windows; returns its exit code, the folder and the index.

    Raises RecordingError or RunError when the target or the folder is unusable; then nothing was run. On a
    full disk the program runs without windows, after a line on standard error; then there is no index.
    """
    # Only a program in a process of its own needs these; they take longer than the rest of this module.
    import subprocess

    from gpuprof.record.supervise import program_command, run_command, run_without, target_path

    # The script or module is checked as for a whole recording.
    folder = target_path(target, is_module=is_module, out=out, suffix=FOLDER_SUFFIX)
    command = [sys.executable, target, *arguments]
    started = program_command(target, arguments, is_module=is_module)
    try:
        create_windows(folder, windows_options, command)
    except DiskFullError as error:
        return run_without(started, "windows", error), folder, None
    described = {
        "out": str(folder.resolve()),
        "options": options.to_plain(),
        "windows": windows_options.to_plain(),
        "target": target,
        "arguments": list(arguments),
    }
    keeper: list[subprocess.Popen[bytes]] = []

    def start_keeper() -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # In a session of its own: Ctrl-C is for the program, and the keeper ends after it.
        keeper.append(
            subprocess.Popen(
                keeper_command(folder),
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    code = run_command(started, environment_for(described), start_keeper)
    for process in keeper:
        if not (folder / LOCK_FILE).exists():
            process.terminate()  # it would wait for a program that never began
        try:
            process.wait(_LONGEST_WAIT_S)
        except subprocess.TimeoutExpired:
            # At the lowest priority it could take minutes. This process closes the rest.
            process.kill()
            process.wait()
    return code, folder, finish(folder)
