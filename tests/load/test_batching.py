# SPDX-License-Identifier: Apache-2.0
"""Dynamic batching of a model, the first exception of a target, and capacity of load results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused, refused_command

import gpuprof
from gpuprof.cli.main import cli
from gpuprof.errors import BenchmarkError
from gpuprof.load import open_result
from gpuprof.load.driver import drive
from gpuprof.load.planning import service_runs
from gpuprof.load.report import write_report
from gpuprof.load.requests import REQUEST, RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings
from gpuprof.load.targets.base import failure_of
from gpuprof.load.targets.in_process import BatchedCallableTarget

MODEL = """
import numpy as np
def build():
    def call(x):
        with open(__file__ + ".sizes", "a") as file:
            print(len(x), file=file)
    return call, lambda size: np.zeros((size, 4), np.float32)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:build"


def test_a_model_is_called_with_batches_of_what_waits(model: str, tmp_path: Path) -> None:
    words = ["load", model, "--framework", "python", "--input-shape", "4", "--scenario", "offline"]
    words += ["--count", "10", "--max-batch", "4", "--batch-wait", "2ms", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["batch_sizes"] == {"2": 1, "4": 2}
    assert (found["settings"]["max_batch"], found["settings"]["batch_wait_s"]) == (4, 0.002)
    sizes = (tmp_path / "model.py.sizes").read_text().split()
    assert sizes[-3:] == ["4", "4", "2"]
    assert set(sizes[:-3]) == {"1", "2", "3", "4"}  # each was called before
    result = open_result(tmp_path / "out")
    assert result.batch_sizes == {2: 1, 4: 2}
    assert "Batches: 3, mean size 3.33 (2: 33" in str(result)


def test_a_batch_is_sent_and_ends_at_one_moment() -> None:
    load = drive(BatchedCallableTarget(lambda _: None, 3, 0), np.zeros(7, np.int64))
    for column in ("sent_ns", "end_ns"):
        assert np.unique(load.rows[column], return_counts=True)[1].tolist() == [3, 3, 1]
    assert load.batch_wait_s == 0


def test_a_target_with_the_wrong_number_of_units_fails() -> None:
    class Wrong(BatchedCallableTarget):
        def call_batch(self, indexes: Any) -> list[int]:
            return [1]

    load = drive(Wrong(print, 3, 0), np.zeros(3, np.int64))
    assert load.rows["status"].tolist() == [RequestStatus.FAILED] * 3
    assert load.first_failure is not None


def test_what_cannot_be_batched_is_refused(model: str) -> None:
    words = ["load", model, "--framework", "python", "--rate", "5"]
    refused_command([*words, "--batch-wait", "1ms"], "invalid_load", "batch-wait")
    refused_command([*words, "--max-batch", "2", "--mix", "batch=1:1"], "invalid_load", "mix")
    refused_command([*words[:-2], "--max-batch", "2", "--scenario", "single-stream"], "invalid_load")
    refused_command(["load", "python:os:getpid", "--rate", "5", "--max-batch", "2"], "invalid_load")
    refused_command(["load", "http://127.0.0.1:9/", "--rate", "5", "--max-batch", "2"], "invalid_load")
    with refused(BenchmarkError, "invalid_load"):
        gpuprof.load(model, rate=5, max_batch=0)
    with refused(BenchmarkError, "invalid_load"):
        gpuprof.load(model, rate=5, max_batch=2, batch_wait_s=float("nan"))


# --- the first exception ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["function", "coroutine", "closed loop", "batches"])
def test_the_first_exception_is_kept(kind: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(*_: object) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise ValueError(f"planted {len(calls)}\nsecond <b>line</b>\x1b[31m")

    async def fails_later() -> None:
        await asyncio.sleep(0)
        fails()

    scenario = "closed-loop" if kind == "closed loop" else "offline"
    target: Any = {"coroutine": fails_later, "batches": BatchedCallableTarget(fails, 1, 0)}.get(kind, fails)
    found = gpuprof.load(target, scenario=scenario, count=6, out=str(tmp_path / "out"))
    first = found.run.first_failure
    assert first is not None
    assert first.type == "ValueError"
    assert first.message.startswith("planted 3 second <b>line</b>")
    assert "\x1b" not in first.message
    assert "first exception of the target: ValueError: planted 3" in str(found)
    assert open_result(tmp_path / "out").run.first_failure == first
    (page,) = write_report(found, ["md"], tmp_path)
    assert "ValueError: planted 3" in page.read_text()


def test_a_message_is_cut() -> None:
    assert len(failure_of(ValueError("x" * 5_000)).message) < 400


def test_a_target_without_failures_has_none() -> None:
    assert gpuprof.load(lambda: None, scenario="offline", count=3).run.first_failure is None


# --- capacity --------------------------------------------------------------------------------------


def saved(
    folder: Path,
    sent: list[int],
    end: list[int],
    *,
    wait_s: float | None = None,
    settings: LoadSettings | None = None,
) -> Path:
    """Write a load with these times in milliseconds; the last request failed."""
    rows = np.zeros(len(sent), REQUEST)
    rows["planned_ns"] = rows["sent_ns"] = 10**9 + np.array(sent) * 10**6
    rows["end_ns"] = 10**9 + np.array(end) * 10**6
    rows["status"], rows["units"] = RequestStatus.OK, 1
    rows["status"][-1] = RequestStatus.FAILED
    settings = settings or LoadSettings("f", "server", rate=1.0)
    run = LoadRun(10**9, 2 * 10**9, batch_wait_s=wait_s)
    return LoadResult(settings, run, rows).save(folder)


def plain(runs: list[Any]) -> list[dict[int, list[float]]]:
    return [{size: np.round(times * 1e3, 6).tolist() for size, times in run.times_s.items()} for run in runs]


def test_service_times_are_by_the_requests_in_service(tmp_path: Path) -> None:
    # The second is sent while the first is in service, the third when both have ended.
    folder = saved(tmp_path / "a", [0, 1, 10, 20], [4, 6, 13, 99])
    assert plain(service_runs(folder)) == [{1: [4, 3], 2: [5]}]
    assert plain(service_runs(folder / "result.json")) == plain(service_runs([open_result(folder)]))
    batches = saved(tmp_path / "b", [0, 0, 10, 20], [4, 4, 13, 99], wait_s=0.0)
    again = saved(tmp_path / "again", [0, 0, 10, 20], [4, 4, 13, 99], wait_s=0.0)
    assert plain(service_runs([batches, again])) == [{1: [3], 2: [4]}] * 2
    only_two = saved(tmp_path / "c", [0, 0, 20], [4, 4, 99], wait_s=0.0)
    only_one = saved(tmp_path / "d", [0, 10, 20], [4, 14, 99])
    with refused(BenchmarkError, "no_service_times"):
        service_runs([only_two, only_one])
    failed = saved(tmp_path / "e", [0], [1])
    with refused(BenchmarkError, "no_service_times"):
        service_runs(failed)


def test_results_of_several_targets_are_no_process_runs(tmp_path: Path) -> None:
    def load(name: str, **changes: Any) -> Path:
        settings = replace(LoadSettings("http://127.0.0.1:1/v1", "server", rate=1.0), **changes)
        return saved(tmp_path / name, [0, 10, 20], [4, 14, 99], settings=settings)

    first = load("first")
    # The port of this machine, the rate and the concurrency are no other target.
    same = load("same", target="http://127.0.0.1:2/v1", rate=2.0, concurrency=4)
    assert len(service_runs([first, same])) == 2
    base = Path(__file__).parents[1] / "golden" / "inputs" / "results" / "base.json"
    others = [
        load("other", target="openai+http://127.0.0.1:1/v1"),
        load("streams", scenario="multi-stream"),
        load("batched", max_batch=8),
        base,
    ]
    for other in others:
        with refused(BenchmarkError, "different_targets", other.name):
            service_runs([first, same, other])
        loads = [*([] if other is base else [open_result(other)]), open_result(first)]
        if len(loads) > 1:
            with refused(BenchmarkError, "different_targets"):
                service_runs(loads)


def test_a_result_that_is_given_twice_is_no_second_process_run(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", [0, 10, 20], [4, 14, 99])
    (tmp_path / "link").symlink_to(folder)
    for again in (folder, folder / "result.json", tmp_path / "link"):
        refused_command(["capacity", folder, again, "--rate", "1", "--slo", "p90<1s"], "same_result")


def test_capacity_of_damaged_and_of_other_results(tmp_path: Path) -> None:
    usual = ["--rate", "1", "--slo", "p90<1s"]
    folder = saved(tmp_path / "a", [0, 10, 20], [4, 14, 99])
    rows = folder / "requests.parquet"
    rows.write_bytes(rows.read_bytes()[:50])
    refused_command(["capacity", folder, *usual], "cannot_read", "requests.parquet")
    rows.unlink()
    refused_command(["capacity", folder, *usual], "cannot_read", "requests.parquet is missing")
    (tmp_path / "soak").mkdir()
    (tmp_path / "soak" / "soak.json").write_text("{}")
    refused_command(["capacity", tmp_path / "soak", *usual], "no_load_result", "--scenario soak")


@pytest.mark.texts
def test_what_to_measure_for_batches_and_replicas(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", [0, 10, 20], [4, 14, 99])
    words = ["capacity", str(folder), "--rate", "1", "--slo", "p90<1s"]
    refused_command([*words, "--batch-size", "8"], "not_measured", "gpuprof load --max-batch 8;")
    refused_command([*words, "--replicas", "2"], "not_measured", "--scenario closed-loop --concurrency 2;")


def test_capacity_of_load_results(tmp_path: Path) -> None:
    # Services of exactly 10 ms: at 150/s, a machine is busy for 1.5 s a second.
    times = [*range(0, 5_000, 20)]
    folders = [str(saved(tmp_path / name, times, [each + 10 for each in times])) for name in "abc"]
    words = ["capacity", *folders, "--slo", "p99<100ms", "--growth", "1.5", "--price", "2.50", "--json"]
    plans = []
    for rate in ("100/s", "100"):
        done = CliRunner().invoke(cli, [*words, "--rate", rate])
        assert done.exit_code == 0, done.output
        plans.append(json.loads(done.stdout)["capacity"])
    assert plans[0] == plans[1]
    assert (plans[0]["machines_low"], plans[0]["machines"], plans[0]["machines_high"]) == (2, 2, 2)
    assert plans[0]["machines_by_formula"] == 2
    assert plans[0]["utilization"] == pytest.approx(0.75)
    assert plans[0]["cost_per_hour"] == 5.0
    one = CliRunner().invoke(cli, [*words[:2], *words[4:], "--rate", "100"])
    assert json.loads(one.stdout)["capacity"]["machines_low"] is None
