# SPDX-License-Identifier: Apache-2.0
"""What runs on the GPU: kernels, copies and fills, from CUPTI's activity records; else times of layers.

The driver is never initialized on the program's behalf, since CUDA that was initialized before a fork does
not work in the child. Where the program has not done it yet, recording begins when PyTorch does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gpuprof import _native
from gpuprof.record.collector import NVTX_VARIABLE, other_nvtx_tool
from gpuprof.record.facts import (
    Method,
    NativeReason,
    Note,
    NoteCode,
    Reason,
    SourceStatus,
    error_line,
    note,
)
from gpuprof.record.fork_safe_lock import ForkSafeLock
from gpuprof.record.profiler_guard import ProfilerGuard

_LIBRARY_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_COMPILER_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
_TOOLKIT_FOLDERS = (
    "extras/CUPTI/lib64",
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
)


def cupti_folders() -> list[Path]:
    """Return the folders in which CUPTI may be: the wheels', then the toolkits'."""
    return _folders(_LIBRARY_FOLDERS)


def nvrtc_folders() -> list[Path]:
    """Return the folders in which NVRTC may be, in the same order."""
    return _folders(_COMPILER_FOLDERS)


def _folders(in_wheels: tuple[str, ...]) -> list[Path]:
    wheels = [Path(entry, folder) for entry in sys.path for folder in in_wheels]
    named = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    toolkits = [*map(Path, named), *sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    found = [*wheels, *(toolkit / folder for toolkit in toolkits for folder in _TOOLKIT_FOLDERS)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


class KernelSource:
    """Records the GPU from `start`, or from when CUDA is initialized, to `stop`.

    `report` is called with the method's line when that changes after the start. `totals` are those of
    docs/run-format.md, None while nothing was recorded. Where CUPTI refuses, and layers are recorded, those
    are timed instead. Where another tool that is idle has CUPTI's callbacks, launches come from records of
    calls. `whole_graphs`: a CUDA graph's replay is one record. A child that was forked before it used CUDA is
    recorded as well, and leaves what it knows in a file in `folder`.
    """

    def __init__(
        self,
        report: Callable[[SourceStatus], None],
        folder: Path | None = None,
        *,
        layers: bool = False,
        whole_graphs: bool = False,
    ) -> None:
        self._whole_graphs = whole_graphs
        self._holder: CuptiHolder | None = None
        self._report = report
        self._folder = folder
        self._timer = LayerTimer() if layers else None
        self._process_id = os.getpid()
        self._lock = ForkSafeLock()
        self._on = False
        self._cuda_is_used = False
        self._profiled_threads: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._facts: dict[str, Any] | None = None
        self.notes: list[Note] = []

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the file of the recording: what was recorded, counted."""
        return {"gpu": self._totals}

    @property
    def _totals(self) -> dict[str, Any] | None:
        holder = {"holder": None if self._holder is None else self._holder.facts()}
        if self._timer is not None and self._timer.totals is not None:
            return {**self._timer.totals, **holder}
        return None if self._facts is None else {**self._facts, **self._counts, **holder}

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        import torch

        if (reason := why_no_cuda(torch)) is not None:
            return SourceStatus.off(reason)
        # Set also by our own profiler of operators, which leaves CUPTI alone and begins after this.
        if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            return SourceStatus.off(Reason.PROFILER_ACTIVE)
        if torch.cuda._is_in_bad_fork() or _current.cuda_process_id not in (None, os.getpid()):
            return SourceStatus.off(Reason.FORKED_AFTER_CUDA)
        _current.source = self
        _guard.install()
        if torch.cuda.is_initialized():
            return self._begin()
        _queue_callback(torch)
        return SourceStatus.off(Reason.CUDA_NOT_INITIALIZED)

    def stop(self) -> None:
        """End. What still runs on the GPU is waited for briefly, not synchronized."""
        if _current.source is self:
            _current.source = None
            _guard.remove()
        self._report = _ignore  # the recording and its source must not keep each other alive
        with self._lock:
            self._end()
            self._stop_timer()

    def cuda_was_initialized(self) -> None:
        """Begin late, on the thread that initializes CUDA."""
        status = self._begin()
        if os.getpid() == self._process_id:
            self._report(status)
        elif self._folder is not None:
            at_end_of_child(functools.partial(self._end_child, self._folder, status))

    def step_back(self) -> bool:
        """Leave CUPTI to the profiler that this thread begins; returns whether to continue after it."""
        thread = threading.get_ident()
        with self._lock:
            if thread in self._profiled_threads:
                return False
            self._profiled_threads.add(thread)
            if self._on:
                self._end()
                self._note(note(NoteCode.GPU_STEPPED_BACK))
            return True

    def resume(self) -> None:
        """Continue after the last of the program's profilers ended."""
        with self._lock:
            self._profiled_threads.discard(threading.get_ident())
            if self._profiled_threads or not self._cuda_is_used or _current.source is not self:
                return
            if self._timer is not None and self._timer.is_on:
                return
            reason = self._switch_on()
            if reason is not None and self._facts is None:
                self._report(self._time_layers(reason))
                return
        if reason is None:
            self._report(self._status())
        else:
            self._note(note(NoteCode.GPU_ENDED_EARLY, detail=reason))

    def _end_child(self, folder: Path, status: SourceStatus) -> None:
        """End what a forked child recorded, and leave its report for the run."""
        with self._lock:
            self._end()
            self._stop_timer()
        told = {
            "process_id": os.getpid(),
            "status": status.to_plain(),
            "gpu": self._totals,
            "notes": [each.to_plain() for each in self.notes],
        }
        # On a full disk the records are still there, and the run has a note that the report is missing.
        with contextlib.suppress(OSError):
            write_report(folder, told)

    def _begin(self) -> SourceStatus:
        with self._lock:
            self._cuda_is_used = True
            _current.cuda_process_id = os.getpid()
            if self._profiled_threads:
                return SourceStatus.off(Reason.PROFILER_WAS_ACTIVE)
            if (reason := self._switch_on()) is not None:
                return self._time_layers(reason)
        if _is_capturing():
            self._note(note(NoteCode.GPU_BEGAN_IN_CAPTURE))
        return self._status()

    def _time_layers(self, why: NativeReason) -> SourceStatus:
        failure = why if self._timer is None else self._timer.start()
        if failure is None:
            return SourceStatus.on(Method.CUDA_EVENTS, Reason.GPU_REFUSED, detail=why, **self._holder_facts())
        if failure == why:
            return SourceStatus.off(Reason.GPU_REFUSED, detail=why, **self._holder_facts())
        refused = {"detail": why, "events": failure, **self._holder_facts()}
        return SourceStatus.off(Reason.GPU_AND_EVENTS_REFUSED, **refused)

    def _holder_facts(self) -> dict[str, Any]:
        return {} if self._holder is None else {"holder": self._holder.facts(), **self._holder.values}

    def _status(self) -> SourceStatus:
        assert self._facts is not None
        version, path = self._facts["cupti_version"], self._facts["cupti_path"]
        if self._facts["launches"] == "callbacks" or self._holder is None:
            return SourceStatus.on(Method.CUPTI, version=version, path=path)
        reason = Reason.CALLBACKS_OF_KINETO if self._holder.code == "kineto" else Reason.CALLBACKS_OF_OTHER
        return SourceStatus.on(Method.CUPTI, reason, version=version, path=path, **self._holder_facts())

    def _switch_on(self) -> NativeReason | None:
        started = self._start_native(callbacks=True)
        launches = "callbacks"
        if started["reason"] is not None and started["reason"]["code"] == TAKEN:
            self._holder = find_holder()
            if self._holder.is_recording:
                return {"code": "holder_records", "holder": self._holder.facts()}
            started, launches = self._start_native(callbacks=False), "calls"
        if started["version_is_unknown"]:
            self._note(note(NoteCode.CUPTI_NEWER, version=started["version"]))
        reason: NativeReason | None = started["reason"]
        if reason is None:
            self._take_started(started, launches)
        elif launches == "calls":
            return {"code": "calls_refused", "holder": self._holder_facts()["holder"], "reason": reason}
        return reason

    def _start_native(self, *, callbacks: bool) -> dict[str, Any]:
        folders = [os.fsencode(folder) for folder in cupti_folders()]
        return _native.gpu_start(folders, callbacks, self._whole_graphs)

    def _take_started(self, started: dict[str, Any], launches: str) -> None:
        self._on = True
        self._facts = self._facts or {"clock": "steady", "clock_error_ns": None, "problem": None}
        self._facts |= {"cupti_version": started["version"], "cupti_path": started["path"]}
        # Calls stay once they were used: the graphs of that time are units in the run.
        launches = "calls" if self._facts.get("launches") == "calls" else launches
        self._facts |= {"launches": launches, "whole_graphs": started["whole_graphs"]}
        if self._whole_graphs and not started["whole_graphs"]:
            self._note(note(NoteCode.NO_WHOLE_GRAPHS))

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.is_on:
            self._timer.stop()
            for each in self._timer.notes:
                self._note(each)

    def _end(self) -> None:
        if not self._on:
            return
        self._on = False
        totals = _native.gpu_stop()
        problem, error_ns = totals.pop("problem"), totals.pop("clock_error_ns")
        clock = totals.pop("clock")
        self._counts.update(totals)
        assert self._facts is not None
        if clock != "steady":
            self._facts["clock"] = clock
        if error_ns is not None:
            self._facts["clock_error_ns"] = max(error_ns, self._facts["clock_error_ns"] or 0)
        self._facts["problem"] = self._facts["problem"] or problem
        self._explain(totals, problem)

    def _explain(self, totals: dict[str, int], problem: NativeReason | None) -> None:
        if problem is not None:
            self._note(note(NoteCode.GPU_PROBLEM, detail=problem))
        for count, code in (
            (totals["dropped"], NoteCode.GPU_DROPPED),
            (totals["unfinished"], NoteCode.GPU_UNFINISHED),
            (totals["outside"], NoteCode.GPU_OUTSIDE),
            (totals["truncated"], NoteCode.GPU_TRUNCATED),
        ):
            if count:
                self._note(note(code, count=count))

    def _note(self, found: Note) -> None:
        if found not in self.notes:
            self.notes.append(found)


