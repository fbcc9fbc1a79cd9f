# SPDX-License-Identifier: Apache-2.0
"""A user's mistakes and a machine's failures: one clear line each, and the measured program unharmed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import gpuprof
from gpuprof import _native
from gpuprof.run.format import TABLES
from gpuprof.run.parts import write_meta

QUIET = {"layers": False, "operators": False}
RUN = ("-m", "gpuprof", "run")


def span_once(name: str = "a") -> None:
    with gpuprof.span(name):
        pass


def check_message(error: BaseException, *words: str) -> None:
    text = str(error)
    assert len(text.splitlines()) == 1, text
    for word in words:
        assert word in text, text
    # Of a chain Python would print the traceback of another library above it.
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def check_refusal(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command said in one line what is wrong, and 2."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gpuprof: error: ")
    for word in words:
        assert word in done.stderr


# --- programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["missing.py"], "missing.py"),
        (["empty folder"], "empty folder"),
        (["-m", "no_such_module"], "no_such_module"),
        (["-m", "no_such.module"], "no_such"),
        (["-m", "plain_package"], "plain_package"),
        (["--out", "no/such/r.gpuprof", "main.py"], "no/such"),
        (["--out", "there", "main.py"], "there"),
        (["--out", "main.py", "main.py"], "main.py"),
        (["--out", "main.py/r.gpuprof", "main.py"], "main.py"),
        (["--out", "", "main.py"], "."),
        (["--out", "x" * 300, "main.py"], "x" * 300),
    ],
)
def test_run_refuses_in_one_line(tmp_path: Path, run_python: Any, words: list[str], named: str) -> None:
    (tmp_path / "main.py").write_text("print('must not run')")
    for folder in ("there", "empty folder", "plain_package"):
        (tmp_path / folder).mkdir()
    (tmp_path / "plain_package" / "__init__.py").touch()
    before = sorted(tmp_path.rglob("*"))
    check_refusal(run_python("-B", *RUN, *words, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}), named)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_script_that_cannot_be_read(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "pipe.py").mkdir()
    for name in ("loop.py", "pipe.py"):
        check_refusal(run_python(*RUN, name), name)


# --- where the run cannot be written -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("there", ["there", "exists"]),
        ("file", ["file", "exists"]),
        ("no/such.gpuprof", ["no does not exist"]),
        ("file/r.gpuprof", ["file/r.gpuprof"]),
        ("x" * 300, ["x" * 300]),
        ("nul\0byte", ["null"]),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str, words: list[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "precious").write_text("kept")
    (tmp_path / "file").write_text("kept")
    ran = False
    with pytest.raises(gpuprof.RecordingError) as caught, gpuprof.profile(out=f"{tmp_path}/{name}", **QUIET):
        ran = True
    check_message(caught.value, *words)
    assert not ran
    assert (tmp_path / "there" / "precious").read_text() == (tmp_path / "file").read_text() == "kept"
    span_once()


@pytest.mark.parametrize("out", [5, b"r.gpuprof", ["r.gpuprof"]])
def test_what_is_no_path_is_refused(out: Any) -> None:
    with pytest.raises(gpuprof.RecordingError) as caught:
        gpuprof.profile(out=out, **QUIET)
    check_message(caught.value, f"profile(out=...) takes a path, not {type(out).__name__}")


@pytest.mark.parametrize("call", [lambda: _native.start_recording("/no/such"), lambda: _decode("/no/such")])
def test_a_system_error_is_one_while_another_error_is_handled(call: Callable[[], object]) -> None:
    try:
        raise KeyError("the program's own")
    except KeyError:
        with pytest.raises(FileNotFoundError):
            call()


def _decode(folder: str) -> None:
    _native.decode(folder, 1_000, lambda *batch: None)


def test_a_read_only_folder(tmp_path: Path, read_only: Callable[[Path], Path], run_python: Any) -> None:
    folder = tmp_path / "medium"
    folder.mkdir()
    (folder / "main.py").write_text("print('must not run')")
    view = read_only(folder)
    with pytest.raises(gpuprof.RecordingError) as caught, gpuprof.profile(out=view / "r.gpuprof", **QUIET):
        pass
    check_message(caught.value, str(view / "r.gpuprof"), "Read-only")
    check_refusal(run_python(*RUN, "main.py", cwd=view), "main.gpuprof", "Read-only")
    check_refusal(run_python(*RUN, "--out", view / "r", "main.py", cwd=view), str(view / "r"))


def test_a_disk_without_room_for_the_first_events(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("512k")
    ran = []
    with pytest.raises(gpuprof.RecordingError) as caught, gpuprof.profile(out=disk / "r.gpuprof", **QUIET):
        ran.append(True)
    check_message(caught.value, str(disk / "r.gpuprof"), "space")
    assert ran == []
    assert list(disk.iterdir()) == []
    span_once()


def test_a_program_on_a_disk_without_room(
    small_disk: Callable[[str], Path], tmp_path: Path, run_python: Any
) -> None:
    disk = small_disk("512k")
    (tmp_path / "main.py").write_text("import sys; print('ran'); sys.exit(3)")
    done = run_python(*RUN, "--out", disk / "r.gpuprof", "main.py")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr == (
        f"gpuprof: cannot record into {disk}/r.gpuprof: No space left on device: make room, or name another "
        "folder; the program runs without being recorded\n"
    )
    assert list(disk.iterdir()) == []


@pytest.mark.filterwarnings("ignore:gpuprof:RuntimeWarning")
@pytest.mark.parametrize("kilobytes", range(1028, 1053, 4))
def test_a_disk_that_is_full_with_the_first_files_ends_the_recording(
    small_disk: Callable[[str], Path], kilobytes: int
) -> None:
    disk = small_disk(f"{kilobytes}k")
    try:
        with gpuprof.profile(out=disk / "r.gpuprof", **QUIET):
            pass
    except gpuprof.RecordingError as error:
        check_message(error, str(disk), "No space left on device")
    assert not _native.is_recording()


@pytest.mark.parametrize("kilobytes", range(1028, 1053, 4))
def test_a_program_on_a_disk_that_is_full_with_the_first_files(
    tmp_path: Path, run_python: Any, small_disk: Callable[[str], Path], kilobytes: int
) -> None:
    disk = small_disk(f"{kilobytes}k")
    (tmp_path / "main.py").write_text("from gpuprof import _native\nprint(_native.is_recording())")
    done = run_python(*RUN, "--out", disk / "r.gpuprof", "main.py")
    assert done.returncode == 0
    if done.stdout == "False\n":
        assert done.stderr.count("\n") == 1
        assert "make room" in done.stderr
        assert list(disk.iterdir()) == []


def check_lossy(run: gpuprof.Run, written: int) -> None:
    """The run says what it lost, and the rest is right."""
    totals = run.meta["totals"]
    assert run.meta["complete"] is False
    assert totals["dropped_events"] > 0
    assert any("disk failed" in note for note in run.meta["notes"])
    assert f"lost: {totals['dropped_events']:,} events dropped" in str(run.summary("span"))
    # The last span may have had room for its beginning only.
    assert abs(2 * written - (totals["events"] + totals["dropped_events"])) <= 2
    ((count,),) = run.sql("SELECT count(*) FROM spans WHERE name = 's' AND depth = 0").fetchall()
    assert count == totals["spans"] > 10_000


def write_spans(count: int) -> None:
    span = gpuprof.span("s")
    for _ in range(count):
        with span:
            pass


def test_a_disk_that_fills_up_while_recording(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("2500k")
    with gpuprof.profile(out=disk / "r.gpuprof", **QUIET) as recording:
        write_spans(200_000)
    check_lossy(recording.run, 200_000)
    assert "dropped" in json.dumps(gpuprof.open(disk / "r.gpuprof").meta)


@pytest.mark.parametrize("start", ["fork", "subprocess"])
def test_processes_that_find_no_room_are_told(
    tmp_path: Path, run_python: Any, small_disk: Callable[[str], Path], start: str
) -> None:
    (tmp_path / "main.py").write_text(
        "import os, subprocess, sys, gpuprof\n"
        "def spans(count):\n"
        "    for _ in range(count):\n"
        "        with gpuprof.span('s'): pass\n"
        "if sys.argv[1] == 'child': spans(100)\n"
        "elif sys.argv[1] == 'subprocess':\n"
        "    spans(1)\n"
        "    for _ in range(3): subprocess.run([sys.executable, __file__, 'child'], check=True)\n"
        "else:\n"
        "    spans(1)\n"
        "    for _ in range(3):\n"
        "        if (child := os.fork()) == 0: spans(100); os._exit(0)\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
    )
    run = small_disk("1300k") / "r.gpuprof"
    done = run_python(*RUN, "--children", "--out", run, "main.py", start)
    assert done.returncode == 0, done.stderr
    meta = gpuprof.open(run).meta
    assert not meta["complete"]
    dropped = meta["totals"]["dropped_events"]
    assert 600 <= dropped <= 610  # two of each span, and what tells in which task a process begins
    assert any("3 processes that the program started" in line for line in meta["damage"])
    assert f"{dropped} events dropped" in run_python("-m", "gpuprof", "summary", run).stdout


def test_a_file_size_limit_while_recording(tmp_path: Path, run_python: Any) -> None:
    source = """
