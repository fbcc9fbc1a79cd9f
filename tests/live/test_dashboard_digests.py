# SPDX-License-Identifier: Apache-2.0
"""Which JSON files the dashboard takes for results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_folders import record_run, result_text, write_load
from refusals import refused

from gpuprof.errors import BenchmarkError, GpuprofError, RunError
from gpuprof.live.dashboard import digests
from gpuprof.live.dashboard.digests import digest_of
from gpuprof.live.dashboard.items import ItemKind
from gpuprof.live.dashboard.worker import CALLS
from gpuprof.load.out_folder import SEVERAL_RESULTS, SINGLE_RESULT


def forget_parts(run: Path) -> None:
    """A run as an older version wrote it, without its spans."""
    meta = json.loads((run / "meta.json").read_text(encoding="utf-8"))
    del meta["parts"]
    (run / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    shutil.rmtree(run / "spans")


HALF = result_text(0, 10.0, 1)[:500]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("body.json", '{"kind": "chat", "input": {{index}}}'),
        ("deep.json", "[" * 100_000),
        ("package.json", '{"name": "another program"}'),
        ("empty.json", ""),
    ],
)
def test_a_file_of_other_software_is_left_out(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert digest_of(tmp_path, name, ItemKind.RESULT) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("half.json", HALF),
        ("max_rate.json", ""),
        ("benchmark_results_20260201_101112.json", ""),
        ("benchmark_results_20260201_101112_2.json", "\0\1"),
        ("other.json", '{"kind": "comparison", "name": '),
        ("gate.json", '{\n "outcome": "passed", "margin": 0.05, "rows": ['),
    ],
)
def test_a_file_that_looks_like_a_result_is_damaged(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with refused(GpuprofError, "not_json", name):
        digest_of(tmp_path, name, ItemKind.RESULT)


@pytest.mark.parametrize("name", [SINGLE_RESULT, *SEVERAL_RESULTS])
def test_each_result_of_a_load_is_an_entry(name: str, tmp_path: Path) -> None:
    kinds = {
        "result.json": "load",
        "max_rate.json": "max_rate",
        "mlperf.json": "mlperf_style",
        "soak.json": "soak",
        "sweep.json": "concurrency_sweep",
    }
    plain = {"kind": kinds[name], "settings": {"target": "m", "scenario": "s"}, "verdict": "yes"}
    (tmp_path / name).write_text(json.dumps(plain), encoding="utf-8")
    found = digest_of(tmp_path, name, ItemKind.RESULT)
    assert found is not None
    assert (found["kind"], found["summary"]["title"]) == ("load", "m, s")
    (tmp_path / name).write_text("{", encoding="utf-8")
    with refused(GpuprofError, "not_json", name):
        digest_of(tmp_path, name, ItemKind.RESULT)


def test_the_report_of_a_comparison_is_recognized_by_the_file_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "report.json").touch()
    assert digest_of(tmp_path, "report.json", ItemKind.RESULT) is None
    (tmp_path / "journal.jsonl").touch()
    with refused(GpuprofError, "not_json", "report.json"):
        digest_of(tmp_path, "report.json", ItemKind.RESULT)


def cut_last_byte(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda run: shutil.rmtree(run / "spans"), "damaged"),
        (lambda run: shutil.rmtree(run / "call_tree"), "damaged"),
        (lambda run: next((run / "spans").rglob("*.parquet")).unlink(), "damaged"),
        (lambda run: cut_last_byte(next((run / "spans").rglob("*.parquet"))), "damaged"),
        (lambda run: next((run / "threads").rglob("*.parquet")).write_bytes(b"x" * 500), "damaged"),
        (forget_parts, "no_spans"),
    ],
)
def test_a_run_without_whole_tables_is_damaged(
    change: Callable[[Path], object], code: str, tmp_path: Path
) -> None:
    run = record_run(tmp_path / "run.gpuprof")
    assert digest_of(tmp_path, run.name, ItemKind.RUN) is not None
    change(run)
    with refused(RunError, code, run.name):
        digest_of(tmp_path, run.name, ItemKind.RUN)


def test_a_load_test_whose_requests_are_cut_is_damaged(tmp_path: Path) -> None:
    load = write_load(tmp_path / "load", 5.0, 1)
    assert digest_of(tmp_path, load.name, ItemKind.LOAD) is not None
    cut_last_byte(load / "requests.parquet")
    with refused(BenchmarkError, "damaged", "requests.parquet of load"):
        digest_of(tmp_path, load.name, ItemKind.LOAD)


def test_a_large_file_is_listed_only_if_it_looks_like_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LARGEST_FILE", 100)
    (tmp_path / "data.json").write_text(f'["{"x" * 100}"]', encoding="utf-8")
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    assert digest_of(tmp_path, "data.json", ItemKind.RESULT) is None
    with refused(GpuprofError, "too_large", "half.json"):
        digest_of(tmp_path, "half.json", ItemKind.RESULT)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("rows"), "result.json is not what gpuprof writes: it has no rows"),
        (IndexError("list index out of range"), "a list has too few values"),
        (ValueError("no date: 7"), "a value is wrong (no date: 7)"),
        (ZeroDivisionError("division by zero"), "a value is wrong"),
        (PermissionError(13, "Permission denied"), "a file cannot be read (Permission denied)"),
    ],
)
def test_a_reason_has_no_name_of_an_exception(
    error: Exception, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(digests, "digest_of", fail)
    (found,) = CALLS["digests"](root=str(tmp_path), entries=[["load", "load"]])
    message = found["problem"][1]
    assert message.endswith(expected)
    assert "Error" not in message


def test_a_value_of_another_type_is_damage_with_a_hint(tmp_path: Path) -> None:
    write_load(tmp_path / "load", 1.0, 0, count=200)
    file = tmp_path / "load" / SINGLE_RESULT
    changed = {**json.loads(file.read_text(encoding="utf-8")), "latency_s": 5}
    file.write_text(json.dumps(changed), encoding="utf-8")
    (found,) = CALLS["digests"](root=str(tmp_path), entries=[["load", "load"]])
    code, message, hint = found["problem"]
    assert code == "unreadable"
    assert message == "result.json is not what gpuprof writes: a value has another type"
    assert hint == "restore it from a copy, or measure again"