def why_no_cuda(torch: Any) -> Reason | None:
    """Return why this build of torch uses no CUDA, or None."""
    if getattr(torch.version, "hip", None):
        return Reason.TORCH_FOR_ROCM
    if getattr(torch.version, "cuda", None) is None:
        return Reason.TORCH_WITHOUT_CUDA
    return None


def _is_capturing() -> bool:
    """Whether this thread's stream is in a capture. Asked only once CUDA is in use."""
    import torch

    try:
        return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())
    except Exception:
        return False  # no device that can be asked, and then no capture


def _ignore(_: SourceStatus) -> None:
    pass


class _ActiveKernels:
    """The source of the recording that is active, if any."""

    source: KernelSource | None = None
    cuda_process_id: int | None = None  # in which CUDA was in use
    callback_is_queued = False


_current = _ActiveKernels()


def _queue_callback(torch: Any) -> None:
    # Once in a process, and for good: PyTorch offers no way to take a callback back.
    if not _current.callback_is_queued:
        _current.callback_is_queued = True
        torch.cuda._lazy_call(_cuda_was_initialized)


def _cuda_was_initialized() -> None:
    """Begin what waits for CUDA. Whatever goes wrong stays out of the program's first use of it."""
    source = _current.source
    if source is None or not _native.is_recording():
        return
    try:
        source.cuda_was_initialized()
    except Exception as error:
        source.notes.append(note(NoteCode.GPU_COULD_NOT_BEGIN, error=error_line(error)))


