# SPDX-License-Identifier: Apache-2.0
"""Ceilings of GPUs: the rows, what is worked out where nothing can be measured, the cache, the child process.

Simulated and against stubs: no GPU is involved, and no number here is of one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from roofline_rows import ceilings as host_ceilings

import gpuprof
from gpuprof.analyze.ceilings import cache, gpu, of_run
from gpuprof.analyze.ceilings.cache import load_gpu_ceilings
from gpuprof.analyze.ceilings.ceiling import Ceiling, CeilingNote, CeilingNoteCode, Ceilings
from gpuprof.analyze.ceilings.gpu import MeasuringError, measure_gpu, theoretical_ceilings
from gpuprof.analyze.ceilings.of_run import ceilings_for_run
from gpuprof.cli.main import execute

FACTS = {
    "name": "Invented",
    "uuid": "00112233",
    "capability": 90,
    "multiprocessors": 100,
    "clock_khz": 2_000_000,
    "memory_clock_khz": 1_000_000,
    "memory_bus_bits": 4096,
    "l2_cache_bytes": 60_000_000,
    "memory_bytes": 80_000_000_000,
}


def codes(found: Ceilings) -> list[CeilingNoteCode]:
    return [note.code for note in found.notes]


class FakeBench:
    """Returns given measurements at once; `failing` names what raises."""

    def __init__(self, **failing: str) -> None:
        self.failing = failing
        self.free = 80_000_000_000
        self.asked: list[tuple[Any, ...]] = []
        self.floors = [2100.0, 2000.0, 2050.0]

    def free_bytes(self) -> int:
        return self.free

    def _rates(self, what: str, *asked: Any) -> list[float]:
        self.asked.append((what, *asked))
        if what in self.failing:
            raise RuntimeError(self.failing[what])
        return [0.9e12, 1e12, 0.95e12]

    def measure_compute(self, dtype: str, seconds: float, repeats: int) -> list[float]:
        return [] if dtype == "bf16" else self._rates("compute", dtype)

    def measure_stream(self, stream: str, array_bytes: int, seconds: float, repeats: int) -> list[float]:
        return self._rates("stream", stream, array_bytes)

    def measure_launch(self, repeats: int) -> dict[str, list[float]]:
        self._rates("launch")
        return {"floor_ns": self.floors, "period_ns": [3000.0]}


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> list[Ceiling]:
    """What PyTorch's products reach."""
    rows = [
        Ceiling("cuda:0", "compute.matmul", dtype, 5e14, "flop_per_s", 0.01, "torch.mm")
        for dtype in ("fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8")
    ]
    monkeypatch.setattr(gpu, "gpu_library_ceilings", lambda device, seconds: iter(rows))
    return rows


def measured(bench: FakeBench | None = None, quick: bool = False, **facts: Any) -> Ceilings:
    made = bench or FakeBench()
    return measure_gpu(0, {**FACTS, **facts}, quick, make_bench=lambda ordinal: made)


# ---- rows ------------------------------------------------------------------------------------


def test_simulated_gpu_has_a_row_for_everything() -> None:
    found = measured()
    assert {row.device for row in found.rows} == {"cuda:0"}
    for resource in ("memory.l2", "memory.dram", "launch", "launch.period"):
        assert found.find(resource, None, "cuda:0") is not None
    roofs = {row.dtype: row.method for row in found.rows if row.resource == "compute"}
    assert list(roofs) == ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
    assert set(roofs.values()) == {"best: matmul"}
    launch = found.find("launch", None, "cuda:0")
    assert launch is not None
    assert (launch.value, launch.unit) == (2000, "ns")
    assert launch.spread == pytest.approx(50 / 2050)
    assert found.notes == ()


def test_simulated_streams_have_the_sizes_of_the_cache() -> None:
    bench = FakeBench()
    measured(bench)
    sizes = {(stream, size) for what, *rest in bench.asked if what == "stream" for stream, size in [rest]}
    assert sizes == {("read", 30_000_000), ("copy", 15_000_000), ("triad", 10_000_000)} | {
        (stream, 32 * 60_000_000) for stream in ("read", "copy", "triad")
    }


