# SPDX-License-Identifier: Apache-2.0
"""Warnings of simulated systems, and of machines that were busy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import MS, FakeClock, SimulatedSystem, flag_names, measured

import gpuprof
from gpuprof.bench.config import Settings
from gpuprof.bench.measure import host, timer
from gpuprof.bench.measure.diagnostics import machine_warnings, modes_of, warnings_of
from gpuprof.bench.measure.host import MachineUse
from gpuprof.bench.measure.measure import measure
from gpuprof.record.processor import Cache


def test_drift_has_a_warning() -> None:
    found, _ = measured(lambda call: MS * (1 + call / 20_000), iterations=2_000, warmup=0)
    assert flag_names(found) == {"drift", "relative_iqr"}
    values = next(each.values for each in warnings_of(found) if each.code == "drift")
    assert values["drift"] == pytest.approx(0.0975, abs=0.003)


@pytest.mark.parametrize("factor", [8.6, 1 / 8.6])
def test_a_drift_by_a_factor_is_shown_as_two_times(factor: float) -> None:
    found, _ = measured(lambda call: MS * factor ** (call / 2_000), iterations=2_000, warmup=0)
    line = next(str(each) for each in warnings_of(found) if "drift" in each.code)
    assert "%" not in line
    values = next(each.values for each in warnings_of(found) if each.code == "large_drift")
    first, last = values["first_s"], values["last_s"]
    assert last / first == pytest.approx(factor**0.9, rel=0.01)


def test_bimodal_times_have_a_warning_with_both_modes() -> None:
    generator = np.random.default_rng(41)
    found, _ = measured(
        lambda call: (MS if generator.random() < 0.6 else 3 * MS) * generator.lognormal(0, 0.01),
        duration_s=3.0,
    )
    assert "bimodal" in flag_names(found)
    peaks = modes_of(found.samples)
    assert peaks is not None
    assert peaks[0] == pytest.approx(0.001, rel=0.05)
    assert peaks[1] == pytest.approx(0.003, rel=0.05)


@pytest.mark.parametrize("kind", ["normal", "lognormal", "gamma", "uniform", "exponential"])
def test_one_peak_is_not_taken_for_two(kind: str) -> None:
    generator = np.random.default_rng(42)
    draw: dict[str, Callable[[], Any]] = {
        "normal": lambda: generator.normal(1, 0.05, 800),
        "lognormal": lambda: generator.lognormal(0, 0.3, 800),
        "gamma": lambda: generator.gamma(4, 1, 800),
        "uniform": lambda: generator.uniform(1, 2, 800),
        "exponential": lambda: 1 + generator.exponential(0.1, 800),
    }
    assert sum(modes_of(draw[kind]()) is not None for _ in range(40)) <= 1


def test_enqueueing_that_takes_most_of_a_call_has_a_warning_on_a_device() -> None:
    clock = FakeClock()
    system = SimulatedSystem(clock, lambda call: MS, enqueue_share=0.9, device_type="cuda")
    found = measure(system, Settings(), clock=clock)
    assert flag_names(found, "cuda") == {"enqueue"}
    assert flag_names(found, "cpu") == set()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ({}, set()),
        ({"involuntary_switches": 500}, {"involuntary_context_switches"}),
        ({"others_cpus": 1.5}, {"background_cpu_load"}),
        ({"stolen_share": 0.2}, {"steal_time"}),
        ({"frequency_before_mhz": 3000.0, "frequency_after_mhz": 2000.0}, {"cpu_frequency"}),
        ({"others_cpus": None, "stolen_share": None, "involuntary_switches": None}, set()),
    ],
)
def test_a_busy_machine_has_warnings(use: dict[str, Any], expected: set[str]) -> None:
    quiet = {
        "elapsed_s": 1.0,
        "processors": 4,
        "involuntary_switches": 3,
        "others_cpus": 0.05,
        "stolen_share": 0.0,
        "frequency_before_mhz": 3000.0,
        "frequency_after_mhz": 2950.0,
    }
    found = list(machine_warnings(MachineUse(**{**quiet, **use}), calls=1_000))
    assert {each.code for each in found} == expected
    assert all("\n" not in str(each) for each in found)


def test_the_processor_states_that_cannot_be_read_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PROCESSORS", "_STATISTICS", "_PROCESSOR_FILES"):
        monkeypatch.setattr(host, name, tmp_path / "nothing")
    state = host.read_state()
    assert (state.busy_s, state.stolen_s, state.frequency_mhz) == (None, None, None)
    use = host.use_between(state, host.read_state())
    assert (use.others_cpus, use.stolen_share, use.frequency_after_mhz) == (None, None, None)


def test_processor_times_are_read_from_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = tmp_path / "stat"
    monkeypatch.setattr(host, "_STATISTICS", statistics)
    monkeypatch.setattr(host.os, "sysconf", lambda name: 100)
    # user nice system idle iowait irq softirq steal guest guest_nice
    statistics.write_text("cpu 100 20 30 4000 500 6 7 800 0 0\ncpu0 1 2 3\n", encoding="ascii")
    state = host.read_state()
    assert (state.busy_s, state.stolen_s) == (pytest.approx(1.63), pytest.approx(8.0))


def test_the_largest_cache_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [Cache(1, 32 << 10, (0,)), Cache(3, 32 << 20, (0,)), Cache(2, 1 << 20, (0,))]
    for found, size in (([], None), (caches, 32 << 20)):
        monkeypatch.setattr(timer, "data_caches", lambda processors, found=found: found)
        assert timer.last_level_cache_bytes() == size
    touched = gpuprof.benchmark(len, [1], caches="cold", iterations=3, warmup=1)
    assert len(touched.samples) == 3
    assert touched.measurements[0].settings.caches == "cold"
