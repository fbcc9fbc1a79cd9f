# SPDX-License-Identifier: Apache-2.0
"""Ceilings: the rows, the best of them, the cache, the drift. No test judges how fast a machine is."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import gpuprof
from gpuprof import _native
from gpuprof.analyze.ceilings import cache, cpu
from gpuprof.analyze.ceilings.cache import cache_file, load_ceilings
from gpuprof.analyze.ceilings.ceiling import (
    ALL_CORES,
    ONE_CORE,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    Ceilings,
    best_of,
    from_dict,
    relative_iqr,
)
from gpuprof.analyze.ceilings.cpu import measure_ceilings
from gpuprof.analyze.ceilings.text import NOTES, ceiling_note_text
from gpuprof.record.processor import Cache

STREAMS = ("read", "copy", "triad", "copy_non_temporal", "triad_non_temporal")
KEY = {"processor": "P", "processors": [0, 1], "torch": None}
A_NOTE = CeilingNote(CeilingNoteCode.QUOTA, {"processors": 1.5})


def row(resource: str, value: float, dtype: str | None = None, device: str = ALL_CORES) -> Ceiling:
    unit = "ns" if resource == "launch" else "flop_per_s" if "compute" in resource else "bytes_per_s"
    return Ceiling(device, resource, dtype, value, unit, 0.01, "by hand")


def some(*rows: Ceiling) -> Ceilings:
    return Ceilings(rows, "2030-01-02T03:04:05+00:00", KEY, notes=(A_NOTE,))


def codes(found: Ceilings) -> list[CeilingNoteCode]:
    return [note.code for note in found.notes]


class FakeMachine:
    """Native measurements that cost no time, and the machine that they are of."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.streams = {name: [9e9, 10e9, 11e9] for name in STREAMS}
        self.quota: float | None = None
        self.free: int | None = None
        self.pinned: int | None = None
        self.refused: set[str] = set()
        self.kernels = [("generic", "fp32"), ("avx2", "fp32"), ("avx512", "fp32"), ("amx_bf16", "bf16")]
        self.caches = [Cache(1, 32 << 10, (0,)), Cache(1, 32 << 10, (1,)), Cache(3, 16 << 20, (0, 1))]
        patch.setattr(cpu, "usable_processors", lambda: [0, 1])
        patch.setattr(cpu, "data_caches", lambda _processors: self.caches)
        patch.setattr(cpu, "processor_quota", lambda: self.quota)
        patch.setattr(cpu, "available_memory_bytes", lambda: self.free)
        patch.setattr(cpu, "library_ceilings", lambda _seconds: iter(self.library))
        patch.setattr(cpu, "launch_ceiling", lambda _seconds: row("launch", 1000))
        patch.setattr(cpu, "_native", self)
        self.library = [row("compute.matmul", 9e12, "fp32")]
        self.is_recording = lambda: False
        self.cpu_instruction_sets = lambda: ["generic", "avx2"]
        self.build_info = lambda: {"version": "1"}

    def cpu_kernels(self) -> list[dict[str, str]]:
        return [{"instruction_set": a, "dtype": b, "method": "FMA"} for a, b in self.kernels]

    def measure_compute(
        self, name: str, dtype: str, processors: list[int], seconds: float, repeats: int
    ) -> dict[str, Any] | None:
        self.calls.append((name, dtype, tuple(processors), seconds, repeats))
        rates = [len(name) * 1e12, len(name) * 1.1e12]
        return None if name in self.refused else self.result(rates, processors)

    def measure_streams(
        self, streams: list[str], array_bytes: int, processors: list[int], seconds: float, repeats: int
    ) -> dict[str, dict[str, Any]]:
        self.calls.append(("streams", array_bytes, tuple(processors), seconds, repeats))
        return {
            name: self.result(rates, processors) for name, rates in self.streams.items() if name in streams
        }

    def result(self, rates: list[float], processors: list[int]) -> dict[str, Any]:
        return {
            "per_second": rates,
            "pinned_threads": len(processors) if self.pinned is None else self.pinned,
        }


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(monkeypatch)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- rows ----------------------------------------------------------------------------------------