def test_arrays_beyond_the_cache_hold_one_to_two_gibibytes_where_memory_is_free() -> None:
    plenty = 80_000_000_000
    assert gpu.dram_array_bytes(4_000_000, plenty) == 1 << 30
    assert gpu.dram_array_bytes(50_000_000, plenty) == 32 * 50_000_000
    assert gpu.dram_array_bytes(126_000_000, plenty) == 2 << 30
    assert 3 * gpu.dram_array_bytes(50_000_000, 6_000_000_000) <= 0.4 * 6_000_000_000


def test_simulated_little_memory_makes_small_arrays_and_a_note() -> None:
    bench = FakeBench()
    bench.free = 750_000_000
    found = measured(bench)
    assert max(size for what, *rest in bench.asked if what == "stream" for size in rest[1:]) == 100_000_000
    values = {"device": "cuda:0", "array_bytes": 100_000_000, "caches": 8}
    assert found.notes[0] == CeilingNote(CeilingNoteCode.GPU_SMALL_ARRAYS, values)
    bench.free = 3 * 1_300_000_000  # 520 MB for each array
    assert measured(bench).notes == ()


def test_simulated_quick_look_leaves_out_products_and_what_is_worked_out() -> None:
    found = measured(quick=True)
    assert {row.resource for row in found.rows if row.dtype == "fp32"} == {"compute", "compute.fma"}
    assert not [row for row in found.rows if "theoretical" in row.method]
    drifts = measured().drift_to(found)
    assert {drift.change for drift in drifts} == {0}
    assert ("cuda:0", "memory.dram.read", None) in {(d.device, d.resource, d.dtype) for d in drifts}


def test_simulated_launching_that_is_slower_than_the_gpu_has_no_floor() -> None:
    bench = FakeBench()
    bench.floors = []
    found = measured(bench)
    assert found.find("launch", None, "cuda:0") is None
    assert CeilingNoteCode.GPU_LAUNCHES_TOO_SLOW in codes(found)


# ---- worked out ------------------------------------------------------------------------------


def test_without_a_compiler_everything_is_worked_out(library: list[Ceiling]) -> None:
    library.clear()

    def none(ordinal: int) -> FakeBench:
        raise RuntimeError("no compiler")

    found = measure_gpu(0, FACTS, make_bench=none)
    bf16, dram = found.find("compute", "bf16", "cuda:0"), found.find("memory.dram", None, "cuda:0")
    assert bf16 is not None
    assert dram is not None
    assert bf16.value == 4096 * 100 * 2e9
    assert dram.value == 2 * 1e9 * 4096 / 8
    assert {bf16.method, dram.method} == {"best: theoretical"}
    assert found.find("launch", None, "cuda:0") is None
    values = {"device": "cuda:0", "error": "no compiler"}
    assert found.notes[0] == CeilingNote(CeilingNoteCode.GPU_WITHOUT_OWN_KERNELS, values)
    assert codes(found)[1:] == [
        CeilingNoteCode.GPU_PRODUCTS_CALCULATED,
        CeilingNoteCode.GPU_MEMORY_CALCULATED,
    ]


def test_without_products_tensor_cores_are_not_forgotten(library: list[Ceiling]) -> None:
    library.clear()
    found = measured()
    half = found.find("compute", "fp16", "cuda:0")
    assert half is not None
    assert (half.value, half.method) == (4096 * 100 * 2e9, "best: theoretical")
    assert found.find("compute.fma", "fp16", "cuda:0") is not None


@pytest.mark.parametrize(
    ("capability", "types"),
    [
        (75, {"fp64": 4, "fp32": 128, "fp16": 1024, "int8": 2048}),
        (80, {"fp64": 128, "fp32": 128, "fp16": 2048, "bf16": 2048, "tf32": 1024, "int8": 4096}),
        (
            100,
            {"fp64": 128, "fp32": 256, "fp16": 8192, "bf16": 8192, "tf32": 4096, "int8": 16384, "fp8": 16384},
        ),
        (33, {}),  # not known, and so nothing is claimed
    ],
)
def test_operations_a_clock_by_compute_capability(capability: int, types: dict[str, int]) -> None:
    facts = {**FACTS, "capability": capability, "multiprocessors": 1, "clock_khz": 1}
    rows = [row for row in theoretical_ceilings("cuda:0", facts) if row.dtype is not None]
    assert {row.dtype: row.value / 1000 for row in rows} == types


