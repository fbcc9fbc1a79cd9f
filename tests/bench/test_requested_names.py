# SPDX-License-Identifier: Apache-2.0
"""The table of requested names, and the examples of the documents: they run as written, on a CPU."""

from __future__ import annotations

import csv
import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuprof import bench
from gpuprof.bench.results.batch import COLUMNS
from gpuprof.cli.main import Commands

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmark-classes.md"


class Row(NamedTuple):
    """A row of the table."""

    requested: str
    here: str
    test: str
    notes: str


def rows() -> list[Row]:
    lines = PAGE.read_text(encoding="utf-8").partition("## Requested names")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [Row(*each) for each in cells if each[0] != "requested"]


def options_of(command: str) -> set[str]:
    return {name for each in Commands()[command].params for name in each.opts}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.requested[:40])
def test_each_requested_name_is_at_its_place_in_the_table(row: Row) -> None:
    named = re.findall(r"`([^`]+)`", row.here)
    assert bool(named) == (row.here != "missing")
    for name in named:
        if name.startswith("gpuprof.bench."):
            attribute, *members = name.removeprefix("gpuprof.bench.").split(".")
            assert attribute in bench.__all__
            found = getattr(bench, attribute)
            for member in members:
                found = getattr(found, member)
        elif name.startswith("gpuprof "):
            _, command, *words = name.split()
            assert {word for word in words if word.startswith("--")} <= options_of(command)
    if row.test == "-":
        assert row.notes
        return
    file, _, test = row.test.strip("`").partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), row.test


def test_the_table_has_every_column_and_part() -> None:
    text = " ".join(row.requested for row in rows())
    assert [name for name in COLUMNS if name not in text] == []
    assert len(rows()) > 40


# --- the examples of the documents ---------------------------------------------------------------


def test_the_runner_of_the_guide(run_with_codes: Any, tmp_path: Path) -> None:
    """The real resnet50: `--model resnet50 --framework pytorch --batch-sizes 1`, with fewer calls."""
    pytest.importorskip("torch")
    words = ["--framework", "pytorch", "--model", "resnet50", "--batch-sizes", "1"]
    words += ["--iterations", "2", "--warmup", "1", "--output-dir", "results/raw"]
    done = run_with_codes("-m", "gpuprof", "bench", *words)
    assert done.returncode == 0, done.stderr
    rule = "=" * 60
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert lines[:3] == [rule, "PyTorch Benchmark: resnet50", rule]
    figures = {"Latency (p50)": r"[\d.]+ms", "Throughput": r"[\d.]+ images/sec", "Memory": r"[\d.]+ MB"}
    for name, form in figures.items():
        (line,) = [each for each in lines if each.startswith(f"{name}: ")]
        assert re.fullmatch(form, line.partition(": ")[2])
    assert lines[-5:-1] == [rule, "Benchmark Suite Complete", rule, "Total configurations: 1"]
    (file,) = (tmp_path / "results" / "raw").glob("benchmark_results_*.csv")
    assert lines[-1] == f"Results saved to: {file.relative_to(tmp_path)}"
    assert re.fullmatch(r"benchmark_results_\d{8}_\d{6}\.csv", file.name)
    (row,) = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    assert set(COLUMNS) <= row.keys()
    empty = {name for name in COLUMNS if not row[name]}
    assert empty <= {"compilation_time_ms", "git_commit"}  # nothing is compiled, no repository
    assert (row["model"], row["input_shape"], row["dtype"]) == ("resnet50", "3x224x224", "float32")


def test_the_classes_of_the_lab(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    baseline = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    models = {"FP32 Baseline": baseline, "BF16": torch.nn.Sequential(torch.nn.Linear(16, 4)).eval()}
    inputs = torch.randn(8, 16)
    latency = bench.LatencyBenchmark(baseline, device="cpu").benchmark(inputs, num_iterations=20, warmup=2)
    assert {"mean", "median", "p50", "p95", "p99", "std"} <= latency.keys()
    suite = bench.BenchmarkSuite(models)
    suite.run_all_benchmarks(inputs)
    assert "Benchmarking FP32 Baseline..." in capsys.readouterr().out
    assert "| Model | p50 (ms) | p95 (ms) | p99 (ms) | Speedup |" in suite.generate_comparison_report()
    throughput = bench.ThroughputBenchmark().benchmark_batch_sizes(baseline, [1, 4], duration_sec=0.05)
    assert {"samples_per_s", "tokens_per_s", "memory_mb"} <= throughput[0].keys()
    stability = bench.AccuracyBenchmark().analyze_numerical_stability(baseline, baseline)
    assert {each["max_absolute_error"] for each in stability.values()} == {0.0}


def test_the_profiler_and_the_report_of_the_module(tmp_path: Path) -> None:
    from types import SimpleNamespace

    profiler = bench.ProductionBenchmarkingProfiler(enable_monitoring=True)
    found = profiler.profile_end_to_end_pipeline(sum, [[1, 2, 3]], preprocessing_fn=sorted)
    stages = ("preprocessing_time", "inference_time", "postprocessing_time", "memory_usage")
    for stage in (*stages, "end_to_end_latency"):
        assert {f"{stage}_{figure}" for figure in ("mean", "p95", "max")} <= found.keys()
    config = profiler.setup_ab_testing_framework(sum, max, traffic_split=0.5)
    tested = profiler.run_ab_test(config, [[1, 2, 3]], num_samples=100)
    keys = {"mean_latency", "p95_latency", "error_rate"}
    assert tested["model_a_performance"].keys() == keys
    assert config["total_requests"] == 100
    regression = profiler.detect_performance_regression({"latency": 2.0}, {"latency": 1.0}, threshold=0.1)
    assert regression["alert_level"] == "HIGH"
    result = SimpleNamespace(latencies=[0.01] * 60 + [0.02] * 60, throughput=80.0, accuracy=0.9)
    validation = bench.StatisticalValidator(0.95).validate_benchmark_result(result, min_samples=100)
    assert validation.is_significant
    reporter = bench.PerformanceReporter()
    report = reporter.generate_project_report({"single_stream": result}, model_name="TinyTorch Model")
    sections = re.findall(r"^## (.*)$", report, re.MULTILINE)
    assert sections == [
        "Executive Summary", "Methodology", "Detailed Results", "Statistical Validation", "Recommendations",
        "Conclusion",
    ]  # fmt: skip
    assert len(report) > 1_000
    reporter.save_report(report, tmp_path / "benchmark_report.md")
    if importlib.util.find_spec("plotly") is not None:
        assert len(bench.plot_benchmark_results({"single_stream": result}).data) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from PyTorch 2.5 on
@pytest.mark.slow
def test_the_comparison_script_of_the_tools(run_with_codes: Any, tmp_path: Path) -> None:
    import numpy as np

    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    for name in ("a.pt", "b.pt"):
        torch.jit.script(network).save(str(tmp_path / name))
    inputs = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", inputs=inputs, labels=np.arange(64) % 4)
    words = ["--models", "first:a.pt,second:b.pt", "--dataset", "data.npz", "--batch-size", "32"]
    words += ["--num-runs", "100", "--save-dir", "benchmark_results", "--report-format", "markdown"]
    done = run_with_codes("-m", "gpuprof", "compare", *words, "--launches", "1", "--warmup", "1")
    assert done.returncode in (0, 3), done.stderr
    report = (tmp_path / "benchmark_results" / "report.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)$", report, re.MULTILINE)
    assert {"Latency", "Throughput", "Memory", "Methodology"} <= set(sections)
    assert "| first " in report
    assert "wrote benchmark_results/report.md" in done.stdout
