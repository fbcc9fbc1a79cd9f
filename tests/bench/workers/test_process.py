# SPDX-License-Identifier: Apache-2.0
"""A worker process: its events torn by interrupts, its exit classified, its end with its parent."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.failures import (
    SMALLER_BATCHES,
    SMALLER_OR_BUDGET,
    DoesNotFitError,
    FailureCode,
    TimeLimitError,
)
from gpuprof.bench.measure.memory import bytes_as_asked, memory_kills, parse_bytes
from gpuprof.bench.workers import process
from gpuprof.bench.workers.events import Event, Samples, State, encode_event
from gpuprof.bench.workers.measuring import SampleSender
from gpuprof.bench.workers.process import ProcessExit, _Listener
from gpuprof.bench.workers.schedule import RunEvent
from gpuprof.bench.workers.session import Session, measurement_so_far

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"
SETTINGS = JobSettings((1,), Settings(iterations=20, warmup=1))


class PlayedProcess:
    """A process run of which only the pipe is real; an interrupt has it write what `at_interrupt` holds."""

    pid = 0
    at_interrupt = b""

    def __init__(self, write_end: int) -> None:
        self.write_end = write_end
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`played(limit_s)` gives a listener and the process that it listens to."""
    opened: list[PlayedProcess] = []

    def kill(pid: int, number: int) -> None:
        os.write(opened[-1].write_end, opened[-1].at_interrupt)

    def start(limit_s: float = 60.0) -> tuple[_Listener, PlayedProcess]:
        read_end, write_end = os.pipe()
        opened.append(PlayedProcess(write_end))
        child: Any = opened[-1]
        return _Listener(child, read_end, limit_s), child

    monkeypatch.setattr(process.os, "kill", kill)
    yield start
    for each in opened:
        os.close(each.write_end)


def test_an_interrupt_in_the_middle_of_an_event_loses_nothing(played: Any) -> None:
    listener, child = played()
    whole = encode_event(Samples(wall_ns=[1, 2, 3]))
    os.write(child.write_end, encode_event(Event(State.UP)) + whole[:9])
    child.at_interrupt = whole[9:] + encode_event(Event(State.SAMPLED)) + encode_event(Event(State.DONE))
    seen: list[State] = []

    def interrupted(event: Event) -> None:
        seen.append(event.state)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        listener.follow(interrupted)
    listener.hand_over(lambda event: seen.append(event.state))
    assert seen == [State.UP, State.SAMPLES, State.SAMPLED, State.DONE]


def test_half_an_event_is_no_event(played: Any) -> None:
    listener, child = played()
    os.write(child.write_end, encode_event(Event(State.UP)) + b'{"state": "sam')
    child.code = -9
    seen: list[State] = []
    listener.follow(lambda event: seen.append(event.state))
    # It has ended, though something that it started may hold the pipe open.
    assert seen == [State.UP]


def test_a_silent_process_run_is_too_late_and_one_without_limit_is_not(played: Any) -> None:
    listener, child = played(0.05)
    os.write(child.write_end, encode_event(Event(State.PREPARED, batch_size=4)))
    with refused(TimeLimitError, "time limit", "4"):
        listener.follow(lambda event: None)
    patient, child = played(float("inf"))
    os.write(child.write_end, encode_event(Event(State.DONE)))
    patient.follow(lambda event: None)
    assert patient.last.state is State.DONE


@pytest.mark.parametrize(
    ("code", "words", "memory_killed", "expected", "names_memory", "value"),
    [
        (-9, "", True, FailureCode.OUT_OF_MEMORY, True, "SIGKILL"),
        (-9, "", False, FailureCode.FAILED, False, "SIGKILL"),
        (-9, "", None, FailureCode.FAILED, True, "SIGKILL"),  # memory may have been the reason
        (-6, "std::bad_alloc", False, FailureCode.OUT_OF_MEMORY, True, "SIGABRT"),
        (-6, "assertion failed", False, FailureCode.FAILED, False, "SIGABRT"),
        (-11, "invalid memory access", True, FailureCode.FAILED, False, "SIGSEGV"),
        (-11, "out of memory", True, FailureCode.FAILED, False, "SIGSEGV"),
        (1, "CUDA out of memory.", False, FailureCode.OUT_OF_MEMORY, True, "1"),
        (7, "last words", False, FailureCode.FAILED, False, "7"),
        (0, "", False, FailureCode.FAILED, False, "0"),
        (-64, "", False, FailureCode.FAILED, False, "SIGRTMAX"),
        (-50, "", False, FailureCode.FAILED, False, "50"),
        (None, "", False, FailureCode.FAILED, False, ""),
    ],
)
def test_exhausted_memory_is_not_a_crash(
    code: int | None,
    words: str,
    memory_killed: bool | None,
    expected: FailureCode,
    names_memory: bool,
    value: str,
) -> None:
    error = ProcessExit(code, words, memory_killed).error(doing="calls with batch size 2")
    assert (error.code, error.hint == SMALLER_OR_BUDGET) == (expected, names_memory)
    for each in (value, words, "calls with batch size 2"):
        assert each in str(error)


