# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.benchmark` in this process, and what a result contains."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from simulated import MS, FakeClock, SimulatedSystem

import gpuprof
from gpuprof.bench.config import Settings
from gpuprof.bench.failures import Failure, FailureCode
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.measure.measure import measure
from gpuprof.bench.measure.measurement import StoppedBy
from gpuprof.bench.messages import stop_text
from gpuprof.bench.results.result import ProcessRunResult, Result
from gpuprof.errors import BenchmarkError


def simulated(*runs: Callable[[int], float], batch_size: int | None = None, **settings: Any) -> Result:
    """Return the result of one process run for each duration."""
    made = []
    chosen = Settings(**{"iterations": 400, "warmup": 0, **settings})
    for position, duration in enumerate(runs):
        clock = FakeClock()
        measured = measure(SimulatedSystem(clock, duration), chosen, clock=clock)
        made.append(
            ProcessRunResult(position, replace(measured, machine=None), measured.failure, {"load_s": 0.5})
        )
    return Result(
        name="it",
        description=None,
        settings=chosen,
        launches=tuple(made),
        environment=describe_environment(),
        batch_size=batch_size,
    )


def test_quantiles_are_seconds_or_none() -> None:
    result = simulated(lambda call: MS * (1 + call / 100))
    assert result.samples[:3].tolist() == [0.001, 0.00101, 0.00102]
    assert result.quantile(0.5) == pytest.approx(np.median(result.samples))
    low, value, high = result.quantile(0.99, interval=True) or (None, math.nan, None)
    assert low is not None
    assert high is not None
    assert low <= value <= high
    assert value == result.quantile(0.99)
    assert result.quantile(0.999) is None
    assert result.quantile(0.999, interval=True) is None


def test_the_table_marks_quantiles_with_too_few_samples() -> None:
    table = str(simulated(lambda call: MS, iterations=100))
    rows = {line.split()[0]: line for line in table.splitlines() if line.startswith("p")}
    assert "too few samples (n=100)" in rows["p99"]
    assert "needs 299" in rows["p99"]
    assert "1.00 ms" in rows["p95"]
    assert "! one process run: " in table
    assert max(map(len, table.splitlines())) <= 120


def test_several_process_runs_are_one_sample_each() -> None:
    result = simulated(
        *[lambda call, speed=speed: MS * speed for speed in (1.0, 1.01, 1.02, 0.99, 0.98, 1.0)]
    )
    assert len(result.samples) == 2_400
    assert result.launch_figures() == pytest.approx((0.001, 0.00101, 0.00102, 0.00099, 0.00098, 0.001))
    low, value, high = result.quantile(0.5, interval=True) or (None, math.nan, None)
    assert value == pytest.approx(0.001)
    # The samples of each process run are all alike: what is uncertain is which process run one gets.
    assert low is not None
    assert high is not None
    assert 0.00002 <= high - low <= 0.00004
    assert "one_process_run" not in {warning.code for warning in result.warnings}


def test_process_runs_of_other_lengths_weigh_the_same_and_a_cut_one_as_it_got_on() -> None:
    result = simulated(lambda call: MS, lambda call: 3 * MS)
    long, short = result.launches
    assert short.measurement is not None
    few = replace(short.measurement, samples_ns=short.measurement.samples_ns[:100])
    uneven = replace(result, launches=(long, replace(short, measurement=few)))
    assert uneven.summary is not None
    assert uneven.summary.mean == pytest.approx(0.002)
    assert uneven.calls_per_s == pytest.approx(500)
    assert (len(uneven.samples), uneven.count) == (500, 320)
    cut = replace(few, stopped_by="failure", failure=Failure(FailureCode.TIME_LIMIT, "it hung"))
    unfinished = replace(result, launches=(long, replace(short, measurement=cut)))
    assert unfinished.summary is not None
    # 400 samples of 1 ms, and a quarter of a process run of 3 ms.
    assert unfinished.summary.mean == pytest.approx(0.001 * (1 + 0.25 * 3) / 1.25)
    assert unfinished.count == 500


def test_rates() -> None:
    result = simulated(lambda call: 2 * MS, batch_size=8)
    assert result.calls_per_s == pytest.approx(500)
    assert result.items_per_s == pytest.approx(4_000)
    windows = simulated(lambda call: 2 * MS, mode="throughput", window_calls=10)
    assert windows.calls_per_s == pytest.approx(500)
    assert windows.samples.tolist() == pytest.approx([0.002] * 40)
    assert "mean of 10 calls" in str(windows)


def test_a_failure_that_an_earlier_version_wrote_as_text_is_read() -> None:
    result = simulated(lambda call: MS)
    plain = json.loads(json.dumps(result.to_dict()))
    plain["launches"][0]["failure"] = "it hung"
    plain["launches"][0]["measurement"] |= {"failure": "it hung", "stop_reason": "it hung"}
    (run,) = Result.from_dict(plain).launches
    assert run.failure == Failure(FailureCode.FAILED, "it hung")
    assert run.measurement is not None
    assert run.measurement.failure == run.failure


@pytest.mark.parametrize(
    ("stopped_by", "values", "text"),
    [
        ("iterations", {"iterations": 1_000}, "1,000 iterations were asked for"),
        ("precision", {"quantile": 0.999, "width": 0.0123}, "the interval of p99.9 is 1.23% wide"),
        ("time limit", {"limit_s": 2.5, "iterations": 10}, "2.5 s were over before 10 iterations"),
        (
            "time limit",
            {"limit_s": 10.0, "quantile": 0.5, "width": None},
            "10 s were over: the interval of p50 is based on too few samples",
        ),
        ("most samples", {"samples": 1_000_000}, "1,000,000 samples are the most that are kept"),
        ("interrupted", {"samples": 3}, "interrupted after 3 samples"),
    ],
)
@pytest.mark.texts
def test_what_stopped_a_measurement_is_a_code_with_a_text(
    stopped_by: StoppedBy, values: dict[str, Any], text: str
) -> None:
    (measured,) = simulated(lambda call: MS).measurements
    assert stop_text(replace(measured, stopped_by=stopped_by, stop_values=values)) == text