def test_clocks_that_the_driver_does_not_report_give_nothing() -> None:
    facts = {**FACTS, "clock_khz": 0, "memory_clock_khz": 0}
    assert list(theoretical_ceilings("cuda:0", facts)) == []


@pytest.mark.parametrize("what", ["compute", "stream", "launch"])
def test_simulated_failure_of_one_measurement_leaves_the_others(what: str) -> None:
    found = measured(FakeBench(**{what: "a kernel failed: CUDA_ERROR_LAUNCH_FAILED (719)"}))
    assert any("CUDA_ERROR_LAUNCH_FAILED" in note.values["error"] for note in found.notes)
    assert (found.find("launch", None, "cuda:0") is None) is (what == "launch")
    assert (found.find("memory.l2", None, "cuda:0") is None) is (what == "stream")
    assert found.find("memory.dram", None, "cuda:0") is not None  # worked out at least
    assert found.find("compute", "bf16", "cuda:0") is not None


# ---- the cache -------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """Two GPUs that a fake child measures; returns what it was asked."""
    asked: list[tuple[Any, ...]] = []
    devices = [FACTS, {**FACTS, "uuid": "other"}]

    def measure(ordinal: int, facts: dict[str, Any], quick: bool) -> Ceilings:
        asked.append((ordinal, quick))
        row = Ceiling(f"cuda:{ordinal}", "memory.dram", None, 1e12, "bytes_per_s", 0.0, "best: read")
        part = dataclasses.replace(row, resource="memory.dram.read", value=8e11 if quick else 1e12)
        return Ceilings((row, part), "2030-01-02T03:04:05+00:00", facts, quick)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "has_driver", lambda: True)
    monkeypatch.setattr(cache, "list_devices", lambda: devices)
    monkeypatch.setattr(cache, "measure_device", measure)
    return asked


def test_each_gpu_has_a_cache_of_its_own_and_a_drift(machine: list[tuple[Any, ...]]) -> None:
    first, notes = load_gpu_ceilings()
    assert [each.device for each in first] == ["cuda:0", "cuda:1"]
    assert (machine, notes) == ([(0, False), (1, False)], [])
    again, _ = load_gpu_ceilings(used=[{"ordinal": 1, "uuid": "other"}])
    assert machine[2:] == [(1, True)]
    (drift,) = again[0].drifts
    assert (drift.device, drift.change, drift.is_large) == ("cuda:1", pytest.approx(-0.2), True)
    load_gpu_ceilings(refresh=True)
    assert machine[3:] == [(0, False), (1, False)]


def test_a_gpu_under_another_number_keeps_its_ceilings(
    machine: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_gpu_ceilings()
    monkeypatch.setattr(cache, "list_devices", lambda: [{**FACTS, "uuid": "other"}])
    found, _ = load_gpu_ceilings()
    assert {row.device for row in found[0].ceilings.rows} == {"cuda:0"}
    assert machine[2:] == [(0, True)]


def test_without_a_driver_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "has_driver", lambda: False)
    monkeypatch.setattr(subprocess, "run", None)
    assert load_gpu_ceilings() == ([], [])


