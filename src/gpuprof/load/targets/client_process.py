# SPDX-License-Identifier: Apache-2.0
"""The client of a server in a process of its own, so that no other Python code holds its interpreter lock.

The process that starts it writes a folder and reads the mapped log of requests in it. The client prints a
summary when the load is over. It ends when its standard input does: Ctrl-C, or the death of the process that
started it, leaves no load running.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpuprof import _native
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError
from gpuprof.load.driver import PROGRESS_EVERY_S, DrivenLoad, DriveSettings
from gpuprof.load.requests import REQUEST, Nanoseconds, RequestStatus, rows_of
from gpuprof.load.targets.client import Client, OnEnd, client_failed
from gpuprof.load.targets.clients import make_client
from gpuprof.load.targets.connection_errors import no_file
from gpuprof.load.targets.event_loop import ClosedLoop, OpenLoop, RequestLoop, run_event_loop
from gpuprof.load.targets.http import HttpClient
from gpuprof.load.targets.openai import OpenAiClient
from gpuprof.load.targets.server_target import ServerTarget, load_target, save_target
from gpuprof.load.targets.token_times import TokenFile, read_tokens
from gpuprof.record.helper_process import module_command

if TYPE_CHECKING:
    import numpy.typing as npt

LOG, TOKENS = "requests.log", "tokens.bin"
_TARGET, _PLAN, _OFFSETS, _RELEASED = "target.json", "plan.json", "offsets.npy", "released.npy"
_LEAD_NS = 50_000_000  # from the connection to the first planned request
_CLOSING_S = 10.0
_CANNOT_START = "the client of the load cannot start"
_OWN_FILES = 16  # of an event loop, a log and a first connection


class LoopPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How requests start: at planned offsets or, with `outstanding` above 0, each when another ends."""

    count: int
    drain_s: float
    outstanding: int = 0
    duration_s: float | None = None


class ClientSummary(msgspec.Struct, kw_only=True):
    """What the client counted next to the log; `error` is why it could not begin."""

    start_ns: int = 0
    codes: dict[int, int] = {}
    unrequested: int = 0
    started: int = 0
    duplicates: int = 0
    streams_by_usage: int = 0
    streams_by_chunks: int = 0
    cpu_s: float = 0.0
    loop_cpu_s: float = 0.0  # of the event loop's thread while requests were sent
    error: tuple[str, str, str] | None = None
    is_unavailable: bool = False


# --- in the process of the client ------------------------------------------------------------------


