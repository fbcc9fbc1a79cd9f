# SPDX-License-Identifier: Apache-2.0
"""Whether threads waited for a processor: simulated programs with counts as the kernel has them."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from run_edits import change_meta
from simulated_gpu import write_table
from simulated_program import PROCESS
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.text import plain, short_lines
from gpuprof.analyze.processor_waits import Contention, ProcessorWaits, WaitsOf, contention_of
from gpuprof.opened_run import summary_difference
from gpuprof.render.phases import phase_lines


def recorded(
    folder: Path,
    queued: float,
    *,
    threads: int = 1,
    cpu: float = 0.5,
    has_steps: bool = True,
    counted: bool = True,
    early: int = 0,
) -> gpuprof.Run:
    """Record a program that waits for a processor for a part of each sample, as the other threads do.

    `early` threads more are as busy, and end with the start-up.
    """
    host = TrainingHost(settings=settings())
    train(host, Planted(collect=20), 12)
    # The first step waits all the time: it is left out of figures if a step ends with the optimizer's.
    host.source_of_steps = "optimizer"
    for sample in host.samples:
        part = 1.0 if sample["t_ns"] <= host.steps[0][1] else queued
        sample["queued_ns"] = round(part * MS) if counted else None
        sample["cpu_ns"] = MS - round(part * MS) if counted else None
    if not has_steps:
        host.steps.clear()
    host.sources = ("operators", "python", "gc")
    path = host.write(folder / "r.gpuprof")
    wall = host.now_ns
    with duckdb.connect() as connection:
        rows = [_row(PROCESS + each, wall, cpu, queued) for each in range(threads + early)]
        for row in rows[threads:]:
            row["end_ns"] = 5 * MS
        write_table(connection, path, "threads", rows)
    return gpuprof.open(path)


def _row(thread: int, wall_ns: int, cpu: float, queued: float) -> dict[str, object]:
    return {
        "process_id": PROCESS,
        "thread_id": thread,
        "name": "python",
        "begin_ns": 0,
        "end_ns": wall_ns,
        "cpu_ns": round(cpu * wall_ns),
        "queued_ns": round(queued * wall_ns),
        "waiting_ns": 0,
        "voluntary_switches": 1,
        "involuntary_switches": 1,
    }


def waits_of(run: gpuprof.Run) -> ProcessorWaits:
    phases = run.phases()
    assert phases is not None
    assert phases.processor_waits is not None
    return phases.processor_waits


def test_the_fraction_is_that_of_the_main_thread_in_the_counted_steps(tmp_path: Path) -> None:
    waits = waits_of(recorded(tmp_path, 0.25))
    assert waits.fraction == pytest.approx(0.25)
    assert (waits.of, waits.contention) == (WaitsOf.STEPS, Contention.OTHER_PROGRAMS)
    assert (waits.busy_threads, waits.processors) == (2, 4.0)  # an operator uses two


def test_a_comparison_names_the_runs_that_waited(tmp_path: Path) -> None:
    for name in ("quiet", "quiet too", "busy"):
        (tmp_path / name).mkdir()
    quiet, busy = recorded(tmp_path / "quiet", 0.0), recorded(tmp_path / "busy", 0.25)
    note = "Threads waited for a processor (25.0% of the time now): times may differ for this reason alone."
    assert note in busy.score(quiet).warnings
    assert note in summary_difference([busy], [quiet], by="span").notes
    assert "25.0% of the time before" in "".join(quiet.score(busy).warnings)
    assert quiet.score(recorded(tmp_path / "quiet too", 0.0)).warnings == ()


def test_without_steps_the_fraction_is_that_of_ready_threads(tmp_path: Path) -> None:
    waits = waits_of(recorded(tmp_path, 0.25, threads=3, cpu=0.75, has_steps=False))
    assert waits.fraction == pytest.approx(0.25)
    assert (waits.of, waits.busy_threads) == (WaitsOf.THREADS, 3)


@pytest.mark.parametrize(("queued", "is_noisy"), [(0.5, True), (0.1, False)])
def test_without_findings_a_noisy_run_is_uncertain(queued: float, is_noisy: bool, tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    train(host, Planted(), 12)
    for sample in host.samples:
        sample["queued_ns"] = round(queued * MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert list(found) == []
    lines = dict(short_lines(found, 3, "r.gpuprof"))
    assert ("uncertain" in lines) == is_noisy
    assert ("50.0%" in lines.get("uncertain", "")) == is_noisy


def test_a_small_fraction_changes_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path, 0.04)
    assert waits_of(run).contention is None
    phases = run.phases()
    assert phases is not None
    assert "warning" not in dict(phase_lines(phases))
    assert all("processors" not in each.factors for each in run.findings())


@pytest.mark.parametrize(("queued", "factor"), [(0.25, 0.75), (0.04, None)])
def test_a_replay_of_a_busy_machine_has_less_confidence(
    tmp_path: Path, queued: float, factor: float | None
) -> None:
    factors = recorded(tmp_path, queued).whatif(remove=["generation 2"]).factors
    assert factors.get("processors") == (None if factor is None else pytest.approx(factor))


def test_what_was_not_counted_is_unavailable(tmp_path: Path) -> None:
    phases = recorded(tmp_path, 0.5, counted=False).phases()
    assert phases is not None
    assert phases.processor_waits is None
    assert "warning" not in dict(phase_lines(phases))


@pytest.mark.parametrize(
    ("busy_threads", "used", "processors", "others", "contention"),
    [
        (2, 1.2, 2.0, None, Contention.OTHER_PROGRAMS),
        (2, 1.2, 2.0, 0.7, Contention.OTHER_PROGRAMS),
        (8, 1.9, 2.0, None, Contention.OWN_THREADS),
        (8, 1.2, 2.0, None, Contention.UNKNOWN),
        (8, 1.2, 2.0, 0.7, Contention.UNKNOWN),
        (8, 1.2, 2.0, 0.05, Contention.OWN_THREADS),
        (1, 0.5, 1.0, None, Contention.OTHER_PROGRAMS),
        (1, 0.5, 0.5, None, Contention.OWN_THREADS),  # a quota
        (1, 0.0, 2.0, 0.0, Contention.UNKNOWN),  # a run that is too short for the counts
    ],
)
def test_the_reason_follows_from_threads_and_processors(
    busy_threads: int, used: float, processors: float, others: float | None, contention: Contention
) -> None:
    waits = ProcessorWaits(0.5, WaitsOf.STEPS, busy_threads, processors, others, None)
    assert contention_of(waits, used) is contention


def test_other_programs_used_what_the_machine_was_busy_without_the_run(tmp_path: Path) -> None:
    recorded(tmp_path, 0.25, threads=2, cpu=0.5)
    path = tmp_path / "r.gpuprof"
    wall_ns = json.loads((path / "meta.json").read_text(encoding="utf-8"))["duration_ns"]
    change_meta(path, machine_busy_ns=round(1.75 * wall_ns))
    run = gpuprof.open(path)
    assert waits_of(run).others == pytest.approx(0.75)
    assert waits_of(run).contention is Contention.OTHER_PROGRAMS
    change_meta(path, machine_busy_ns=round(1.01 * wall_ns))
    # Two busy threads do not wait for each other on four processors.
    assert waits_of(gpuprof.open(path)).contention is Contention.UNKNOWN


def test_more_busy_threads_than_processors_are_the_programs_own(tmp_path: Path) -> None:
    waits = waits_of(recorded(tmp_path, 0.5, threads=8, cpu=0.5))
    assert (waits.contention, waits.busy_threads) == (Contention.OWN_THREADS, 8)


@pytest.mark.parametrize("damaged", [{"threads": None}, {"loaders": 7}, {}])
def test_damaged_settings_are_unknown(damaged: dict[str, object], tmp_path: Path) -> None:
    recorded(tmp_path, 0.25)
    change_meta(tmp_path / "r.gpuprof", settings=damaged, machine={"cores": 3})
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert (waits_of(run).busy_threads, waits_of(run).processors) == (1, 3.0)
    run.flamegraph(tmp_path / "page.html")


@pytest.mark.parametrize(("has_steps", "busy"), [(True, 2), (False, 8)])
def test_threads_of_the_start_up_are_not_busy_in_steps(has_steps: bool, busy: int, tmp_path: Path) -> None:
    waits = waits_of(recorded(tmp_path, 0.5, early=7, has_steps=has_steps))
    assert waits.busy_threads == busy


def test_the_confidence_of_a_replay_falls_with_the_fraction(tmp_path: Path) -> None:
    (finding,) = recorded(tmp_path, 0.25).findings()
    assert finding.factors["processors"] == pytest.approx(0.75)


def test_the_waits_are_in_json_and_on_the_first_lines(tmp_path: Path) -> None:
    run = recorded(tmp_path, 0.25)
    values = json.loads(json.dumps(plain(run.findings())))["processor_waits"]
    assert values == {
        "fraction": pytest.approx(0.25),
        "of": "steps",
        "busy_threads": 2,
        "processors": 4.0,
        "others": None,
        "contention": "other_programs",
    }
    phases = run.phases()
    assert phases is not None
    assert json.loads(json.dumps(phases.to_dict()))["processor_waits"] == values
    (text,) = [text for label, text in phase_lines(phases) if label == "warning"]
    assert "25.0%" in text
    run.flamegraph(tmp_path / "page.html")
    assert text.split(":")[0] in (tmp_path / "page.html").read_text(encoding="utf-8")
