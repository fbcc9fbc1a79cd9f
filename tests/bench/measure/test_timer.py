# SPDX-License-Identifier: Apache-2.0
"""The native loop does what the loops in Python do: order of calls, failures, Ctrl-C, other threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpuprof import _native
from gpuprof.bench.measure.timer import CallTimer, null_call_ns

CLOCKS = {"native": time.perf_counter_ns, "python": lambda: time.perf_counter_ns()}


@pytest.fixture(params=list(CLOCKS))
def clock(request: pytest.FixtureRequest) -> Callable[[], int]:
    return CLOCKS[request.param]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_the_order_of_calls(clock: Callable[[], int], waits: bool, cold: bool) -> None:
    seen: list[str] = []
    timer = CallTimer(
        lambda: seen.append("run"),
        (lambda: seen.append("wait")) if waits else None,
        clock,
        (lambda: seen.append("flush")) if cold else None,
    )
    timer.take(3)
    flushed = ["flush", "wait"] if waits else ["flush"]
    assert seen == 3 * [*(flushed if cold else []), "run", *(["wait"] if waits else [])]
    assert len(timer.wall_ns) == len(timer.enqueue_ns) == 3
    assert all(0 <= enqueue <= wall for enqueue, wall in zip(timer.enqueue_ns, timer.wall_ns, strict=True))


def test_times_are_nanoseconds_of_the_clock(clock: Callable[[], int]) -> None:
    """What the calls took lies within what passed outside, and is not much less than inside."""
    inside: list[int] = []

    def spin() -> None:
        begin = time.perf_counter_ns()
        while time.perf_counter_ns() - begin < 1_000_000:
            pass
        inside.append(time.perf_counter_ns() - begin)

    timer = CallTimer(spin, None, clock)
    begin = time.perf_counter_ns()
    timer.take(20)
    outside = time.perf_counter_ns() - begin
    # Ticks are calibrated to better than 1 in 10,000.
    assert all(wall >= 0.9999 * own for wall, own in zip(timer.wall_ns, inside, strict=True))
    assert sum(timer.wall_ns) <= 1.0001 * outside


@pytest.mark.parametrize("part", ["run", "wait", "flush"])
def test_what_was_finished_before_a_failure_is_kept(clock: Callable[[], int], part: str) -> None:
    calls = {"run": 0, "wait": 0, "flush": 0}
    # A cold call waits twice.
    fails_at = {"run": 6, "wait": 12, "flush": 6}[part]

    def call(name: str) -> Callable[[], None]:
        def counted() -> None:
            calls[name] += 1
            if name == part and calls[name] == fails_at:
                raise KeyError(name)

        return counted

    timer = CallTimer(call("run"), call("wait"), clock, call("flush"))
    with pytest.raises(KeyError):
        timer.take(10)
    assert len(timer.wall_ns) == len(timer.enqueue_ns) == 5


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_reaches_a_loop_over_a_callable_in_c() -> None:
    """While `sorted` runs no Python code does, in which the interpreter would look for signals."""
    timer = CallTimer(busy_in_c())
    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        # By the processor's time, of which a busy machine takes nothing.
        signal.setitimer(signal.ITIMER_PROF, 0.2)
        with pytest.raises(KeyboardInterrupt):
            timer.take(1_000_000)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert 0 < len(timer.wall_ns) < 1_000_000


def test_other_threads_get_their_turn_next_to_a_callable_in_c() -> None:
    turns: list[int] = []
    done = threading.Event()

    def other() -> None:
        while not done.is_set():
            turns.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    # No bytecode and no lock is let go of in it.
    timer = CallTimer(busy_in_c())
    before = len(turns)
    timer.take(200)
    after = len(turns)
    done.set()
    thread.join()
    assert after > before


def busy_in_c() -> Callable[[], object]:
    return partial(sorted, list(range(50_000)))


def test_no_reference_is_kept_or_lost() -> None:
    result = object()

    class Call:
        def __call__(self) -> object:
            return result

    call = Call()
    timer = CallTimer(call)
    timer.take(10)
    before = sys.getrefcount(result), sys.getrefcount(call)
    timer.take(1_000)
    assert (sys.getrefcount(result), sys.getrefcount(call)) == before


def test_a_null_call_is_above_nothing() -> None:
    assert null_call_ns(CallTimer(lambda: None)) > 0


@pytest.mark.parametrize(
    "arrays",
    [
        (np.zeros(3, np.int64), np.zeros(4, np.int64), np.zeros(3, np.int64)),
        (np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(4, np.int64)),
        (np.zeros(3), np.zeros(3, np.int64), np.zeros(3, np.int64)),
        (np.zeros(3, np.int32), np.zeros(3, np.int64), np.zeros(3, np.int64)),
    ],
)
def test_wrong_arrays_are_refused(arrays: tuple[Any, Any, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _native.time_calls(int, None, None, *arrays)
    frozen = np.zeros(3, np.int64)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writ"):
        _native.time_calls(int, None, None, frozen, np.zeros(3, np.int64), np.zeros(3, np.int64))