def test_while_a_recording_runs_nothing_is_measured(machine: list[tuple[Any, ...]], tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof"):
        found, notes = load_gpu_ceilings()
    assert (found, machine) == ([], [])
    assert notes == [CeilingNote(CeilingNoteCode.GPUS_DURING_RECORDING)]


def test_a_gpu_that_cannot_be_measured_is_a_note(
    machine: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ordinal: int, facts: dict[str, Any], quick: bool) -> Ceilings:
        raise MeasuringError(CeilingNoteCode.GPU_TIMEOUT, limit_s=180)

    monkeypatch.setattr(cache, "measure_device", fail)
    found, notes = load_gpu_ceilings()
    assert (found, notes) == ([], [CeilingNote(CeilingNoteCode.GPU_TIMEOUT, {"limit_s": 180})] * 2)


def test_a_run_has_the_ceilings_of_the_gpus_that_it_used_by_its_own_numbers(
    machine: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_run, "load_ceilings", lambda: (host_ceilings(), True))
    # The run saw one GPU alone, which is the second one here.
    gpu = {"devices": [{"ordinal": 0, "name": "Invented", "uuid": "other"}]}
    rows, facts = ceilings_for_run([], gpu=gpu)
    assert machine == [(1, False)]
    assert {row["device"] for row in rows if row["device"].startswith("cuda")} == {"cuda:0"}
    assert (facts["gpus"][0]["device"], facts["gpus"][0]["l2_cache_bytes"]) == ("cuda:0", 60_000_000)
    assert "gpus" not in ceilings_for_run([])[1]


def test_a_gpu_without_an_identity_is_known_by_its_number(machine: list[tuple[Any, ...]]) -> None:
    found, notes = load_gpu_ceilings(used=[{"ordinal": 1, "uuid": None}, {"ordinal": 5, "uuid": "gone"}])
    assert [each.device for each in found] == ["cuda:1"]
    assert notes == [CeilingNote(CeilingNoteCode.GPU_NOT_SHOWN, {"device": "cuda:5"})]


def test_what_was_worked_out_is_not_kept(
    machine: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(ordinal: int, facts: dict[str, Any], quick: bool) -> Ceilings:
        machine.append((ordinal, quick))
        rows = theoretical_ceilings(f"cuda:{ordinal}", facts)
        return Ceilings(tuple(rows), "2030-01-02T03:04:05+00:00", facts, quick)

    monkeypatch.setattr(cache, "measure_device", measure)
    for _ in range(2):
        load_gpu_ceilings(used=[{"ordinal": 0, "uuid": None}])
    assert machine == [(0, False), (0, False)]


def test_doctor_prints_the_gpus_next_to_the_processor(
    machine: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuprof.analyze.ceilings.cache.load_ceilings", lambda *_: (host_ceilings(), True))
    assert execute(["doctor", "--ceilings"]) == 0
    first = capsys.readouterr().out
    assert "cuda:0: Invented, measured 2030" in first
    assert "drift" not in first
    assert execute(["doctor", "--ceilings"]) == 0
    assert "cuda:1 memory.dram.read -20.0%" in " ".join(capsys.readouterr().out.split())
    assert execute(["doctor", "--ceilings", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [gpu["device"] for gpu in values["gpus"]] == ["cuda:0", "cuda:1"]
    assert len(values["drift"]) == 2


# ---- the child process, against stubs --------------------------------------------------------


@pytest.fixture
def stub_machine(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{stubs}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("GPUPROF_NVRTC_LIBRARY", str(stubs / "libnvrtc.so.13"))
    return stubs


@pytest.mark.slow
def test_stub_driver_is_listed_and_measured_in_a_process_of_its_own(stub_machine: Path) -> None:
    (facts,) = gpu.list_devices()
    assert (facts["name"], facts["capability"], facts["multiprocessors"]) == ("Stub GPU", 90, 10)
    found = gpu.measure_device(0, facts, quick=True)
    assert {row.resource for row in found.rows} >= {"compute.fma", "memory.l2.read", "memory.dram.triad"}
    assert found.quick


def test_the_failure_of_a_child_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(gpu, "_PROGRAM", "raise SystemExit('gone\\nwith a reason')")
    exit_code = CeilingNote(CeilingNoteCode.GPU_EXIT_CODE, {"exit_code": 1, "error": "with a reason"})
    assert refusal() == exit_code
    monkeypatch.setattr(gpu, "_PROGRAM", "print('no JSON')")
    assert refusal() == CeilingNote(CeilingNoteCode.GPU_INVALID_OUTPUT, {"output": "no JSON"})
    monkeypatch.setattr(gpu, "_PROGRAM", 'print(\'{"error": "there is no NVIDIA driver"}\')')
    assert refusal() == CeilingNote(CeilingNoteCode.GPU_REFUSED, {"error": "there is no NVIDIA driver"})


def refusal() -> CeilingNote:
    """Return why the devices cannot be listed."""
    with pytest.raises(MeasuringError) as caught:
        gpu.list_devices()
    return caught.value.note
