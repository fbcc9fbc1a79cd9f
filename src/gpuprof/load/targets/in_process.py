# SPDX-License-Identifier: Apache-2.0
"""Targets in this process: callables, coroutine functions, models with their inputs, batched or not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.errors import BenchmarkError
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.base import RequestError, RequestSink

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.base import FrameworkSystem


@dataclass(slots=True)
class CallableTarget:
    """Calls a function without arguments, or with the request's index (`with_index`)."""

    function: Callable[..., object]
    with_index: bool = False
    units: int = 1

    def prepare(self) -> None:
        """Do nothing: a callable is loaded."""

    def call(self, index: int) -> int:
        """Call the function."""
        if self.with_index:
            self.function(index)
        else:
            self.function()
        return self.units

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class BatchedCallableTarget:
    """Calls a function with the indexes of the requests of a batch."""

    function: Callable[[npt.NDArray[np.int64]], object]
    max_batch: int
    max_delay_ns: int

    def prepare(self) -> None:
        """Do nothing: a callable is loaded."""

    def call_batch(self, indexes: npt.NDArray[np.int64]) -> Sequence[int]:
        """Call the function; a request counts one unit."""
        self.function(indexes)
        return [1] * len(indexes)

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class CoroutineTarget:
    """Awaits a coroutine function in the event loop, a task for each request."""

    function: Callable[..., Awaitable[object]]
    with_index: bool = False
    units: int = 1
    _sink: RequestSink | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _is_closing: bool = False

    async def open(self, sink: RequestSink, concurrency: int | None) -> None:
        """Remember where to report."""
        del concurrency
        self._sink, self._is_closing = sink, False

    def send(self, index: int) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(self._call(index))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is still open."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, index: int) -> None:
        assert self._sink is not None
        status = RequestStatus.OK
        try:
            await (self.function(index) if self.with_index else self.function())
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if self._is_closing and isinstance(error, asyncio.CancelledError):
                raise
            self._sink.failed(error)
            status = error.status if isinstance(error, RequestError) else RequestStatus.FAILED
        self._sink.end(index, status, self.units)


# Which take inputs of another batch size without being compiled for it.
_ANY_SIZE = ("pytorch", "onnxruntime", "python")


class SystemTarget:
    """Calls a model of `gpuprof.bench`; request i has the batch size `sizes[i % len(sizes)]`.

    A system lives in one thread: with a higher concurrency, calls wait for each other.
    """

    def __init__(self, make: Callable[[], FrameworkSystem], sizes: npt.NDArray[np.int64]) -> None:
        self._make = make
        self._sizes: list[int] = sizes.tolist()
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Load the model, make inputs of each batch size and call it once with them."""
        system = self._system = self._make()
        distinct = sorted(set(self._sizes))
        if len(distinct) > 1 and system.framework not in _ANY_SIZE:
            raise BenchmarkError(
                "mixed_batch_sizes",
                f"--mix: models of {system.framework} are compiled for one batch size",
                hint=f"use a model of {', '.join(_ANY_SIZE)}",
            )
        system.import_framework()
        system.load()
        for size in distinct:
            system.prepare(size)
            system.first_inference()
            self._arguments[size] = system.arguments
            self._size = size

    @property
    def make(self) -> Callable[[], FrameworkSystem]:
        """What makes the system."""
        return self._make

    def call(self, index: int) -> int:
        """Call the model and wait for the device."""
        size = self._sizes[index % len(self._sizes)]
        with self._lock:
            if size != self._size:
                self._system.use(self._arguments[size])
                self._size = size
            self._system.run()
            self._system.synchronize()
        return size

    def close(self) -> None:
        """Release the model."""
        self._system.close()


class SystemBatchTarget:
    """Calls a model of `gpuprof.bench` with the requests of a batch, a sample each (dynamic batching)."""

    def __init__(self, make: Callable[[], FrameworkSystem], max_batch: int, max_delay_ns: int) -> None:
        self._make = make
        self.max_batch, self.max_delay_ns = max_batch, max_delay_ns
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Load the model, and call it once with each batch size."""
        system = self._system = self._make()
        if self.max_batch > 1 and system.framework not in _ANY_SIZE:
            raise BenchmarkError(
                "mixed_batch_sizes",
                f"--max-batch: models of {system.framework} are compiled for one batch size",
                hint=f"use a model of {', '.join(_ANY_SIZE)}",
            )
        system.import_framework()
        system.load()
        system.prepare(self.max_batch)
        system.first_inference()
        largest = system.arguments
        for size in range(self.max_batch, 0, -1):
            found = tuple(_first_samples(each, size, self.max_batch) for each in largest)
            if any(each is None for each in found):
                system.prepare(size)
                found = system.arguments
            self._arguments[size] = found
            system.use(found)
            system.run()
        system.synchronize()

    def call_batch(self, indexes: npt.NDArray[np.int64]) -> Sequence[int]:
        """Call the model and wait for the device; a request counts one unit."""
        with self._lock:
            self._system.use(self._arguments[len(indexes)])
            self._system.run()
            self._system.synchronize()
        return [1] * len(indexes)

    def close(self) -> None:
        """Release the model."""
        self._system.close()


def _first_samples(argument: Any, size: int, of: int) -> Any:
    """Return the first samples of an input, not a copy; None where its first dimension is not the batch."""
    shape = getattr(argument, "shape", None)
    return argument[:size] if shape is not None and len(shape) and shape[0] == of else None