def test_a_ceiling_is_the_best_measurement() -> None:
    (best,) = best_of("compute", [row("compute.avx2", 3e9, "fp32"), row("compute.matmul", 4e9, "fp32")])
    assert (best.resource, best.value, best.dtype, best.method) == ("compute", 4e9, "fp32", "best: matmul")
    assert best_of("compute", []) == []


@pytest.mark.parametrize(
    ("resource", "is_best"),
    [
        ("compute", True),
        ("launch", True),
        ("memory.l1", True),
        ("memory.dram", True),
        ("compute.avx2", False),
        ("memory.dram.read", False),
    ],
)
def test_best_rows_are_distinguished_from_single_measurements(resource: str, is_best: bool) -> None:
    assert row(resource, 1).is_best is is_best


def test_the_relative_iqr_is_the_interquartile_range_over_the_median() -> None:
    assert relative_iqr([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)
    assert relative_iqr([7, 7, 7]) == 0
    assert relative_iqr([1, 2]) is None


def test_ceilings_go_through_json_and_back() -> None:
    before = some(row("compute", 1e9, "fp32"), row("launch", 700), row("memory.l1", 5.5, device=ONE_CORE))
    assert from_dict(json.loads(json.dumps(before.as_dict()))) == before


def test_a_note_that_is_a_text_or_has_an_unknown_code_is_kept_as_text() -> None:
    later = {"code": "of a later version", "values": {}}
    values = {**some(row("compute", 1e9, "fp32")).as_dict(), "notes": ["an older text", later]}
    found = from_dict(values).notes
    assert [note.code for note in found] == [CeilingNoteCode.TEXT] * 2
    assert "an older text" in ceiling_note_text(found[0])
    assert "of a later version" in ceiling_note_text(found[1])


def test_every_code_of_a_note_has_a_text() -> None:
    assert NOTES.codes == {code.value for code in CeilingNoteCode}


def test_what_is_not_there_is_none() -> None:
    found = some(row("compute", 1e9, "fp32"))
    assert found.find("compute", "fp32") == found.rows[0]
    assert found.find("compute", "bf16") is None
    assert found.find("compute", "fp32", ONE_CORE) is None


def damaged() -> list[Callable[[dict[str, Any]], object]]:
    def set_row(**values: Any) -> Callable[[dict[str, Any]], object]:
        return lambda whole: whole["rows"][0].update(values)

    return [
        lambda whole: whole.pop("rows"),
        lambda whole: whole.update(rows=3),
        lambda whole: whole.update(measured_at=5),
        lambda whole: whole.update(machine=[]),
        lambda whole: whole["rows"].append("row"),
        lambda whole: whole["rows"][0].pop("unit"),
        set_row(more=1),
        set_row(value=math.nan),
        set_row(value=math.inf),
        set_row(value=0),
        set_row(value=-1.0),
        set_row(value="1"),
        set_row(value=None),
        set_row(spread="small"),
        set_row(unit="furlongs"),
        set_row(resource=["compute"]),
    ]


@pytest.mark.parametrize("damage", damaged())
def test_damaged_values_are_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    values = some(row("compute", 1e9, "fp32")).as_dict()
    values["rows"] = list(values["rows"])
    damage(values)
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        from_dict(values)


# --- drift ---------------------------------------------------------------------------------------


def test_drift_is_reported_for_what_was_measured_twice() -> None:
    before = some(
        row("compute", 100, "fp32"),
        row("compute.avx2", 100, "fp32"),
        row("compute.matmul", 90, "fp32"),
        row("memory.dram.read", 50),
        row("memory.dram.read", 20, device=ONE_CORE),
        row("launch", 1000),
    )
    later = some(
        row("compute", 10, "fp32"),
        row("compute.avx2", 95, "fp32"),
        row("memory.dram.read", 40),
        row("launch", 1500),
    )
    changes = {drift.resource: (drift.change, drift.is_large) for drift in before.drift_to(later)}
    assert changes == {
        "compute.avx2": (pytest.approx(-0.05), False),
        "memory.dram.read": (pytest.approx(-0.2), True),
        "launch": (pytest.approx(0.5), True),
    }
    assert before.drift_to(some()) == []


# --- what is measured ----------------------------------------------------------------------------


def test_every_row_of_a_full_measurement(machine: FakeMachine) -> None:
    told: list[str] = []
    found = measure_ceilings(progress=told.append)
    names = {(each.resource, each.dtype) for each in found.rows if each.device == ALL_CORES}
    streams = {f"memory.{level}{each}" for level in ("l1", "l3") for each in ("", ".read", ".copy", ".triad")}
    dram = {"", ".read", ".copy", ".triad", ".copy_non_temporal", ".triad_non_temporal"}
    assert names == {
        ("compute", "fp32"),
        ("compute.avx2", "fp32"),
        ("compute.avx512", "fp32"),
        ("compute.matmul", "fp32"),
        ("compute", "bf16"),
        ("compute.amx_bf16", "bf16"),
        *((name, None) for name in streams),
        *((f"memory.dram{name}", None) for name in dram),
        ("launch", None),
    }
    one_core = {each.resource for each in found.rows if each.device == ONE_CORE}
    assert one_core == {name for name, _ in names} - {"compute.matmul", "launch"}
    assert len({each.key for each in found.rows}) == len(found.rows)
    assert any("one core" in text for text in told)
    assert (found.quick, found.notes) == (False, ())
    assert found.machine["processors"] == [0, 1]


def test_the_best_repeat_counts_and_the_library_raises_the_ceiling(machine: FakeMachine) -> None:
    found = measure_ceilings()
    avx512 = found.find("compute.avx512", "fp32")
    best = found.find("compute", "fp32")
    assert avx512 is not None
    assert best is not None
    assert avx512.value == pytest.approx(6 * 1.1e12)
    assert (best.value, best.method) == (9e12, "best: matmul")
    read = found.find("memory.dram.read")
    assert read is not None
    assert (read.value, read.spread) == (11e9, pytest.approx(0.1))


def test_quick_measures_the_widest_on_all_cores_and_imports_nothing(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = measure_ceilings(quick=True)
    assert {each.device for each in found.rows} == {ALL_CORES}
    assert {each.resource for each in found.rows if "compute." in each.resource} == {
        "compute.avx512",
        "compute.amx_bf16",
    }
    assert found.find("launch") is None
    assert found.quick


def test_write_allocate_counts_for_stores_that_may_cause_it(machine: FakeMachine) -> None:
    found = measure_ceilings(quick=True)
    traffic = {each.resource: each.value for each in found.rows if each.resource.startswith("memory.dram.")}
    assert traffic == {
        "memory.dram.read": 11e9,
        "memory.dram.copy": pytest.approx(16.5e9),
        "memory.dram.triad": pytest.approx(44e9 / 3),
        "memory.dram.copy_non_temporal": 11e9,
        "memory.dram.triad_non_temporal": 11e9,
    }
    methods = {each.resource: each.method for each in found.rows}
    assert "write-allocate x1.33" in methods["memory.dram.triad"]
    assert "write-allocate" not in methods["memory.l3.triad"]
    # The ceiling assumes nothing about the processor.
    best = found.find("memory.dram")
    assert best is not None
    assert best.value == 11e9


def test_no_write_allocate_is_assumed_where_no_store_passes_the_caches(machine: FakeMachine) -> None:
    del machine.streams["copy_non_temporal"], machine.streams["triad_non_temporal"]
    machine.streams["triad"] = [20e9, 20e9, 20e9]
    best = measure_ceilings(quick=True).find("memory.dram")
    assert best is not None
    assert (best.value, best.method) == (20e9, "best: triad")


def test_arrays_are_four_times_the_last_caches(machine: FakeMachine) -> None:
    machine.caches = [Cache(3, 100 << 20, (0,)), Cache(3, 100 << 20, (1,))]
    measure_ceilings(quick=True)
    assert machine.calls[-1][:2] == ("streams", 800 << 20)
    machine.caches = []
    found = measure_ceilings(quick=True)
    assert machine.calls[-1][:2] == ("streams", 128 << 20)
    assert found.find("memory.l1") is None


def test_scarce_memory_is_respected_and_reported(machine: FakeMachine) -> None:
    machine.free = 30 << 20
    found = measure_ceilings(quick=True)
    assert 3 * machine.calls[-1][1] <= machine.free / 2
    (note,) = found.notes
    assert (note.code, note.values["array_bytes"]) == (CeilingNoteCode.SMALL_ARRAYS, machine.calls[-1][1])


def test_a_quota_is_detected_and_reported(machine: FakeMachine) -> None:
    machine.quota = 0.5
    found = measure_ceilings()
    assert {call[2] for call in machine.calls} == {(0,)}
    # Longer than the period after which the control group stops a process.
    assert all(call[3] > 0.2 for call in machine.calls)
    assert found.notes == (CeilingNote(CeilingNoteCode.QUOTA, {"processors": 0.5}),)
    machine.quota = 2
    assert measure_ceilings().notes == ()


def test_what_the_system_refuses_is_no_row(machine: FakeMachine) -> None:
    machine.refused = {"amx_bf16"}
    found = measure_ceilings(quick=True)
    assert found.find("compute", "bf16") is None
    assert found.notes == (
        CeilingNote(CeilingNoteCode.INSTRUCTION_SET_DENIED, {"instruction_set": "amx_bf16"}),
    )


def test_threads_that_were_not_pinned_are_reported(machine: FakeMachine) -> None:
    machine.pinned = 0
    assert codes(measure_ceilings(quick=True)) == [CeilingNoteCode.THREADS_NOT_PINNED]


def test_a_broken_torch_costs_its_rows_only(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_seconds: float) -> Any:
        raise ImportError("libc10.so:\nno such file")

    monkeypatch.setattr(cpu, "library_ceilings", broken)
    monkeypatch.setattr(cpu, "launch_ceiling", broken)
    monkeypatch.setattr(cpu.importlib.util, "find_spec", lambda _name: True)
    found = measure_ceilings()
    assert codes(found) == [CeilingNoteCode.PRODUCTS_NOT_MEASURED, CeilingNoteCode.DISPATCH_NOT_MEASURED]
    assert {note.values["error"] for note in found.notes} == {"ImportError: libc10.so: no such file"}
    assert found.find("compute", "fp32") is not None


def test_without_torch_its_rows_are_absent(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(cpu.importlib.util, "find_spec", lambda _name: None)
    found = measure_ceilings()
    assert found.find("launch") is None
    assert found.find("compute.matmul", "fp32") is None
    assert codes(found) == [CeilingNoteCode.NO_TORCH]


def test_working_sets_lie_between_the_levels() -> None:
    caches = [Cache(1, 32 << 10, (0,)), Cache(2, 1 << 20, (0,)), Cache(3, 32 << 20, (0, 1))]
    alone = cpu._cache_working_sets(caches, [0])
    assert alone[1] < 32 << 10 < alone[2] < 1 << 20 < alone[3] < 32 << 20
    both = cpu._cache_working_sets([*caches, Cache(2, 1 << 20, (1,))], [0, 1])
    assert 1 << 20 < both[3] < 16 << 20
    # The part of the last cache for one core is no larger than the cache before it.
    assert cpu._cache_working_sets([Cache(2, 2 << 20, (0,)), Cache(3, 2 << 20, (0,))], [0])[3] > 2 << 20


def test_ceilings_are_not_measured_inside_a_recording(tmp_path: Path) -> None:
    with (
        gpuprof.profile(out=tmp_path / "r.gpuprof", layers=False, operators=False),
        refused(gpuprof.UnavailableError, "recording_active"),
    ):
        measure_ceilings(quick=True)


# --- the real thing ------------------------------------------------------------------------------


@pytest.mark.slow
def test_this_machine_can_be_measured_quickly() -> None:
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    threads = threading.active_count()
    found = measure_ceilings(quick=True)
    assert found.find("compute", "fp32") is not None
    assert found.find("compute", "fp64") is not None
    assert found.find("memory.dram") is not None
    assert from_dict(json.loads(json.dumps(found.as_dict()))) == found
    # Nothing of the program was changed.
    assert (os.sched_getaffinity(0) if affinity is not None else None) == affinity
    assert threading.active_count() == threads


def test_native_measurements_refuse_nonsense() -> None:
    name = _native.cpu_kernels()[0]
    kernel = name["instruction_set"], name["dtype"]
    for processors, seconds, repeats in (([], 0.001, 1), ([0], 0.0, 1), ([0], math.nan, 1), ([0], 0.001, 0)):
        with pytest.raises(ValueError, match=r"processors|seconds|repeats"):
            _native.measure_compute(*kernel, processors, seconds, repeats)
    with pytest.raises(ValueError, match="no stream is called write"):
        _native.measure_streams(["write"], 1000, [0], 0.001, 1)
    assert _native.measure_compute("avx1024", "fp32", [0], 0.001, 1) is None
    assert _native.measure_streams([], 1000, [0], 0.001, 1) == {}
    with pytest.raises(OSError, match="measuring ceilings"):
        _native.measure_streams(["read"], 1 << 60, [0], 0.001, 1)


def test_kernels_are_those_of_the_processors_instruction_sets() -> None:
    sets = _native.cpu_instruction_sets()
    assert sets[0] == "generic"
    assert {kernel["instruction_set"] for kernel in _native.cpu_kernels()} <= set(sets)
    flags = Path("/proc/cpuinfo")
    if flags.exists():
        words = set(flags.read_text(errors="replace").split())
        for name, flag in (("avx2", "avx2"), ("avx512", "avx512f"), ("avx512_bf16", "avx512_bf16")):
            assert (name in sets) <= (flag in words)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_control_c_ends_a_measurement() -> None:
    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            # Half an hour, if it is not interrupted.
            _native.measure_compute("generic", "fp32", [0], 0.02, 90_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_python_threads_run_meanwhile() -> None:
    stop, rounds = threading.Event(), []

    def count() -> None:
        while not stop.is_set():
            rounds.append(None)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = len(rounds)
        _native.measure_compute("generic", "fp32", [0], 0.2, 2)
        assert len(rounds) > before
    finally:
        stop.set()
        thread.join()


def test_torchs_products_and_dispatch() -> None:
    pytest.importorskip("torch", reason="these are ceilings of PyTorch")
    from gpuprof.analyze.ceilings.cpu import launch_ceiling, library_ceilings

    rows = {each.key: each for each in library_ceilings(0.01)}
    assert (ALL_CORES, "compute.matmul", "fp32") in rows
    assert (ALL_CORES, "compute.convolution", "fp32") in rows
    assert all(each.unit == "flop_per_s" and each.value > 0 for each in rows.values())
    launch = launch_ceiling(0.01)
    assert (launch.resource, launch.unit) == ("launch", "ns")
    assert launch.value > 0


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Ceilings]:
    """What measure_ceilings() returned so far; each measurement is a little faster than the last."""
    done: list[Ceilings] = []

    def measure(quick: bool = False, progress: Any = None) -> Ceilings:
        done.append(some(row("compute", 100.0 + len(done), "fp32")))
        return done[-1]

    monkeypatch.setattr(cache, "measure_ceilings", measure)
    monkeypatch.setattr(cache, "machine_key", lambda: KEY)
    return done


def test_ceilings_are_measured_once(cache_folder: Path, measured: list[Ceilings]) -> None:
    first, second = load_ceilings(), load_ceilings()
    assert first == (measured[0], True)
    assert second == (measured[0], False)
    assert load_ceilings(refresh=True) == (measured[1], True)
    assert load_ceilings() == (measured[1], False)
    (file,) = (cache_folder / "gpuprof").iterdir()
    assert file == cache_file(KEY)
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


def test_another_machine_has_another_file(
    cache_folder: Path, measured: list[Ceilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_ceilings()
    monkeypatch.setattr(cache, "machine_key", lambda: KEY | {"processors": [0]})
    load_ceilings()
    assert len(measured) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format_version": 1}', "\x00" * 100, "[" * 100_000, "1e999"]
)
def test_a_damaged_cache_is_measured_again_with_one_note(
    cache_folder: Path, measured: list[Ceilings], text: str
) -> None:
    load_ceilings()
    cache_file(KEY).write_text(text)
    again, fresh = load_ceilings()
    assert fresh
    assert again.rows == measured[1].rows
    assert again.notes == (A_NOTE, CeilingNote(CeilingNoteCode.CACHE_DAMAGED, {"file": str(cache_file(KEY))}))
    assert load_ceilings() == (measured[1], False)


def test_bytes_that_are_no_text_are_a_damaged_cache(cache_folder: Path, measured: list[Ceilings]) -> None:
    load_ceilings()
    cache_file(KEY).write_bytes(b"\xff\xfe\xfa")
    again, _ = load_ceilings()
    assert codes(again)[-1] == CeilingNoteCode.CACHE_DAMAGED


@pytest.mark.parametrize("change", [{"format_version": 1}, {"format_version": None}])
def test_a_cache_of_another_version_is_measured_again(
    cache_folder: Path, measured: list[Ceilings], change: dict[str, Any]
) -> None:
    load_ceilings()
    values = json.loads(cache_file(KEY).read_text())
    cache_file(KEY).write_text(json.dumps(values | change))
    assert load_ceilings() == (measured[1], True)


def test_a_cache_that_cannot_be_written_is_a_note(
    tmp_path: Path, measured: list[Ceilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    found, fresh = load_ceilings()
    assert fresh
    assert codes(found) == [A_NOTE.code, CeilingNoteCode.NOT_CACHED]
    assert found.notes[1].values["error"] == "Not a directory"


def test_a_full_disk_leaves_the_old_cache_whole(
    cache_folder: Path, measured: list[Ceilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_ceilings()

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device", "the cache")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        found, _ = load_ceilings(refresh=True)
    values = {"file": "the cache", "error": "No space left on device"}
    assert found.notes[-1] == CeilingNote(CeilingNoteCode.NOT_CACHED, values)
    assert load_ceilings() == (measured[0], False)
    assert len(list((cache_folder / "gpuprof").iterdir())) == 1


def test_without_a_home_there_is_no_cache(measured: list[Ceilings], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setattr(Path, "home", homeless)
    found, fresh = load_ceilings()
    assert fresh
    assert codes(found)[-1] == CeilingNoteCode.NOT_CACHED


def test_the_key_distinguishes_machines(machine: FakeMachine) -> None:
    key = cpu.machine_key()
    assert {"processor", "processors", "quota", "instruction_sets", "gpuprof", "torch"} == set(key)
    machine.quota = 1.5
    assert cache_file(cpu.machine_key()) != cache_file(key)
    assert dataclasses.asdict(some())["machine"] == KEY
