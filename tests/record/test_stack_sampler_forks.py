# SPDX-License-Identifier: Apache-2.0
"""The native sampler next to forks: it pauses, begins again in both processes, and keeps neither of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cpu_work import busy

from gpuprof import _native
from gpuprof.record import stack_sampler
from gpuprof.record.frame_text import frame_naming

pytestmark = pytest.mark.skipif(
    stack_sampler.why_not() is not None, reason="the sampler does not work with this interpreter"
)


def test_threads_fork_at_the_same_time(tmp_path: Path, run_python: Any) -> None:
    done = run_python(
        "-c",
        """
import os, threading
import gpuprof

def fork():
    for _ in range(25):
        if (child := os.fork()) == 0:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3

with gpuprof.profile(out="r.gpuprof", python=True):
    threads = [threading.Thread(target=fork) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()
""",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_gives_the_interpreter_to_no_other_thread(tmp_path: Path, run_python: Any) -> None:
    done = run_python(
        "-c",
        """
import os, pathlib, sys, threading, time
from gpuprof.record.stack_sampler import StackSamplerSource

class Other:
    turns = 0
    has_ended = False

def take_turns():
    while not Other.has_ended:
        Other.turns += 1
        time.sleep(0)

source = StackSamplerSource(pathlib.Path())
assert source.start().is_on
sys.setswitchinterval(1000)  # no thread asks another one for the interpreter
thread = threading.Thread(target=take_turns, daemon=True)
thread.start()
for _ in range(20):
    before = Other.turns
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert Other.turns == before
    os.waitpid(child, 0)
assert Other.turns > 0
Other.has_ended = True
thread.join()
source.stop()
""",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_ends_with_its_last_thread(tmp_path: Path, run_python: Any) -> None:
    done = run_python(
        "-c",
        """
import os, pathlib, threading
from gpuprof.record.stack_sampler import StackSamplerSource

def fork():
    child = os.fork()
    if child != 0:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

source = StackSamplerSource(pathlib.Path())
assert source.start().is_on
thread = threading.Thread(target=fork)
thread.start()
thread.join()
source.stop()
""",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


class PausedSampler:
    """A native sampler, and pauses of this thread and of another one."""

    def __init__(self, folder: Path) -> None:
        self.sampler = _native.StackSampler(str(folder / "1.stacks"), 200_000, frame_naming())
        self.pauses = _native.ForkPauses()

    def runs(self) -> bool:
        before = self.sampler.counts["samples"]
        busy(0.05)
        return self.sampler.counts["samples"] > before

    @contextmanager
    def paused_by_another_thread(self) -> Iterator[None]:
        begun, end = threading.Event(), threading.Event()

        def fork() -> None:
            self.pauses.pause()
            begun.set()
            end.wait()
            self.pauses.resume()

        thread = threading.Thread(target=fork)
        thread.start()
        begun.wait()
        yield
        end.set()
        thread.join()


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[PausedSampler]:
    found = PausedSampler(tmp_path)
    yield found
    found.sampler.stop()


def test_a_sampler_continues_after_the_last_pause(paused: PausedSampler) -> None:
    paused.pauses.add(paused.sampler)
    paused.pauses.resume()  # without a pause
    assert not paused.runs()
    assert paused.sampler.start() == paused.sampler.start() == 0
    paused.pauses.pause()
    with paused.paused_by_another_thread():
        paused.pauses.resume()
        assert not paused.runs()
    assert paused.runs()


def test_a_pause_is_not_that_of_a_thread_that_began_to_fork_before_the_sampler(paused: PausedSampler) -> None:
    paused.pauses.pause()
    paused.pauses.add(paused.sampler)
    assert paused.sampler.start() == 0
    with paused.paused_by_another_thread():
        paused.pauses.resume()
        assert not paused.runs()
    assert paused.runs()


def test_a_sampler_that_is_stopped_in_a_pause_does_not_continue(paused: PausedSampler) -> None:
    paused.pauses.add(paused.sampler)
    assert paused.sampler.start() == 0
    paused.pauses.pause()
    paused.sampler.stop()
    paused.pauses.resume()
    assert not paused.runs()


def test_a_signal_handler_that_raises_during_a_fork_ends_no_sampling(tmp_path: Path, run_python: Any) -> None:
    done = run_python(
        "-c",
        """
import os, pathlib, signal, sys, time
from gpuprof.record.stack_sampler import StackSamplerSource

class Raised(Exception): pass

def raise_it(*_):
    raise Raised

def new_samples():
    before, end = source._sampler.counts["samples"], time.thread_time() + 0.1
    while time.thread_time() < end: pass
    return source._sampler.counts["samples"] - before

sys.unraisablehook = lambda _: None
signal.signal(signal.SIGALRM, raise_it)
source = StackSamplerSource(pathlib.Path())
assert source.start().is_on
memory = bytearray(os.urandom(1)) * 100_000_000  # so that a fork takes a while
for delay in range(1, 40):
    try:
        signal.setitimer(signal.ITIMER_REAL, delay * 100e-6)
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except Raised:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
assert new_samples() > 0
source.stop()
""",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
