# SPDX-License-Identifier: Apache-2.0
"""Targets in this process: callables, coroutine functions, models with their inputs, batched or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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

    async def open(self, sink: RequestSink, concurrency: int | None) -> None:
        """Remember where to report."""
        del concurrency
        self._sink = sink

    def send(self, index: int) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(self._call(index))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, index: int) -> None:
        assert self._sink is not None
        status = RequestStatus.OK
        try:
            await (self.function(index) if self.with_index else self.function())
        except RequestError as error:
            status = error.status
        except Exception:
            status = RequestStatus.FAILED
        self._sink.end(index, status, self.units)


class SystemTarget:
    """Calls a system of `gpuprof.bench` with inputs of one batch size."""

    def __init__(self, system: FrameworkSystem, batch_size: int = 1) -> None:
        self.system = system
        self.batch_size = batch_size
        self._run: Callable[[], Any] = system.run
        self._wait = system.synchronize

    def prepare(self) -> None:
        """Load the model, make its inputs and call it once."""
        self.system.import_framework()
        self.system.load()
        self.system.prepare(self.batch_size)
        self.system.first_inference()
        self._run, self._wait = self.system.run, self.system.synchronize

    def call(self, index: int) -> int:
        """Call the model and wait for the device."""
        del index
        self._run()
        self._wait()
        return self.batch_size

    def close(self) -> None:
        """Release the model."""
        self.system.close()
