# SPDX-License-Identifier: Apache-2.0
"""`gpuprof load --profile`: the run that records the process while it serves the requests of a load.

A request costs one span of a name that all requests share, and the thread that serves it. Which span is whose
is found when the run is closed (`gpuprof.run.requests_table`).
"""

from __future__ import annotations

import functools
import mmap
import shutil
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof import _native
from gpuprof.errors import BenchmarkError, RecordingError, RunError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.base import BatchTarget, RequestSink, Target, ThreadTarget
from gpuprof.load.targets.in_process import CoroutineTarget
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording import Recording, pause_for_program, resume_after
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS, create_folder, exclusive
from gpuprof.run.format import META_FILE
from gpuprof.run.quick_switching import quick_switching
from gpuprof.run.requests_table import BATCH_SPAN, REQUEST_SPAN, STEP_SPAN, TIMES, ServedRequests
from gpuprof.run.writer import close_run, preload

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.load.driver import DrivenLoad


class ProfiledLoad:
    """The recording of one load: `profiled` is the target to drive, `close` writes the run.

    It records from the end of the target's preparation until the last request has ended.
    """

    def __init__(self, path: Path, target: Target, most_requests: int) -> None:
        self.path = path
        self._recording: Recording | None = None
        self._outer: Recording | None = None
        self.threads = ServingThreads(most_requests)
        self.profiled = self._wrapped(target)

    def _wrapped(self, target: Target) -> Target:
        if isinstance(target, CoroutineTarget):
            return _ProfiledCoroutines(self, target)
        if isinstance(target, BatchTarget):
            return _ProfiledBatches(self, target)
        if isinstance(target, ThreadTarget):
            return _ProfiledCalls(self, target)
        raise BenchmarkError(
            "cannot_profile",
            f"--profile cannot follow the requests of {type(target).__name__}",
            hint="use a coroutine function as target",
        )

    def begin(self) -> None:
        """Begin to record. An earlier run of this name is replaced. Raises GpuprofError."""
        with quick_switching():
            preload()
            _make_room(self.path)
            create_folder(self.path)
            self._outer = pause_for_program()
            recording = Recording(self.path, RecordingOptions(python="auto"))
            try:
                recording.start()
            except BaseException:
                shutil.rmtree(self.path, ignore_errors=True)
                resume_after(self._outer)
                raise
            self._recording = recording

    def end(self) -> None:
        """End the recording; harmless where it has not begun."""
        if self._recording is not None:
            with quick_switching():
                self._recording.stop()
                resume_after(self._outer)
            self._recording = None

    def close(self, load: DrivenLoad) -> None:
        """Write the run, with the requests. Raises RunError where it cannot be written."""
        try:
            self._served(load).save(self.path / SEGMENTS)
        except OSError as error:
            raise RunError(
                "cannot_write",
                f"{self.path}: cannot be written ({error.strerror})",
                hint="free disk space, or use another --out",
            ) from error
        close_run(self.path)

    def _served(self, load: DrivenLoad) -> ServedRequests:
        rows, threads = load.rows, self.threads.of_requests()
        times = {name: rows[name].astype(np.int64) for name in (*TIMES, "status", "units")}
        return ServedRequests(
            index=np.arange(len(rows)),
            **times,
            thread_id=threads[: len(rows)] if load.indexes is None else threads[load.indexes],
            statuses={int(status): status.name.lower() for status in RequestStatus},
        )


def _make_room(path: Path) -> None:
    """Remove an earlier profile, and nothing else. Raises RecordingError for one that is being recorded."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not ((path / META_FILE).exists() or (path / RECORDING_FILE).exists()):
            return
        with exclusive(path) as is_free:
            if not is_free:
                raise RecordingError("in_use", f"{path} is being recorded", hint="use another --out")
            shutil.rmtree(path)
    except OSError as error:
        raise RecordingError(
            "cannot_write",
            f"{path} cannot be written ({error.strerror})",
            hint="free disk space, or use another --out",
        ) from error


class ServingThreads:
    """Which thread serves each request, written by that thread without a lock and without a new object."""

    def __init__(self, most_requests: int) -> None:
        # Pages that no request writes to take no memory.
        self._memory = mmap.mmap(-1, max(most_requests, 1) * np.dtype(np.int64).itemsize)
        self._threads = memoryview(self._memory).cast("q")
        self._ids: dict[int, int] = {}

    def of_requests(self) -> npt.NDArray[np.int64]:
        """Return the system's id of each request's thread, 0 for none."""
        return np.frombuffer(self._memory, np.int64)

    def serve(self, index: int) -> None:
        """Have the calling thread serve a request."""
        self._threads[index] = self._ids.get(threading.get_ident()) or self._own_id()

    def _own_id(self) -> int:
        found = self._ids[threading.get_ident()] = threading.get_native_id()
        return found


class _ProfiledCalls:
    def __init__(self, profile: ProfiledLoad, target: ThreadTarget) -> None:
        self._profile, self._target = profile, target
        self._span = _native.span(REQUEST_SPAN)
        self._serve, self._call = profile.threads.serve, target.call

    def prepare(self) -> None:
        self._target.prepare()
        self._profile.begin()

    def call(self, index: int) -> int:
        self._serve(index)
        with self._span:
            return self._call(index)

    def close(self) -> None:
        self._profile.end()
        self._target.close()


class _ProfiledBatches:
    def __init__(self, profile: ProfiledLoad, target: BatchTarget) -> None:
        self._profile, self._target = profile, target
        self._span = _native.span(BATCH_SPAN)
        self.max_batch, self.max_delay_ns = target.max_batch, target.max_delay_ns

    def prepare(self) -> None:
        self._target.prepare()
        self._profile.begin()

    def call_batch(self, indexes: npt.NDArray[np.int64]) -> Any:
        for index in indexes.tolist():
            self._profile.threads.serve(index)
        with self._span:
            return self._target.call_batch(indexes)

    def close(self) -> None:
        self._profile.end()
        self._target.close()


class _ProfiledCoroutines:
    """A coroutine target whose requests are spans, and each of their turns in the event loop one inside."""

    def __init__(self, profile: ProfiledLoad, target: CoroutineTarget) -> None:
        self._profile = profile
        self._function = target.function
        self._span, self._step = _native.span(REQUEST_SPAN), _native.span(STEP_SPAN)
        self._has_index = target.with_index
        self._inner = CoroutineTarget(self._served, with_index=True, units=target.units)

    async def open(self, sink: RequestSink, concurrency: int | None) -> None:
        await self._inner.open(sink, concurrency)
        self._profile.begin()

    def send(self, index: int) -> None:
        self._inner.send(index)

    async def close(self) -> None:
        self._profile.end()
        await self._inner.close()

    async def _served(self, index: int) -> None:
        self._profile.threads.serve(index)
        with self._span:
            awaited = self._function(index) if self._has_index else self._function()
            await _Steps(awaited, self._step)


class _Steps:
    """Awaits another awaitable, each turn of which is a span: what runs in between belongs to other tasks."""

    def __init__(self, awaited: Awaitable[object], span: Any) -> None:
        self._awaited, self._span = awaited, span

    def __await__(self) -> Generator[Any, Any, object]:
        inner: Any = self._awaited.__await__()
        turn: Callable[[], Any] = functools.partial(inner.send, None)
        while True:
            with self._span:
                try:
                    waits_for = turn()
                except StopIteration as ended:
                    return ended.value
            try:
                value = yield waits_for
            except BaseException as error:  # a cancellation too is the task's to handle
                turn = functools.partial(inner.throw, error)
            else:
                turn = functools.partial(inner.send, value)
