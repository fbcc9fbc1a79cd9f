# SPDX-License-Identifier: Apache-2.0
"""The native sampler of Python's stacks: what it reads, of which threads, and what it does not disturb."""

from __future__ import annotations

import argparse
import asyncio
import functools
import inspect
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprof
from gpuprof import _native
from gpuprof.cli.header import header, without_sampler
from gpuprof.record import recording, stack_sampler
from gpuprof.record.facts import Method, Note, NoteCode, Reason
from gpuprof.record.frame_text import CUT_OFF, frame_naming, is_hidden
from gpuprof.run.call_sites import CallSite, called_at, waited_ns
from gpuprof.run.facts import statuses_of
from gpuprof.run.stacks import Stacks, read_stacks

pytestmark = pytest.mark.skipif(
    stack_sampler.why_not() is not None, reason="the sampler does not work with this interpreter"
)

Codes = tuple[list[int], list[int]]
SCHEDSTAT = Path("/proc/self/schedstat")
HAS_COLUMNS = sys.version_info >= (3, 11)


def own_codes() -> Codes:
    """Return the code objects of this stack, by Python and by the sampler's reader."""
    frame, codes = sys._getframe(), []
    while frame is not None:
        codes.append(id(frame.f_code))
        frame = frame.f_back
    return codes, _native.own_stack_codes()


def generator() -> Iterator[Codes]:
    yield own_codes()


async def coroutine() -> Codes:
    await asyncio.sleep(0)
    return own_codes()


def recursion(depth: int, last: Callable[[], Any]) -> Any:
    return last() if depth == 0 else recursion(depth - 1, last)


class Attribute:
    def __getattr__(self, name: str) -> Codes:
        return own_codes()


@pytest.mark.parametrize(
    "call",
    [
        own_codes,
        functools.partial(own_codes),
        lambda: next(generator()),
        lambda: next(map(lambda each: own_codes(), [1])),  # noqa: C417 - called by a native function
        lambda: asyncio.run(coroutine()),
        lambda: recursion(700, own_codes),
        lambda: eval("own_codes()", globals()),
        lambda: Attribute().missing,
    ],
)
def test_a_stack_is_that_of_python(call: Callable[[], Codes]) -> None:
    by_python, by_reader = call()
    assert by_reader == by_python


def codes_below(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_below(constant)


@pytest.mark.parametrize("module", [argparse, asyncio.base_events, inspect])
def test_positions_of_instructions_are_those_of_python(module: types.ModuleType) -> None:
    code = compile(inspect.getsource(module), "module.py", "exec")
    checked = 0
    for each in codes_below(code):
        for offset, expected in positions(each):
            found = _native.code_position(each.co_linetable, each.co_firstlineno, offset)
            assert found[: len(expected)] == expected, (each.co_name, offset)
            checked += 1
    assert checked > 1_000


def positions(code: types.CodeType) -> Iterator[tuple[int, tuple[int, ...]]]:
    if HAS_COLUMNS:
        for number, place in enumerate(code.co_positions()):
            yield 2 * number, tuple(-1 if each is None else each for each in place)
    else:
        for begin, end, line in code.co_lines():
            yield from ((offset, (-1 if line is None else line,)) for offset in range(begin, end, 2))


@pytest.mark.parametrize("path", ["<frozen site>", "<frozen zipimport>", "<frozen importlib._bootstrap>"])
def test_what_starts_python_and_imports_modules_is_hidden(path: str) -> None:
    assert is_hidden(compile("", path, "exec"))


def test_stacks_are_sampled_into_a_folder_that_is_not_utf8(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / os.fsdecode(b"run\xff"), python=True) as profile:
        time.sleep(0.02)
    assert profile.run.sql("SELECT 1 FROM stacks").fetchall()


def slow_library_call(*_: object) -> None:
    """A slow function, in place of one of Python's library that gpuprof itself calls."""
    time.sleep(0.02)


def test_start_and_end_of_a_recording_are_not_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "processor_seconds", slow_library_call)
    with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as profile:
        time.sleep(0.02)
    frames = profile.run.sql("SELECT DISTINCT unnest(frames) FROM stacks").fetchall()
    names = {frame.partition(" ")[0] for (frame,) in frames}
    assert "test_start_and_end_of_a_recording_are_not_sampled" in names
    assert not names & {"slow_library_call", "ContextDecorator.__call__.<locals>.inner", "inner"}


def sampled(folder: Path, call: Callable[[], object], interval_ns: int = 200_000) -> Stacks:
    """Return the samples of all threads during a call."""
    sampler = _native.StackSampler(str(folder / "1.stacks"), interval_ns, frame_naming())
    assert sampler.start() == 0
    try:
        call()
    finally:
        sampler.stop()
    assert sampler.error == 0
    return read_stacks(folder, 0)


