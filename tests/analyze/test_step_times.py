# SPDX-License-Identifier: Apache-2.0
"""Self time in the steps, on a simulated training whose times are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from simulated_training import MS, Planted, TrainingHost, train

from gpuprof.analyze.call_tree import CallTree, load_tree
from gpuprof.analyze.metrics import Weight, weights_of
from gpuprof.analyze.step_times import read_step_times
from gpuprof.run.folder import RunFolder
from gpuprof.run.format import KINDS

STEPS = 12
NORMS = "write_norms (train.py:40)"


def training(folder: Path, planted: Planted) -> RunFolder:
    """Return a run whose start-up has an operator and a function of the steps, too."""
    host = TrainingHost()
    host.operator("aten::mm", 500 * MS)
    with host.function(NORMS):
        host.work(90 * MS)
    return RunFolder(train(host, planted, STEPS).write(folder / "run.gpuprof"))


def with_function(tree: CallTree, name: str, own_ns: int) -> CallTree:
    """Return the tree with a sampled function below the process."""
    added = {
        "parent": 0,
        "kind": KINDS.index("python"),
        "name": len(tree.names),
        "calls": -1,
        "total_ns": own_ns,
        "own_ns": own_ns,
        "threads": 1,
        "process_id": int(tree.process_id[0]),
    }
    columns = {
        key: np.append(getattr(tree, key), np.array([value], dtype=getattr(tree, key).dtype))
        for key, value in added.items()
    }
    return dataclasses.replace(tree, **columns, names=[*tree.names, name], gpu_ns=None)


def sums(tree: CallTree, own: np.ndarray) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in zip(tree.name.tolist(), own.tolist(), strict=True):
        if value:
            found[tree.names[name]] = found.get(tree.names[name], 0.0) + value
    return found


def test_calls_outside_of_the_steps_do_not_count(tmp_path: Path) -> None:
    run = training(tmp_path, Planted())
    tree = load_tree(run)
    times = read_step_times(run, tree, weights_of(run, tree))
    assert times is not None
    found = sums(tree, times.own_ns["main"])
    assert found == {"aten::mm": STEPS * 25 * MS, "aten::_fused_adamw_": STEPS * 5 * MS}
    assert times.whole_ns["main"] == STEPS * 30 * MS


def test_a_function_counts_in_proportion_to_its_samples(tmp_path: Path) -> None:
    run = training(tmp_path, Planted(log=10))
    tree = with_function(load_tree(run), NORMS, 210 * MS)
    times = read_step_times(run, tree, [Weight("main", tree)])
    assert times is not None
    # A sample is a millisecond, and the steps begin and end between two.
    assert sums(tree, times.own_ns["main"])[NORMS] == pytest.approx(STEPS * 10 * MS, abs=STEPS * MS)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_built_in_function_that_does_not_wait_is_itself(tmp_path: Path, is_counted: bool) -> None:
    """As pyinstrument samples it, without processor time."""
    loads = "json.loads (built-in)"
    host = train(TrainingHost(), Planted(log=10), STEPS)
    for sample in host.samples:
        if sample["frames"][-1] == NORMS:
            sample["frames"] = [*sample["frames"], loads]
        if not is_counted:
            sample["cpu_ns"] = sample["queued_ns"] = None
    run = RunFolder(host.write(tmp_path / "run.gpuprof"))
    tree = with_function(load_tree(run), loads, 120 * MS)
    times = read_step_times(run, tree, [Weight("main", tree)])
    assert times is not None
    assert sums(tree, times.own_ns["main"])[loads] == pytest.approx(STEPS * 10 * MS, abs=STEPS * MS)


def test_what_a_waiting_sample_ran_is_that_of_the_caller(tmp_path: Path) -> None:
    host = train(TrainingHost(), Planted(log=10), STEPS)
    for sample in host.samples:
        if sample["frames"][-1] == NORMS:
            sample["frames"] = [*sample["frames"], "time.sleep (built-in)"]
            sample["cpu_ns"] = MS // 4
    run = RunFolder(host.write(tmp_path / "run.gpuprof"))
    tree = with_function(load_tree(run), NORMS, 30 * MS)
    times = read_step_times(run, tree, [Weight("main", tree)])
    assert times is not None
    assert sums(tree, times.own_ns["main"])[NORMS] == pytest.approx(STEPS * 2.5 * MS, abs=STEPS * MS / 4)


def test_a_run_without_steps_has_none(tmp_path: Path) -> None:
    host = TrainingHost()
    host.operator("aten::mm", MS)
    run = RunFolder(host.write(tmp_path / "run.gpuprof"))
    tree = load_tree(run)
    assert read_step_times(run, tree, weights_of(run, tree)) is None