def _suspend() -> bool:
    return _current.source is not None and _current.source.step_back()


def _resume() -> None:
    if _current.source is not None:
        _current.source.resume()


_guard = ProfilerGuard(_suspend, _resume)


# ---- layers timed by pairs of CUDA events ---------------------------------------------------


class LayerTimer:
    """Times the layers that are recorded where CUPTI cannot be had, from `start` to `stop`.

    `totals` are those of docs/run-format.md, None while nothing was timed.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.notes: list[Note] = []
        self.totals: dict[str, Any] | None = None

    def start(self) -> NativeReason | None:
        """Begin; CUDA is in use. Returns why layers cannot be timed, or None."""
        import torch

        get_device = getattr(torch._C, "_cuda_getDevice", None)
        get_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if get_device is None or get_stream is None:
            return {"code": "no_current_stream"}
        reason = _native.event_timer_start(get_device, get_stream)
        self.is_on = reason is None
        return reason

    def stop(self) -> None:
        """End. Layers that still run on the GPU are waited for briefly, not synchronized."""
        if not self.is_on:
            return
        self.is_on = False
        totals = _native.event_timer_stop()
        problem = totals.pop("problem")
        self.totals = {"method": Method.CUDA_EVENTS.value, **totals, "problem": problem}
        self.notes.append(note(NoteCode.GPU_TIMES_OF_LAYERS))
        if problem is not None:
            self.notes.append(note(NoteCode.EVENTS_PROBLEM, detail=problem))
        if totals["untimed"]:
            self.notes.append(note(NoteCode.LAYERS_NOT_TIMED, count=totals["untimed"]))
        if totals["unfinished"]:
            self.notes.append(note(NoteCode.LAYERS_NOT_ENDED, count=totals["unfinished"]))


# ---- who has CUPTI's callbacks where they are refused ---------------------------------------

# CUPTI gives them to one tool of a process and does not name it: that is concluded from what is seen here.

TAKEN = "cupti_taken"  # the native core's code for CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
CUDA_INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"

HolderCode: TypeAlias = Literal["kineto", "proton", "injected", "other"]
# These record: taking CUPTI's buffers over would take their records away. Kineto registers its buffers again
# for each of its sessions, and what is not known is taken for something as idle.
_RECORDING: frozenset[HolderCode] = frozenset(("proton", "injected"))


@dataclass(frozen=True, slots=True)
class CuptiHolder:
    """The tool that has CUPTI's callbacks, and what it was concluded from."""

    code: HolderCode
    values: dict[str, str] = field(default_factory=dict)

    @property
    def is_recording(self) -> bool:
        """Whether it is a profiler that runs, which CUPTI is left to."""
        return self.code in _RECORDING

    def facts(self) -> dict[str, Any]:
        """Return what `meta.json` has of it."""
        return asdict(self)