def test_a_result_goes_through_json_and_back() -> None:
    result = simulated(lambda call: MS + call, lambda call: MS + 2 * call, batch_size=4)
    again = Result.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert again.to_dict() == result.to_dict()
    assert again.samples.tolist() == result.samples.tolist()
    assert str(again) == str(result)
    with refused(BenchmarkError, "unknown_format"):
        Result.from_dict({"format": 99})


def test_an_empty_result_has_a_message() -> None:
    result = simulated(lambda call: 1 / 0)
    assert len(result.samples) == 0
    assert (result.quantile(0.5), result.summary, result.calls_per_s) == (None, None, None)
    assert "no samples" in str(result)
    assert json.dumps(result.to_dict(), allow_nan=False)


def test_benchmark_calls_with_each_kind_of_inputs() -> None:
    seen: list[Any] = []

    def target(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    for inputs, expected in (
        (None, ((), {})),
        (5, ((5,), {})),
        ((1, 2), ((1, 2), {})),
        ({"a": 1}, ((), {"a": 1})),
        (lambda: (3,), ((3,), {})),
        ([1, 2], (([1, 2],), {})),
    ):
        result = gpuprof.benchmark(target, inputs, iterations=12, warmup=3)
        assert len(result.samples) == 12
        assert len(seen) == 15
        assert seen.pop() == expected
        seen.clear()


def test_benchmark_notes_where_and_when() -> None:
    result = gpuprof.benchmark(len, [1], iterations=10, warmup=1, name="length")
    assert result.name == "length"
    environment = result.environment
    assert {"processor", "python", "versions", "revision", "date", "threads", "load_average"} <= set(
        environment
    )
    assert environment["versions"]["gpuprof-native"]
    assert result.in_process


def test_a_failure_raises_with_what_was_measured() -> None:
    calls = []

    def target() -> None:
        calls.append(1)
        if len(calls) > 30:
            raise RuntimeError("full")

    with refused(gpuprof.BenchmarkError, "failed", "RuntimeError", "full") as raised:
        gpuprof.benchmark(target, iterations=100, warmup=10)
    assert "\n" not in str(raised.value)
    assert len(raised.value.result.samples) == 20


def test_an_interrupt_carries_what_was_measured() -> None:
    calls = []

    def target() -> None:
        calls.append(1)
        if len(calls) > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        gpuprof.benchmark(target, iterations=100, warmup=10)
    assert len(raised.value.args[0].samples) == 20


def test_a_call_that_changes_its_inputs_has_a_warning() -> None:
    def change(array: Any) -> None:
        array += 1

    changed = gpuprof.benchmark(change, np.zeros(10), iterations=10, warmup=1)
    assert "changed_inputs" in {warning.code for warning in changed.warnings}
    kept = gpuprof.benchmark(np.sum, np.zeros(10), iterations=10, warmup=1)
    assert "changed_inputs" not in {warning.code for warning in kept.warnings}


def test_a_recording_that_is_on_has_a_warning(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "run.gpuprof", layers=False, operators=False):
        during = gpuprof.benchmark(len, [1], iterations=10, warmup=1)
    after = gpuprof.benchmark(len, [1], iterations=10, warmup=1)
    assert "recording" in {warning.code for warning in during.warnings}
    assert "recording" not in {warning.code for warning in after.warnings}


def test_a_flag_of_several_process_runs_is_one_line() -> None:
    def drifting(call: int) -> float:
        return MS * (1 + call / 2_000)

    result = simulated(drifting, lambda call: MS, drifting)
    lines = [str(each) for each in result.warnings if each.code == "drift"]
    assert len(lines) == 1
    assert lines[0].startswith("in 2 of 3 process runs; in the first of them, ")


def test_outside_a_repository_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    environment = describe_environment()
    assert (environment["revision"], environment["changed_files"]) == (None, None)


@pytest.mark.parametrize("wrong", [5, "model", None, dict])
def test_what_cannot_be_called_is_refused(wrong: Any) -> None:
    with refused(gpuprof.BenchmarkError, "not_callable"):
        gpuprof.benchmark(wrong)


def test_a_torch_model() -> None:
    torch = pytest.importorskip("torch", reason="a PyTorch model is measured")
    model = torch.nn.Linear(4, 2).eval()
    result = gpuprof.benchmark(model, torch.ones(3, 4), iterations=20, warmup=2, check_outputs=True)
    described = result.description or {}
    assert (described["framework"], described["dtype"], described["device_type"]) == (
        "pytorch",
        "float32",
        "cpu",
    )
    assert described["details"]["mode"] == "evaluation"
    assert result.environment["threads"] == torch.get_num_threads()
    with refused(gpuprof.BenchmarkError, "failed", "NaN"):
        gpuprof.benchmark(model, torch.full((3, 4), math.nan), iterations=20, warmup=2, check_outputs=True)
    half = gpuprof.benchmark(
        lambda tensor: tensor.add_(1), torch.ones(3, dtype=torch.bfloat16), iterations=5, warmup=1
    )
    assert "changed_inputs" in {warning.code for warning in half.warnings}
