# SPDX-License-Identifier: Apache-2.0
"""Memory, energy (of a played device), start-up, tables and result files."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from batches import batch_of
from refusals import refused

import gpuprof.bench
from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.facts import note
from gpuprof.bench.measure import energy, memory
from gpuprof.bench.measure.memory import host_peak_bytes, parse_bytes
from gpuprof.bench.results import files as results
from gpuprof.bench.results.batch import COLUMNS, Stamp, row_of
from gpuprof.bench.results.files import ResultFiles, document_of, to_csv, to_json
from gpuprof.bench.results.session import SessionResult
from gpuprof.bench.results.text import energy_notes, notes_of, results_table, to_markdown
from gpuprof.bench.workers import measuring
from gpuprof.bench.workers.events import State
from gpuprof.bench.workers.session import Session
from gpuprof.bench.workers.startup import startup_of
from gpuprof.errors import BenchmarkError
from gpuprof.record.device_sampler import METRICS, pack_head, pack_record
from gpuprof.record.facts import Method, Reason, SourceStatus

NOON = datetime(2026, 2, 3, 12, 0, 0, tzinfo=timezone.utc)
STAMP = Stamp("2026-02-03T12:00:00+00:00", "abc")
DOUBLED = f"{Path(__file__).parents[2] / 'support' / 'bench_models.py'}:doubled"


def test_a_row_has_the_columns_and_empty_cells_for_what_is_missing() -> None:
    row = row_of(batch_of([1.0, 3.0] * 10, memory={"host_resident_bytes": 5_000_000}, compile_s=0.5), STAMP)
    assert tuple(row)[: len(COLUMNS)] == COLUMNS
    assert row["latency_mean_ms"] == pytest.approx(2)
    assert (row["latency_min_ms"], row["latency_max_ms"]) == (1.0, 3.0)
    assert row["throughput_ips"] == pytest.approx(2_000)
    assert (row["memory_mb"], row["memory_kind"], row["compilation_time_ms"]) == (5.0, "host peak", 500.0)
    assert row["latency_p95_ms"] is None
    (read,) = csv.DictReader(io.StringIO(to_csv([row])))
    assert (read["latency_p95_ms"], read["energy_per_sample_j"], read["git_commit"]) == ("", "", "abc")
    assert (
        "n=20, needs 59"
        in document_of([batch_of([1.0, 3.0] * 10)], STAMP)["results"][0]["insufficient"]["latency_p95_ms"]
    )


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\tx"])
def test_no_cell_is_a_formula(name: str) -> None:
    row = row_of(batch_of([1.0]), STAMP) | {"model": name, "latency_mean_ms": -1.5}
    (read,) = csv.DictReader(io.StringIO(to_csv([row])))
    assert (read["model"], read["latency_mean_ms"]) == (f"'{name}", "-1.5")
    (read,) = csv.DictReader(io.StringIO(to_csv([{**row, "model": "a\r=b"}])))
    assert read["model"] == "a =b"


def test_files_that_can_be_written_are_written_and_no_empty_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = results.write_whole

    def full(path: Path, text: str) -> None:
        if path.suffix == ".csv":
            raise OSError(28, "No space left on device")
        write(path, text)

    files = ResultFiles(tmp_path, ("csv", "json"), NOON)
    monkeypatch.setattr(results, "write_whole", full)
    with refused(BenchmarkError, "cannot_write", "csv", "device"):
        files.write({"csv": "a", "json": "name \udcff"})
    (left,) = tmp_path.iterdir()
    assert (left.suffix, left.read_text(encoding="utf-8")) == (".json", "name \\udcff")


def test_json_holds_every_sample_and_no_nan() -> None:
    text = to_json(document_of([batch_of([1.0], [2.0])], STAMP))
    (result,) = json.loads(text)["results"]
    assert [each["measurement"]["samples_ns"] for each in result["launches"]] == [[1_000_000], [2_000_000]]
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"value": math.nan})


def test_tables_fit_and_markdown_is_escaped() -> None:
    wide = batch_of(
        [123_456.7] * 60, batch_size=1 << 20, compile_s=1_234.5, memory={"allocator_peak_bytes": 10**11}
    )
    assert max(map(len, results_table([wide]).splitlines())) <= 100
    batches = [batch_of([1.0] * 60, batch_size=size) for size in (1, 2, 4)]
    text = to_markdown(SessionResult(SystemSpec("m|x"), JobSettings(), batches), STAMP)
    assert text.startswith("# m\\|x in pytorch: float32")
    assert "p99: too few samples (n=60, 60, 60; it needs 299)" in text.replace("\\", "")
    assert "energy: unavailable" in text
    assert energy_notes([batch_of([1.0], energy={"energy_per_sample_j": 0.25})])[0].startswith("0.25 J")


def test_no_result_file_is_overwritten(tmp_path: Path) -> None:
    first = ResultFiles(tmp_path, ("csv", "json"), NOON)
    second = ResultFiles(tmp_path, ("json",), NOON)
    assert first.stem.name == "benchmark_results_20260203_120000"
    assert second.stem.name == "benchmark_results_20260203_120000_2"
    assert [path.name for path in first.write({"csv": "a", "json": "b"})] == [
        "benchmark_results_20260203_120000.csv",
        "benchmark_results_20260203_120000.json",
    ]
    second.discard()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.needs("pandas")
def test_results_as_a_data_frame(tmp_path: Path) -> None:
    for _ in range(2):
        text = to_csv([row_of(batch_of([1.0] * 10), STAMP)])
        ResultFiles(tmp_path, ("csv",), NOON).write({"csv": text})
    frame = gpuprof.bench.read_results(tmp_path)
    assert (len(frame), tuple(frame.columns[: len(COLUMNS)])) == (2, COLUMNS)
    assert frame["latency_p99_ms"].isna().all()
    # That of a benchmark that is not done yet.
    (tmp_path / "benchmark_results_20260203_120001.csv").touch()
    assert len(gpuprof.bench.read_results(tmp_path)) == 2
    with refused(BenchmarkError, "cannot_read"):
        gpuprof.bench.read_results(tmp_path / "benchmark_results_20260203_120001.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with refused(BenchmarkError, "not_a_result", "framework"):
        gpuprof.bench.read_results(tmp_path / "other.csv")


# --- memory, start-up, energy --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"), [("12GiB", 12 << 30), ("800 MB", 800_000_000), ("1.5kb", 1_500), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size
    with refused(BenchmarkError, "invalid_size"):
        parse_bytes(text + "x")


def test_resident_memory_is_read_and_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB\nThreads:\t1\n")
    assert host_peak_bytes(tmp_path / "status") == 1 << 21


def test_a_peak_that_cannot_be_reset_is_reported_only_where_it_rose(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = 100
    monkeypatch.setattr(memory, "host_peak_bytes", lambda: peak)
    monkeypatch.setattr(memory, "reset_host_peak", lambda: False)
    found = memory.HostPeak()
    found.reset()
    assert found.read() is None
    peak = 150
    assert found.read() == 150
    monkeypatch.setattr(memory, "reset_host_peak", lambda: True)
    found.reset()
    assert found.read() == 150


@pytest.mark.skipif(not memory.reset_host_peak(), reason="the system cannot reset a peak")
def test_the_memory_of_a_batch_is_its_own() -> None:
    spec = SystemSpec(DOUBLED, input_shape=(1_000_000,))
    job = JobSettings((8, 1), Settings(iterations=5, warmup=1))
    large, small = Session(spec, job).run().batches
    assert large.host_peak[0] is not None
    assert small.host_peak[0] is not None
    # Seven samples of 4 MB less, in and out.
    assert large.host_peak[0] - small.host_peak[0] > 40_000_000
    assert (large.host_peak[1], small.host_peak[1]) == (False, True)


@pytest.mark.skipif(not memory.reset_host_peak(), reason="the system cannot reset a peak")
def test_samples_that_are_kept_are_not_the_models_memory() -> None:
    spec = SystemSpec(DOUBLED, input_shape=(3,))
    peaks = []
    for iterations in (20, 500_000):
        (batch,) = Session(spec, JobSettings((1,), Settings(iterations=iterations, warmup=1))).run().batches
        peaks.append(batch.host_peak[0] or 0)
    # Half a million whole numbers in a list are some 20 MB, and as JSON some more.
    assert abs(peaks[1] - peaks[0]) < 10_000_000


def test_process_runs_without_a_larger_batch_before_go_first() -> None:
    batch = batch_of([1.0], [1.0], [1.0])
    readings = ((70, False), (90, True), (80, False))
    batch.launches = [
        replace(run, extra={"memory": {"host_resident_bytes": read}, "after_larger": after_larger})
        for run, (read, after_larger) in zip(batch.launches, readings, strict=True)
    ]
    assert batch.host_peak == (80, False)
    assert row_of(batch, STAMP)["memory_kind"] == "host peak"
    batch.launches = batch.launches[1:2]
    assert batch.host_peak == (90, True)
    assert row_of(batch, STAMP)["memory_kind"] == "host peak, after larger batches"


def test_the_three_times_of_a_call_on_a_device() -> None:
    batch = batch_of([2.0] * 10, [2.0] * 10)
    assert (row_of(batch, STAMP)["enqueue_p50_ms"], row_of(batch, STAMP)["device_p50_ms"]) == (None, None)
    for place, (enqueue_ms, device_s) in enumerate([(0.2, 0.0015), (0.4, 0.0017)]):
        run = batch.launches[place]
        assert run.measurement is not None
        measured = replace(run.measurement, enqueue_ns=np.full(10, round(enqueue_ms * 1e6)))
        extra = {"device_time_s": [device_s, 9.0, device_s / 2]}
        batch.launches[place] = replace(run, measurement=measured, extra=extra)
    batch.description = replace(batch.description, device_type="cuda")
    row = row_of(batch, STAMP)
    assert (row["enqueue_p50_ms"], row["device_p50_ms"]) == (pytest.approx(0.3), pytest.approx(1.6))
    notes = notes_of(SessionResult(SystemSpec("m"), JobSettings(), [batch]))
    assert "a call at batch size 4: wall 2.00 ms, device 1.60 ms, enqueue 300 us (medians)" in notes


def test_the_parts_of_a_start_add_up() -> None:
    at_ms = {"up": 110, "imported": 500, "loaded": 900, "prepared": 1_000, "described": 1_600}
    first_ns = {State(name): at * 1_000_000 for name, at in at_ms.items()}
    startup = startup_of({State.STARTED: 100_000_000, **first_ns})
    assert startup is not None
    parts = startup.to_dict()
    assert {name: round(value, 3) for name, value in parts.items()} == {
        "interpreter_s": 0.01, "import_s": 0.39, "load_s": 0.4, "compile_s": 0.1, "first_run_s": 0.6,
        "total_s": 1.5,
    }  # fmt: skip
    assert startup_of(first_ns) is None


class PlayedSource:
    """A device of 100 W at rest and 250 W at work, sampled every 100 ms of a played clock."""

    clock_ns = 0
    states: list[tuple[int, float]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> SourceStatus:
        return SourceStatus.on(Method.NVML)

    def stop(self) -> None:
        codes = {name: number for number, name in enumerate(METRICS, 1)}
        joules, records = 0.0, []
        for t_ns in range(0, PlayedSource.clock_ns + 1, 100_000_000):
            watts = 100.0 if t_ns <= 2_000_000_000 else 250.0
            records.append(pack_record(t_ns, 0, codes["power_w"], watts))
            records.append(pack_record(t_ns, 0, codes["energy_j"], joules))
            records.append(pack_record(t_ns, 0, codes["utilization_percent"], 0.0 if watts == 100 else 90.0))
            joules += (100.0 if t_ns < 2_000_000_000 else 250.0) * 0.1
        head = pack_head({"devices": [{"index": 0, "name": "played"}], "period_ns": 100_000_000})
        (self._folder / "1-1.samples").write_bytes(head + b"".join(records))


def test_energy_is_that_of_the_counter_without_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: 2 s at rest, then 4 s of calls of half a second with 8 samples each."""
    monkeypatch.setattr(energy, "DeviceSampleSource", PlayedSource)
    PlayedSource.clock_ns = 0

    def advance(seconds: float) -> None:
        PlayedSource.clock_ns += round(seconds * 1e9)

    def call() -> int:
        advance(0.5)
        return 8

    found = energy.measure_energy(
        call, load_s=4.0, idle_s=2.0, pause=advance, clock_ns=lambda: PlayedSource.clock_ns
    )
    assert (found.unavailable, found.method, found.samples) == (None, "counter", 64)
    assert found.idle_w == pytest.approx(100)
    assert found.energy_j == pytest.approx(4 * 250)
    assert found.energy_per_sample_j == pytest.approx(4 * 150 / 64)
    assert found.utilization_percent[-1] == (pytest.approx(4.0), 90.0)


def test_energy_without_a_driver_is_unavailable_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.record.device_samples.has_driver", lambda: False)
    found = energy.measure_energy(lambda: pytest.fail("nothing is to be run"))
    assert found.energy_per_sample_j is None
    status = SourceStatus.off(Reason.NO_DRIVER).to_plain()
    assert found.unavailable == note("energy_not_read", status=status)


@pytest.mark.parametrize(
    ("done", "elapsed_s", "continues"), [(4, 99, True), (5, 99, False), (39, 1, True), (40, 1, False)]
)
def test_a_run_next_to_a_benchmark_has_calls_enough(done: int, elapsed_s: float, continues: bool) -> None:
    assert measuring._continues(done, elapsed_s) is continues
