# SPDX-License-Identifier: Apache-2.0
"""Reports and logs of results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuprof.bench import BenchmarkLogger, PerformanceReporter, run_inference_benchmark
from gpuprof.errors import BenchmarkError

SECTIONS = (
    "Executive Summary", "Key Findings", "Methodology", "Test Environment", "Detailed Results",
    "Statistical Validation", "Recommendations", "Conclusion",
)  # fmt: skip
MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"


def scenario(throughput: float | None, accuracy: float | None = None, count: int = 119) -> SimpleNamespace:
    latencies = [0.010 + 0.0001 * (number % 7) for number in range(count)]
    return SimpleNamespace(latencies=latencies, throughput=throughput, accuracy=accuracy)


def test_a_report_has_the_sections_and_figures_of_the_data() -> None:
    results = {"single_stream": scenario(97.1, 0.91), "offline": scenario(512.5)}
    report = PerformanceReporter().generate_project_report(results, "Net")
    assert all(f"# {each}\n" in report for each in SECTIONS)
    assert len(report) > 1_000
    assert "| 119 | 10.300 | 10.300 | 10.600 |" in report
    assert "512.50" in report
    assert "0.9100" in report
    assert "unavailable" in report  # the accuracy of the scenario without labels
    assert "The highest throughput is that of offline." in report


def test_names_are_no_markup() -> None:
    name = "a|b\n# Heading <script>"
    report = PerformanceReporter().generate_project_report({name: scenario(None)}, name)
    assert "<script>" not in report.replace("\\<script\\>", "")
    assert "\n# Heading" not in report


def test_few_samples_and_no_results() -> None:
    report = PerformanceReporter().generate_project_report({"one": scenario(1.0, count=1)})
    assert "too few samples" in report
    with pytest.raises(BenchmarkError) as raised:
        PerformanceReporter().generate_project_report({})
    assert raised.value.code == "no_results"


def test_a_report_is_saved(tmp_path: Path) -> None:
    path = PerformanceReporter().save_report("# Report\n", tmp_path / "new" / "report.md")
    assert path.read_text() == "# Report\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchmarkError) as raised:
        PerformanceReporter().save_report("", tmp_path / "file" / "report.md")
    assert raised.value.code == "cannot_write"


def test_the_log_has_the_columns_of_the_result_files(tmp_path: Path) -> None:
    results = run_inference_benchmark(
        "python",
        f"{MODELS}:doubled",
        batch_sizes=(1,),
        warmup_iterations=1,
        measurement_iterations=5,
        input_shape=(3,),
        csv_output_dir=None,
        verbose=False,
    )
    logger = BenchmarkLogger(tmp_path / "logs", "log.csv")
    logger.log_result(results[0])
    logger.log_result(results[0])
    head, *rows = logger.path.read_text().splitlines()
    assert head.startswith("framework,model,device,device_type,batch_size")
    assert len(rows) == 2
    assert rows[0].startswith("python,")