def find_holder() -> CuptiHolder:
    """Return the likeliest holder; asked once CUPTI refused its callbacks as TAKEN."""
    if path := os.environ.get(CUDA_INJECTION_VARIABLE):
        return CuptiHolder("injected", {"variable": CUDA_INJECTION_VARIABLE, "path": path})
    if path := other_nvtx_tool():
        return CuptiHolder("injected", {"variable": NVTX_VARIABLE, "path": path})
    if "triton.profiler" in sys.modules:
        return CuptiHolder("proton")
    torch = sys.modules.get("torch")
    if torch is not None and torch.profiler.kineto_available():
        return CuptiHolder("kineto", {"torch": str(torch.__version__)})
    return CuptiHolder("other")


# ---- what a forked child knows of its GPU records -------------------------------------------

_ENDING = ".gpu.json"


def at_end_of_child(action: Callable[[], None]) -> None:
    """Have `action` run when this process, a forked one, ends in order."""
    from multiprocessing import util

    process_id = os.getpid()

    def once() -> None:
        if os.getpid() == process_id and not done:
            done.append(True)
            action()

    done: list[bool] = []
    atexit.register(once)
    # Those of multiprocessing end without Python's own exit functions.
    util.Finalize(None, once, exitpriority=0)


def write_report(folder: Path, told: dict[str, Any]) -> None:
    """Write the report of a child next to its segments. Raises OSError."""
    (folder / f"{told['process_id']}{_ENDING}").write_text(json.dumps(told), encoding="utf-8")


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of children; one that was cut off is left out."""
    told = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, ValueError):
            told.append(json.loads(path.read_text(encoding="utf-8")))
    return told
