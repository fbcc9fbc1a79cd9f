# SPDX-License-Identifier: Apache-2.0
"""Replicas of a model on one device: other processes that call the same model while it is measured.

Each replica has loaded the model, prepared the same batch size and begun to call before the measured one is
warmed up. It counts its calls in memory common with the measured process, so that the calls of all
replicas in the measured time are known. Replicas end with the measured process, even if that is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, ClassVar

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import FailedRunError
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.workers.events import Event, Failed, Send, State, decode_event
from gpuprof.bench.workers.job import encode_job
from gpuprof.bench.workers.process import WORKER_PROGRAM, end_session

_COUNT = struct.Struct("q")


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """Call a model again and again; `counts` is the descriptor of the shared counts, `index` its own."""

    entry: ClassVar[str] = "gpuprof.bench.workers.replicas:run_replica"

    spec: SystemSpec
    batch_size: int
    counts: int
    index: int

    @property
    def keeps_collector(self) -> bool:
        """Whether the process records a run."""
        return False


def run_replica(job: ReplicaJob, send: Send) -> None:
    """Call the model until this process is killed. Raises GpuprofError where it cannot be called."""
    system = make_system(job.spec)
    system.import_framework()
    system.load()
    system.prepare(job.batch_size)
    system.first_inference()
    with mmap.mmap(job.counts, 0) as counts:
        send(Event(State.MEASURING, batch_size=job.batch_size))
        call, wait, offset = system.run, system.waiting(), job.index * _COUNT.size
        done = 0
        while True:
            call()
            if wait is not None:
                wait()
            done += 1
            _COUNT.pack_into(counts, offset, done)


@dataclass(frozen=True, slots=True)
class OtherReplicas:
    """The samples per second of the other replicas; None where one has ended, or completed no call.

    `exit_codes` are those of the ones that have ended, negative for a signal; `idle` others made no call.
    """

    others_items_per_s: float | None
    exit_codes: tuple[int, ...] = ()
    idle: int = 0


class Replicas:
    """The other replicas of a measured system, which call it inside of the `with` block."""

    def __init__(self, spec: SystemSpec, batch_size: int) -> None:
        self._spec, self._batch_size = spec, batch_size
        self._resources = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begin_s = 0.0
        self._before: Sequence[int] = ()

    def __enter__(self) -> Replicas:
        with ExitStack() as resources:
            file = resources.enter_context(tempfile.TemporaryFile())
            file.truncate((self._spec.replicas - 1) * _COUNT.size)
            self._counts = resources.enter_context(mmap.mmap(file.fileno(), 0))
            resources.callback(self._end)
            pipes = [
                resources.enter_context(self._start(index, file.fileno()))
                for index in range(self._spec.replicas - 1)
            ]
            for pipe in pipes:
                _wait_until_calling(pipe)
            self._resources = resources.pop_all()
        self._begin_s, self._before = time.monotonic(), self._read()
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    def counted(self) -> OtherReplicas:
        """Return what the other replicas did in the block until now."""
        calls = [now - then for now, then in zip(self._read(), self._before, strict=True)]
        elapsed_s = time.monotonic() - self._begin_s
        exits = [each.poll() for each in self._processes]
        ended = tuple(each for each in exits if each is not None)
        idle = sum(not own and exit_code is None for own, exit_code in zip(calls, exits, strict=True))
        rate = None if ended or idle else sum(calls) * self._batch_size / elapsed_s
        return OtherReplicas(rate, ended, idle)

    def _start(self, index: int, counts: int) -> IO[bytes]:
        read_end, write_end = os.pipe()
        # A session of its own: at the end of this process, the kernel kills the group of each replica.
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER_PROGRAM, str(write_end)],
            stdin=subprocess.PIPE,
            pass_fds=[write_end, counts],
            start_new_session=True,
        )
        os.close(write_end)
        self._processes.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it has ended is seen at its events
            process.stdin.write(encode_job(ReplicaJob(self._spec, self._batch_size, counts, index)))
            process.stdin.flush()
        return os.fdopen(read_end, "rb")

    def _end(self) -> None:
        for process in self._processes:
            end_session(process)  # with what it started

    def _read(self) -> list[int]:
        return [count for (count,) in _COUNT.iter_unpack(self._counts[:])]


def _wait_until_calling(pipe: IO[bytes]) -> None:
    """Wait until a replica calls the model. Raises GpuprofError where it has failed."""
    for line in pipe:
        event = decode_event(line)
        if isinstance(event, Failed):
            raise event.failure.error()
        if event.state is State.MEASURING:
            return
    raise FailedRunError(
        "another replica of the model ended before its first call", hint="use fewer replicas"
    )
