# SPDX-License-Identifier: Apache-2.0
"""Wall time by phase of recorded programs, against what the programs print of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuprof
from gpuprof.analyze.phases import Phases, warm_up_steps_of
from gpuprof.record import stack_sampler

pytest.importorskip("torch")

MS = 1_000_000

NET = """
import time
import torch

def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        busy(0.02)
        return self.weight * x
"""

LOOP = (
    NET
    + """
import os, signal, sys

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
busy(0.3)
marks = [time.monotonic_ns()]
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.ones(1)).sum().backward()
    optimizer.step()
    busy(0.01)
    marks.append(time.monotonic_ns())
busy(0.3)
print(*marks, time.monotonic_ns(), flush=True)
"""
)
ENDINGS = {
    "normally": "",
    "os._exit": "os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


def recorded(tmp_path: Path, program: str, *words: str) -> tuple[gpuprof.api.Run, list[int]]:
    """Record a program; returns its run and the times that it printed."""
    script, out = tmp_path / "program.py", tmp_path / "run.gpuprof"
    script.write_text(program)
    command = [sys.executable, "-m", "gpuprof", "run", "--out", out, script, *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return gpuprof.open(out), [int(word) for word in found.stdout.split()]


def phases_of(run: gpuprof.api.Run) -> Phases:
    phases = run.phases()
    assert phases is not None
    return phases


@pytest.mark.parametrize(
    "ending", ["normally", *(pytest.param(each, marks=pytest.mark.slow) for each in ("os._exit", "killed"))]
)
def test_phases_are_those_that_the_program_measures(tmp_path: Path, ending: str) -> None:
    run, (first, *marks, end) = recorded(tmp_path, LOOP + ENDINGS[ending] + "\n", "6")
    phases = phases_of(run)
    assert phases.steps is not None
    assert (phases.steps.count, phases.steps.source, phases.steps.kind) == (6, "optimizer", "training")
    # Without the pause after the last step, which is closing.
    assert (6 * 20 + 5 * 10) * MS <= phases.steps.total_ns <= marks[-1] - first - 10 * MS
    if ending == "normally":
        assert phases.closing_ns >= end - marks[-1] + 10 * MS
    elif stack_sampler.why_not() is None:
        assert phases.closing_ns >= 100 * MS
    assert phases.startup_ns >= 300 * MS
    assert phases.between_ns == 0
    assert phases.wall_ns == phases.startup_ns + phases.steps.total_ns + phases.closing_ns
    assert phases.steps.interval_ns is not None
    low, high = phases.steps.interval_ns
    assert 20 * MS <= low <= phases.steps.median_ns <= high
    parts = phases.steps.parts
    assert sum(share for share in parts.values() if share is not None) == pytest.approx(1)
    assert parts["data"] == 0
    ((forward_ns,),) = run.sql("SELECT sum(forward_ns) FROM steps").fetchall()
    assert forward_ns >= 6 * 20 * MS


@pytest.mark.skipif(stack_sampler.why_not() is not None, reason="stacks cannot be sampled here")
def test_imports_are_before_the_first_step_and_by_package(tmp_path: Path) -> None:
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import time\nend = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass\n"
    )
    run, _ = recorded(tmp_path, "import slow_package\n")
    phases = phases_of(run)
    assert phases.imports_ns is not None
    assert 250 * MS <= phases.imports_ns["slow_package"] <= phases.wall_ns
    assert (phases.steps, phases.startup_ns) == (None, phases.wall_ns)


SLEEPS = """
import time
import torch
import gpuprof

def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

for _ in range(4):
    with gpuprof.span("step"):
        busy(0.1)
        time.sleep(0.3)
    time.sleep(0.2)
"""


OTHERS = (
    NET
    + """
import io

class SlowFile(io.BytesIO):
    def write(self, content):
        if not self.getvalue():
            busy(0.5)
        return super().write(content)

def generate():
    for _ in range(2):
        busy(0.2)
        net(torch.ones(1))

net, teacher = Net(), Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    net.train()
    for step in range(3):
        with torch.no_grad():
            teacher(torch.ones(1))
        net(torch.ones(1)).sum().backward()
        optimizer.step()
    net.eval()
    for batch in range(2):
        net(torch.ones(1))
        busy(0.01)
torch.save(net.state_dict(), SlowFile())
generate()
net.train()
with torch.no_grad():
    net(torch.ones(1))
