# SPDX-License-Identifier: Apache-2.0
"""One recording of this process: its sources, its folder, and what is known of it before it is read.

A folder that is being recorded holds `recording.json` and `segments/`; closing the run turns them into
`meta.json` and tables. A program that dies leaves the first two, which is all that is needed later.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import Any, TypeAlias

from gpuprof import _native
from gpuprof.errors import RecordingError
from gpuprof.record.backward_layers import BackwardLayerSource
from gpuprof.record.device_samples import DeviceSampleSource
from gpuprof.record.first_calls import FirstCalls
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.kernels import KernelSource
from gpuprof.record.layers import LayerSource
from gpuprof.record.operators import OperatorSource
from gpuprof.record.options import RecordingOptions
from gpuprof.record.python_stacks import PythonStackSource
from gpuprof.record.ranges import range_source, tool_notes
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS, FolderLock, write_json

_Source: TypeAlias = (
    BackwardLayerSource | LayerSource | OperatorSource | DeviceSampleSource | KernelSource | PythonStackSource
)


def told(error: BaseException) -> str:
    """Return the line in which a note tells of an error."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class Recording:
    """Sources switched on, from `start` to `stop`. One at a time in a process."""

    def __init__(
        self, path: Path, options: RecordingOptions | None = None, *, modules: tuple[Any, ...] = ()
    ) -> None:
        self.path = path
        self._options = options = options or RecordingOptions()
        self._first_calls = FirstCalls() if options.counts_work else None
        self._modules = modules
        self._wanted = {
            "layers": options.layers,
            "operators": options.operators,
            "kernels": options.gpu is not False,
        }
        self._sources: dict[str, _Source] = {}
        self._methods: dict[str, str] = {"spans": "on", "nvtx": range_source()}
        if self._first_calls is not None:
            # Until it has been counted: a program that is killed leaves this.
            self._methods["work"] = "on"
        self.was_interrupted = False  # while work was counted, which then ends and lets the run be closed
        self._hook: ImportHook | None = None
        self._lock: FolderLock | None = None
        self._process_id = os.getpid()
        self._facts: dict[str, Any] = {}
        self._facts_file = path / RECORDING_FILE
        self.command = [sys.executable, *sys.argv] if hasattr(sys, "argv") else []

    def start(self) -> None:
        """Begin to record into the folder, which `create_folder` made."""
        if _native.is_recording():
            raise RecordingError(
                "a recording is active in this process already: end it before the next one begins"
            )
        try:
            self._take_folder()
            self._start_native()
            self._facts = {**_facts(self._process_id), "command": self.command}
            for line in tool_notes():
                self._note(line)
            self._start_sources()
            self._save(closed=False)
        except BaseException as error:
            # A disk may fill up between one file and the next: what has begun must not go on unseen.
            try:
                self._stop_sources()
            finally:
                _native.stop_recording()
                self._unlock()
            if not isinstance(error, OSError):
                raise
            raise RecordingError(f"cannot record into {self.path}: {error.strerror}") from None

    def _take_folder(self) -> None:
        self._lock = FolderLock(self.path)

    def _start_native(self) -> None:
        _native.start_recording(os.fsencode(self.path / SEGMENTS))

    @property
    def is_of_other_process(self) -> bool:
        """Whether this is a forked child of the process that records."""
        return os.getpid() != self._process_id

    def pause(self) -> None:
        """Make room for another recording of this process."""
        self._stop_sources()
        _native.stop_recording()

    def resume(self) -> None:
        """Go on after a pause, which the run's notes tell of."""
        self._note("the program made a recording of its own: the time of that is not in this run")
        try:
            self._start_native()
        except OSError as error:
            self._note(f"what came after that is missing as well: {error.strerror}")
            return
        self._start_sources()

    def stop_announcements(self) -> None:
        """Have PyTorch announce nothing more on this thread, of a forked child that ends."""
        if (operators := self._sources.get("operators")) is not None:
            operators.stop()

    def stop(self, *, count: bool = True) -> None:
        """End the recording. In a forked child only that child's part ends, and the run stays open.

        Work that is wanted is counted now, unless `count` says that the program is in a hurry to end.
        """
        self._stop_sources()
        totals = _native.stop_recording()
        if os.getpid() != self._process_id:
            return
        self._methods["nvtx"] = range_source(ended=True)
        if self._options.counters:
            self._methods["counters"] = "off: the work could not be counted either"
        if totals["storage_failed"]:
            self._note(
                f"the disk failed while recording ({totals['storage_error'] or 'names'}): events are missing"
            )
        try:
            if self._first_calls is not None:
                self._count_work(self._first_calls, wanted=count)
        finally:
            # On a full disk the facts of the start remain; what was recorded is readable all the same.
            with contextlib.suppress(OSError):
                self._save(closed=True)
            self._unlock()

    def _count_work(self, first: FirstCalls, *, wanted: bool) -> None:
        """Count the work of the calls that were kept, and let go of them. Failures are notes."""
        try:
            if not wanted or "torch" not in sys.modules:
                self._no_work("torch was never imported" if wanted else "the program was interrupted")
            else:
                from gpuprof.record.work.first_pass import count_first_calls

                for line in count_first_calls(first, self.path / SEGMENTS):
                    self._note(line)
                if self._options.counters:
                    self._measure_counters(first)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self._no_work("it was interrupted")
        except (Exception, SystemExit) as error:
            self._no_work(told(error))
        finally:
            first.release()

    def _no_work(self, reason: str) -> None:
        self._note(f"work was not counted: {reason}")
        self._methods["work"] = f"off: {reason}"
        if self._options.counters:
            self._methods["counters"] = f"off: {reason}"

    def _measure_counters(self, first: FirstCalls) -> None:
        """Read the GPU's counters in the calls that were kept. Failures are notes."""
        try:
            from gpuprof.record.work.counters_pass import measure_first_calls

            self._methods["counters"], notes = measure_first_calls(first, self.path / SEGMENTS)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self._methods["counters"] = "off: it was interrupted"
            notes = ["hardware counters were not read: it was interrupted"]
        except (Exception, SystemExit) as error:
            self._methods["counters"] = f"off: {told(error)}"
            notes = [f"hardware counters were not read: {told(error)}"]
        for line in notes:
            self._note(line)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _stop_sources(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        for source in reversed(self._sources.values()):
            source.stop()
            self._take_facts(source)
        self._sources.clear()

    def _start_sources(self) -> None:
        self._start_samples()
        if self._options.python:
            stacks = PythonStackSource(self.path / SEGMENTS)
            self._start_source("python", stacks)
            self._take_facts(stacks)
        wanted = [name for name, on in self._wanted.items() if on]
        self._methods.update({name: "off: not wanted" for name, on in self._wanted.items() if not on})
        if not wanted:
            return
        if "torch" in sys.modules:
            self._start_torch_sources()
            return
        self._methods.update(dict.fromkeys(wanted, "off: torch was never imported"))
        self._hook = ImportHook("torch", self._torch_imported)
        self._hook.install()

    def _start_samples(self) -> None:
        # First, since its process has to be up before it reads; so it is also the last to be stopped.
        self._start_source("samples", DeviceSampleSource(self.path / SEGMENTS, wanted=self._options.gpu))

    def _torch_imported(self) -> None:
        if os.getpid() == self._process_id and _native.is_recording():
            self._start_torch_sources()
            # The file of the start remains where the disk is full; the program's import must not fail.
            with contextlib.suppress(OSError):
                self._save(closed=False)

    def _start_torch_sources(self) -> None:
        sources: dict[str, _Source] = {
            "kernels": KernelSource(self._kernels_began, self.path / SEGMENTS, layers=self._wanted["layers"]),
            "layers": LayerSource(self._modules, self._first_calls),
            # Before the operators, since it calls some of its own.
            "backward_layers": BackwardLayerSource(),
            "operators": OperatorSource(),
        }
        wanted = {**self._wanted, "backward_layers": self._wanted["layers"] and self._wanted["operators"]}
        self._modules = ()  # a recording keeps no model alive
        for name, source in sources.items():
            if wanted[name]:
                self._start_source(name, source)

    def _start_source(self, name: str, source: _Source) -> None:
        try:
            method = source.start()
        except Exception as error:
            # The program's torch may be another library, or a model may refuse to be walked.
            source.stop()
            method = f"off: {type(error).__name__}: {error}".splitlines()[0]
        self._methods[name] = method
        # The kernels' source may begin later.
        if name == "kernels" or not method.startswith("off"):
            self._sources[name] = source

    def _take_facts(self, source: _Source) -> None:
        for line in getattr(source, "notes", ()):
            self._note(line)
        if isinstance(source, KernelSource):
            self._facts["gpu"] = source.totals
        if isinstance(source, LayerSource):
            self._facts.setdefault("layer_types", {}).update(source.known_types())

    def _kernels_began(self, method: str) -> None:
        self._methods["kernels"] = method
        with contextlib.suppress(OSError):
            self._save(closed=False)

    def _note(self, line: str) -> None:
        notes = self._facts.setdefault("notes", [])
        if line not in notes:
            notes.append(line)

    def _save(self, *, closed: bool) -> None:
        for source in self._sources.values():
            self._take_facts(source)
        self._facts["torch"] = _torch_version()
        write_json(self._facts_file, {**self._facts, "sources": self._methods, "closed": closed})


class _OfProgram:
    """The recording that `gpuprof run` began in this process, if it did."""

    recording: Recording | None = None


def record_program(recording: Recording) -> None:
    """Begin the recording of a whole program, which gives way to the program's own."""
    recording.start()
    _OfProgram.recording = recording


def pause_for_program() -> Recording | None:
    """Pause the recording of the whole program, if there is one; returns it, to be resumed."""
    outer = _OfProgram.recording
    if outer is None or outer.is_of_other_process or not _native.is_recording():
        return None
    # Only one pause at a time: a second recording of the program's own is refused as it always is.
    _OfProgram.recording = None
    outer.pause()
    return outer


def resume_after(outer: Recording | None) -> None:
    """Go on with what `pause_for_program` returned."""
    if outer is not None and not outer.is_of_other_process:
        outer.resume()
        _OfProgram.recording = outer


def _facts(process_id: int) -> dict[str, Any]:
    clock = _native.clock_info()
    return {
        "format_version": 1,
        "gpuprof": _native.build_info()["version"],
        "process_id": process_id,
        "realtime_minus_monotonic_ns": str(clock["realtime_ns"] - clock["monotonic_ns"]),
        "clock": clock["clock"],
        "python": platform.python_version(),
        "torch": None,
        "gpu": None,
    }


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return None if version is None else str(version)
