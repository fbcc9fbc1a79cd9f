# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the ceilings runs and reports. No test checks whether the figures are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ceilings.py"
sys.path.append(str(SCRIPT.parents[1]))

from benchmarks import ceilings  # noqa: E402 - found only from now on


def fake_stream(folder: Path, text: str) -> str:
    script = folder / "stream"
    script.write_text(f"#!{sys.executable}\nprint({text!r})\n")
    script.chmod(0o755)
    return str(script)


def test_the_rates_of_stream_are_read(tmp_path: Path) -> None:
    printed = "Function  Best Rate MB/s  Avg time\nCopy:  20000.5  0.1 0.1 0.1\nTriad:  30000.0  0.1 0.1 0.1"
    assert ceilings.run_stream(fake_stream(tmp_path, printed)) == {"copy": 20000.5e6, "triad": 30000e6}


@pytest.mark.parametrize("text", ["", "Copy: fast", "Copy:  20000.5  0.1"])
def test_what_is_not_stream_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit, match="prints no rates"):
        ceilings.run_stream(fake_stream(tmp_path, text))


def test_a_stream_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not run"):
        ceilings.run_stream(str(tmp_path / "nowhere"))


def test_arithmetic_is_compared_with_clock_times_units(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        @staticmethod
        def cpu_kernels() -> list[dict[str, str]]:
            return [{"instruction_set": "avx2", "dtype": "fp32"}, {"instruction_set": "amx", "dtype": "bf16"}]

        @staticmethod
        def measure_clock(processors: list[int], *_rest: Any) -> dict[str, Any]:
            return {"per_second": [2e9, 3e9]}

        @staticmethod
        def measure_compute(_name: str, _dtype: str, processors: list[int], *_rest: Any) -> dict[str, Any]:
            # Two units of eight lanes, at 0.95 of what they could do.
            return {"per_second": [1e9, 0.95 * 3e9 * 2 * 8 * 2 * len(processors)]}

    monkeypatch.setattr(ceilings, "_native", Native)
    one, two = ceilings.arithmetic([0, 1], rounds=2, repeats=2)
    assert (one.name, two.name) == ("avx2 fp32, 1 core", "avx2 fp32, 2 cores")
    assert one.against == "3.000 GHz x 2 units"
    assert one.theirs == pytest.approx(96e9)
    assert one.ratio == two.ratio == pytest.approx(0.95)


class SteadyNative:
    """Three streams that always move 12, 20 and 30 GB/s, the last of two repeats the best."""

    @staticmethod
    def measure_streams(streams: list[str], *_rest: Any) -> dict[str, Any]:
        rates = {"read": 12e9, "copy": 20e9, "triad": 30e9}
        return {stream: {"per_second": [rates[stream] / 2, rates[stream]]} for stream in streams}


def test_a_row_compares_with_the_best_of_several_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_native", SteadyNative)
    monkeypatch.setattr(ceilings, "library_copies", lambda *_arguments: [])
    builds = []
    for name, copy, triad in (("apart", 25000, 20000), ("aligned", 16000, 40000)):
        (tmp_path / name).mkdir()
        builds.append(fake_stream(tmp_path / name, f"Copy: {copy} 0 0 0\nTriad: {triad} 0 0 0"))
    rows = ceilings.memory([0, 1], 1 << 20, builds, rounds=2, repeats=2)
    assert {(row.against, row.name): row.ratio for row in rows} == pytest.approx(
        {
            ("STREAM 1, stream", "copy, 2 cores"): 0.8,
            ("STREAM 1, stream", "triad, 2 cores"): 1.5,
            ("STREAM 2, stream", "copy, 2 cores"): 1.25,
            ("STREAM 2, stream", "triad, 2 cores"): 0.75,
            ("STREAM, best of 2 builds", "copy, 2 cores"): 0.8,
            ("STREAM, best of 2 builds", "triad, 2 cores"): 0.75,
        }
    )


def test_the_script_prints_json(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="one of the contestants")
    stream = fake_stream(tmp_path, "Copy: 1.0 0 0 0\nTriad: 1.0 0 0 0")
    command = [
        sys.executable,
        str(SCRIPT),
        "--rounds",
        "1",
        "--repeats",
        "2",
        "--json",
        "-",
        "--stream",
        stream,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    against = [(each["against"], each["name"].partition(",")[0]) for each in values["comparisons"]]
    assert {("STREAM", "triad"), ("STREAM", "copy"), ("numpy copyto, 1 core", "copy")} <= set(against)
    assert all(each["ratio"] > 0 for each in values["comparisons"])
