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
    "data_source": [np.ones(3)] * 4, "batch_sizes": (1,), "csv_output_dir": None, "verbose": False,
}  # fmt: skip

PARAMETERS = [
    "framework", "model_name", "device_prefer", "batch_sizes", "warmup_iterations", "measurement_iterations",
    "input_shape", "dtype", "data_source", "csv_output_dir", "verbose",
]  # fmt: skip


def test_the_suite_has_the_parameters_and_defaults_of_the_documents() -> None:
    bench = gpuprof.bench
    for function in (bench.BenchmarkConfig, bench.run_inference_benchmark):
        assert list(inspect.signature(function).parameters) == [*PARAMETERS, "trust_pickle"]
    suite = inspect.signature(bench.run_benchmark_suite).parameters
    assert list(suite)[:3] == ["models", "frameworks", "batch_sizes"]
    assert set(suite) == {*PARAMETERS, "models", "frameworks", "trust_pickle"} - {"model_name", "framework"}
    for function in (bench.BenchmarkConfig, bench.run_inference_benchmark, bench.run_benchmark_suite):
        parameters = inspect.signature(function).parameters
        assert parameters["trust_pickle"].kind is inspect.Parameter.KEYWORD_ONLY
        defaults = {name: each.default for name, each in parameters.items()}
        assert defaults["batch_sizes"] == (1, 8, 32, 128)
        assert (defaults["warmup_iterations"], defaults["measurement_iterations"]) == (10, 50)
        assert (defaults["csv_output_dir"], defaults["verbose"]) == ("results/raw", True)


def test_a_suite_prints_the_blocks_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = gpuprof.bench.run_benchmark_suite(
        DOUBLED, "python", **{**HERE, "batch_sizes": [1, 2], "csv_output_dir": tmp_path, "verbose": True}
    )
    lines = capsys.readouterr().out.splitlines()
    titles = [lines[place + 1] for place, line in enumerate(lines[:-1]) if line == "=" * 60]
    assert titles[0] == f"python Benchmark: {DOUBLED}"
    assert titles[2] == "Benchmark Suite Complete"
    keys = [line.strip().partition(":")[0] for line in lines if ":" in line]
    assert keys[1:4] == ["Device", "Type", "Available"]
    of_size = ["Benchmarking batch size", "Latency (p50)", "Throughput", "Memory"]
    assert keys[4:12] == of_size * 2
    (file,) = tmp_path.glob("benchmark_results_*.csv")
    assert lines[-2:] == ["Total configurations: 2", f"Results saved to: {file}"]
    assert f"  Latency (p50): {found[1]['latency_p50_ms']:.3f}ms" in lines


def test_a_result_is_read_by_the_columns_of_its_file(tmp_path: Path) -> None:
    import csv

    (found,) = gpuprof.bench.run_inference_benchmark(
        gpuprof.bench.BenchmarkConfig("python", DOUBLED, **{**HERE, "csv_output_dir": tmp_path})
    )
    (file,) = tmp_path.glob("*.csv")
    (row,) = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    columns = dict(found)
    assert list(columns) == list(row)
    assert {name: "" if value is None else str(value) for name, value in columns.items()} == row
    assert (found["batch_size"], found["framework"]) == (1, "python")
    with pytest.raises(KeyError):
        found["latency"]


def test_a_fixed_number_of_iterations_fills_all_quantiles_with_a_warning() -> None:
    (found,) = gpuprof.bench.run_inference_benchmark("python", DOUBLED, **HERE)
    samples_ms = found.result.samples * 1e3
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert found[f"latency_{name}_ms"] == pytest.approx(np.quantile(samples_ms, share))
    (warning,) = [each for each in found.warnings if each.code == "unreliable_quantiles"]
    assert warning.values == {"samples": 20, "needed": {"p90": 29, "p95": 59, "p99": 299}}
    assert found.result.quantile(0.99) is None  # no verdict rests on it
    free = {**HERE, "measurement_iterations": None}
    (other,) = gpuprof.bench.run_inference_benchmark("python", DOUBLED, **free)
    assert "unreliable_quantiles" not in {each.code for each in other.warnings}


