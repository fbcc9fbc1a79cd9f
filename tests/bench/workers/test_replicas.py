# SPDX-License-Identifier: Apache-2.0
"""Replicas of a model: real processes that call it next to the measured one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batches import batch_of
from refusals import refused

from gpuprof.bench.compare.plan import parse_variants
from gpuprof.bench.config import Combination, SystemSpec
from gpuprof.bench.failures import FailedRunError
from gpuprof.bench.messages import fact_text
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.workers.replicas import OtherReplicas, Replicas
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"


def spec(model: str, replicas: int) -> SystemSpec:
    return SystemSpec(f"{MODELS}:{model}", input_shape=(3,), replicas=replicas)


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(each for each in sys.path if each))


@pytest.mark.usefixtures("as_worker")
def test_the_other_replicas_call_the_model_and_are_counted() -> None:
    with Replicas(spec("doubled", 3), batch_size=4) as replicas:
        begin_s = time.monotonic()
        first = replicas._read()
        while any(now < then + 10 for now, then in zip(replicas._read(), first, strict=True)):
            pass
        rate = replicas.counted().others_items_per_s
        # At least 2 replicas of 10 calls of 4 samples, in at most the time since the block was entered.
        assert rate is not None
        assert rate * (time.monotonic() - replicas._begin_s) >= 80
        assert begin_s >= replicas._begin_s
        processes = list(replicas._processes)
        assert len(processes) == 2
        # A replica that ended makes the throughput of all unknown, not smaller.
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        assert replicas.counted() == OtherReplicas(None, (-signal.SIGKILL,), 0)
    assert all(each.poll() is not None for each in processes)


@pytest.mark.usefixtures("as_worker")
def test_a_replica_that_makes_no_call_is_counted_as_idle() -> None:
    with Replicas(spec("doubled", 3), batch_size=1) as replicas:
        stopped, running = replicas._processes
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        replicas._before = before = replicas._read()
        while replicas._read()[1] == before[1]:
            pass
        assert replicas.counted() == OtherReplicas(None, (), 1)
        assert running.poll() is None


def test_what_is_wrong_with_other_replicas_is_a_warning() -> None:
    batch = batch_of(*[[1.0] * 5] * 3)
    found = [OtherReplicas(4.0), OtherReplicas(None, (-9, 1), 1), OtherReplicas(None, (), 1)]
    batch.launches = [
        replace(run, extra={"replicas": to_plain(each)})
        for run, each in zip(batch.launches, found, strict=True)
    ]
    (one,) = [each for each in batch.warnings if each.code == "replicas_not_counted"]
    assert one.values == {"exit_codes": [-9, 1], "idle": 1, "affected_runs": 2, "process_runs": 3}
    assert fact_text(one.code, one.values) != fact_text(one.code, {**one.values, "exit_codes": []})


@pytest.mark.usefixtures("as_worker")
def test_a_replica_that_fails_is_reported() -> None:
    with refused(BenchmarkError, "failed"), Replicas(spec("raising", 2), batch_size=1):
        raise AssertionError("the block is not entered")


@pytest.mark.usefixtures("as_worker")
def test_a_replica_that_ends_is_reported() -> None:
    with pytest.raises(FailedRunError), Replicas(spec("killed", 2), batch_size=1):
        raise AssertionError("the block is not entered")


def test_variants_with_replicas(tmp_path: Path) -> None:
    like = SystemSpec("")
    one, two, ensemble, alone = parse_variants(
        "one:resnet50,two:replicas:2:resnet50@bf16,both:replicas:3:ensemble:resnet50+resnet50,"
        "replicas:4:resnet50",
        like,
    )
    assert [each.spec.replicas for each in (one, two, ensemble, alone)] == [1, 2, 3, 4]
    assert two.spec.model == "resnet50"
    assert two.spec.recipe == "bf16"
    assert ensemble.spec.combination is not None
    assert alone.name == "replicas:4:resnet50"
    for wrong in ("x", "", "-1", "1.5", "2:replicas:2", "9" * 30):
        with refused(BenchmarkError, "invalid_replicas"):
            parse_variants(f"a:replicas:{wrong}:resnet50", like)
    for count in (0, 65):
        with refused(BenchmarkError, "invalid_replicas", count):
            SystemSpec("resnet50", replicas=count)
    with refused(BenchmarkError, "replicas_of_part"):
        Combination("ensemble", (SystemSpec("resnet50", replicas=2), SystemSpec("resnet50")))


def test_a_comparison_with_replicas(tmp_path: Path, run_python: Any) -> None:
    model = f"{MODELS}:doubled"
    # Long enough for each replica to get a processor on a machine that others use too.
    words = ["--input-shape", "3", "--launches", "1", "--warmup", "1", "--no-accuracy"]
    words += ["--duration", "3", "--iterations", "100000000"]
    done = run_python(
        "-m", "gpuprof", "compare", f"one:{model},two:replicas:2:{model}", *words, "--report", "json"
    )
    assert done.returncode in (0, 3), done.stderr
    (path,) = tmp_path.rglob("report.json")
    one, two = json.loads(path.read_text())["variants"]
    assert not [each for each in two["batches"][0]["warnings"] if each["code"] == "replicas_not_counted"]
    assert two["technique"] == f"2 replicas, {one['technique']}"
    own = 1 / two["batches"][0]["mean_s"]
    # The throughput is that of both replicas, the latency that of one.
    assert two["batches"][0]["throughput_per_s"]["value"] > own * 1.000001
    assert one["batches"][0]["throughput_per_s"]["value"] == pytest.approx(1 / one["batches"][0]["mean_s"])