def _main(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    _raise_file_limit()
    summary = ClientSummary()
    try:
        _check_file_limit()
        run_event_loop(lambda: _send(folder, summary))
    except GpuprofError as error:
        summary.error = (error.code, error.message, error.hint)
        summary.is_unavailable = isinstance(error, UnavailableError)
    except OSError as error:
        limit = no_file(error, _CANNOT_START)
        if limit is None:
            raise
        summary.error = (limit.code, limit.message, limit.hint)
    summary.cpu_s = time.process_time()
    sys.stdout.buffer.write(msgspec.json.encode(summary))


def _raise_file_limit() -> None:
    """Allow as many connections as the system does: the usual limit is 1,024."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_file_limit() -> None:
    """Raise OSError where files would run out while uvloop starts, which prints warnings then."""
    with contextlib.ExitStack() as opened:
        for _ in range(_OWN_FILES):
            opened.callback(os.close, os.dup(sys.stdin.fileno()))


async def _send(folder: Path, summary: ClientSummary) -> None:
    plan = msgspec.json.decode((folder / _PLAN).read_bytes(), type=LoopPlan)
    target = load_target(folder / _TARGET)
    log = _native.RequestLog(plan.count, str(folder / LOG))
    offsets_ns = np.load(folder / _OFFSETS)
    pacer = None if plan.outstanding else _native.Pacer(offsets_ns)
    loop, begin = _loop_of(plan, offsets_ns, pacer, log)

    def on_open() -> None:
        summary.start_ns = begin()
        summary.loop_cpu_s = -time.thread_time()

    with TokenFile(folder / TOKENS) as tokens:

        async def make(on_end: OnEnd) -> Client:
            return await make_client(target, log, on_end, tokens.add)

        _stop_at_end_of_input(loop)
        await loop.run(make, on_open)
        summary.loop_cpu_s += time.thread_time()
    log.close()
    summary.duplicates, summary.started = log.duplicates, loop.started
    if pacer is not None:
        pacer.stop()
        np.save(folder / _RELEASED, pacer.released_ns())
    _count(loop.client, summary)


def _loop_of(
    plan: LoopPlan, offsets_ns: Nanoseconds, pacer: _native.Pacer | None, log: _native.RequestLog
) -> tuple[RequestLoop, Callable[[], int]]:
    """Return the loop of a plan, and what begins it and returns its start."""
    if pacer is None:
        closed = ClosedLoop(
            plan.count,
            outstanding=plan.outstanding,
            duration_s=math.inf if plan.duration_s is None else plan.duration_s,
            drain_s=plan.drain_s,
            on_next=log.plan_next,
        )
        return closed, time.monotonic_ns
    planned = rows_of(log)["planned_ns"]

    def begin() -> int:
        start_ns = time.monotonic_ns() + _LEAD_NS
        planned[:] = offsets_ns + start_ns
        pacer.start(start_ns)
        return start_ns

    return OpenLoop(pacer, plan.count, drain_s=plan.drain_s), begin


def _stop_at_end_of_input(loop: RequestLoop) -> None:
    events = asyncio.get_running_loop()

    def on_input() -> None:
        events.remove_reader(sys.stdin.fileno())
        loop.stop()

    events.add_reader(sys.stdin.fileno(), on_input)


def _count(client: Client | None, summary: ClientSummary) -> None:
    if isinstance(client, HttpClient):
        summary.codes = dict(client.codes)
        summary.unrequested = client.unrequested
    if isinstance(client, OpenAiClient):
        summary.streams_by_usage = client.totals.by_usage
        summary.streams_by_chunks = client.totals.by_chunks


# --- in the process that starts it -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A load on a server: its requests, the arrivals of its tokens, and what the client counted."""

    driven: DrivenLoad
    tokens: npt.NDArray[Any]
    summary: ClientSummary


def drive_server(
    target: ServerTarget, arrivals_ns: Nanoseconds, folder: Path, settings: DriveSettings
) -> ServerLoad:
    """Send a request at each planned offset from the start; `folder`, which is empty, keeps the files.

    Raises BenchmarkError if the load cannot begin. Ctrl-C, and the death of the client's process, end the
    load and keep what was due until then.
    """
    if not len(arrivals_ns):
        raise BenchmarkError(
            "empty_plan", "the plan has no arrivals", hint="use a longer duration or a higher rate"
        )
    plan = LoopPlan(count=len(arrivals_ns), drain_s=settings.drain_s)
    return _run(target, plan, arrivals_ns, folder, settings)


def drive_server_closed(
    target: ServerTarget,
    count: int,
    folder: Path,
    settings: DriveSettings,
    *,
    duration_s: float | None = None,
) -> ServerLoad:
    """Send each request when another ended, with the target's concurrency, as `drive_server`."""
    plan = LoopPlan(
        count=count, drain_s=settings.drain_s, outstanding=target.concurrency, duration_s=duration_s
    )
    return _run(target, plan, np.zeros(0, np.int64), folder, settings)


def _run(
    target: ServerTarget, plan: LoopPlan, arrivals_ns: Nanoseconds, folder: Path, settings: DriveSettings
) -> ServerLoad:
    save_target(target, folder / _TARGET)
    (folder / _PLAN).write_bytes(msgspec.json.encode(plan))
    np.save(folder / _OFFSETS, np.ascontiguousarray(arrivals_ns, np.int64))
    command = module_command("gpuprof.load.targets.client_process", str(folder))
    interrupted_ns = None
    with _started(command) as process:
        try:
            _watch(process, folder / LOG, settings)
        except KeyboardInterrupt:
            interrupted_ns = time.monotonic_ns()
            _end(process)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode or not output:
        stopped_ns = time.monotonic_ns() if interrupted_ns is None else interrupted_ns
        return _left_by(
            process.returncode,
            folder,
            stopped_ns,
            is_interrupted=interrupted_ns is not None,
            is_closed=plan.outstanding > 0,
        )
    summary = _summary(output)
    return ServerLoad(_driven(folder, summary, interrupted_ns), read_tokens(folder / TOKENS), summary)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the client in a session of its own, so that Ctrl-C reaches this process alone."""
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        limit = no_file(error, _CANNOT_START)
        if limit is None:
            raise
        raise limit from error


def _watch(process: subprocess.Popen[bytes], log: Path, settings: DriveSettings) -> None:
    """Wait for the end of the load and report its progress; the few lines of output fit into the pipe."""
    while True:
        try:
            process.wait(PROGRESS_EVERY_S)
        except subprocess.TimeoutExpired:
            # The file grows while its blocks are reserved, and not by whole rows.
            count = log.stat().st_size // REQUEST.itemsize if log.exists() else 0
            if settings.progress is not None and count:
                settings.progress(np.memmap(log, REQUEST, mode="r", shape=(count,)))
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_CLOSING_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _driven(folder: Path, summary: ClientSummary, interrupted_ns: int | None) -> DrivenLoad:
    if (folder / _RELEASED).exists():
        rows, released_ns = np.fromfile(folder / LOG, REQUEST), np.load(folder / _RELEASED)
        due = np.ones(len(rows), bool) if interrupted_ns is None else rows["planned_ns"] <= interrupted_ns
    else:
        # The log of a closed loop has room for more requests than were started.
        rows = np.fromfile(folder / LOG, REQUEST, count=summary.started)
        released_ns, due = rows["sent_ns"], rows["sent_ns"] > 0
    rows = rows[due]
    return DrivenLoad(
        rows=rows,
        start_ns=summary.start_ns,
        end_ns=int(rows["end_ns"].max(initial=summary.start_ns)),
        released_ns=released_ns[due],
        interrupted=interrupted_ns is not None,
        duplicates=summary.duplicates,
    )


def _left_by(
    code: int, folder: Path, stopped_ns: int, *, is_interrupted: bool, is_closed: bool
) -> ServerLoad:
    """Return what a client had measured whose process ended before the load. Raises BenchmarkError."""
    rows = np.fromfile(folder / LOG, REQUEST) if (folder / LOG).exists() else np.zeros(0, REQUEST)
    rows = rows[(rows["planned_ns"] > 0) & (rows["planned_ns"] <= stopped_ns)]
    if is_closed:  # the next request has a plan before it is sent
        rows = rows[rows["sent_ns"] > 0]
    was_sent = rows["sent_ns"] > 0
    if not was_sent.any():
        raise client_failed(code)
    is_open = rows["status"] <= RequestStatus.PENDING
    rows["status"][is_open] = np.where(was_sent[is_open], RequestStatus.TIMEOUT, RequestStatus.NOT_SENT)
    rows["end_ns"][is_open] = stopped_ns
    driven = DrivenLoad(
        rows=rows,
        start_ns=int(rows["planned_ns"].min()),
        end_ns=int(rows["end_ns"].max()),
        released_ns=rows["sent_ns"],
        interrupted=is_interrupted,
        client_code=code,
    )
    return ServerLoad(driven, read_tokens(folder / TOKENS), ClientSummary(start_ns=driven.start_ns))


def _summary(output: bytes) -> ClientSummary:
    summary = msgspec.json.decode(output, type=ClientSummary)
    if summary.error is not None:
        code_of, message, hint = summary.error
        if summary.is_unavailable:
            raise UnavailableError(code_of, message, hint=hint)
        raise BenchmarkError(code_of, message, hint=hint)
    return summary


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