def test_the_systems_count_of_those_it_killed(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("oom_kill_x 4\noom_kill 3\n")
    assert memory_kills(tmp_path / "vmstat") == 3
    assert memory_kills(tmp_path / "missing") is None


@pytest.mark.parametrize(("factory", "fits"), [("without_memory_later", False), ("crashing", True)])
def test_a_search_by_memory_uses_what_is_known(factory: str, fits: bool) -> None:
    spec = SystemSpec(f"{MODELS}:{factory}", input_shape=(3,))
    found = Session(spec, SETTINGS).run(time_limit_s=60)
    assert isinstance(found.failure, DoesNotFitError) is not fits, found.failure


def test_samples_of_a_process_run_that_hangs_are_kept_and_its_size_is_not_tried_again(
    limit_calls: Callable[[float], None],
) -> None:
    spec = SystemSpec(f"{MODELS}:hanging_later", input_shape=(3,))
    settings = JobSettings((1, 2), Settings(iterations=10**6, warmup=1))
    began: list[tuple[int, int]] = []

    def watch(seen: RunEvent) -> None:
        if seen.event.state is State.PREPARING:
            began.append((seen.number, seen.event.batch_size or 0))

    session = Session(spec, settings, watch)
    limit_calls(0.5)
    found = session.run(runs=3, time_limit_s=2.0)
    assert isinstance(found.failure, TimeLimitError)
    (batch,) = found.batches
    assert 1 <= len(batch.result.samples) <= 100
    assert "hangs" in str(batch.launches[0].failure)
    assert "failed_process_runs" in {warning.code for warning in batch.result.warnings}
    assert began == [(1, 1)]


def test_a_long_fixed_warm_up_is_no_hang(limit_calls: Callable[[float], None]) -> None:
    states: list[State] = []
    spec = SystemSpec(f"{MODELS}:slow", input_shape=(3,))
    settings = JobSettings((1,), Settings(iterations=3, warmup=25))
    limit_calls(0.0)
    # 25 calls of 0.1 s each, with no more than 2 s between two events.
    session = Session(spec, settings, lambda seen: states.append(seen.event.state))
    found = session.run(time_limit_s=2.0)
    assert found.failure is None
    assert len(found.batches[0].result.samples) == 3
    assert states.count(State.WARMING) >= 3


def test_samples_are_sent_at_once_and_then_every_second() -> None:
    sent: list[Any] = []
    now = 0.0
    sender = SampleSender(sent.append, 4, lambda: now)
    for now in (0.0, 0.4, 0.9, 1.0, 1.5):
        sender.progress([round(now * 10)], None, 2)
    assert [each.wall_ns for each in sent] == [[0], [4, 9, 10]]
    found = measurement_so_far(sent, Settings(), "it hangs", "failure")
    assert (found.samples_ns.tolist(), found.enqueue_ns, found.calls, found.failure) == (
        [0, 4, 9, 10], None, 8, "it hangs",
    )  # fmt: skip
    assert len(measurement_so_far([], Settings(), "", "failure").samples_ns) == 0


PARENT = """
import sys
from gpuprof.bench.config import JobSettings
from gpuprof.bench.workers.schedule import RunEvent
from gpuprof.bench.workers.session import Session
from gpuprof.bench.config import SystemSpec
Session(SystemSpec(sys.argv[1]), JobSettings((1,))).run()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a thread ends what lets it run")
def test_a_process_run_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, f"{MODELS}:deaf"],
        env={**os.environ, "HELD": str(fifo)},
        stdout=subprocess.DEVNULL,
    )
    try:
        # The model holds the file open, in a call that lets neither Python run nor an interrupt through.
        assert select.select([reader], [], [], 180)[0]
        assert os.read(reader, 100) == b"alive"
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 180
        assert select.select([reader], [], [], deadline - time.monotonic())[0]
        assert os.read(reader, 100) == b""
    finally:
        parent.kill()
        parent.wait()
        os.close(reader)


WATCHING = """
import fcntl, sys, threading
if "thread" in sys.argv:
    del fcntl.F_SETSIG
from gpuprof.bench.workers.worker import end_with_parent
end_with_parent(0)
print("watching", flush=True)
threading.Event().wait(600)
"""


@pytest.mark.parametrize("way", ["kernel", "thread"])
def test_a_pipe_that_is_closed_ends_the_process(way: str) -> None:
    if way == "kernel" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux sends a signal that a process cannot miss")
    child = subprocess.Popen(
        [sys.executable, "-c", WATCHING, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"watching\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(180) == -9


def test_files_of_the_current_folder_replace_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "numpy", "gpuprof", "torch", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    found = Session(SystemSpec(f"{MODELS}:doubled", input_shape=(3,)), SETTINGS).run(time_limit_s=60)
    assert found.failure is None


@pytest.mark.parametrize("hint", [SMALLER_BATCHES, SMALLER_OR_BUDGET])
def test_exhausted_memory_names_the_budget_that_was_given(hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(job: Any, **_options: Any) -> None:
        raise DoesNotFitError("batch size 8 does not fit", hint=hint)

    monkeypatch.setattr("gpuprof.bench.workers.schedule.run_process", end)
    job = JobSettings((1,), Settings(iterations=20, warmup=1), 1536 << 20)
    failure = Session(SystemSpec("m"), job).run().failure
    assert isinstance(failure, DoesNotFitError)
    assert "1536MiB" in failure.hint
    assert SMALLER_OR_BUDGET not in failure.hint
    without = Session(SystemSpec("m"), SETTINGS).run().failure
    assert isinstance(without, DoesNotFitError)
    assert (without.message, without.hint) == ("batch size 8 does not fit", hint)


@pytest.mark.parametrize("text", ["12GiB", "800MB", "1B", "1500kB", "3TiB"])
def test_a_budget_is_named_as_it_was_asked_for(text: str) -> None:
    assert bytes_as_asked(parse_bytes(text)) == text
