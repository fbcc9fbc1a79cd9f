# SPDX-License-Identifier: Apache-2.0
"""Files of stack samples: small, shared by threads that end, no trouble to the program, read if damaged."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import random
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as some
import pytest

import gpuprof
from gpuprof._native import QuietCall
from gpuprof.record import frame_text, python_stacks, stack_file
from gpuprof.record.python_stacks import PythonStackSource
from gpuprof.record.stack_file import LARGEST_BLOCK_BYTES, LONGEST_STACK, StackFile
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.stacks import read_stacks

pytest.importorskip("pyinstrument")

PROCESS, THREAD = 7, 8


@pytest.fixture
def source(tmp_path: Path) -> Iterator[PythonStackSource]:
    """A source that samples at each call and return of this thread, from `start` on."""
    made = PythonStackSource(tmp_path, interval_ns=1)
    yield made
    made.stop()
    sys.setprofile(None)
    threading.setprofile(None)


def called(rounds: int = 50) -> int:
    return sum(map(abs, [called_once(number) for number in range(rounds)]))


def called_once(number: int) -> int:
    return number


def written(folder: Path, threads: int = 1, samples: int = 1, name: str = "1.stacks") -> Path:
    file = StackFile(str(folder / name), PROCESS, 10)
    for thread in range(threads):
        file.begin_thread(THREAD + thread)
        for number in range(samples):
            file.add_sample(1000 + number, 1, [file.number_of("main"), file.number_of(f"f{number % 50}")])
    assert file.failed is None
    return folder / name


# ---- the program is left in peace ---------------------------------------------------------------


def deepest(depth: int = 0) -> int:
    """Recurse as deep as Python allows, and return how deep that was."""
    try:
        return deepest(depth + 1)
    except RecursionError:
        return depth


def test_a_program_may_recurse_as_deep_as_without_samples(source: PythonStackSource) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        alone = deepest()
        source.start()
        sampled = deepest()
        placed = sys.getprofile()
    finally:
        sys.setrecursionlimit(limit)
    source.stop()
    assert sampled == alone
    assert placed is not None
    assert [note.values for note in source.notes] == [{"reasons": ["RecursionError"]}]


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), KeyError("x"), ValueError("x")])
def test_failures_of_the_sampler_are_one_note(
    source: PythonStackSource, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> int:
        raise error

    # As if it were a function of the sampler's own.
    fail.__code__ = fail.__code__.replace(co_filename=python_stacks.__file__)
    monkeypatch.setattr(StackFile, "add_sample", fail)
    source.start()
    assert called() == 1225
    source.stop()
    assert [note.values for note in source.notes] == [{"reasons": [type(error).__name__]}]


@pytest.mark.parametrize("late", [TimeoutError("late"), ValueError("late"), RecursionError("late")])
def test_what_a_signal_handler_raises_is_the_programs(
    source: PythonStackSource, monkeypatch: pytest.MonkeyPatch, late: Exception
) -> None:
    def handler(*_: object) -> None:
        raise late

    def mapped(*_: object) -> mmap.mmap:
        os.kill(os.getpid(), signal.SIGALRM)
        raise OSError(errno.EINTR, "not reached")

    mapped.__code__ = mapped.__code__.replace(co_filename=stack_file.__file__)
    monkeypatch.setattr(stack_file, "_mapped", mapped)
    former = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(type(late), match="late"):
            source.start()  # takes its first sample at once
    finally:
        signal.signal(signal.SIGALRM, former)
    source.stop()
    assert "stacks_missing" not in [note.code for note in source.notes]


def test_interrupts_and_exceptions_of_the_program_pass_through() -> None:
    class Ended(Exception):
        pass

    for error in (KeyboardInterrupt(), SystemExit(3), Ended()):
        failures: set[type[Exception]] = set()

        def fail(raised: BaseException = error) -> None:
            raise raised

        fail.__code__ = fail.__code__.replace(co_filename=frame_text.__file__)
        with pytest.raises(type(error)):
            QuietCall(fail, frame_text.OWN_FOLDER, failures)()
        assert failures == set()


def test_only_failures_of_own_files_are_kept_quiet() -> None:
    failures: set[type[Exception]] = set()
    call = QuietCall(functools.partial(int, "x"), frame_text.OWN_FOLDER, failures)
    assert call() is None
    assert failures == {ValueError}
    with pytest.raises(ZeroDivisionError):
        QuietCall(lambda: 1 // 0, frame_text.OWN_FOLDER, failures)()
    assert QuietCall(lambda *given: given, frame_text.OWN_FOLDER, failures)(1, 2) == (1, 2)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EAGAIN, errno.EINVAL, errno.ELOOP, errno.EPERM])
def test_files_that_cannot_be_written_are_one_note(
    source: PythonStackSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    full.__code__ = full.__code__.replace(co_filename=stack_file.__file__)
    monkeypatch.setattr(os, "posix_fallocate", full)
    source.start()
    assert called() == 1225
    source.stop()
    assert [note.values for note in source.notes] == [{"reasons": [os.strerror(number)]}]
    found = read_stacks(tmp_path, 0)
    assert (len(found), found.damage) == (0, [])


def test_the_text_of_a_builtin_asks_no_class_of_the_program() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(name)

    class Odd(list[int], metaclass=Meta):
        @property
        def __class__(self) -> Any:
            raise RuntimeError

    text = frame_text.builtin_text
    expected = "test_the_text_of_a_builtin_asks_no_class_of_the_program.<locals>.Odd.append (built-in)"
    assert text(list.append.__get__(Odd())) == expected
    assert text(int.from_bytes) == "int.from_bytes (built-in)"
    assert text([].append) == "list.append (built-in)"
    assert text(os.getpid) == f"{os.getpid.__module__}.getpid (built-in)"
    assert text(object()) == "? (built-in)"


# ---- size --------------------------------------------------------------------------------------


def test_threads_that_follow_one_another_share_a_small_file(
    source: PythonStackSource, tmp_path: Path
) -> None:
    seen = []
    source.start()
    for _ in range(300):
        worker = threading.Thread(target=lambda: seen.append(threading.get_native_id()) or called(1))
        worker.start()
        worker.join()
    source.stop()
    files = list(tmp_path.glob("*.stacks"))
    threads = {each.thread_id: len(each) for each in read_stacks(tmp_path, 0).threads}
    assert set(seen) <= set(threads)
    assert min(threads.values()) > 0
    assert len(files) <= 4  # of this thread, and of those that overlap for an instant
    assert source.notes == []


def test_a_thread_with_few_samples_has_a_small_file(tmp_path: Path) -> None:
    assert written(tmp_path).stat().st_size == mmap.ALLOCATIONGRANULARITY
    many = written(tmp_path, samples=9000, name="2.stacks")
    assert many.stat().st_size % LARGEST_BLOCK_BYTES == 0
    assert len(read_stacks(tmp_path, 0)) == 9001


def test_the_longest_stack_fits(tmp_path: Path) -> None:
    file = StackFile(str(tmp_path / "1.stacks"), PROCESS, 10)
    file.begin_thread(THREAD)
    for number in range(3):
        file.add_sample(1000 + number, 1, [file.number_of("f" * 5000)] * LONGEST_STACK)
    found = read_stacks(tmp_path, 0)
    assert [len(frames) for frames in found.threads[0].frames] == [LONGEST_STACK] * 3
    assert found.damage == []


def test_functions_without_end_are_not_all_kept(
    source: PythonStackSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_stacks, "MOST_KEPT", 10)
    writer = source.writer()
    for number in range(100):
        scope: dict[str, Any] = {"sys": sys}
        exec(f"def made_{number}(): return sys._getframe()", scope)
        writer.numbers_of(scope[f"made_{number}"]())
    assert len(writer._kept) <= 10
    assert len(writer._known) <= 10


# ---- damage ------------------------------------------------------------------------------------


def test_a_damaged_block_takes_no_other_with_it(tmp_path: Path) -> None:
    path = written(tmp_path, threads=2, samples=9000)
    content = bytearray(path.read_bytes())
    content[3 * LARGEST_BLOCK_BYTES + 100] ^= 1
    path.write_bytes(content)
    (tmp_path / "2.stacks").write_bytes(b"nothing")
    stacks = read_stacks(tmp_path, 1000)
    damaged = Damage(DamageCode.RECORDS, "1.stacks", 1)
    assert stacks.damage == [damaged, Damage(DamageCode.STACKS_NO_FILE, "2.stacks")]
    first, second = stacks.threads
    assert (first.thread_id, second.thread_id) == (THREAD, THREAD + 1)
    assert 9000 > len(first) > 4000
    assert len(second) == 9000


def with_head(path: Path, block_bytes: int, process_id: int, interval_ns: int) -> None:
    head = stack_file.HEAD.pack(stack_file.MAGIC, stack_file.VERSION, block_bytes, process_id, interval_ns)
    rest = path.read_bytes()[stack_file.HEAD_BYTES :]
    path.write_bytes(head + stack_file.CHECK.pack(zlib.crc32(head)) + rest)


@pytest.mark.parametrize(
    "facts",
    [(0, 7, 10), (1 << 31, 7, 10), (4096, -1, 10), (4096, 1 << 62, 10), (4096, 7, 0), (4096, 7, 1 << 62)],
)
def test_a_head_that_cannot_be_is_one_note(tmp_path: Path, facts: tuple[int, int, int]) -> None:
    path = written(tmp_path)
    with_head(path, 4096, PROCESS, 10)
    assert len(read_stacks(tmp_path, 0)) == 1
    with_head(path, *facts)
    found = read_stacks(tmp_path, 0)
    assert (len(found), found.damage) == (0, [Damage(DamageCode.STACKS_NO_FILE, "1.stacks")])


@hypothesis.given(seed=some.integers(0, 1 << 32), cut=some.integers(0, 20_000))
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_damage_is_at_most_a_note_for_the_file(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = written(folder, threads=3, samples=100)
    content = bytearray(path.read_bytes()[: cut or None])
    chance = random.Random(seed)
    for _ in range(chance.randrange(8)):
        if content:
            content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    found = read_stacks(folder, 1000)
    assert len(found.damage) <= 1
    assert len(found) <= 300


def test_times_that_cannot_be_do_not_stop_the_closing(tmp_path: Path, record: Callable[..., Any]) -> None:
    """The records' sums are right, and their times are not."""
    path = tmp_path / "r.gpuprof"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuprof.run.writer._remove_recording", lambda _: None)
        with gpuprof.profile(out=path), gpuprof.span("work"):
            pass
    for name in ("meta.json",):
        (path / name).unlink()
    file = StackFile(str(path / "segments" / "1.stacks"), os.getpid(), 10)
    file.begin_thread(os.getpid())
    for t_ns, duration_ns in ((1 << 62, 1), (1 << 61, 1 << 61), (1, (1 << 63) - 1), (10**9, -1)):
        file.add_sample(t_ns, duration_ns, [file.number_of("main")])
    file.begin_thread(-5)
    file.add_sample(1, 1, [99])
    run = gpuprof.open(path)
    assert [(each.code, each.file, each.count) for each in run.damage if each.file == "1.stacks"] == [
        ("records", "1.stacks", 6)
    ]