import resource, gpuprof
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
with gpuprof.profile(out="r.gpuprof", layers=False, operators=False) as recording:
    span = gpuprof.span("s")
    for _ in range(200_000):
        with span: pass
print("unharmed", recording.run.meta["complete"])
"""
    done = run_python("-c", source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unharmed False\n", "")
    check_lossy(gpuprof.open(tmp_path / "r.gpuprof"), 200_000)


def fill(file: Path) -> None:
    """Take every byte that is left on the disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


def test_a_page_that_has_no_room_leaves_no_half_of_itself(
    small_disk: Callable[[str], Path], tmp_path: Path, record: Any
) -> None:
    record(span_once)
    disk = small_disk("100k")
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(tmp_path / "1.gpuprof").flamegraph(disk / "flame.html")
    check_message(caught.value, str(disk / "flame.html"), "No space left")
    assert list(disk.iterdir()) == []


def test_a_disk_that_is_full_when_the_tables_are_written(
    small_disk: Callable[[str], Path], recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("1500k")
    recording = gpuprof.profile(out=disk / "r.gpuprof", **QUIET)
    stop = recording._recording.stop
    monkeypatch.setattr(
        recording._recording, "stop", lambda **options: (stop(**options), fill(disk / "filler"))
    )
    with pytest.warns(RuntimeWarning, match="No space left") as warned, recording:
        span_once("kept")
    assert len(warned) == 1
    check_message(warned[0].message, str(disk / "r.gpuprof"), "open it again")
    assert "r.gpuprof: No space left on device; what was recorded is kept" in str(warned[0].message)
    with pytest.raises(gpuprof.RunError) as caught:
        _ = recording.run
    check_message(caught.value, str(disk / "r.gpuprof"))
    (disk / "filler").unlink()
    assert recorded(gpuprof.open(disk / "r.gpuprof")).names() == ["kept"]


def test_torch_is_imported_on_a_full_disk(
    small_disk: Callable[[str], Path], tmp_path: Path, run_python: Any
) -> None:
    stub = tmp_path / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text(
        "class nn:\n class Module:\n  def __call__(self): pass\n__version__ = '2.13.0'"
    )
    disk = small_disk("1100k")
    source = f"""
import gpuprof
with gpuprof.profile(out="{disk}/r.gpuprof", operators=False) as recording:
    try:
        with open("{disk}/filler", "wb", buffering=0) as file:
            while file.write(b"x" * 4096): pass
    except OSError: pass
    import torch
    print("imported", torch.__version__)
"""
    done = run_python("-W", "ignore", "-c", source)
    assert (done.returncode, done.stdout) == (0, "imported 2.13.0\n"), done.stderr


# --- damaged segments ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unclosed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder that was never closed: 3 threads, nested spans, a few names."""
    import sys

    folder = tmp_path_factory.mktemp("unclosed")
    source = """
import gpuprof, os, threading
profile = gpuprof.profile(out="r.gpuprof", layers=False, operators=False)
profile.__enter__()
def work():
    for number in range(700):
        with gpuprof.span(f"outer {number % 5}"):
            with gpuprof.span("inner"): pass
for _ in range(3):
    thread = threading.Thread(target=work); thread.start(); thread.join()
work()
os._exit(0)
"""
    path = str(Path(gpuprof.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", source], cwd=folder, check=True, env=environment, timeout=60)
    return folder / "r.gpuprof"


SPANS_WRITTEN = 4 * 700 * 2


@pytest.fixture
def copy_of(unclosed: Path, tmp_path: Path) -> Callable[[], Path]:
    count = 0

    def make() -> Path:
        nonlocal count
        count += 1
        return Path(shutil.copytree(unclosed, tmp_path / f"copy-{count}.gpuprof"))

    return make


def the_file(run: Path, ending: str) -> Path:
    (file,) = (run / "segments").glob(f"*{ending}")
    return file


def test_the_whole_segment_is_recovered(copy_of: Callable[[], Path]) -> None:
    run = gpuprof.open(copy_of())
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(SPANS_WRITTEN,)]
    assert run.meta["complete"] is False
    assert run.meta["damage"] == []
    assert run.meta["totals"]["damaged_events"] == 0


@pytest.mark.parametrize(
    "size", [0, 1, 100, 4095, 4096, 4096 + 8, 4096 + 16, 4096 + 40, 70_000, 70_007, 200_000]
)
def test_a_truncated_segment(copy_of: Callable[[], Path], size: int) -> None:
    path = copy_of()
    segment = the_file(path, ".segment")
    os.truncate(segment, size)
    run = gpuprof.open(path)
    assert run.meta["complete"] is False
    assert len(run.meta["damage"]) == 1
    assert segment.name in run.meta["damage"][0]
    ((count,),) = run.sql("SELECT count(*) FROM spans").fetchall()
    assert 0 <= count <= max(0, (size - 4096) // 16)
    assert count >= (size - 4096) // 40 - 2_000 if size > 4096 else count == 0
    assert str(run.summary(by="span"))


@pytest.mark.parametrize("size", [0, 4, 8, 12, 20, 40])
def test_a_truncated_names_file(copy_of: Callable[[], Path], size: int) -> None:
    path = copy_of()
    names = the_file(path, ".names")
    os.truncate(names, size)
    run = gpuprof.open(path)
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(SPANS_WRITTEN,)]
    known = {name for (name,) in run.sql("SELECT DISTINCT name FROM spans").fetchall()}
    assert known <= {"(lost name)", "inner", *(f"outer {number}" for number in range(5))}
    assert "(lost name)" in known
    assert run.meta["complete"] is False


@pytest.mark.parametrize("ending", [".segment", ".names"])
def test_a_missing_file(copy_of: Callable[[], Path], ending: str) -> None:
    path = copy_of()
    the_file(path, ending).unlink()
    run = gpuprof.open(path)
    ((count,),) = run.sql("SELECT count(*) FROM spans").fetchall()
    assert count == (0 if ending == ".segment" else SPANS_WRITTEN)
    assert run.meta["complete"] is False
    assert run.meta["damage"] or ending == ".segment"


FLIP_MANY = """
import os, random, shutil, sys, gpuprof
source, ending, first, last, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
chance = random.Random(seed)
for number in range(12):
    path = f"flipped-{ending}-{seed}-{number}.gpuprof"
    shutil.copytree(source, path)
    (name,) = [name for name in os.listdir(f"{path}/segments") if name.endswith(ending)]
    with open(f"{path}/segments/{name}", "r+b") as file:
        data = bytearray(file.read())
        for _ in range(chance.choice([1, 1, 1, 8, 200])):
            place = chance.randrange(first, min(last, len(data)))
            data[place] ^= 1 << chance.randrange(8)
        file.seek(0)
        file.write(data)
    run = gpuprof.open(path)
    columns = "count(*), count(DISTINCT span_id), min(duration_ns), min(depth)"
    rows = run.sql(f"SELECT {columns} FROM spans").fetchall()
    count, distinct, shortest, lowest = rows[0]
    assert count == distinct, (number, rows)
    assert count == 0 or (shortest >= 0 and lowest >= 0), (number, rows, run.meta)
    assert run.meta["complete"] is False
    for by in ("span", "layer"):
        str(run.summary(by=by))
    tree = run.sql("SELECT min(own_ns), min(total_ns) FROM call_tree").fetchall()
    assert count == 0 or min(tree[0]) >= 0, (number, tree)
    shutil.rmtree(path)
print("all opened")
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("ending", "first", "last"),
    [(".segment", 0, 4096), (".segment", 0, 160), (".segment", 4096, 100_000), (".names", 0, 1 << 20)],
    ids=["page of the header", "header", "events", "names"],
)
def test_flipped_bits_never_crash(
    unclosed: Path, run_python: Any, ending: str, first: int, last: int, seed: int
) -> None:
    done = run_python("-c", FLIP_MANY, unclosed, ending, first, last, seed)
    assert (done.returncode, done.stdout) == (0, "all opened\n"), done.stderr


def test_a_flipped_bit_in_a_tick_moves_nothing_else(copy_of: Callable[[], Path]) -> None:
    whole = gpuprof.open(copy_of())
    expected = whole.sql("SELECT span_id, parent_id, name, start_ns FROM spans ORDER BY 1").fetchall()
    chance = random.Random(7)
    for _ in range(10):
        path = copy_of()
        with the_file(path, ".segment").open("r+b") as file:
            data = bytearray(file.read())
            events = [place for place in range(4096, 80_000, 16) if data[place + 12] in (1, 2)]
            data[chance.choice(events) + 6] ^= 1 << chance.randrange(8)  # by 2**48 ticks: a day
            file.seek(0)
            file.write(data)
        run = gpuprof.open(path)
        found = run.sql("SELECT span_id, parent_id, name, start_ns FROM spans ORDER BY 1").fetchall()
        assert [row[:3] for row in found] == [row[:3] for row in expected]
        # What a recovered run is measured against may shift by rounding, not by a day.
        moved = [a for a, b in zip(found, expected, strict=True) if abs(a[3] - b[3]) > 1_000_000]
        assert len(moved) <= 1
        assert run.meta["totals"]["damaged_events"] == 1


# Where csrc/core/layout.hpp puts `latest_point` in a segment: after the identity and its checksum.
LATEST_POINT = range(72, 88)


def test_a_damaged_clock_in_the_header_is_noticed(copy_of: Callable[[], Path]) -> None:
    """A clock point that was damaged must be noticed: it would scale every time of the run."""
    whole = gpuprof.open(copy_of())
    expected = whole.sql("SELECT sum(duration_ns) FROM spans WHERE depth = 0").fetchall()[0][0]
    silent = []
    for place, bit in itertools.product(LATEST_POINT, (6, 7)):
        path = copy_of()
        with the_file(path, ".segment").open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0] ^ (1 << bit)
            file.seek(place)
            file.write(bytes([byte]))
        run = gpuprof.open(path)
        total = run.sql("SELECT sum(duration_ns) FROM spans WHERE depth = 0").fetchall()[0][0]
        shutil.rmtree(path)
        noticed = run.meta["damage"] or run.meta["totals"]["damaged_events"]
        if not noticed and abs(total - expected) > 0.5 * expected:
            silent.append((place, bit, total, expected))
    assert silent == []


def test_foreign_files_in_the_folder_are_left_out(copy_of: Callable[[], Path]) -> None:
    path = copy_of()
    (path / "segments" / "notes.txt").write_text("mine")
    (path / "segments" / "1-1.0.segment").write_bytes(os.urandom(10_000))
    (path / "segments" / "2-2.0.segment").mkdir()
    run = gpuprof.open(path)
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(SPANS_WRITTEN,)]
    assert len(run.meta["damage"]) == 2


# --- damaged runs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed") / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET):
        for _ in range(1_000):
            with gpuprof.span("outer"):
                span_once("inner")
    return path


@pytest.fixture
def damaged(closed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(closed, tmp_path / "damaged.gpuprof"))


METAS: dict[str, tuple[bytes, str]] = {
    "garbage": (b"\x00\xff\xfegarbage", "meta.json"),
    "empty": (b"", "meta.json"),
    "cut short": (b'{"format_version": 1, ', "meta.json"),
    "not an object": (b"[1, 2]", "meta.json"),
    "a number": (b"5", "meta.json"),
    "deep": (b"[" * 100_000, "meta.json"),
    "a newer version": (b'{"format_version": 2}', "upgrade"),
    "a far newer version": (b'{"format_version": 1e300}', "format_version"),
    "no version": (b"{}", "format_version"),
    "a version of text": (b'{"format_version": "1"}', "format_version"),
    "a version that is true": (b'{"format_version": true}', "format_version"),
    "version zero": (b'{"format_version": 0}', "format_version"),
}


@pytest.mark.parametrize(("content", "word"), METAS.values(), ids=list(METAS))
def test_a_damaged_meta_file(damaged: Path, content: bytes, word: str) -> None:
    (damaged / "meta.json").write_bytes(content)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged)
    check_message(caught.value, str(damaged), word)


RECORDINGS = {
    "garbage": b"\xff\x00",
    "not an object": b"5",
    "a newer version": b'{"format_version": 99}',
    "a clock of text": b'{"format_version": 1, "realtime_minus_monotonic_ns": "noon"}',
    "a clock of nothing": b'{"format_version": 1, "realtime_minus_monotonic_ns": null}',
}


@pytest.mark.parametrize("content", RECORDINGS.values(), ids=list(RECORDINGS))
def test_a_damaged_recording_file(copy_of: Callable[[], Path], content: bytes) -> None:
    path = copy_of()
    (path / "recording.json").write_bytes(content)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(path)
    check_message(caught.value, str(path))
    assert the_file(path, ".segment").exists()  # nothing that was recorded is thrown away


def test_a_recording_without_its_segments(copy_of: Callable[[], Path]) -> None:
    path = copy_of()
    shutil.rmtree(path / "segments")
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(path)
    check_message(caught.value, str(path), "segments")


def refuse_to_open(path: Path, *words: str) -> None:
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(path)
    check_message(caught.value, str(path).replace("\n", "\\n"), *words)


def test_what_is_no_run_at_all(tmp_path: Path, closed: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.gpuprof").write_text("text")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "meta.json").mkdir()
    refuse_to_open(tmp_path / "missing", "does not exist")
    refuse_to_open(tmp_path / "file.gpuprof", "is a file")
    refuse_to_open(tmp_path / "empty", "is not a run")
    refuse_to_open(tmp_path / "directory")
    refuse_to_open(closed / "meta.json", "is a file")
    refuse_to_open(closed / "spans", "is not a run")
    with pytest.raises(gpuprof.RunError):
        gpuprof.open("nul\0byte")
    with pytest.raises(gpuprof.RunError):
        gpuprof.open("")


def parquet_of(run: Path, table: str) -> Path:
    (file,) = (run / table).rglob("*.parquet")
    return file


GARBAGE = {
    "empty": lambda data: b"",
    "noise": lambda data: random.Random(1).randbytes(len(data)),
    "cut short": lambda data: data[: len(data) // 2],
    "noise in the middle": lambda data: (
        data[:4] + random.Random(2).randbytes(len(data) // 3) + data[4 + len(data) // 3 :]
    ),
    "text": lambda data: b"name,duration\na,1\n" * 100,
}


@pytest.mark.parametrize("name", ["empty", "noise", "cut short", "text"])
def test_a_later_part_replaced_by_garbage(damaged: Path, name: str) -> None:
    first = parquet_of(damaged, "spans")
    part = first.with_name("part-9-000009.parquet")
    part.write_bytes(GARBAGE[name](first.read_bytes()))
    run = gpuprof.open(damaged)
    with pytest.raises(gpuprof.RunError) as caught:
        run.sql("SELECT count(*) FROM spans")
    check_message(caught.value, str(damaged), part.name, "restore")


@pytest.mark.parametrize("place", range(1, 20))
def test_a_changed_byte_is_noticed_wherever_it_stands(damaged: Path, place: int) -> None:
    """DuckDB reads another number there, if it can unpack the page that the byte is in."""
    file = parquet_of(damaged, "call_tree")
    data = bytearray(file.read_bytes())
    data[4 + place * (len(data) - 8) // 20] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary(by="span")
    check_message(caught.value, str(damaged), "call_tree", file.name, "not as it was written", "restore")


def test_a_part_of_another_run_is_noticed(damaged: Path, copy_of: Callable[[], Path]) -> None:
    other = parquet_of(gpuprof.open(copy_of()).path, "call_tree")
    shutil.copy(other, parquet_of(damaged, "call_tree"))
    with pytest.raises(gpuprof.RunError, match="not as it was written"):
        gpuprof.open(damaged).summary(by="span")


def test_a_part_that_is_missing_is_named(damaged: Path) -> None:
    part = parquet_of(damaged, "samples")
    part.unlink()
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).sql("FROM spans")
    check_message(caught.value, str(damaged), f"samples/rank=0/{part.name} is missing", "restore")


def test_a_table_that_was_taken_out_on_purpose_is_empty(damaged: Path) -> None:
    shutil.rmtree(damaged / "samples")
    run = gpuprof.open(damaged)
    assert run.sql("FROM samples").fetchall() == []
    assert "samples/rank=0" not in str(write_meta(damaged, run.meta)["parts"])


def test_a_part_that_was_added_by_hand_is_read(damaged: Path) -> None:
    part = parquet_of(damaged, "spans")
    shutil.copy(part, part.with_name("part-9-000009.parquet"))
    assert gpuprof.open(damaged).sql("SELECT count(*) FROM spans").fetchall() == [(4_000,)]


@pytest.mark.parametrize("hidden", ["spans", "spans/rank=0", "file"])
def test_what_may_not_be_read_is_not_called_damaged(closed: Path, run_python: Any, hidden: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuprof-test-") as folder:
        Path(folder).chmod(0o755)
        path = Path(shutil.copytree(closed, Path(folder) / "r.gpuprof"))
        secret = parquet_of(path, "spans") if hidden == "file" else path / hidden
        secret.chmod(0)
        program = (
            "import os, sys, duckdb, numpy, gpuprof, gpuprof.run.folder\n"
            "os.geteuid() or os.seteuid(65534)\n"
            "try:\n    gpuprof.open(sys.argv[1]).sql('FROM spans')\n"
            "except gpuprof.RunError as error:\n    print(error)\n"
        )
        done = run_python("-c", program, path)
        secret.chmod(0o755)
    told = f"cannot read {secret}: Permission denied; ask its owner for the right\n"
    assert done.stdout == told, done.stderr


@pytest.mark.parametrize("make", [lambda part: part.symlink_to("gone"), lambda part: part.mkdir()])
def test_a_part_that_cannot_be_opened(damaged: Path, make: Callable[[Path], None]) -> None:
    part = parquet_of(damaged, "spans").with_name("part-9-000009.parquet")
    make(part)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).sql("SELECT count(*) FROM spans")
    check_message(caught.value, str(damaged), part.name, "restore")


@pytest.mark.parametrize("spoil", GARBAGE.values(), ids=list(GARBAGE))
@pytest.mark.parametrize("table", ["spans", "call_tree"])
def test_parquet_replaced_by_garbage(damaged: Path, table: str, spoil: Callable[[bytes], bytes]) -> None:
    file = parquet_of(damaged, table)
    file.write_bytes(spoil(file.read_bytes()))
    run = gpuprof.open(damaged)
    with pytest.raises((gpuprof.RunError, duckdb.Error)) as caught:
        run.sql(f"SELECT sum(hash(columns(*))) FROM {table}").fetchall()
    # Beyond its footer a file is read by DuckDB only when the user fetches rows.
    if isinstance(caught.value, gpuprof.RunError):
        check_message(caught.value, str(damaged), table, "restore")


@pytest.mark.parametrize("spoil", GARBAGE.values(), ids=list(GARBAGE))
def test_a_summary_of_garbage_is_refused(damaged: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = parquet_of(damaged, "call_tree")
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary(by="span")
    check_message(caught.value, str(damaged), "call_tree", "restore")


def test_parquet_of_another_table(damaged: Path) -> None:
    shutil.copy(parquet_of(damaged, "spans"), parquet_of(damaged, "call_tree"))
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary()
    check_message(caught.value, str(damaged), "call_tree")


def test_a_missing_table(damaged: Path) -> None:
    shutil.rmtree(damaged / "call_tree")
    run = gpuprof.open(damaged)
    assert run.tables == sorted(TABLES.keys() - {"call_tree"})
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(2_000,)]
    with pytest.raises(gpuprof.RunError) as caught:
        run.summary()
    check_message(caught.value, "call_tree", str(damaged))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Return the one line in which the command refuses."""
    from gpuprof.cli.main import execute

    assert execute([str(word) for word in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1, output.err
    return output.err


def change_meta(run: Path, **values: Any) -> None:
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps({**meta, **values}))


def test_a_run_without_its_spans_is_refused(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(damaged / "spans")
    for verb in ("summary", "flamegraph", "export"):
        target = ["-o", damaged.parent / "r.pftrace"] if verb == "export" else []
        line = refused(capsys, verb, damaged, *target)
        assert f"{damaged} has no spans table: restore it from a copy" in line


def test_any_other_table_that_is_missing_is_empty(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_meta(damaged, work={"given": []})
    for table in ("work", "ceilings", "kernels", "stacks"):
        shutil.rmtree(damaged / table)
        assert gpuprof.open(damaged).sql(f"FROM {table}").fetchall() == []
        assert table not in gpuprof.open(damaged).tables
    assert gpuprof.open(damaged).summary("span").rows
    assert "no work" in refused(capsys, "roofline", damaged)


def test_spans_with_other_columns_are_refused_in_one_line(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_meta(damaged, work={"given": []}, parts={})
    duckdb.sql("SELECT 1 AS other FROM range(2000)").write_parquet(str(parquet_of(damaged, "spans")))
    line = refused(capsys, "summary", damaged)
    assert f"the tables of {damaged} cannot be read" in line
    assert "restore the run from a copy" in line


def lose_a_part(run: Path) -> None:
    """Write the spans of a run as two parts, and take the second away; older runs tell nothing of parts."""
    change_meta(run, parts={})
    whole = parquet_of(run, "spans")
    rows = duckdb.read_parquet(str(whole), hive_partitioning=False)
    rows.limit(1_500).write_parquet(str(whole.with_name("part-9-000001.parquet")))
    rows.limit(500, offset=1_500).write_parquet(str(whole.with_name("part-9-000002.parquet")))
    whole.unlink()
    assert gpuprof.open(run).sql("SELECT count(*) FROM spans").fetchall() == [(2_000,)]
    (run / "spans" / "rank=0" / "part-9-000002.parquet").unlink()


def test_spans_without_one_of_their_parts_are_refused(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_a_part(damaged)
    told = (
        f"the table spans of {damaged} holds 1,500 of 2,000 rows: parts are missing; restore it from a copy"
    )
    for verb in ("summary", "flamegraph", "export"):
        target = ["-o", damaged.parent / "r.pftrace"] if verb == "export" else []
        assert told in refused(capsys, verb, damaged, *target)
    for _ in range(2):
        with pytest.raises(gpuprof.RunError) as caught:
            gpuprof.open(damaged).sql("FROM spans")
        check_message(caught.value, told)


def test_spans_of_which_the_run_tells_no_number_are_not_counted(damaged: Path) -> None:
    lose_a_part(damaged)
    change_meta(damaged, totals={})
    assert gpuprof.open(damaged).sql("SELECT count(*) FROM spans").fetchall() == [(1_500,)]


def write_work(run: Path) -> None:
    """Make layers of the run's spans, with counted work of as many operators."""
    of_kind = {"VARCHAR": "md5(range::VARCHAR)", "BIGINT": "hash(range) % 1000"}
    named = {"root": "'inner'", "phase": "'forward'"}
    columns = ", ".join(
        f"({named.get(name) or of_kind.get(kind, 'NULL')})::{kind} AS {name}"
        for name, kind in TABLES["work"].items()
    )
    duckdb.sql(f"SELECT {columns} FROM range(2000)").write_parquet(str(parquet_of(run, "work")))
    spans = parquet_of(run, "spans")
    rows = duckdb.read_parquet(str(spans), hive_partitioning=False).select("* REPLACE ('layer' AS kind)")
    rows.write_parquet(str(run / "draft"))
    (run / "draft").replace(spans)
    change_meta(run, work={"given": []}, parts={})


@pytest.mark.parametrize(
    ("table", "verb"),
    [("spans", "summary"), ("work", "summary"), ("work", "flamegraph"), ("work", "roofline")],
)
def test_pages_of_a_table_that_cannot_be_read_are_refused_with_its_name(
    damaged: Path, capsys: pytest.CaptureFixture[str], table: str, verb: str
) -> None:
    write_work(damaged)
    file = parquet_of(damaged, table)
    file.write_bytes(GARBAGE["noise in the middle"](file.read_bytes()))
    line = refused(capsys, verb, damaged)
    assert f"the table {table} of {damaged} is damaged (" in line
    assert "restore it from a copy" in line
    run = gpuprof.open(damaged)
    ask = {"summary": run.summary, "roofline": run.roofline, "flamegraph": lambda: run.flamegraph("r.html")}
    with pytest.raises(gpuprof.RunError) as caught:
        ask[verb]()
    check_message(caught.value, f"the table {table} of {damaged} is damaged")


def test_the_command_line_refuses_in_one_line(damaged: Path, tmp_path: Path, run_python: Any) -> None:
    parquet_of(damaged, "call_tree").write_bytes(b"garbage")
    (tmp_path / "empty\nfolder").mkdir()
    summary = ("-m", "gpuprof", "summary")
    check_refusal(run_python(*summary, damaged), "damaged.gpuprof", "call_tree")
    check_refusal(run_python("-m", "gpuprof", "flamegraph", damaged), "call_tree")
    (damaged / "meta.json").write_bytes(b'{"format_version": 7}')
    check_refusal(run_python(*summary, damaged), "format 7", "upgrade")
    check_refusal(run_python(*summary, "missing.gpuprof"), "missing.gpuprof")
    check_refusal(run_python(*summary, "empty\nfolder"), "empty\\nfolder")


ODD_METAS = [
    {"totals": "x"},
    {"processes": 5},
    {"machine": [1]},
    {"versions": 5},
    {"sources": 5},
    {"notes": 7},
    {"work": "hi"},
    {"ceilings": [1]},
    {"counters": 1},
    {"layer_types": "x"},
    {"stacks": [1]},
]


@pytest.mark.parametrize("odd", ODD_METAS, ids=lambda odd: next(iter(odd)))
def test_a_meta_file_with_odd_values_is_refused(
    damaged: Path, capsys: pytest.CaptureFixture[str], odd: dict[str, Any]
) -> None:
    change_meta(damaged, **odd)
    for verb in ("summary", "roofline"):
        line = refused(capsys, verb, damaged)
        assert f"meta.json is damaged: {next(iter(odd))} is no " in line


def test_what_a_run_has_none_of_may_be_null(damaged: Path) -> None:
    change_meta(damaged, work=None, ceilings=None, counters=None, layer_types=None, stacks=None, gpu=None)
    assert gpuprof.open(damaged).summary("span").rows


# --- names ---------------------------------------------------------------------------------------

NAMES = {
    "quotes": """it's "quoted" `and` \\ back\\\\slashed""",
    "newlines": "first\nsecond\r\nthird\u2028fourth\x85",
    "NUL": "a\0b\0",
    "only NUL": "\0",
    "script": "</script><script>alert(1)</script><!--",
    "emoji": "🔥👩‍👩‍👧‍👦 火 e\u0301",
    "SQL": "'; DROP TABLE spans; --",
    "placeholders": "%s {0} {name} $1 ? :x",
    "control": "\x1b[31mred\x07\b\t",
    "right to left": "\u202eabc\u202c",
    "one megabyte": "x" * 1_000_000,
    "a mebibyte": "y" * (1 << 20),
    "empty": "",
    "blank": "   ",
    "a number": "12345",
    "a date": "2024-01-01",
    "None": "None",
    "lost": "(lost name)",
    "noncharacters": "\ufffe\uffff\U0010ffff",
}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    with gpuprof.profile(out=tmp_path_factory.mktemp("named") / "r.gpuprof", **QUIET) as recording:
        for name in NAMES.values():
            span_once(name)
    return recording.run


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_a_name_comes_back_exactly(named: gpuprof.Run, name: str) -> None:
    query = "SELECT name FROM {} WHERE kind = 'span' ORDER BY {}"
    position = list(NAMES.values()).index(name)
    for table, order in (("spans", "span_id"), ("call_tree", "node_id")):
        names = named.sql(query.format(table, order)).fetchall()
        assert len(names) == len(NAMES)
        assert names[position] == (name,)


def test_names_do_not_break_the_table(named: gpuprof.Run, run_python: Any) -> None:
    summary = named.summary(by="span")
    assert {row.name for row in summary.rows} == set(NAMES.values())
    text = str(summary)
    lines = text.splitlines()
    assert {line.split("  ")[0] for line in lines} >= {'""', '"'}  # of no characters, of three blanks
    assert len(lines) == 1 + len(NAMES) + 3
    assert len(text) < 100_000
    assert all(character.isprintable() or character == "\n" for character in text)
    json.dumps(summary.to_dict())
    done = run_python("-m", "gpuprof", "summary", named.path, "--by", "span", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["name"] for row in json.loads(done.stdout)["summary"]["rows"]} == set(NAMES.values())


def test_lone_surrogates_are_shown_escaped(record: Any) -> None:
    result = record(lambda: [span_once("a\ud800b"), span_once("\udcff")])
    assert result.names() == ["a\\ud800b", "\\udcff"]
    assert "\\ud800" in str(result.run.summary(by="span"))


def test_names_beyond_the_limit_are_cut_between_characters(record: Any) -> None:
    limit = 1 << 20
    long = ["x" * (limit + 1), "火" * limit, "x" + "🔥" * limit]
    names = record(lambda: [span_once(name) for name in long]).names()
    for name, full in zip(names, long, strict=True):
        assert full.startswith(name)
        assert limit - 4 < len(name.encode()) <= limit


# --- paths ---------------------------------------------------------------------------------------

PATHS = {
    "quotes": """it's "quoted".gpuprof""",
    "spaces": "  two  words .gpuprof",
    "percent": "100%20 %s.gpuprof",
    "newline": "first\nsecond.gpuprof",
    "brackets": "run[1] {a,b}.gpuprof",
    "wildcards": "what?*.gpuprof",
    "a partition": "lr=0.1.gpuprof",
    "a column": "name=x.gpuprof",
    "hash and colon": "a#b:c;d&e.gpuprof",
    "backslash": "a\\b.gpuprof",
    "emoji": "🔥 火.gpuprof",
    "a leading dash": "-o.gpuprof",
    "a tilde": "~.gpuprof",
    "an address": "s3:.gpuprof",
    "bytes": os.fsdecode(b"bytes \xff.gpuprof"),
}


@pytest.mark.parametrize("name", PATHS.values(), ids=list(PATHS))
def test_a_run_in_a_folder_of_any_name(
    tmp_path: Path, recorded: Any, unclosed: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with gpuprof.profile(out=name, **QUIET) as recording:
        span_once("inside")
    assert recorded(recording.run).paths() == ["inside"]
    rows = recorded(gpuprof.open(tmp_path / name)).rows
    assert [row.name for row in rows] == ["inside"]
    assert "inside" in str(gpuprof.open(name).summary(by="span"))
    again = shutil.copytree(unclosed, tmp_path / ("again " + name))
    assert len(recorded(gpuprof.open(again)).rows) == SPANS_WRITTEN
    parquet_of(tmp_path / name, "call_tree").write_bytes(b"garbage")
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(name).summary()
    assert len(str(caught.value).replace(name, "").splitlines()) == 1


def test_a_parent_folder_that_looks_like_a_partition(tmp_path: Path, recorded: Any) -> None:
    folder = tmp_path / "name=train,kind=x" / "depth=9"
    folder.mkdir(parents=True)
    with gpuprof.profile(out=folder / "r.gpuprof", **QUIET) as recording:
        span_once("inside")
    (row,) = recorded(recording.run).rows
    assert (row.name, row.kind, row.depth) == ("inside", "span", 0)


def test_a_folder_where_none_can_be_made() -> None:
    with (
        pytest.raises(gpuprof.RecordingError, match="cannot make '/proc/r"),
        gpuprof.profile(out="/proc/r.gpuprof"),
    ):
        raise AssertionError("it must not be entered")