def test_a_suite_of_factories_writes_one_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    models = MODELS
    options: dict[str, Any] = {
        "batch_sizes": [1, 2], "warmup_iterations": 1, "measurement_iterations": 20, "input_shape": (3,),
        "csv_output_dir": str(tmp_path), "verbose": True,
    }  # fmt: skip
    names = [f"{models}:{name}" for name in ("doubled", "raising", "not_callable")]
    with refused(gpuprof.bench.SuiteError, "failed", "ValueError", "1") as raised:
        gpuprof.bench.run_benchmark_suite(names, "python", **options)
    assert [each.batch_size for each in raised.value.result] == [1, 2]
    assert "int" in str(raised.value.failures[1])
    (file,) = tmp_path.glob("*.csv")
    assert len(file.read_text().splitlines()) == 3
    assert "bench_models:doubled" in capfd.readouterr().out


def test_an_iterator_is_measured_in_this_process(tmp_path: Path) -> None:
    config = gpuprof.bench.BenchmarkConfig(
        "python",
        f"{Path(__file__).parents[1] / 'support' / 'bench_models.py'}:doubled",
        batch_sizes=(2,),
        warmup_iterations=1,
        measurement_iterations=20,
        input_shape=(3,),
        data_source=(np.ones(3) for _ in range(4)),
        csv_output_dir=None,
        verbose=False,
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

    good = gpuprof.bench.BenchmarkConfig("python", DOUBLED, **{**HERE, "csv_output_dir": tmp_path})
    bad = gpuprof.bench.BenchmarkConfig(
        "python", DOUBLED, **{**HERE, "batch_sizes": (2, 4), "data_source": samples()}
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
        gpuprof.bench.run_inference_benchmark("python", DOUBLED, **{**HERE, "csv_output_dir": tmp_path})
    assert [each.batch_size for each in found.value.result] == [1]
    assert files_of(tmp_path) == []


def test_paths_iterators_and_repeated_sizes_are_taken(tmp_path: Path) -> None:
    found = gpuprof.bench.run_benchmark_suite(
        iter([Path(DOUBLED), Path(DOUBLED)]),
        iter(["python"]),
        **{
            **HERE,
            "batch_sizes": iter([np.int64(2), 2, 1]),
            "csv_output_dir": tmp_path / "new",
            "data_source": iter([np.ones(3)] * 2),
            "input_shape": 3,
        },
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
        ({"models": [7]}, "invalid_option", "models=[7]"),
        ({"models": []}, "invalid_option", "models=[]"),
        ({"frameworks": [None]}, "invalid_option", "frameworks=[None]"),
        ({"frameworks": ()}, "invalid_option", "frameworks=()"),
        ({"frameworks": "pytorhc"}, "unknown_framework", "pytorhc"),
        ({"models": [DOUBLED, "resnet51"]}, "kind_of_model", "resnet51"),
    ],
)
def test_parameters_that_cannot_be_are_refused_before_anything_is_measured(
    tmp_path: Path, wrong: dict[str, Any], code: str, value: str
) -> None:
    options = {"frameworks": "python", "models": DOUBLED, **HERE, "csv_output_dir": tmp_path, **wrong}
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
        gpuprof.bench.run_inference_benchmark("python", DOUBLED, csv_output_dir=None)


def test_a_script_that_benchmarks_itself_without_a_guard_ends(run_with_codes: Any, tmp_path: Path) -> None:
    (tmp_path / "itself.py").write_text(
        "from gpuprof.bench import run_inference_benchmark\n"
        "def build():\n    return lambda: None\n"
        "run_inference_benchmark('python', __file__ + ':build', measurement_iterations=5)\n"
    )
    done = run_with_codes("itself.py")
    assert done.returncode == 1
    assert "started_by_worker" in done.stderr.splitlines()[-1]