def texts_of(stacks: Stacks) -> list[list[str]]:
    return [[stacks.texts[frame] for frame in frames] for each in stacks.threads for frames in each.frames]


def busy(until: Callable[[], bool]) -> int:
    count = 0
    while not until():
        count += abs(count)
    return count


def for_cpu_time(seconds: float) -> Callable[[], bool]:
    """Return what is true once this thread used that much processor time, whatever else the machine does."""
    end = time.thread_time() + seconds
    return lambda: time.thread_time() > end


def test_a_wait_is_no_processor_time_and_has_the_name_of_its_function(tmp_path: Path) -> None:
    stacks = sampled(tmp_path, lambda: time.sleep(0.5))
    (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
    waits = [number for number, cpu_ns in enumerate(thread.cpu_ns) if cpu_ns == 0]
    assert sum(thread.duration_ns[number] for number in waits) > 200_000_000
    if HAS_COLUMNS:
        names = {stacks.texts[thread.frames[number][-1]] for number in waits}
        assert "time.sleep (built-in)" in names


def test_a_computing_thread_is_on_a_processor_or_ready(tmp_path: Path) -> None:
    stacks = sampled(tmp_path, lambda: busy(for_cpu_time(0.5)))
    (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
    assert sum(thread.cpu_ns) > 200_000_000
    assert sum(thread.cpu_ns) + sum(thread.queued_ns) <= sum(thread.duration_ns)
    assert any(text.startswith("busy (") for texts in texts_of(stacks) for text in texts)
    lines, first = inspect.getsourcelines(busy)
    inside = {
        line
        for line, frames in zip(thread.line, thread.frames, strict=True)
        if stacks.texts[frames[-1]].startswith("busy (")
    }
    assert inside <= set(range(first, first + len(lines)))
    assert inside


@pytest.fixture
def shared_processor() -> Iterator[None]:
    """Have this thread, and those that it starts, share a processor with two programs that compute."""
    if not SCHEDSTAT.exists():
        pytest.skip("the kernel does not count the time in the queue")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for each in others:
        each.kill()
        each.wait()
    os.sched_setaffinity(0, before)


def queued_ns() -> int:
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])


@pytest.mark.usefixtures("shared_processor")
def test_a_thread_that_others_keep_from_the_processor_does_not_wait(tmp_path: Path) -> None:
    before_ns = queued_ns()
    stacks = sampled(tmp_path, lambda: busy(for_cpu_time(0.3)), interval_ns=1_000_000)
    in_queue_ns = queued_ns() - before_ns
    (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
    waits = map(waited_ns, thread.duration_ns, thread.cpu_ns, thread.queued_ns)
    assert in_queue_ns > 200_000_000
    assert sum(waits) < 0.05 * in_queue_ns
    assert 0.9 * in_queue_ns < sum(thread.queued_ns) < 1.1 * in_queue_ns


@pytest.mark.usefixtures("shared_processor")
def test_a_wait_is_no_time_in_the_queue(tmp_path: Path) -> None:
    def sleep_and_compute() -> None:
        for _ in range(8):
            busy(for_cpu_time(0.006))
            time.sleep(0.0485)

    before_ns = queued_ns()
    stacks = sampled(tmp_path, sleep_and_compute, interval_ns=1_000_000)
    in_queue_ns = queued_ns() - before_ns
    (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
    assert sum(thread.queued_ns) < 1.1 * in_queue_ns
    waits = map(waited_ns, thread.duration_ns, thread.cpu_ns, thread.queued_ns)
    assert sum(waits) > 0.7 * 8 * 48_500_000


@pytest.mark.usefixtures("shared_processor")
def test_short_waits_are_those_of_the_functions_that_wait(tmp_path: Path) -> None:
    in_sleep_ns = 0

    def sleep_and_compute() -> None:
        nonlocal in_sleep_ns
        for _ in range(100):
            busy(for_cpu_time(0.0031))
            before_ns = time.monotonic_ns()
            time.sleep(0.002)
            in_sleep_ns += time.monotonic_ns() - before_ns

    stacks = sampled(tmp_path, sleep_and_compute, interval_ns=1_000_000)
    (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
    times = list(map(waited_ns, thread.duration_ns, thread.cpu_ns, thread.queued_ns))
    names = [stacks.texts[frames[-1]] for frames in thread.frames]
    of_function = {
        name: sum(time for time, each in zip(times, names, strict=True) if each.startswith(name))
        for name in ("time.sleep", "busy (")
    }
    assert of_function["busy ("] < 0.05 * 200_000_000
    if HAS_COLUMNS:
        # On a processor with other threads, it is in the queue after each sleep.
        assert 0.8 * 200_000_000 < of_function["time.sleep"] < 1.05 * in_sleep_ns


def test_what_runs_for_less_than_an_interval_between_waits_has_its_time(tmp_path: Path) -> None:
    def sleep_and_compute() -> None:
        for _ in range(150):
            busy(for_cpu_time(0.0004))
            time.sleep(0.0026)

    def in_busy_ns(folder: Path) -> int:
        folder.mkdir()
        stacks = sampled(folder, sleep_and_compute, interval_ns=1_000_000)
        (thread,) = (each for each in stacks.threads if each.thread_id == threading.get_native_id())
        return sum(
            cpu_ns
            for cpu_ns, frames in zip(thread.cpu_ns, thread.frames, strict=True)
            if any(stacks.texts[frame].startswith("busy (") for frame in frames)
        )

    # Other programs may keep the sampler from its processor for many intervals, but not each time.
    found = [in_busy_ns(tmp_path / str(number)) for number in range(3)]
    assert 0.7 * 150 * 400_000 < max(found) < 1.3 * 150 * 400_000


def test_threads_of_before_the_start_are_sampled(tmp_path: Path) -> None:
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), busy(for_cpu_time(0.4)), done.set()))
    thread.start()
    stacks = sampled(tmp_path, lambda: (go.set(), done.wait()))
    thread.join()
    of_thread = next(each for each in stacks.threads if each.thread_id == thread.native_id)
    assert any(stacks.texts[frames[-1]].startswith("busy (") for frames in of_thread.frames)


