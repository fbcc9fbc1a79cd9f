# SPDX-License-Identifier: Apache-2.0
"""A user's mistakes and a machine's failures: one clear line each, and the measured program unharmed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import check_message, check_refusal, refused
from run_codes import note_codes
from run_edits import parquet_of
from unclosed_run import SPANS_WRITTEN

import gpuprof
from gpuprof import _native
from gpuprof.run.losses import Loss, LossCode
from gpuprof.run.messages import loss_text

QUIET = {"layers": False, "operators": False}
RUN = ("-m", "gpuprof", "run")


def span_once(name: str = "a") -> None:
    with gpuprof.span(name):
        pass


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
        (["--out", "", "main.py"], ""),
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
        ("no/such.gpuprof", ["no"]),
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


@pytest.mark.parametrize("name", ["layers", "operators", "work", "counters"])
@pytest.mark.parametrize("value", ["no", 3, None])
def test_what_is_no_switch_is_refused(name: str, value: Any) -> None:
    with refused(gpuprof.RecordingError, "invalid_option") as caught:
        gpuprof.profile(**{name: value})
    check_message(caught.value, name, repr(value))


@pytest.mark.parametrize("value", ["no", 3, None])
def test_a_sampler_that_does_not_exist_is_refused(value: Any) -> None:
    with refused(gpuprof.RecordingError, "invalid_option") as caught:
        gpuprof.profile(python=value)
    check_message(caught.value, repr(value))


def test_a_folder_without_a_name_is_refused() -> None:
    with refused(gpuprof.RecordingError, "no_folder_name") as caught:
        gpuprof.profile(out="", **QUIET)
    check_message(caught.value)


@pytest.mark.parametrize("out", [5, b"r.gpuprof", ["r.gpuprof"]])
def test_what_is_no_path_is_refused(out: Any) -> None:
    with refused(gpuprof.RecordingError, "invalid_option") as caught:
        gpuprof.profile(out=out, **QUIET)
    check_message(caught.value, type(out).__name__)


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
        f"gpuprof: the program runs without being recorded: cannot record into {disk}/r.gpuprof: "
        "No space left on device; hint: free disk space, or specify another folder\n"
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
        assert "; hint: free disk space" in done.stderr
        assert list(disk.iterdir()) == []


def check_lossy(run: gpuprof.Run, written: int) -> None:
    """The run reports what it lost, and the rest is right."""
    totals = run.meta["totals"]
    assert run.meta["complete"] is False
    assert totals["dropped_events"] > 0
    assert "disk_failed" in note_codes(run.meta)
    lost = loss_text(Loss(LossCode.DROPPED_EVENTS, totals["dropped_events"]))
    assert f"lost: {lost}" in " ".join(str(run.summary("span")).split())
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
def test_processes_that_find_no_room_are_reported(
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
    assert 600 <= dropped <= 610  # two of each span, and the task in which a process begins
    assert 3 in [each["count"] for each in meta["damage"] if each["code"] == "no_room"]
    assert str(dropped) in run_python("-m", "gpuprof", "summary", run).stdout


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
    check_message(warned[0].message, str(disk / "r.gpuprof"))
    with refused(gpuprof.RunError, "cannot_write") as caught:
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
        refused(gpuprof.RecordingError, "cannot_write", "/proc/r"),
        gpuprof.profile(out="/proc/r.gpuprof"),
    ):
        raise AssertionError("it must not be entered")