"""
)


@pytest.mark.skipif(stack_sampler.why_not() is not None, reason="the sampler does not work here")
@pytest.mark.slow
def test_evaluation_generation_inference_and_checkpoints(tmp_path: Path) -> None:
    run, _ = recorded(tmp_path, OTHERS)
    phases = phases_of(run)
    assert phases.steps is not None
    assert phases.steps.count == 6
    others = {kind: time_ns or 0 for kind, time_ns in phases.others_ns.items()}
    # The second epoch's calls in evaluation mode are followed by no step.
    assert others["evaluation"] >= 50 * MS
    assert others["inference"] >= 60 * MS
    assert others["checkpoint"] >= 250 * MS
    assert others["generation"] >= 250 * MS
    of_phases = phases.startup_ns + phases.between_ns + phases.closing_ns + sum(others.values())
    assert phases.wall_ns == of_phases + phases.steps.total_ns
    assert run.sql("SELECT DISTINCT kind FROM phases WHERE source = 'calls' ORDER BY kind").fetchall() == [
        ("evaluation",),
        ("inference",),
    ]


def test_the_phases_that_cannot_be_known_are_unknown(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof", layers=False), gpuprof.span("step"):
        pass
    phases = phases_of(gpuprof.open(tmp_path / "run.gpuprof"))
    assert phases.others_ns == dict.fromkeys(("evaluation", "generation", "inference", "checkpoint"))


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], 0),
        ([100, 1, 1, 1, 1], 0),  # too few
        ([100, 1, 1, 1, 1, 1], 1),
        ([1, 1, 1, 1, 1, 1], 0),
        ([1, 1, 1, 100, 1, 1, 1, 1], 0),  # not the first
        ([9, 8, 7, 5, 1, 2, 3, 2, 1, 2], 4),
        ([9, 8, 2, 9, 9, 1, 2, 3, 2, 1], 2),
        ([10] * 6 + [1] * 6, 6),
        ([10] * 8 + [1] * 4, 0),  # the last half is no better
    ],
)
def test_warm_up_is_what_is_slower_than_the_last_half(durations: list[float], expected: int) -> None:
    assert warm_up_steps_of(np.array(durations, dtype=np.float64)) == expected


@pytest.mark.skipif(stack_sampler.why_not() is not None, reason="the sampler does not work here")
@pytest.mark.slow
def test_waits_of_a_step_are_named_and_those_between_steps_are_none(tmp_path: Path) -> None:
    phases = phases_of(recorded(tmp_path, SLEEPS)[0])
    assert phases.steps is not None
    assert phases.steps.waits is not None
    (waited,) = (share for name, share in phases.steps.waits.items() if "sleep" in name)
    slept = 4 * 300 * MS / phases.steps.total_ns
    assert 0.8 * slept <= waited <= 1


def test_one_step_has_no_interval_and_no_frames_are_no_imports(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof"), gpuprof.span("step"):
        pass
    phases = phases_of(gpuprof.open(tmp_path / "run.gpuprof"))
    assert phases.steps is not None
    assert (phases.steps.count, phases.steps.source, phases.steps.interval_ns) == (1, "span", None)
    assert phases.imports_ns is None


def test_a_program_without_steps(tmp_path: Path) -> None:
    run, _ = recorded(tmp_path, "pass\n")
    phases = phases_of(run)
    assert (phases.steps, phases.between_ns, phases.closing_ns) == (None, 0, 0)
    assert run.sql("SELECT count(*) FROM steps").fetchall() == [(0,)]


def test_an_imported_run_has_no_phases(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": 0, "dur": 5, "pid": 1, "tid": 1}]}')
    assert gpuprof.import_trace(trace, tmp_path / "imported.gpuprof").phases() is None


def test_calls_inside_others_are_no_calls_of_the_program(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof"), gpuprof.span("train"):
        for _ in range(2):
            with (
                gpuprof.span("enumerate(DataLoader)#Iter.__next__"),
                gpuprof.span("Optimizer.step#Inner.step"),
            ):
                pass
            with gpuprof.span("Optimizer.step#SGD.step"), gpuprof.span("step of no name"):
                pass
    run = gpuprof.open(tmp_path / "run.gpuprof")
    rows = run.sql("SELECT source, begin_ns, end_ns, data_ns FROM steps ORDER BY index").fetchall()
    ends = run.sql(
        "SELECT start_ns + duration_ns FROM spans WHERE name = 'Optimizer.step#SGD.step' ORDER BY start_ns"
    ).fetchall()
    assert [(row[0], row[2]) for row in rows] == [("optimizer", end) for (end,) in ends]
