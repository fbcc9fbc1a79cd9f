# SPDX-License-Identifier: Apache-2.0
"""Device samples: power, clocks, memory and the like, read by a process that is none of the program's.

The program's interpreter lock is left alone, and so are its children: the process that reads is detached,
makes no SIGCHLD, is not found by `os.wait()`, and ends by itself when the program does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Literal

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.recording_folder import identity_of

LIBRARY = "libnvidia-ml.so.1"
PERIOD_NS = 50_000_000
LONGEST_END_S = 2.0

_SAMPLER = Path(__file__).with_name("device_sampler.py")
_LINKER_CACHE = Path("/etc/ld.so.cache")
# What the driver's library may ask for. The rest is for the program: preloaded libraries, tools, Python's.
_PASSED_ON = ("HOME", "LD_LIBRARY_PATH", "PATH")
_PASSED_ON_PREFIXES = ("NVIDIA_", "NVML_")


def has_driver() -> bool:
    """Whether the dynamic linker would find NVML here; loads nothing."""
    if sys.platform != "linux":
        return False
    if any(folder and Path(folder, LIBRARY).exists() for folder in _searched_folders()):
        return True
    try:
        return LIBRARY.encode() in _LINKER_CACHE.read_bytes()
    except OSError:
        return False


def _searched_folders() -> list[str]:
    triplet = f"{os.uname().machine}-linux-gnu"
    system = [f"{root}/{folder}" for root in ("", "/usr") for folder in ("lib64", "lib", f"lib/{triplet}")]
    return [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *system]


class DeviceSampleSource:
    """Has the devices read into a file in `folder`, from `start` to `stop`."""

    def __init__(
        self, folder: Path, *, wanted: Literal["auto"] | bool = "auto", period_ns: int | None = None
    ) -> None:
        self.notes: list[Note] = []
        self._folder = folder
        self._wanted = wanted is not False
        self._period_ns = PERIOD_NS if period_ns is None else period_ns
        self._process_id = os.getpid()
        self._leash = -1
        self._identity: tuple[int, int] | None = None

    def start(self) -> SourceStatus:
        """Begin; returns the source's status."""
        if not self._wanted:
            return SourceStatus.off(Reason.NOT_WANTED)
        if not has_driver():
            return SourceStatus.off(Reason.NO_DRIVER)
        library = _find_pynvml()
        if library is None:
            return SourceStatus.off(Reason.NO_PYNVML)
        obstacle = _obstacle()
        if obstacle is not None:
            return obstacle
        self._start_sampler(library)
        return SourceStatus.on(Method.NVML, period_ns=self._period_ns)

    def stop(self) -> None:
        """Have a last reading taken and wait for it. In a forked child, only let go."""
        leash, self._leash = self._leash, -1
        if leash < 0:
            return
        if identity_of(leash) != self._identity:
            self.notes.append(note(NoteCode.SAMPLES_MAY_END_EARLY))
            return
        if os.getpid() != self._process_id:
            os.close(leash)
            return
        if not _end_at_other_side(leash):
            self.notes.append(note(NoteCode.NVML_DID_NOT_ANSWER, limit_s=LONGEST_END_S))

    def _start_sampler(self, library: str) -> None:
        import socket

        ours, theirs = socket.socketpair()
        with contextlib.closing(theirs), contextlib.closing(ours):
            _native.start_detached(self._command(library), _environment(), theirs.fileno())
            # As a number: an object would close it in each forked child too, whatever file it is by then.
            self._leash = ours.detach()
        self._identity = identity_of(self._leash)

    def _command(self, library: str) -> list[bytes]:
        path = self._folder.resolve() / f"{self._process_id}-{time.monotonic_ns()}.samples"
        numbers = (str(self._process_id), str(self._period_ns))
        words = (sys.executable, "-I", "-S", str(_SAMPLER), str(path), *numbers, library)
        return [os.fsencode(word) for word in words]


def _find_pynvml() -> str | None:
    """Return the file of pynvml; imports nothing."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else str(Path(spec.origin).resolve())


def _obstacle() -> SourceStatus | None:
    """Return why no process can be started that would not disturb the program."""
    if "python" not in Path(sys.executable or "").name or getattr(sys, "frozen", False):
        return SourceStatus.off(Reason.NO_INTERPRETER, path=sys.executable or "this program")
    if _native.adopts_orphans():
        return SourceStatus.off(Reason.ADOPTS_ORPHANS)
    return None


def _environment() -> list[bytes]:
    return [
        os.fsencode(f"{name}={value}")
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    ]


def _end_at_other_side(leash: int) -> bool:
    """Let go and wait until the sampler has ended; returns whether it did in time."""
    import socket

    with socket.socket(fileno=leash) as connection:
        try:
            connection.shutdown(socket.SHUT_WR)  # in the copies of forked children too
            connection.settimeout(LONGEST_END_S)
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True  # it had ended before
