# SPDX-License-Identifier: Apache-2.0
"""Replays of programs that were recorded here: threads, waits, loaders, Python functions."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from refusals import refused

import gpuprof
from gpuprof.analyze.whatif.program import RecordedProcess, ReplayRules
from gpuprof.analyze.whatif.step_gain import HIDDEN_ERROR
from gpuprof.errors import RunError
from gpuprof.run.call_sites import waited_ns


def compute(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def recorded(folder: Path, program: object, **options: bool) -> gpuprof.Run:
    with gpuprof.profile(out=folder / "r.gpuprof", **options) as recording:
        program()  # type: ignore[operator]
    return recording.run


def time_of(run: gpuprof.Run, name: str) -> int:
    ((total,),) = run.sql(f"SELECT sum(duration_ns)::BIGINT FROM spans WHERE name = '{name}'").fetchall()
    return int(total)


def train() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        with gpuprof.span("log"):
            compute(0.001)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def test_a_recorded_training_is_replayed_to_the_nanosecond(tmp_path: Path) -> None:
    run = recorded(tmp_path, train, python=True)
    program = RecordedProcess.read(run._folder, run.meta["process_id"]).changed([])
    assert program.execute(ReplayRules(is_changed=False), of_all=False) == run.meta["duration_ns"]


def test_a_removed_span_of_the_main_thread_is_gained_as_a_whole(tmp_path: Path) -> None:
    run = recorded(tmp_path, train)
    found = run.whatif(remove="log")
    assert (found.low_ns, found.high_ns) == (time_of(run, "log"), time_of(run, "log"))
    half = run.whatif(speed_up={"span:log": 2})
    assert half.low_ns == pytest.approx(time_of(run, "log") / 2, abs=40)


def test_nested_and_repeated_names_count_once(tmp_path: Path) -> None:
    def program() -> None:
        with gpuprof.span("outer"):
            compute(0.01)
            with gpuprof.span("inner"):
                compute(0.01)

    run = recorded(tmp_path, program)
    found = run.whatif(remove=["outer", "*er", "inner"])
    assert found.high_ns == time_of(run, "outer")
    assert found.changes[1].names == 2


def test_a_layer_includes_its_backward_pass(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    with gpuprof.profile(model, out=tmp_path / "r.gpuprof") as recording:
        for _ in range(5):
            model(torch.ones(64, 64)).sum().backward()
    run = recording.run
    ((forward,),) = run.sql(
        "SELECT sum(duration_ns)::BIGINT FROM spans WHERE kind = 'layer' AND name = '0'"
    ).fetchall()
    ((backward,),) = run.sql(
        "SELECT sum(total_ns)::BIGINT FROM call_tree WHERE kind = 'layer' AND name = '0' AND calls = 0"
    ).fetchall()
    found = run.whatif(remove="layer:0")
    assert backward > 0
    assert found.changes[0].thread_ns == pytest.approx(forward + backward, rel=1e-6)


def test_time_of_a_thread_that_nothing_waits_for_is_no_gain(tmp_path: Path) -> None:
    """The main thread computes as long as the other thread: a prefetch that costs nothing."""

    def fetch() -> None:
        with gpuprof.span("fetch"):
            compute(0.1)

    def program() -> None:
        thread = threading.Thread(target=fetch)
        thread.start()
        compute(0.4)
        thread.join()

    run = recorded(tmp_path, program)
    found = run.whatif(remove="fetch")
    assert found.changes[0].thread_ns == time_of(run, "fetch")
    assert (found.low_ns, found.high_ns) == (0, 0)


def test_a_removed_thread_that_nothing_waits_for_changes_a_step_by_a_part_of_its_time(tmp_path: Path) -> None:
    """The other thread takes the interpreter lock and processors: without it, a step differs."""

    def fetch() -> None:
        with gpuprof.span("fetch"):
            compute(0.01)

    def program() -> None:
        for _ in range(6):
            with gpuprof.span("step"):
                thread = threading.Thread(target=fetch)
                thread.start()
                compute(0.03)
                thread.join()

    run = recorded(tmp_path, program)
    step = run.whatif(remove="fetch").step
    assert step is not None
    removed_ns = time_of(run, "fetch") / 6
    assert step.low_ns == pytest.approx(-HIDDEN_ERROR * removed_ns, rel=0.2)
    assert step.high_ns == pytest.approx(HIDDEN_ERROR * removed_ns, rel=0.2)


def test_a_wait_with_an_unknown_cause_makes_the_gain_an_interval(tmp_path: Path) -> None:
    def fetch() -> None:
        with gpuprof.span("fetch"):
            compute(0.4)

    def program() -> None:
        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
        compute(0.1)

    run = recorded(tmp_path, program, python=True)
    found = run.whatif(remove="fetch")
    assert found.low_ns == 0
    assert found.high_ns is not None
    assert 0.5 * time_of(run, "fetch") < found.high_ns <= time_of(run, "fetch")


def test_a_python_function_is_gained_within_the_error_of_sampling(tmp_path: Path) -> None:
    def slow() -> None:
        with gpuprof.span("slow"):
            compute(0.5)

    def program() -> None:
        slow()
        compute(0.2)

    run = recorded(tmp_path, program, python=True)
    found = run.whatif(remove="python:*slow")
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.low_ns < found.high_ns
    error_ns = 20e6 + 0.1 * time_of(run, "slow")  # the sampler may begin late on a busy machine
    assert found.low_ns - error_ns <= time_of(run, "slow") <= found.high_ns + error_ns


def waited_by_main_thread_ns(run: gpuprof.Run, function: str) -> int:
    samples = run.sql(
        "SELECT duration_ns, cpu_ns, queued_ns FROM stacks "
        f"WHERE thread_id = {threading.get_native_id()} AND frames[-1] LIKE '{function}'"
    ).fetchall()
    return sum(waited_ns(*sample) for sample in samples)


@pytest.mark.parametrize(
    ("pattern", "function"),
    [("waiting:time.sleep*", "time.sleep%"), ("waiting:*", "%"), ("time.sleep (built-in)", "time.sleep%")],
)
def test_a_wait_of_the_summary_is_gained(tmp_path: Path, pattern: str, function: str) -> None:
    def program() -> None:
        time.sleep(0.3)  # what is recorded
        compute(0.2)

    run = recorded(tmp_path, program, python=True)
    names = run.sql("SELECT name FROM call_tree WHERE kind = 'waiting'").fetchall()
    assert ("time.sleep (built-in)",) in names
    found = run.whatif(remove=pattern)
    assert found.low_ns is not None
    assert found.high_ns is not None
    waited = waited_by_main_thread_ns(run, function)
    assert waited > 100e6
    assert found.low_ns - 1e6 <= waited <= found.high_ns + 1e6


def test_a_function_that_calls_what_waits_is_no_wait(tmp_path: Path) -> None:
    def program() -> None:
        compute(0.2)
        time.sleep(0.1)  # what is recorded

    run = recorded(tmp_path, program, python=True)
    assert run.whatif(remove="python:*program").low_ns is not None
    with refused(RunError, "unknown_name", "waiting:*program"):
        run.whatif(remove="waiting:*program")


def test_names_are_text_and_not_queries(tmp_path: Path) -> None:
    hostile = "it's {process} '); DROP TABLE spans; -- [a]"

    def program() -> None:
        with gpuprof.span(hostile):
            compute(0.01)

    run = recorded(tmp_path, program, python=True)
    assert run.whatif(remove=hostile).low_ns == time_of(run, hostile.replace("'", "''"))
    with pytest.raises(RunError):
        run.whatif(remove="python:it's {process} '*[")


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({}, "no_change", ""),
        ({"remove": "nothing-like-this"}, "unknown_name", "nothing-like-this"),
        ({"remove": "span:logg"}, "unknown_name", "did you mean 'log'?"),
        ({"remove": "python:nothing"}, "no_stacks", "python:nothing"),
        ({"speed_up": {"log": 0.0}}, "invalid_factor", "'log'"),
        ({"speed_up": {"log": float("nan")}}, "invalid_factor", "nan"),
        ({"speed_up": {"log": 1e-12}}, "invalid_factor", "1e-12"),
        ({"workers": 2}, "no_data_loader", ""),
        ({"workers": 0}, "invalid_workers", "0"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, changes: dict[str, object], code: str, value: str
) -> None:
    run = recorded(tmp_path, train)
    with refused(RunError, code, value):
        run.whatif(**changes)  # type: ignore[arg-type]