def outermost(until: Callable[[], bool]) -> None:
    while not until():
        first_way()
        second_way()


def first_way() -> None:
    first_middle()


def first_middle() -> None:
    first_innermost()


def first_innermost() -> int:
    return sum(range(200))


def second_way() -> None:
    second_middle()


def second_middle() -> None:
    second_innermost()


def second_innermost() -> int:
    return sum(range(200))


def test_stacks_that_change_while_they_are_read_are_not_mixed(tmp_path: Path) -> None:
    """Two ways through functions of the same depth, taken in turns while they are read."""
    stacks = sampled(tmp_path, lambda: outermost(for_cpu_time(1.0)), interval_ns=50_000)
    ways = [["outermost", f"{way}_way", f"{way}_middle", f"{way}_innermost"] for way in ("first", "second")]
    names = {name for way in ways for name in way}
    found = [
        [text.partition(" ")[0] for text in texts if text.partition(" ")[0] in names]
        for texts in texts_of(stacks)
    ]
    mixed = sum(all(each != way[: len(each)] for way in ways) for each in found)
    assert sum(len(each) > 1 for each in found) > 10
    # Two moments a fraction of a microsecond apart, with the same frame innermost, remain. With one copy
    # instead of two, 5% or more of these stacks were mixed if the sampler had a processor of its own.
    assert mixed <= len(found) // 40


def test_functions_and_threads_without_end(tmp_path: Path) -> None:
    def churn() -> None:
        for number in range(200):
            names: dict[str, Any] = {}
            exec(f"def made_{number}(many):\n    return sum(range(many))", names)
            thread = threading.Thread(target=names[f"made_{number}"], args=(100_000,))
            thread.start()
            thread.join()

    stacks = sampled(tmp_path, churn, interval_ns=50_000)
    assert stacks.damage == []
    assert any("churn" in text for text in stacks.texts)


def test_a_deep_stack_is_cut_at_its_outer_end(tmp_path: Path) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        stacks = sampled(tmp_path, lambda: recursion(3_000, lambda: busy(for_cpu_time(0.4))))
    finally:
        sys.setrecursionlimit(before)
    cut = [texts for texts in texts_of(stacks) if texts and texts[0] == CUT_OFF]
    assert max(map(len, texts_of(stacks))) <= 1_000
    assert any(text.startswith("busy (") for texts in cut for text in texts)


@pytest.mark.parametrize("path", ["a<b>&\"'.py", "\u5c42/\U0001f525.py", "undecodable\udcff.py"])
def test_names_of_any_characters(tmp_path: Path, path: str) -> None:
    names: dict[str, Any] = {"busy": busy}
    exec(compile("def h\u00e9(until):\n    while not until():\n        pass", path, "exec"), names)
    stacks = sampled(tmp_path, lambda: names["h\u00e9"](for_cpu_time(0.4)))
    shown = path.encode("utf-8", "backslashreplace").decode("utf-8")
    assert f"h\u00e9 ({shown}:1)" in stacks.texts


