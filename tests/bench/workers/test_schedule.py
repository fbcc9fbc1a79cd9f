# SPDX-License-Identifier: Apache-2.0
"""Process runs of callables: order, results, failures, hanging, interrupts."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launched
import pytest
from refusals import refused

import gpuprof
from gpuprof.bench.benchmark import CallablePlan, run_callables
from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.failures import DoesNotFitError, Failure, FailureCode, TimeLimitError, failure_of
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.models.importing import WORKER_VARIABLE, find_named, name_of
from gpuprof.bench.results.result import Result
from gpuprof.bench.workers import schedule
from gpuprof.bench.workers.events import Described, Event, Failed, Found, State, decode_event, encode_event
from gpuprof.bench.workers.job import FactorySpec, MeasureJob, decode_job, encode_job
from gpuprof.bench.workers.schedule import ProcessRun, RunEvent, Schedule, run_order
from gpuprof.errors import BenchmarkError

FEW = Settings(iterations=40, warmup=5)


def plan(factory: str, **arguments: Any) -> CallablePlan:
    return CallablePlan(FactorySpec(f"launched:{factory}", arguments), FEW, batch_size=8)


@pytest.mark.parametrize("runs", [1, 2, 5, 10])
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_each_is_run_as_often_and_every_second_turn_is_the_mirror(names: list[str], runs: int) -> None:
    order = run_order(names, runs, seed=5)
    assert Counter(order) == dict.fromkeys(names, runs)
    width = len(names)
    turns = [order[start : start + width] for start in range(0, len(order), width)]
    assert all(sorted(turn) == names for turn in turns)
    for first, second in zip(turns[::2], turns[1::2], strict=False):
        assert second == first[::-1]
    assert order == run_order(names, runs, seed=5)


def test_the_order_is_random_over_seeds() -> None:
    firsts = Counter(run_order(["a", "b"], 2, seed)[0] for seed in range(100))
    assert min(firsts.values()) > 30


def test_process_runs_of_two_configurations() -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(run: ProcessRun, done: int, planned: int) -> None:
        seen.append((run.name, done, planned))

    done = run_callables({"a": plan("talking"), "b": plan("talking")}, 2, seed=1, progress=progress)
    assert [name for name, _, _ in seen] == run_order(["a", "b"], 2, 1)
    assert [(number, planned) for _, number, planned in seen] == [(number, 4) for number in (1, 2, 3, 4)]
    results = done.results()
    processes = set()
    for result in results.values():
        assert len(result.samples) == 80
        assert [run.failure for run in result.launches] == [None, None]
        assert result.batch_size == 8
        assert result.description is not None
        # A benchmark measures the framework alone: nothing listens to its operators.
        assert result.description["details"] == {"collector": "none"}
        assert result.environment["python"]
        for run in result.launches:
            processes.add(run.extra["process_id"])
            assert run.extra["load_s"] >= 0
            assert run.extra["memory"]["host_resident_bytes"] == 12_345
    assert len(processes) == 4
    assert os.getpid() not in processes
    again = Result.from_dict(json.loads(json.dumps(results["a"].to_dict())))
    assert str(again) == str(results["a"])
    assert again.to_dict() == results["a"].to_dict()


def test_failures_are_outcomes_in_one_line() -> None:
    plans = {
        "raises": plan("failing", message="not\nhere"),
        "dies": plan("dying"),
        "missing": plan("nothing"),
        "works": plan("talking"),
    }
    done = run_callables(plans, 1)
    failures = {run.name: done.result_of(run).failure for run in done.runs}
    values = {"raises": "RuntimeError: not here", "dies": "last words", "missing": "'nothing'"}
    for name, value in values.items():
        failure = failures[name]
        assert failure is not None
        assert failure.code is FailureCode.FAILED
        assert value in str(failure)
        assert len(str(failure).splitlines()) == 1
    assert " 7 " in str(failures["dies"]).replace(",", " ")
    assert failures["works"] is None
    results = done.results()
    assert len(results["dies"].samples) == 0
    (failed,) = [each for each in results["dies"].warnings if each.code == "failed_process_runs"]
    assert "last words" in failed.values["first"]
    assert len(results["works"].samples) == 40


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_its_children_and_keeps_its_samples(
    tmp_path: Path, limit_calls: Callable[[float], None]
) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        settings = Settings(iterations=10**9, warmup=0)
        hanging = CallablePlan(FactorySpec("launched:hanging", {"fifo": str(fifo)}), settings)
        limit_calls(0.5)
        done = run_callables({"hangs": hanging}, 1, time_limit_s=2.0)
        made = done.runs[0]
        assert made.failure is not None
        assert made.failure.code is FailureCode.TIME_LIMIT
        run = done.result_of(made)
        assert run.measurement is not None
        assert len(run.measurement.samples_ns) > 0
        assert os.read(reader, 100) == b"alive"
        # The end of the file: the child that held it open is gone too.
        assert select.select([reader], [], [], 180)[0]
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
    (failed,) = [each for each in done.results()["hangs"].warnings if each.code == "failed_process_runs"]
    assert "2" in failed.values["first"]


def test_an_interrupt_keeps_the_process_runs_that_are_done() -> None:
    plans = {"works": plan("talking"), "interrupts": plan("interrupting")}
    seed = next(seed for seed in range(10) if run_order(list(plans), 1, seed)[0] == "works")
    done = run_callables(plans, 3, seed=seed)
    assert done.interrupted
    assert [run.name for run in done.runs] == ["works", "interrupts"]
    assert [run.failure and run.failure.code for run in done.runs] == [None, FailureCode.INTERRUPTED]
    assert len(done.results()["works"].samples) == 40


def test_benchmark_in_process_runs_finds_functions_by_name() -> None:
    result = gpuprof.benchmark(launched.add, launched.two_numbers, iterations=30, warmup=2, launches=2)
    assert len(result.samples) == 60
    assert [len(each.samples_ns) for each in result.measurements] == [30, 30]
    assert result.name == "add"
    assert not result.in_process
    assert "one_process_run" not in {warning.code for warning in result.warnings}


def test_benchmark_in_process_runs_keeps_what_was_measured_before_a_failure() -> None:
    result = gpuprof.benchmark(launched.fail_late, iterations=100, warmup=10, launches=2)
    assert len(result.samples) == 100
    (failed,) = [each.values for each in result.warnings if each.code == "failed_process_runs"]
    assert (failed["failed"], failed["process_runs"]) == (2, 2)
    with refused(BenchmarkError, "no_samples", "ValueError") as raised:
        gpuprof.benchmark(launched.fail_late, iterations=100, warmup=70, launches=2)
    assert "\n" not in str(raised.value)


def test_what_has_no_name_is_refused() -> None:
    for nameless in (lambda: 1, Launched_instance, [].append):
        with refused(BenchmarkError, "not_importable"):
            gpuprof.benchmark(nameless, launches=2)
    with refused(BenchmarkError, "not_importable"):
        gpuprof.benchmark(launched.add, (1, 2), launches=2)
    with refused(BenchmarkError, "invalid_launches"):
        gpuprof.benchmark(launched.quick, launches=0)


Launched_instance = launched.Launched(launched.quick).describe


def test_names() -> None:
    assert find_named(name_of(launched.quick, "it")) is launched.quick
    assert find_named(f"{Path(launched.__file__)}:two_numbers")() == (3, 4)
    for wrong in (
        "quick",
        "launched:",
        ":quick",
        "no_such_module_here:f",
        "launched:quick.nothing",
        "no/such.py:f",
    ):
        with pytest.raises(BenchmarkError) as raised:
            find_named(wrong)
        assert "\n" not in str(raised.value)


def test_a_process_run_starts_no_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_VARIABLE, "1")
    with refused(BenchmarkError, "started_by_worker"):
        run_callables({"a": plan("talking")}, 1)


@pytest.mark.parametrize(("runs", "limit_s"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_counts_and_limits_that_make_no_sense_are_refused(runs: int, limit_s: float) -> None:
    with refused(BenchmarkError, "invalid_process_runs", "1"):
        run_callables({"a": plan("talking")}, runs, time_limit_s=limit_s)


def test_arguments_are_plain_data() -> None:
    with refused(BenchmarkError, "cannot_send"):
        run_callables({"a": plan("talking", model=object())}, 1)


SCRIPT = """
import gpuprof
def work():
    return sum(range(100))
