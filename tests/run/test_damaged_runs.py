# SPDX-License-Identifier: Apache-2.0
"""Closed runs whose files were changed, lost or are no run's: one clear line each, and no wrong number."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from refusals import check_message, check_refusal, refused, refused_command
from run_edits import change_meta, parquet_of
from unclosed_run import the_file

import gpuprof
from gpuprof.errors import RunError
from gpuprof.run.format import TABLES
from gpuprof.run.parts import write_meta


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed") / "r.gpuprof"
    with gpuprof.profile(out=path, layers=False, operators=False):
        for _ in range(1_000):
            with gpuprof.span("outer"), gpuprof.span("inner"):
                pass
    return path


@pytest.fixture
def damaged(closed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(closed, tmp_path / "damaged.gpuprof"))


METAS: dict[str, tuple[bytes, str, str]] = {
    "garbage": (b"\x00\xff\xfegarbage", "damaged", "meta.json"),
    "empty": (b"", "damaged", "meta.json"),
    "cut short": (b'{"format_version": 1, ', "damaged", "meta.json"),
    "not an object": (b"[1, 2]", "damaged", "meta.json"),
    "a number": (b"5", "damaged", "meta.json"),
    "deep": (b"[" * 100_000, "damaged", "meta.json"),
    "a newer version": (b'{"format_version": 3}', "newer_format", "3"),
    "a far newer version": (b'{"format_version": 1e300}', "unknown_format", "1e+300"),
    "no version": (b"{}", "unknown_format", "None"),
    "a version of text": (b'{"format_version": "1"}', "unknown_format", "'1'"),
    "a version that is true": (b'{"format_version": true}', "unknown_format", "True"),
    "version zero": (b'{"format_version": 0}', "unknown_format", "0"),
}


@pytest.mark.parametrize(("content", "code", "value"), METAS.values(), ids=list(METAS))
def test_a_damaged_meta_file(damaged: Path, content: bytes, code: str, value: str) -> None:
    (damaged / "meta.json").write_bytes(content)
    with refused(gpuprof.RunError, code) as caught:
        gpuprof.open(damaged)
    check_message(caught.value, str(damaged), value)


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


def test_a_recording_without_the_files_in_its_segments(copy_of: Callable[[], Path]) -> None:
    path = copy_of()
    for file in (path / "segments").iterdir():
        file.unlink()
    # As the recorder makes it again where it is gone.
    (path / "segments" / "1-1.names").touch()
    with refused(RunError, "damaged", path / "segments"):
        gpuprof.open(path)
    assert (path / "recording.json").exists()


def test_a_result_of_a_load_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "requests.parquet").write_bytes(b"")
    with refused(RunError, "result_of_load", tmp_path):
        gpuprof.open(tmp_path)


def test_a_folder_of_windows_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "windows.json").write_text("{}", encoding="utf-8")
    with refused(RunError, "folder_of_windows", tmp_path):
        gpuprof.open(tmp_path)


def refuse_to_open(path: Path, code: str) -> None:
    with refused(gpuprof.RunError, code) as caught:
        gpuprof.open(path)
    check_message(caught.value, str(path))


def test_what_is_no_run_at_all(tmp_path: Path, closed: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.gpuprof").write_text("text")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "meta.json").mkdir()
    refuse_to_open(tmp_path / "missing", "no_such_run")
    refuse_to_open(tmp_path / "file.gpuprof", "no_such_run")
    refuse_to_open(tmp_path / "empty", "not_a_run")
    refuse_to_open(tmp_path / "directory", "cannot_read")
    refuse_to_open(closed / "meta.json", "no_such_run")
    refuse_to_open(closed / "spans", "not_a_run")
    with pytest.raises(gpuprof.RunError):
        gpuprof.open("nul\0byte")
    with pytest.raises(gpuprof.RunError):
        gpuprof.open("")


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
    check_message(caught.value, str(damaged), part.name)


@pytest.mark.parametrize("place", range(1, 20))
def test_a_changed_byte_is_detected_at_any_place(damaged: Path, place: int) -> None:
    """DuckDB reads another number there, if it can unpack the page that the byte is in."""
    file = parquet_of(damaged, "call_tree")
    data = bytearray(file.read_bytes())
    data[4 + place * (len(data) - 8) // 20] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary(by="span")
    check_message(caught.value, str(damaged), "call_tree", file.name)


def test_a_part_of_another_run_is_noticed(damaged: Path, copy_of: Callable[[], Path]) -> None:
    other = parquet_of(gpuprof.open(copy_of()).path, "call_tree")
    shutil.copy(other, parquet_of(damaged, "call_tree"))
    with refused(gpuprof.RunError, "damaged"):
        gpuprof.open(damaged).summary(by="span")


def test_a_part_that_is_missing_is_named(damaged: Path) -> None:
    part = parquet_of(damaged, "samples")
    part.unlink()
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).sql("FROM spans")
    check_message(caught.value, str(damaged), f"samples/rank=0/{part.name}")


@pytest.mark.parametrize("table", ["spans", "call_tree", "stacks", "steps", "threads"])
def test_a_table_that_was_written_and_is_gone_is_named(damaged: Path, table: str) -> None:
    shutil.rmtree(damaged / table)
    with refused(RunError, "damaged", damaged, f"table {table} "):
        gpuprof.open(damaged)


def test_a_table_that_the_meta_data_does_not_know_is_empty(damaged: Path) -> None:
    meta = gpuprof.open(damaged).meta
    shutil.rmtree(damaged / "samples")
    assert "samples/rank=0" not in str(write_meta(damaged, meta)["parts"])
    assert gpuprof.open(damaged).sql("FROM samples").fetchall() == []


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
            "except gpuprof.RunError as error:\n    print(error.code, error)\n"
        )
        done = run_python("-c", program, path)
        secret.chmod(0o755)
    assert done.stdout.startswith("not_permitted "), done.stderr
    assert str(secret) in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("make", [lambda part: part.symlink_to("gone"), lambda part: part.mkdir()])
def test_a_part_that_cannot_be_opened(damaged: Path, make: Callable[[Path], None]) -> None:
    part = parquet_of(damaged, "spans").with_name("part-9-000009.parquet")
    make(part)
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).sql("SELECT count(*) FROM spans")
    check_message(caught.value, str(damaged), part.name)


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
        check_message(caught.value, str(damaged), table)


@pytest.mark.parametrize("spoil", GARBAGE.values(), ids=list(GARBAGE))
def test_a_summary_of_garbage_is_refused(damaged: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = parquet_of(damaged, "call_tree")
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary(by="span")
    check_message(caught.value, str(damaged), "call_tree")


def test_parquet_of_another_table(damaged: Path) -> None:
    shutil.copy(parquet_of(damaged, "spans"), parquet_of(damaged, "call_tree"))
    with pytest.raises(gpuprof.RunError) as caught:
        gpuprof.open(damaged).summary()
    check_message(caught.value, str(damaged), "call_tree")


def test_a_missing_table(damaged: Path) -> None:
    change_meta(damaged, parts={})
    shutil.rmtree(damaged / "call_tree")
    run = gpuprof.open(damaged)
    assert run.tables == sorted(TABLES.keys() - {"call_tree"})
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(2_000,)]
    with pytest.raises(gpuprof.RunError) as caught:
        run.summary()
    check_message(caught.value, "call_tree", str(damaged))


def test_a_run_without_its_spans_is_refused(damaged: Path) -> None:
    change_meta(damaged, parts={})
    shutil.rmtree(damaged / "spans")
    for verb in ("summary", "flamegraph", "export"):
        target = ["-o", damaged.parent / "r.pftrace"] if verb == "export" else []
        refused_command([verb, damaged, *target], "no_spans", damaged)


def test_any_other_table_that_is_missing_is_empty(damaged: Path) -> None:
    change_meta(damaged, work={"given": []}, parts={})
    for table in ("work", "ceilings", "kernels", "stacks"):
        shutil.rmtree(damaged / table)
        assert gpuprof.open(damaged).sql(f"FROM {table}").fetchall() == []
        assert table not in gpuprof.open(damaged).tables
    assert gpuprof.open(damaged).summary("span").rows
    refused_command(["roofline", damaged], "work_not_counted", damaged)


def test_spans_with_other_columns_are_refused_in_one_line(damaged: Path) -> None:
    given = [{"root": "Net", "thread_id": 1, "stretches": [1]}]
    change_meta(damaged, work={"given": given}, parts={})
    duckdb.sql("SELECT 1 AS other FROM range(2000)").write_parquet(str(parquet_of(damaged, "spans")))
    refused_command(["summary", damaged], "damaged", damaged)


def lose_a_part(run: Path) -> None:
    """Write the spans of a run as two parts, and remove the second; older runs have no record of parts."""
    change_meta(run, parts={})
    whole = parquet_of(run, "spans")
    rows = duckdb.read_parquet(str(whole), hive_partitioning=False)
    rows.limit(1_500).write_parquet(str(whole.with_name("part-9-000001.parquet")))
    rows.limit(500, offset=1_500).write_parquet(str(whole.with_name("part-9-000002.parquet")))
    whole.unlink()
    assert gpuprof.open(run).sql("SELECT count(*) FROM spans").fetchall() == [(2_000,)]
    (run / "spans" / "rank=0" / "part-9-000002.parquet").unlink()


def test_spans_without_one_of_their_parts_are_refused(damaged: Path) -> None:
    lose_a_part(damaged)
    values = (damaged, "1,500", "2,000")
    for verb in ("summary", "flamegraph", "export"):
        target = ["-o", damaged.parent / "r.pftrace"] if verb == "export" else []
        refused_command([verb, damaged, *target], "parts_missing", *values)
    for _ in range(2):
        with refused(gpuprof.RunError, "parts_missing", *values) as caught:
            gpuprof.open(damaged).sql("FROM spans")
        check_message(caught.value)


def test_spans_are_not_counted_where_the_run_has_no_number_of_them(damaged: Path) -> None:
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
    damaged: Path, table: str, verb: str
) -> None:
    write_work(damaged)
    file = parquet_of(damaged, table)
    file.write_bytes(GARBAGE["noise in the middle"](file.read_bytes()))
    refused_command([verb, damaged], "damaged", table, damaged)
    run = gpuprof.open(damaged)
    ask = {"summary": run.summary, "roofline": run.roofline, "flamegraph": lambda: run.flamegraph("r.html")}
    with refused(gpuprof.RunError, "damaged", table, damaged) as caught:
        ask[verb]()
    check_message(caught.value)


def test_the_command_line_refuses_in_one_line(damaged: Path, tmp_path: Path, run_python: Any) -> None:
    parquet_of(damaged, "call_tree").write_bytes(b"garbage")
    (tmp_path / "empty\nfolder").mkdir()
    summary = ("-m", "gpuprof", "summary")
    check_refusal(run_python(*summary, damaged), "damaged.gpuprof", "call_tree")
    check_refusal(run_python("-m", "gpuprof", "flamegraph", damaged), "call_tree")
    (damaged / "meta.json").write_bytes(b'{"format_version": 7}')
    check_refusal(run_python(*summary, damaged), "7")
    check_refusal(run_python(*summary, "missing.gpuprof"), "missing.gpuprof")
    check_refusal(run_python(*summary, "empty\nfolder"), "empty\\nfolder")


ODD_METAS = [
    {"totals": "x"},
    {"process_id": "x"},
    {"process_id": None},
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


@pytest.mark.parametrize("odd", ODD_METAS, ids=lambda odd: "-".join(map(str, *odd.items())))
def test_a_meta_file_with_odd_values_is_refused(damaged: Path, odd: dict[str, Any]) -> None:
    change_meta(damaged, **odd)
    for verb in ("summary", "roofline"):
        refused_command([verb, damaged], "damaged", "meta.json", next(iter(odd)))


def test_what_a_run_has_none_of_may_be_null(damaged: Path) -> None:
    change_meta(damaged, work=None, ceilings=None, counters=None, layer_types=None, stacks=None, gpu=None)
    assert gpuprof.open(damaged).summary("span").rows
