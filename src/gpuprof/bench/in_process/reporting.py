# SPDX-License-Identifier: Apache-2.0
"""A Markdown report of measured scenarios, and a log of benchmark results as CSV."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.in_process.validation import StatisticalValidator, latencies_of
from gpuprof.bench.measure.host import describe_environment
from gpuprof.bench.results.batch import BatchResult, row_of
from gpuprof.bench.results.files import read_results, to_csv, write_whole
from gpuprof.errors import BenchmarkError
from gpuprof.text.sanitize import escape_text

if TYPE_CHECKING:
    import pandas

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!])")


class PerformanceReporter:
    """Writes reports of results by name; each has latencies (s), throughput (samples/s) and accuracy."""

    def generate_project_report(
        self, benchmark_results: Mapping[str, Any], model_name: str = "TinyTorch Model"
    ) -> str:
        """Return a Markdown report, whose statements are made of the data. Raises BenchmarkError."""
        if not benchmark_results:
            raise BenchmarkError("no_results", "there are no results to report", hint="measure first")
        name = _escaped(model_name)
        sections = {
            f"# Performance report: {name}": "",
            "## Executive Summary": _summary(benchmark_results, name),
            "## Methodology": _methodology(benchmark_results),
            "## Detailed Results": _details(benchmark_results),
            "## Statistical Validation": _validation(benchmark_results),
            "## Recommendations": _recommendations(benchmark_results),
            "## Conclusion": _conclusion(benchmark_results, name),
        }
        return "\n\n".join(part for pair in sections.items() for part in pair if part) + "\n"

    def save_report(self, report: str, filename: str | os.PathLike[str] = "benchmark_report.md") -> Path:
        """Write a report to a file, whole or not at all; returns its path. Raises BenchmarkError."""
        path = Path(filename)
        _write(path, report)
        return path


class BenchmarkLogger:
    """A CSV file of benchmark results, a row for each, with the columns of `gpuprof bench`."""

    def __init__(self, output_dir: str | os.PathLike[str], filename: str) -> None:
        self.path = Path(output_dir) / filename
        self._rows: list[dict[str, Any]] = []

    def log_result(self, result: BatchResult) -> None:
        """Add a result of `run_inference_benchmark` and write the file. Raises BenchmarkError."""
        self._rows.append(row_of(result))
        _write(self.path, to_csv(self._rows))

    def read_results(self) -> pandas.DataFrame:
        """Return the file as a data frame. Raises UnavailableError without pandas."""
        return read_results(self.path)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        message = f"{path}: it cannot be written ({error.strerror})"
        raise BenchmarkError("cannot_write", message, hint="use another folder") from error


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; cells are escaped."""
    lines = [titles, ["---"] * len(titles), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", escape_text(text))


def _summary(results: Mapping[str, Any], name: str) -> str:
    best = _best(results)
    findings = [
        f"- {_escaped(each)}: mean latency {_milliseconds(result, np.mean)} ms, "
        f"{_number(getattr(result, 'throughput', None), '.2f')} samples/s"
        for each, result in results.items()
    ]
    head = f"{len(results)} scenario(s) of {name} were measured."
    tail = "" if best is None else f"- Highest throughput: {_escaped(best)}"
    return "\n".join([head, "", "### Key Findings", "", *findings, *filter(None, [tail])])


def _methodology(results: Mapping[str, Any]) -> str:
    environment = describe_environment()
    shown = {name: environment.get(name) for name in ("processor", "architecture", "cores", "python")}
    facts = [f"- {name}: {_escaped(str(value))}" for name, value in shown.items() if value is not None]
    samples = sum(len(latencies_of(each)) for each in results.values())
    text = (
        f"Latencies are wall times in seconds of single queries, {samples:,} in all, none removed. "
        "Quantiles are interpolated between samples. Intervals are Student's t at a confidence of 95%."
    )
    return "\n".join([text, "", "### Test Environment", "", *facts])


def _details(results: Mapping[str, Any]) -> str:
    titles = ["Scenario", "count", "mean (ms)", "median (ms)", "p90 (ms)", "p95 (ms)", "std (ms)",
              "throughput (samples/s)", "accuracy"]  # fmt: skip
    rows = [
        [
            name,
            str(len(latencies_of(result))),
            _milliseconds(result, np.mean),
            *(_milliseconds(result, lambda values, q=q: np.quantile(values, q)) for q in (0.5, 0.9, 0.95)),
            _milliseconds(result, lambda values: np.std(values, ddof=1) if len(values) > 1 else np.nan),
            _number(getattr(result, "throughput", None), ".2f"),
            _number(getattr(result, "accuracy", None), ".4f"),
        ]
        for name, result in results.items()
    ]
    return markdown_table(titles, rows)


def _validation(results: Mapping[str, Any]) -> str:
    validator = StatisticalValidator()
    rows = []
    for name, result in results.items():
        found = validator.validate_benchmark_result(result)
        low, high = (_number(None if end is None else end * 1e3, ".3f") for end in found.confidence_interval)
        rows.append([name, f"{low} to {high}", _number(found.effect_size, ".3f"), found.recommendation])
    return markdown_table(["Scenario", "mean, 95% CI (ms)", "std / mean", "validation"], rows)


def _recommendations(results: Mapping[str, Any]) -> str:
    validator = StatisticalValidator()
    lines = [
        f"- {_escaped(name)}: {validator.validate_benchmark_result(result).recommendation}."
        for name, result in results.items()
    ]
    if any(getattr(each, "accuracy", None) is None for each in results.values()):
        lines.append("- Measure on labeled data: at least one scenario has no accuracy.")
    return "\n".join(lines)


def _conclusion(results: Mapping[str, Any], name: str) -> str:
    best, validator = _best(results), StatisticalValidator()
    reliable = [
        each for each, result in results.items() if validator.validate_benchmark_result(result).is_significant
    ]
    text = f"{len(reliable)} of {len(results)} scenario(s) of {name} have enough samples."
    return text if best is None else f"{text} The highest throughput is that of {_escaped(best)}."


def _best(results: Mapping[str, Any]) -> str | None:
    known = {name: getattr(each, "throughput", None) for name, each in results.items()}
    rates = {name: rate for name, rate in known.items() if rate is not None}
    return max(rates, key=lambda name: rates[name], default=None)


def _milliseconds(result: Any, figure: Any) -> str:
    values = latencies_of(result)
    return _number(float(figure(values)) * 1e3 if len(values) else None, ".3f")


def _number(value: float | None, form: str) -> str:
    return "unavailable" if value is None or not np.isfinite(value) else format(value, form)
