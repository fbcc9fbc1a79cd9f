# SPDX-License-Identifier: Apache-2.0
"""One recording of this process: its sources, its folder, and what is known of it before it is read.

A folder that is being recorded holds `recording.json` and `segments/`; closing the run turns them into
`meta.json` and tables. A program that dies leaves the first two, which is all that is needed later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gpuprof import _native
from gpuprof.errors import RecordingError
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.kernels import KernelSource
from gpuprof.record.layers import LayerSource
from gpuprof.record.operators import OperatorSource

RECORDING_FILE = "recording.json"
LOCK_FILE = "recording.lock"
SEGMENTS = "segments"


def create_folder(path: Path) -> None:
    """Make the run's folder. Raises RecordingError with the mend when it is there or cannot be made."""
    try:
        path.mkdir(parents=False)
        (path / SEGMENTS).mkdir()
    except FileExistsError:
        raise RecordingError(f"{path} exists: name another folder, or remove it first") from None
    except FileNotFoundError:
        raise RecordingError(f"{path.parent} does not exist: make it, or name another folder") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordingError(
            f"cannot make {str(path)!r}: {reason}; name a folder that can be written"
        ) from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step, so that a reader sees the old content or the new."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    draft.replace(path)


class Recording:
    """Sources switched on, from `start` to `stop`. One at a time in a process."""

    def __init__(
        self,
        path: Path,
        *,
        modules: tuple[Any, ...] = (),
        layers: bool = True,
        operators: bool = True,
        gpu: bool = True,
    ) -> None:
        self.path = path
        self._modules = modules
        self._wanted = {"layers": layers, "operators": operators, "kernels": gpu}
        self._sources: dict[str, LayerSource | OperatorSource | KernelSource] = {}
        self._methods: dict[str, str] = {"spans": "on"}
        self._hook: ImportHook | None = None
        self._lock: IO[bytes] | None = None
        self._process_id = os.getpid()
        self._facts: dict[str, Any] = {}
        self.command = [sys.executable, *sys.argv] if hasattr(sys, "argv") else []

    def start(self) -> None:
        """Begin to record into the folder, which `create_folder` made."""
        if _native.is_recording():
            raise RecordingError(
                "a recording is active in this process already: end it before the next one begins"
            )
        try:
            self._lock = _lock(self.path)
            _native.start_recording(os.fsencode(self.path / SEGMENTS))
        except OSError as error:
            self._unlock()
            raise RecordingError(f"cannot record into {self.path}: {error.strerror}") from error
        self._facts = {**_facts(self._process_id), "command": self.command}
        self._start_sources()
        self._save(closed=False)

    def stop(self) -> None:
        """End the recording. In a forked child only that child's part ends, and the run stays open."""
        if self._hook is not None:
            self._hook.remove()
        for source in reversed(self._sources.values()):
            source.stop()
        totals = _native.stop_recording()
        if os.getpid() != self._process_id:
            return
        self._facts["torch"] = _torch_version()
        if totals["storage_failed"]:
            self._note(
                f"the disk failed while recording ({totals['storage_error'] or 'names'}): events are missing"
            )
        # On a full disk the facts written at the start remain; what was recorded is readable all the same.
        with contextlib.suppress(OSError):
            self._save(closed=True)
        self._unlock()

    def _unlock(self) -> None:
        _recorded_here.discard(self.path.resolve())
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _start_sources(self) -> None:
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

    def _torch_imported(self) -> None:
        if os.getpid() == self._process_id and _native.is_recording():
            self._start_torch_sources()
            # The file of the start remains where the disk is full; the program's import must not fail.
            with contextlib.suppress(OSError):
                self._save(closed=False)

    def _start_torch_sources(self) -> None:
        sources: dict[str, LayerSource | OperatorSource | KernelSource] = {
            "kernels": KernelSource(self._kernels_began),
            "layers": LayerSource(self._modules),
            "operators": OperatorSource(),
        }
        self._modules = ()  # a recording keeps no model alive
        for name, source in sources.items():
            if not self._wanted[name]:
                continue
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

    def _kernels_began(self, method: str) -> None:
        self._methods["kernels"] = method
        with contextlib.suppress(OSError):
            self._save(closed=False)

    def _note(self, line: str) -> None:
        self._facts.setdefault("notes", []).append(line)

    def _save(self, *, closed: bool) -> None:
        for source in self._sources.values():
            for line in getattr(source, "notes", ()):
                if line not in self._facts.get("notes", []):
                    self._note(line)
            if isinstance(source, KernelSource):
                self._facts["gpu"] = source.totals
        write_json(self.path / RECORDING_FILE, {**self._facts, "sources": self._methods, "closed": closed})


# A lock of the kind used does not hold against its own process, and is lost when any copy is closed.
_recorded_here: set[Path] = set()
_closing = threading.Lock()


def _lock(path: Path) -> IO[bytes]:
    """Hold the folder until this process ends, however it ends, so that a reader knows whether to wait."""
    lock = (path / LOCK_FILE).open("wb")
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _recorded_here.add(path.resolve())
    return lock


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold a folder's lock for the time of a reading; yields False where its recorder still runs."""
    if path.resolve() in _recorded_here:
        yield False
        return
    with _closing, contextlib.ExitStack() as held:
        try:
            lock = held.enter_context((path / LOCK_FILE).open("ab"))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOENT):
                raise
            yield True
            return
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


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