result = gpuprof.benchmark(work, iterations=20, warmup=1, launches=2)
print(len(result.samples))
"""


def test_a_script_without_a_guard_does_not_multiply(
    run_python: Any, run_with_codes: Any, tmp_path: Path
) -> None:
    (tmp_path / "unguarded.py").write_text(SCRIPT)
    done: subprocess.CompletedProcess[str] = run_with_codes("unguarded.py")
    assert done.returncode == 1
    assert "started_by_worker" in done.stderr.splitlines()[-1]
    guarded = SCRIPT.replace("result =", "if __name__ == '__main__':\n  result =").replace("print", "  print")
    (tmp_path / "guarded.py").write_text(guarded)
    done = run_python("guarded.py")
    assert (done.stdout, done.returncode) == ("40\n", 0), done.stderr


# --- the schedule itself -------------------------------------------------------------------------


class PlayedSubject:
    """A subject of which the process runs `missing` have nothing left to do."""

    def __init__(self, name: str, missing: tuple[int, ...] = ()) -> None:
        self.name, self._missing = name, missing
        self.ends: list[tuple[int, FailureCode | None]] = []

    def job(self, number: int) -> Any:
        return None if number in self._missing else (self.name, number)

    def take(self, number: int, event: Event) -> None: ...

    def end(self, number: int, failure: Failure | None) -> None:
        self.ends.append((number, None if failure is None else failure.code))


def play_runs(monkeypatch: pytest.MonkeyPatch, results: dict[tuple[str, int], BaseException]) -> list[Any]:
    """Let process runs end as in `results`, else well; returns the jobs in their order."""
    jobs: list[Any] = []

    def run(job: Any, *, time_limit_s: float, on_event: Any) -> None:
        jobs.append(job)
        on_event(Event(State.UP))
        if job in results:
            raise results[job]

    monkeypatch.setattr(schedule, "run_process", run)
    return jobs


def test_a_schedule_leaves_out_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = {("a", 1): DoesNotFitError("too large")}
    jobs = play_runs(monkeypatch, failing)
    seen: list[RunEvent] = []
    a, b = PlayedSubject("a", missing=(2,)), PlayedSubject("b")
    runs = Schedule(2, is_done=lambda *run: run == ("b", 1), watch=seen.append).run([a, b])
    assert sorted(jobs) == [("a", 1), ("b", 2)]
    assert a.ends == [(1, FailureCode.OUT_OF_MEMORY)]
    assert b.ends == [(2, None)]
    assert [each.skipped for each in runs if each.name == "a"] == [False, True]
    ends = [each for each in seen if each.event.state is State.ENDED]
    # One of four was done before.
    assert [(each.done, each.planned) for each in ends] == [(2, 4), (3, 4), (4, 4)]


def test_an_interrupt_of_a_schedule_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = play_runs(monkeypatch, {("a", 2): KeyboardInterrupt()})
    subject, ended = PlayedSubject("a"), []
    with pytest.raises(KeyboardInterrupt):
        Schedule(3, ended=ended.append).run([subject])
    assert jobs == [("a", 1), ("a", 2)]
    assert subject.ends == [(1, None), (2, FailureCode.INTERRUPTED)]
    assert [each.failure and each.failure.code for each in ended] == [None, FailureCode.INTERRUPTED]


def test_jobs_and_events_survive_the_way_to_another_process() -> None:
    spec = SystemSpec("caf\udce9.py:build", input_shape=(3,))  # a name that is no UTF-8
    job = MeasureJob(spec, JobSettings((1, 8)), FactorySpec("m:f", {"a": [1, {"b": None}]}))
    assert decode_job(encode_job(job)) == job
    failure = Failure(FailureCode.TIME_LIMIT, "no response", "wait longer")
    for event in (
        Event(State.PREPARED, 5, batch_size=4),
        Failed(failure=failure),
        Found(value=["a", 1.5]),
        Described(description=SystemDescription("a", "b", "c", "cpu", "float32", (3,)), threads=2),
    ):
        assert decode_event(encode_event(event)) == event
    assert type(failure.error()) is TimeLimitError
    assert failure_of(failure.error()) == failure
    # Written without the encoder, before anything is imported.
    assert decode_event(b'{"state":"up","t_ns":7}\n') == Event(State.UP, 7)
