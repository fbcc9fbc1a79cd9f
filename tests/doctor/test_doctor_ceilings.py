# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor --ceilings`: the table, its JSON, and its lines about drift."""

from __future__ import annotations

import json
from typing import Any

import pytest
from refusals import refused_command

from gpuprof.analyze.ceilings import cache, cpu
from gpuprof.analyze.ceilings.ceiling import (
    ALL_CORES,
    ONE_CORE,
    Ceiling,
    CeilingNote,
    CeilingNoteCode,
    Ceilings,
    Drift,
    Unit,
)
from gpuprof.analyze.ceilings.text import ceilings_table, drift_text, format_ceiling
from gpuprof.cli.main import execute


def row(
    device: str, resource: str, dtype: str | None, value: float, unit: Unit, method: str = "by hand"
) -> Ceiling:
    return Ceiling(device, resource, dtype, value, unit, 0.0123, method)


def example(factor: float = 1, **changes: Any) -> Ceilings:
    rows = (
        row(ALL_CORES, "compute", "fp32", 2.354e11 * factor, "flop_per_s", "best: avx512"),
        row(ALL_CORES, "compute.avx512", "fp32", 2.354e11 * factor, "flop_per_s", "FMA, 24 accumulators"),
        row(ALL_CORES, "memory.dram", None, 7e10 * factor, "bytes_per_s"),
        row(ALL_CORES, "memory.dram.triad_non_temporal", None, 7e10 * factor, "bytes_per_s"),
        row(ALL_CORES, "launch", None, 1046.0, "ns"),
        row(ONE_CORE, "compute", "fp32", 1.18e11, "flop_per_s"),
        row(ONE_CORE, "memory.l7", None, 5e11, "bytes_per_s"),
    )
    machine = {"processor": "Some \x1b[31mprocessor", "processors": [0, 1, 5]}
    return Ceilings(rows, "2030-01-02T03:04:05+00:00", machine, **changes)


def test_the_table_has_a_line_for_each_resource() -> None:
    lines = [" ".join(line.split()) for line in ceilings_table(example()).splitlines()]
    assert "all 3 cores spread one core spread method" in lines
    assert "compute fp32 235 GFLOP/s 1.2% 118 GFLOP/s 1.2% best: avx512" in lines
    assert "avx512 235 GFLOP/s 1.2% - - FMA, 24 accumulators" in lines
    assert "memory.dram 70.0 GB/s 1.2% - - by hand" in lines
    assert "triad_non_temporal 70.0 GB/s 1.2% - - by hand" in lines
    assert "launch 1.05 us 1.2% - - by hand" in lines
    assert "memory.l7 - - 500 GB/s 1.2% by hand" in lines


def test_the_best_of_one_core_is_shown_where_it_is_another() -> None:
    dram = "memory.dram"
    rows = (
        row(ALL_CORES, dram, None, 7e10, "bytes_per_s", "best: triad_non_temporal"),
        row(ALL_CORES, f"{dram}.read", None, 5e10, "bytes_per_s", "134 MB arrays"),
        row(ONE_CORE, dram, None, 2e10, "bytes_per_s", "best: read"),
        row(ONE_CORE, f"{dram}.read", None, 2e10, "bytes_per_s", "67 MB arrays"),
        row(ALL_CORES, "compute", "fp32", 7e10, "flop_per_s", "best: avx2"),
        row(ONE_CORE, "compute", "fp32", 4e10, "flop_per_s", "best: avx2"),
    )
    found = Ceilings(rows, "2030-01-02T03:04:05+00:00", {"processors": [0, 1]})
    lines = [" ".join(line.split()) for line in ceilings_table(found).splitlines()]
    assert lines[3:7] == [
        "memory.dram 70.0 GB/s 1.2% 20.0 GB/s 1.2% best: triad_non_temporal",
        "one core: read",
        "read 50.0 GB/s 1.2% 20.0 GB/s 1.2% 134 MB arrays",
        "compute fp32 70.0 GFLOP/s 1.2% 40.0 GFLOP/s 1.2% best: avx2",
    ]


