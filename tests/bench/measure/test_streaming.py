# SPDX-License-Identifier: Apache-2.0
"""Streamed inputs on a clock that only the loader and the model move: every figure is known exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from simulated import MS, FakeClock, SimulatedSystem

import gpuprof
from gpuprof.bench.config import Settings
from gpuprof.bench.measure.io_counters import IoCounters, read_io
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.measure.streaming import EndOfDataError
from gpuprof.bench.results.loading import loading_row
from gpuprof.bench.results.result import Result
from gpuprof.errors import BenchmarkError


class LoadedSystem(SimulatedSystem):
    """A model of 1 ms whose batch i takes `loading_ns(i)` to load."""

    def __init__(self, clock: FakeClock, loading_ns: Callable[[int], int]) -> None:
        super().__init__(clock, lambda call: MS)
        self._loading_ns = loading_ns
        self.loaded = 0

    def next_inputs(self) -> int:
        duration = self._loading_ns(self.loaded)
        self.clock.now_ns += duration
        self.loaded += 1
        return 8


def streamed(loading_ns: Callable[[int], int], **settings: Any) -> tuple[Measurement, LoadedSystem]:
    clock = FakeClock()
    system = LoadedSystem(clock, loading_ns)
    return measure(system, Settings(stream=True, **settings), clock=clock), system


def test_a_loader_of_3_ms_holds_up_a_model_of_1_ms_for_three_quarters() -> None:
    found, system = streamed(lambda batch: 3 * MS, iterations=50, warmup=5)
    assert found.loading is not None
    assert found.loading.loading_ns.tolist() == [3 * MS] * 50
    assert found.samples_ns.tolist() == [MS] * 50
    assert found.loading.loading_s == 0.003
    assert found.loading.fraction_of(found.elapsed_s) == pytest.approx(0.75)
    assert (found.loading.samples, found.loading.has_ended) == (400, False)
    assert system.loaded == 50  # the warm-up repeats the first batch
    assert found.started_s is not None
    assert found.started_s.tolist() == pytest.approx([0.003 + 0.004 * call for call in range(50)])
    row = loading_row([found])
    assert row["data_loading_p50_ms"] == pytest.approx(3.0)
    assert row["data_loading_share"] == pytest.approx(0.75)
    assert row["streamed_samples"] == 400


def test_the_start_of_each_sample_without_a_loader() -> None:
    clock = FakeClock()
    found = measure(SimulatedSystem(clock, lambda call: MS), Settings(iterations=500, warmup=5), clock=clock)
    assert found.loading is None
    assert found.started_s is not None
    assert found.started_s.tolist() == pytest.approx([0.001 * call for call in range(500)])
    assert loading_row([found])["data_loading_share"] is None


def test_the_end_of_an_iterator_ends_the_measurement() -> None:
    def loading_ns(batch: int) -> int:
        if batch == 30:
            raise EndOfDataError
        return MS

    found, _ = streamed(loading_ns, iterations=100, warmup=5)
    assert found.stopped_by == "end of data"
    assert found.stop_values == {"batches": 30}
    assert found.is_complete
    assert found.loading is not None
    assert (found.loading.has_ended, len(found.samples_ns)) == (True, 30)


def test_what_was_measured_before_a_loader_raises_is_kept() -> None:
    def loading_ns(batch: int) -> int:
        if batch == 30:
            raise OSError("disk gone")
        return MS

    found, _ = streamed(loading_ns, iterations=100, warmup=5)
    assert found.stopped_by == "failure"
    assert found.failure is not None
    assert "disk gone" in str(found.failure)
    assert found.loading is not None
    assert found.gaps_ns is not None
    assert [*map(len, (found.samples_ns, found.loading.loading_ns, found.gaps_ns))] == [30, 30, 30]


def test_a_slow_loader_does_not_stretch_the_time_limit() -> None:
    found, _ = streamed(lambda batch: 1000 * MS, duration_s=3.0, warmup=5)
    assert found.stopped_by == "time limit"
    assert found.elapsed_s < 5


def test_throughput_cannot_be_streamed() -> None:
    with refused(BenchmarkError, "streamed_throughput"):
        Settings(mode="throughput", stream=True)


# --- gpuprof.benchmark ---------------------------------------------------------------------------


def batches(count: int) -> Iterator[tuple[Any, int]]:
    for number in range(count):
        yield np.full(4, number), number


def test_each_call_gets_the_next_batch_without_its_labels() -> None:
    seen = []
    result = gpuprof.benchmark(lambda batch: seen.append(int(batch[0])), batches(21), warmup=3, stream=True)
    assert seen == [0, 0, 0, *range(1, 21)]
    measurement = result.measurements[0]
    assert measurement.stopped_by == "end of data"
    assert measurement.loading is not None
    assert (measurement.loading.samples, measurement.loading.passes) == (80, 1)
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    loading = again.measurements[0].loading
    assert loading is not None
    np.testing.assert_array_equal(loading.loading_ns, measurement.loading.loading_ns)


def test_an_iterable_begins_again() -> None:
    seen = []
    data = [np.full(4, number) for number in range(3)]
    result = gpuprof.benchmark(
        lambda batch: seen.append(int(batch[0])), data, warmup=0, iterations=7, stream=True
    )
    assert seen == [1, 2, 0, 1, 2, 0, 1]
    loading = result.measurements[0].loading
    assert loading is not None
    assert (loading.passes, loading.has_ended) == (2, False)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        (np.zeros(3), "invalid_loader"),
        (None, "invalid_loader"),
        ({"x": 1}, "invalid_loader"),
        ([], "no_samples"),
        (iter(()), "no_samples"),
        (iter([np.zeros(2)]), "failed"),  # the warm-up takes it
    ],
)
def test_inputs_that_are_no_stream(inputs: Any, code: str) -> None:
    with pytest.raises(BenchmarkError) as error:
        gpuprof.benchmark(lambda batch: None, inputs, warmup=1, iterations=5, stream=True)
    assert error.value.code == code


# --- counters of I/O -----------------------------------------------------------------------------


def made_proc(folder: Path, *, accounted: bool = True) -> Path:
    (folder / "self/net").mkdir(parents=True)
    (folder / "sys/kernel").mkdir(parents=True)
    (folder / "sys/kernel/task_delayacct").write_text("1\n" if accounted else "0\n")
    (folder / "self/io").write_text("rchar: 5000\nwchar: 7\nread_bytes: 4096\nwrite_bytes: 512\n")
    for thread, ticks in (("10", 150), ("11", 50)):
        (folder / "self/task" / thread).mkdir(parents=True)
        after = ["S", *["0"] * 38, str(ticks), "0", "0"]
        (folder / "self/task" / thread / "stat").write_text(f"{thread} (a) b) {' '.join(after)}\n")
    (folder / "stat").write_text("cpu  1 2 3 4 300 6 7 8 0 0\n")
    (folder / "self/net/dev").write_text(
        "Inter-|\n face |bytes\n    lo: 99 1 0 0 0 0 0 0 99 1\n  eth0: 1000 1 0 0 0 0 0 0 20 1\n"
        "  eth1: 5 1 0 0 0 0 0 0 3 1\n"
    )
    return folder


def test_counters_are_read_from_the_files_of_the_kernel(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    found = read_io(made_proc(tmp_path))
    assert found == IoCounters(4096, 512, 5000, 2.0, 3.0, 1005, 23)


def test_what_the_kernel_does_not_account_is_unavailable(tmp_path: Path) -> None:
    assert read_io(made_proc(tmp_path / "a", accounted=False)).wait_s is None
    assert read_io(tmp_path / "missing") == IoCounters()
    assert IoCounters(read_bytes=3).since(IoCounters()) == IoCounters()


@pytest.mark.skipif(read_io().read_call_bytes is None, reason="the system does not count read calls")
def test_the_bytes_that_a_loader_reads_are_counted(tmp_path: Path) -> None:
    file, size = tmp_path / "samples", 1 << 20
    file.write_bytes(bytes(size))

    def read() -> Iterator[bytes]:
        while True:
            yield file.read_bytes()

    result = gpuprof.benchmark(len, read(), warmup=1, iterations=10, stream=True)
    (machine,) = [each.machine for each in result.measurements]
    assert machine is not None
    assert machine.io is not None
    assert machine.io.read_call_bytes is not None
    # The rest is what gpuprof reads of /proc.
    assert 10 * size <= machine.io.read_call_bytes < 11 * size