class CountingSampler:
    """A native sampler that read and dropped as many stacks as are given."""

    error = 0

    def __init__(self, torn: int, samples: int) -> None:
        self.counts = {"torn": torn, "samples": samples, "cpu_ns": 0}

    def start(self) -> int:
        return 0

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("torn", "samples", "is_reported"), [(1, 5, False), (20, 0, False), (30, 970, True), (30, 100_000, False)]
)
def test_many_dropped_stacks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int, samples: int, is_reported: bool
) -> None:
    monkeypatch.setattr(_native, "StackSampler", lambda *_: CountingSampler(torn, samples))
    monkeypatch.setattr(stack_sampler, "_pauses", set())
    source = stack_sampler.StackSamplerSource(tmp_path)
    source.start()
    source.stop()
    values = {"torn": torn, "samples": torn + samples}
    assert source.notes == ([Note(NoteCode.STACKS_TORN, values, (os.getpid(),))] if is_reported else [])


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    source = stack_sampler.StackSamplerSource(tmp_path / "missing")
    status = source.start()
    source.stop()
    assert not status.is_on
    assert status.reason is Reason.FAILED


@pytest.mark.texts
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"knows_interpreter": lambda: False}, Reason.INTERPRETER_UNKNOWN),
        ({"own_stack_codes": list}, Reason.INTERPRETER_UNKNOWN),
        ({"stack_memory_error": lambda: 1}, Reason.MEMORY_NOT_READABLE),
    ],
)
def test_where_it_does_not_work_only_who_asks_gets_pyinstrument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], reason: Reason
) -> None:
    pytest.importorskip("pyinstrument")
    for name, value in changed.items():
        monkeypatch.setattr(_native, name, value)
    assert stack_sampler.why_not() is reason
    for wanted, is_on in (("auto", False), (True, True)):
        with gpuprof.profile(out=tmp_path / f"{wanted}.gpuprof", python=wanted) as recorded:
            busy(for_cpu_time(0.01))
        status = statuses_of(recorded.run.meta)["python"]
        assert (status.is_on, status.reason) == (is_on, reason)
        assert status.method is (Method.PYINSTRUMENT if is_on else None)
        line = without_sampler(recorded.run.meta)
        assert line is not None
        assert ("--python" in line) is not is_on  # the hint
        shown = " ".join(header(recorded.run.path, recorded.run.meta).split())
        assert line in shown
        assert ("stack sample" in shown) is is_on


def test_the_run_holds_the_columns(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recorded:
        busy(for_cpu_time(0.4))
    rows = recorded.run.sql(
        "SELECT count(*) > 0, bool_and(cpu_ns BETWEEN 0 AND duration_ns), bool_and(line > 0) FROM stacks "
        "WHERE array_to_string(frames, ' ') LIKE '%busy (%'"
    ).fetchall()
    assert rows == [(True, True, True)]
    assert statuses_of(recorded.run.meta)["python"].method is Method.FRAMES
    assert without_sampler(recorded.run.meta) is None


def test_called_functions_by_their_places(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("x = one.two(\n    3)\ny = [f(1)(2)]\n")
    assert called_at(CallSite(str(source), 1, 2, 4, 6)) == "one.two"
    assert called_at(CallSite(str(source), 3, 3, 5, 12)) == "f(1)"
    assert called_at(CallSite(str(source), 3, 3, 0, 1)) is None
    assert called_at(CallSite(str(tmp_path / "gone.py"), 1, 1, 0, 1)) is None
    (tmp_path / "bad.py").write_bytes(b"\x00(")
    assert called_at(CallSite(str(tmp_path / "bad.py"), 1, 1, 0, 1)) is None


@pytest.mark.parametrize(
    ("line", "end_line", "column", "end_column"),
    [
        (0, 1, 0, 3),
        (1, 1, -1, 3),
        (1, 1, 0, 1),
        (1, 1, 0, 5),
        (1, 1, 2, 5),
        (2, 1, 0, 3),
        (3, 3, 2, 5),
        (9, 9, 0, 3),
    ],
)
def test_a_place_that_is_no_whole_call_has_no_name(
    tmp_path: Path, line: int, end_line: int, column: int, end_column: int
) -> None:
    source = tmp_path / "a.py"
    source.write_text("f()(2)\nx = (y\n .b())\n")
    assert called_at(CallSite(str(source), line, end_line, column, end_column)) is None


def test_a_call_is_found_in_a_file_that_is_not_parsed(tmp_path: Path) -> None:
    """Parsing hundreds of files of the packages in a stack takes seconds at the end of a run."""
    source = tmp_path / "a.py"
    source.write_bytes("# coding: latin-1\r\nx = ä.read(\r\n 'ö')\r\nno python here\r\n".encode("latin-1"))
    assert called_at(CallSite(str(source), 2, 3, 4, 6)) == "ä.read"


def test_a_thread_that_waits_for_a_processor_is_not_waiting() -> None:
    assert waited_ns(10, 0, 0) == waited_ns(10, 0, -1) == 10
    assert waited_ns(10, 1, 3) == 6
    assert waited_ns(10, 0, 9) == waited_ns(10, 5, 0) == 0
    assert waited_ns(10, -1, -1) == 0  # unknown
