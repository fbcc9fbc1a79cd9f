# SPDX-License-Identifier: Apache-2.0
"""One recording of this process: its sources, its folder, and what is known of it before it is read.

A folder that is being recorded holds `recording.json` and `segments/`; closing the run turns them into
`meta.json` and tables. A program that dies leaves the first two, which is all that is needed later.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof import _native
from gpuprof.errors import RecordingError
from gpuprof.record.device_samples import DeviceSampleSource
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.options import PythonOption, RecordingOptions
from gpuprof.record.pauses import CollectionSource, own_work
from gpuprof.record.processor import processor_seconds
from gpuprof.record.ranges import range_source, tool_notes
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS, FolderLock, write_json
from gpuprof.record.stack_sampler import StackSamplerSource, why_not

if TYPE_CHECKING:
    from typing import Protocol

    from gpuprof.record.first_calls import FirstCalls
    from gpuprof.record.program_settings import SettingsSource

    class _Source(Protocol):
        """What is switched on and off. It may have `notes`, and `facts` for the file of the recording."""

        def start(self) -> SourceStatus: ...
        def stop(self) -> None: ...


FORMAT_VERSION = 2


class Recording:
    """Sources switched on, from `start` to `stop`. One at a time in a process.

    Each process records at most `limit_bytes` of events, 0 for no limit; later ones are dropped and counted.
    """

    def __init__(
        self,
        path: Path,
        options: RecordingOptions | None = None,
        *,
        modules: tuple[Any, ...] = (),
        limit_bytes: int = 0,
    ) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._options = options = options or RecordingOptions()
        self._first_calls = _first_calls(path / SEGMENTS) if options.counts_work else None
        self._modules = modules
        self._wanted = {
            "layers": options.layers,
            "operators": options.operators,
            "kernels": options.gpu is not False,
        }
        self._sources: dict[str, _Source] = {}
        # These continue after a pause.
        self._collections = CollectionSource()
        self._settings: SettingsSource | None = None
        self._statuses = {"spans": SourceStatus.on(Method.RECORDED), "nvtx": range_source()}
        self._notes: list[Note] = []
        if self._first_calls is not None:
            # Until it has been counted: a program that is killed leaves this.
            self._statuses["work"] = SourceStatus.on(Method.COUNTED)
        self.was_interrupted = False  # while work was counted, which then ends and lets the run be closed
        self._hook: ImportHook | None = None
        self._lock: FolderLock | None = None
        self._process_id = os.getpid()
        self._facts: dict[str, Any] = {}
        self._busy_before: tuple[float, float] | None = None  # of all processors, without a pause since
        self._facts_file = path / RECORDING_FILE
        self.command = [sys.executable, *sys.argv] if hasattr(sys, "argv") else []

    @own_work()
    def start(self) -> None:
        """Begin to record into the folder, which `create_folder` made."""
        if _native.is_recording():
            raise RecordingError(
                "recording_active",
                "a recording is active in this process already",
                hint="end it before the next one begins",
            )
        try:
            self._take_folder()
            self._start_native()
            self._facts = {**_facts(self._process_id), "command": self.command}
            self._add_notes(tool_notes())
            self._start_sources()
            self._save_start()
        except BaseException as error:
            # A disk may fill up between one file and the next: what has begun must not continue unseen.
            try:
                self._stop_sources()
            finally:
                _native.stop_recording()
                self._unlock()
            if not isinstance(error, OSError):
                raise
            raise RecordingError(
                "cannot_write",
                f"cannot record into {self.path}: {error.strerror}",
                hint="free disk space, or specify another folder",
            ) from None

    def _take_folder(self) -> None:
        self._lock = FolderLock(self.path)

    def _start_native(self) -> None:
        _native.start_recording(os.fsencode(self.path / SEGMENTS), limit_bytes=self._limit_bytes)

    @property
    def is_of_other_process(self) -> bool:
        """Whether this is a forked child of the process that records."""
        return os.getpid() != self._process_id

    @own_work()
    def pause(self) -> None:
        """Make room for another recording of this process."""
        self._busy_before = None
        self._stop_sources()
        _native.stop_recording()

    @own_work()
    def resume(self) -> None:
        """Continue after a pause, which is a note in the run."""
        self._add_notes([note(NoteCode.OWN_RECORDING)])
        try:
            self._start_native()
        except OSError as error:
            self._add_notes([note(NoteCode.NOT_RESUMED, error=str(error.strerror))])
            return
        self._start_sources()

    def abandon(self) -> None:
        """Let go of the folder of a paused recording, which is complete up to its pause."""
        self._unlock()

    def stop_announcements(self) -> None:
        """Have PyTorch announce nothing more on this thread, of a forked child that ends."""
        if (operators := self._sources.get("operators")) is not None:
            operators.stop()

    @own_work()
    def stop(self, *, count: bool = True) -> None:
        """End the recording. In a forked child only that child's part ends, and the run stays open.

        Work that is wanted is counted now, unless `count` is False because the program must end soon.
        """
        self._stop_stacks()
        busy = processor_seconds()
        self._stop_sources()
        totals = _native.stop_recording()
        if os.getpid() != self._process_id:
            return
        if busy is not None and self._busy_before is not None:
            both = zip(busy, self._busy_before, strict=True)
            busy_ns, steal_ns = (round((after - before) * 1e9) for after, before in both)
            self._facts |= {"machine_busy_ns": busy_ns, "machine_steal_ns": steal_ns}
        self._statuses["nvtx"] = range_source(ended=True)
        if self._options.counters:
            self._statuses["counters"] = SourceStatus.off(Reason.WORK_NOT_COUNTED)
        if totals["limit_reached"]:
            self._add_notes([note(NoteCode.LIMIT_REACHED)])
        if totals["storage_failed"]:
            self._add_notes([note(NoteCode.DISK_FAILED, error=totals["storage_error"] or "names")])
        try:
            if self._first_calls is not None:
                self._count_work(self._first_calls, wanted=count)
        finally:
            # On a full disk the facts of the start remain; what was recorded remains readable.
            with contextlib.suppress(OSError):
                self._save(closed=True)
            self._unlock()

    def _count_work(self, first: FirstCalls, *, wanted: bool) -> None:
        """Count the work of the calls that were kept, and let go of them. Failures are notes."""
        try:
            if not wanted or "torch" not in sys.modules:
                self._no_work(SourceStatus.off(Reason.TORCH_NOT_IMPORTED if wanted else Reason.INTERRUPTED))
            else:
                from gpuprof.record.work.first_pass import count_first_calls

                self._add_notes(count_first_calls(first, self.path / SEGMENTS))
                if self._options.counters:
                    self._measure_counters(first)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self._no_work(SourceStatus.off(Reason.INTERRUPTED))
        except (Exception, SystemExit) as error:
            self._no_work(SourceStatus.failed(error))
        finally:
            first.release()

    def _no_work(self, status: SourceStatus) -> None:
        self._statuses["work"] = status
        if self._options.counters:
            self._statuses["counters"] = status

    def _measure_counters(self, first: FirstCalls) -> None:
        """Read the GPU's counters in the calls that were kept. A failure is the source's status."""
        try:
            from gpuprof.record.work.counters_pass import measure_first_calls

            self._statuses["counters"], notes = measure_first_calls(first, self.path / SEGMENTS)
            self._add_notes(notes)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self._statuses["counters"] = SourceStatus.off(Reason.INTERRUPTED)
        except (Exception, SystemExit) as error:
            self._statuses["counters"] = SourceStatus.failed(error)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _save_start(self) -> None:
        """Write the facts of the start, unsampled: its calls of Python's library would be the program's."""
        stacks = self._sources.get("python")
        sampler = stacks if isinstance(stacks, StackSamplerSource) else None
        if sampler is not None:
            sampler.pause()
        self._busy_before = processor_seconds()
        self._save(closed=False)
        if sampler is not None:
            sampler.resume()

    def _stop_stacks(self) -> None:
        """Take no more stacks: the rest of the end calls functions of Python's library too."""
        if (stacks := self._sources.pop("python", None)) is not None:
            stacks.stop()
            self._take_facts("python", stacks)

    def _stop_sources(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        for name, source in reversed(self._sources.items()):
            source.stop()
            self._take_facts(name, source)
        self._sources.clear()

    def _start_sources(self) -> None:
        self._start_samples()
        if self._options.python:
            self._start_python(self._options.python)
        self._start_collections()
        wanted = [name for name, on in self._wanted.items() if on]
        self._statuses |= {
            name: SourceStatus.off(Reason.NOT_WANTED) for name, on in self._wanted.items() if not on
        }
        if not wanted:
            return
        if "torch" in sys.modules:
            self._start_torch_sources()
            return
        self._statuses |= dict.fromkeys(wanted, SourceStatus.off(Reason.TORCH_NOT_IMPORTED))
        self._hook = ImportHook("torch", self._torch_imported)
        self._hook.install()

    def _start_python(self, wanted: PythonOption) -> None:
        folder = self.path / SEGMENTS
        reason = None if wanted == "pyinstrument" else why_not()
        if wanted == "auto" and reason is not None:
            # pyinstrument's sampler slows a program down: only who asks for samples gets it.
            self._statuses["python"] = SourceStatus.off(reason)
            return
        native = wanted != "pyinstrument" and reason is None
        stacks = StackSamplerSource(folder) if native else _stacks_of_pyinstrument(folder)
        self._start_source("python", stacks)
        if self._statuses["python"].is_on and reason is not None:
            self._statuses["python"] = self._statuses["python"]._replace(reason=reason)
        self._take_facts("python", stacks)

    def _start_collections(self) -> None:
        if self._options.python in ("auto", True):
            self._start_source("gc", self._collections)
        else:
            self._statuses["gc"] = SourceStatus.off(Reason.NOT_WANTED)

    def _start_samples(self) -> None:
        # First, since its process has to be up before it reads; so it is also the last to be stopped.
        self._start_source(
            "samples", DeviceSampleSource(self.path / SEGMENTS, wanted=self._options.gpu is not False)
        )

    @own_work()
    def _torch_imported(self) -> None:
        if os.getpid() == self._process_id and _native.is_recording():
            # The program's import must not fail: it may have left no more modules to import.
            try:
                self._start_torch_sources()
            except ImportError as error:
                wanted = [name for name, on in self._wanted.items() if on]
                self._statuses |= dict.fromkeys(wanted, SourceStatus.failed(error))
            # The file of the start remains where the disk is full.
            with contextlib.suppress(OSError):
                self._save(closed=False)

    def _start_torch_sources(self) -> None:
        # Imported with PyTorch: a program without it starts sooner.
        from gpuprof.record.backward_layers import BackwardLayerSource
        from gpuprof.record.kernels import KernelSource
        from gpuprof.record.layers import LayerSource
        from gpuprof.record.operators import OperatorSource
        from gpuprof.record.pauses import CompilationSource
        from gpuprof.record.program_settings import SettingsSource

        self._settings = self._settings or SettingsSource(self._settings_found)
        sources: dict[str, _Source] = {
            "kernels": KernelSource(
                self._kernels_began,
                self.path / SEGMENTS,
                layers=self._wanted["layers"],
                whole_graphs=self._options.gpu == "whole-graphs",
            ),
            "layers": LayerSource(self._modules, self._first_calls),
            # Before the operators, since it calls some of its own.
            "backward_layers": BackwardLayerSource(),
            "operators": OperatorSource(),
            "settings": self._settings,
            "compilations": CompilationSource(),
        }
        wanted = {**self._wanted, "backward_layers": self._wanted["layers"] and self._wanted["operators"]}
        self._modules = ()  # a recording keeps no model alive
        for name, source in sources.items():
            if wanted.get(name, True):
                self._start_source(name, source)

    def _start_source(self, name: str, source: _Source) -> None:
        try:
            status = source.start()
        except Exception as error:
            # The program's torch may be another library, or a model may refuse to be walked.
            source.stop()
            status = SourceStatus.failed(error)
        self._statuses[name] = status
        # The kernels' source may begin later.
        if name == "kernels" or status.is_on:
            self._sources[name] = source

    def _take_facts(self, name: str, source: _Source) -> None:
        self._add_notes(getattr(source, "notes", ()))
        if name == "gc":
            self._statuses["gc"] = self._collections.status
        facts: dict[str, Any] = getattr(source, "facts", {})
        layer_types: dict[str, Any] = self._facts.get("layer_types", {})
        self._facts |= facts
        if "layer_types" in facts:
            # Before a pause, layers were named too.
            self._facts["layer_types"] = layer_types | facts["layer_types"]

    @own_work()
    def _kernels_began(self, status: SourceStatus) -> None:
        self._statuses["kernels"] = status
        with contextlib.suppress(OSError):
            self._save(closed=False)

    @own_work()
    def _settings_found(self) -> None:
        """Write the settings so far: a program that is killed does not end in order."""
        if "settings" in self._sources and not self.is_of_other_process:
            with contextlib.suppress(OSError):
                self._save(closed=False)

    def _add_notes(self, notes: Iterable[Note]) -> None:
        self._notes += [each for each in notes if each not in self._notes]

    def _save(self, *, closed: bool) -> None:
        for name, source in self._sources.items():
            self._take_facts(name, source)
        self._facts["torch"] = _torch_version()
        facts = dict(self._facts)
        if self._notes:
            facts["notes"] = [each.to_plain() for each in self._notes]
        sources = {name: status.to_plain() for name, status in self._statuses.items()}
        write_json(self._facts_file, {**facts, "sources": sources, "closed": closed})


class _OfProgram:
    """The recording that `gpuprof run` began in this process, if it did."""

    recording: Recording | None = None


def record_program(recording: Recording) -> None:
    """Begin the recording of a whole program, which gives way to the program's own."""
    recording.start()
    _OfProgram.recording = recording


def end_program(recording: Recording, *, wait: bool) -> bool:
    """End what `record_program` began; returns False where it is paused, and `wait` is to leave it so."""
    if _OfProgram.recording is not recording:
        if wait:
            return False
        # The end of the program, inside its own recording: what was recorded until the pause remains.
        recording.abandon()
        return True
    _OfProgram.recording = None
    recording.stop()
    return True


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
    """Continue with what `pause_for_program` returned."""
    if outer is not None and not outer.is_of_other_process:
        outer.resume()
        _OfProgram.recording = outer


def _first_calls(folder: Path) -> FirstCalls:
    from gpuprof.record.first_calls import FirstCalls
    from gpuprof.record.operator_windows import OperatorWindows

    return FirstCalls(OperatorWindows(folder))


def _stacks_of_pyinstrument(folder: Path) -> _Source:
    from gpuprof.record.python_stacks import PythonStackSource

    return PythonStackSource(folder)


def _facts(process_id: int) -> dict[str, Any]:
    clock = _native.clock_info()
    return {
        "format_version": FORMAT_VERSION,
        "gpuprof": _native.build_info()["version"],
        "process_id": process_id,
        "realtime_minus_monotonic_ns": str(clock["realtime_ns"] - clock["monotonic_ns"]),
        "clock": clock["clock"],
        "python": sys.version.partition(" ")[0],
        "torch": None,
        "gpu": None,
    }


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return None if version is None else str(version)
