# SPDX-License-Identifier: Apache-2.0
"""`run_benchmark_suite` and `run_inference_benchmark`: what they take, and what they keep."""

from __future__ import annotations

import inspect
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import gpuprof.bench
from gpuprof.bench.models.importing import WORKER_VARIABLE
from gpuprof.bench.results import files as results
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).parents[1] / "support" / "bench_models.py"
DOUBLED = f"{MODELS}:doubled"
# An iterable of samples has the model measured in this process: no process run is needed.
HERE: dict[str, Any] = {
    "warmup_iterations": 1, "measurement_iterations": 20, "input_shape": (3,),
    "data_source": [np.ones(3)] * 4,
}  # fmt: skip

PARAMETERS = [
    "framework", "model_name", "device_prefer", "batch_sizes", "warmup_iterations", "measurement_iterations",
    "input_shape", "dtype", "data_source", "csv_output_dir", "verbose",
]  # fmt: skip


def test_the_suite_has_the_parameters_of_the_contract() -> None:
    for function in (
        gpuprof.bench.BenchmarkConfig,
        gpuprof.bench.run_inference_benchmark,
        gpuprof.bench.run_benchmark_suite,
    ):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == [*PARAMETERS, "trust_pickle"]
        assert parameters["trust_pickle"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_suite_of_factories_writes_one_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models = MODELS
    options: dict[str, Any] = {
        "batch_sizes": [1, 2], "warmup_iterations": 1, "measurement_iterations": 20, "input_shape": (3,),
        "csv_output_dir": str(tmp_path), "verbose": True,
    }  # fmt: skip
    names = [f"{models}:{name}" for name in ("doubled", "raising", "not_callable")]
    with refused(gpuprof.bench.SuiteError, "failed", "ValueError", "1") as raised:
        gpuprof.bench.run_benchmark_suite("python", names, **options)
    assert [each.batch_size for each in raised.value.result] == [1, 2]
    assert "int" in str(raised.value.failures[1])
    (file,) = tmp_path.glob("*.csv")
    assert len(file.read_text().splitlines()) == 3
    assert "bench_models:doubled" in capfd.readouterr().err


def test_an_iterator_is_measured_in_this_process(tmp_path: Path) -> None:
    config = gpuprof.bench.BenchmarkConfig(
        "python",
        f"{Path(__file__).parents[1] / 'support' / 'bench_models.py'}:doubled",
        batch_sizes=(2,),
        warmup_iterations=1,
        measurement_iterations=20,
        input_shape=(3,),
        data_source=(np.ones(3) for _ in range(4)),
    )
    (found,) = gpuprof.bench.run_inference_benchmark(config)
    assert (found.batch_size, len(found.result.samples), found.in_process) == (2, 20, True)


def files_of(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_what_was_measured_is_kept_and_written_whatever_ends_it(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    def samples() -> Iterator[Any]:
        yield from [np.ones(3)] * 2
        raise raised("no more")

    good = gpuprof.bench.BenchmarkConfig("python", DOUBLED, csv_output_dir=tmp_path, **HERE)
    bad = gpuprof.bench.BenchmarkConfig(
        "python", DOUBLED, batch_sizes=(2, 4), **{**HERE, "data_source": samples()}
    )
    expected = KeyboardInterrupt if raised is KeyboardInterrupt else gpuprof.bench.SuiteError
    with pytest.raises(expected) as found:
        gpuprof.bench.run_benchmark_suite([good, bad])
    kept = found.value.args[0] if raised is KeyboardInterrupt else found.value.result
    assert [each.batch_size for each in kept] == [1, 2]
    assert files_of(tmp_path) == [".csv", ".json", ".md"]
    (file,) = tmp_path.glob("*.json")
    assert [each["batch_size"] for each in json.loads(file.read_text())["results"]] == [1, 2]


def test_samples_before_an_interrupt_are_kept(tmp_path: Path) -> None:
    calls = itertools.count()

    def call(batch: Any) -> Any:
        if next(calls) == 30:
            raise KeyboardInterrupt
        return batch

    model = tmp_path / "interrupted.py"
    model.write_text("def build():\n    return call\n")
    from gpuprof.bench.models.importing import module_of_file

    module_of_file(model).call = call
    options = {**HERE, "measurement_iterations": 100}
    with pytest.raises(KeyboardInterrupt) as found:
        gpuprof.bench.run_inference_benchmark("python", f"{model}:build", **options)
    (kept,) = found.value.args[0]
    assert 20 <= len(kept.result.samples) < 30


def test_files_that_cannot_be_written_lose_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "write_whole", full)
    with refused(gpuprof.bench.SuiteError, "cannot_write") as found:
        gpuprof.bench.run_inference_benchmark("python", DOUBLED, csv_output_dir=tmp_path, **HERE)
    assert [each.batch_size for each in found.value.result] == [1]
    assert files_of(tmp_path) == []


def test_paths_iterators_and_repeated_sizes_are_taken(tmp_path: Path) -> None:
    found = gpuprof.bench.run_benchmark_suite(
        iter(["python"]),
        iter([Path(DOUBLED), Path(DOUBLED)]),
        batch_sizes=iter([np.int64(2), 2, 1]),
        csv_output_dir=tmp_path / "new",
        **{**HERE, "data_source": iter([np.ones(3)] * 2), "input_shape": 3},
    )
    # The second model gets the samples too that the first one has read.
    assert [each.batch_size for each in found] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("wrong", "code", "value"),
    [
        ({"batch_sizes": (1, 0)}, "invalid_option", "batch_sizes"),
        ({"batch_sizes": "18"}, "invalid_option", "batch_sizes"),
        ({"batch_sizes": (1.5,)}, "invalid_option", "batch_sizes"),
        ({"batch_sizes": (True,)}, "invalid_option", "batch_sizes"),
        ({"batch_sizes": ()}, "no_batch_size", ""),
        ({"batch_sizes": None}, "invalid_option", "batch_sizes"),
        ({"input_shape": (3, -1)}, "invalid_option", "input_shape"),
        ({"device_prefer": "gpu"}, "invalid_option", "'gpu'"),
        ({"dtype": "float4"}, "invalid_option", "'float4'"),
        ({"measurement_iterations": 0}, "invalid_option", "iterations"),
        ({"model_name": [7]}, "invalid_model_name", "7"),
        ({"framework": [None]}, "unknown_framework", "None"),
    ],
)
def test_parameters_that_cannot_be_are_refused_before_anything_is_measured(
    tmp_path: Path, wrong: dict[str, Any], code: str, value: str
) -> None:
    options = {"framework": "python", "model_name": DOUBLED, "csv_output_dir": tmp_path, **HERE, **wrong}
    with refused(BenchmarkError, code, value) as found:
        gpuprof.bench.run_benchmark_suite(**options)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


def test_the_time_of_a_device_is_taken_after_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: a device whose clock shows 2 ms for each call."""
    from gpuprof.bench.frameworks.python import PythonSystem

    (without,) = gpuprof.bench.run_inference_benchmark("python", DOUBLED, **HERE)
    assert (without.device_s, without.enqueue_s) == (None, None)
    monkeypatch.setattr(PythonSystem, "call_on_device_s", lambda self: 0.002)
    (found,) = gpuprof.bench.run_inference_benchmark("python", DOUBLED, **HERE)
    assert found.device_s == 0.002
    assert found.launches[0].extra["device_time_s"] == [0.002] * 100
    assert len(found.result.samples) == 20


def test_pickled_files_need_trust_in_python_too(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(pickle.dumps({"weight": 1}))
    options: dict[str, Any] = {**HERE, "model_name": tmp_path / "model.pt2"}
    with refused(gpuprof.bench.SuiteError, "pickled_model"):
        gpuprof.bench.run_inference_benchmark("torch-export", **options)
    pytest.importorskip("torch")
    with refused(gpuprof.bench.SuiteError, "failed"):
        gpuprof.bench.run_inference_benchmark("torch-export", **options, trust_pickle=True)


def test_a_suite_in_a_process_run_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_VARIABLE, "1")
    with refused(BenchmarkError, "started_by_worker"):
        gpuprof.bench.run_inference_benchmark("python", DOUBLED)


def test_a_script_that_benchmarks_itself_without_a_guard_ends(run_with_codes: Any, tmp_path: Path) -> None:
    (tmp_path / "itself.py").write_text(
        "from gpuprof.bench import run_inference_benchmark\n"
        "def build():\n    return lambda: None\n"
        "run_inference_benchmark('python', __file__ + ':build', measurement_iterations=5)\n"
    )
    done = run_with_codes("itself.py")
    assert done.returncode == 1
    assert "started_by_worker" in done.stderr.splitlines()[-1]