def test_the_table_fits_its_width() -> None:
    long = example(notes=(CeilingNote(CeilingNoteCode.TEXT, {"text": "word " * 60}),))
    for width in (100, 120):
        assert max(map(len, ceilings_table(long, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.5e15, "flop_per_s", "1.50 PFLOP/s"),
        (99.96e9, "flop_per_s", "100 GFLOP/s"),
        (999.96e9, "bytes_per_s", "1.00 TB/s"),
        (64.2e9, "bytes_per_s", "64.2 GB/s"),
        (12.0, "bytes_per_s", "12.0 B/s"),
        (812.4, "ns", "812 ns"),
    ],
)
def test_units(value: float, unit: Unit, text: str) -> None:
    assert format_ceiling(row(ALL_CORES, "compute", None, value, unit)) == text


def test_what_is_not_known_is_a_dash() -> None:
    assert format_ceiling(None) == "-"


def test_drift_is_shown_as_text() -> None:
    small = [Drift(ALL_CORES, "compute.avx2", "fp32", -0.02), Drift(ALL_CORES, "launch", None, 0.01)]
    assert drift_text(small) == "drift: 2 measured again, largest change compute.avx2 fp32 -2.0%"
    large = drift_text([*small, Drift(ALL_CORES, "memory.dram.read", None, -0.31)])
    assert large.startswith("drift: 1 of 3 measured again differ by more than 10%: memory.dram.read -31.0%")
    assert "--refresh" in large
    assert drift_text([]) == "drift: no measurement could be compared"
    many = drift_text([Drift(ALL_CORES, f"r{i}", None, 0.2 + i / 100) for i in range(9)])
    assert "r8 +28.0%, r7" in many
    assert "r3" not in many


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The command's inputs: the cached ceilings, and those of a new measurement."""
    given: dict[str, Any] = {"fresh": False, "kept": True, "factor": 0.8, "asked": []}

    def load(refresh: bool, progress: Any) -> tuple[Ceilings, bool]:
        given["asked"].append(refresh)
        progress("something")
        return example(notes=(CeilingNote(CeilingNoteCode.TEXT, {"text": "one note"}),)), given[
            "fresh"
        ] or refresh

    def measure(quick: bool, progress: Any) -> Ceilings:
        assert quick
        return example(given["factor"])

    monkeypatch.setattr(cache, "load_ceilings", load)
    monkeypatch.setattr(cache, "are_cached", lambda: given["kept"])
    monkeypatch.setattr(cache, "load_gpu_ceilings", lambda *_: ([], []))
    monkeypatch.setattr(cpu, "measure_ceilings", measure)
    return given


def test_the_command_prints_the_cache_and_the_drift(
    cached: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["doctor", "--ceilings"]) == 0
    printed = capsys.readouterr()
    assert "compute fp32" in printed.out
    assert "one note" in printed.out
    assert "drift: 2 of 3 measured again differ by more than 10%" in printed.out
    assert "\x1b" not in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    assert printed.err == "measuring the processors again, for about 2 seconds ...\n"


@pytest.mark.parametrize(("kept", "words"), [(False, []), (True, ["--refresh"])])
def test_the_command_announces_a_long_measurement(
    cached: dict[str, Any], capsys: pytest.CaptureFixture[str], kept: bool, words: list[str]
) -> None:
    cached["kept"] = kept
    assert execute(["doctor", "--ceilings", *words]) == 0
    assert capsys.readouterr().err == "measuring the processors for about 10 seconds ...\n"


def test_the_command_prints_json(cached: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor", "--ceilings", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["from_cache"] is True
    assert values["ceilings"]["rows"][0]["resource"] == "compute"
    assert [round(drift["change"], 3) for drift in values["drift"]] == [-0.2, -0.2, 0.0]


def test_a_fresh_measurement_has_no_drift(cached: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor", "--ceilings", "--refresh", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["from_cache"], values["drift"]) == (False, None)
    assert cached["asked"] == [True]


def test_refresh_alone_is_refused() -> None:
    refused_command(["doctor", "--refresh"], "needs_ceilings")
