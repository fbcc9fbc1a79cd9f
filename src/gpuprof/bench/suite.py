# SPDX-License-Identifier: Apache-2.0
"""Benchmarks in one call: each model in each framework over batch sizes, into one set of files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.benchmark_run import now, stamp_of
from gpuprof.bench.job import JobSettings, measure_system
from gpuprof.bench.report import notes_of, results_table, title_of, to_markdown
from gpuprof.bench.results import FORMATS, ResultFiles, document_of, row_of, to_csv, to_json
from gpuprof.bench.session import BatchResult, Session, SessionResult
from gpuprof.bench.settings import Settings
from gpuprof.bench.spec import SystemSpec
from gpuprof.bench.systems import make_system
from gpuprof.errors import GpuprofError


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """What to measure.

    `framework` and `model_name` are those of `gpuprof bench`; `device_prefer` is auto, cpu, cuda, mps or tpu.
    `warmup_iterations` None warms up until the times have settled, `measurement_iterations` None measures
    until the median's interval is narrow. `input_shape` is that of one sample, `dtype` None the model's own.
    `data_source` is "synthetic", a folder of images, a .npz file, or an iterable of samples, which has the
    model measured in this process instead of a fresh one. `csv_output_dir` None writes no files.
    """

    framework: str = "pytorch"
    model_name: str = "resnet50"
    device_prefer: str = "auto"
    batch_sizes: Sequence[int] = (1,)
    warmup_iterations: int | None = None
    measurement_iterations: int | None = None
    input_shape: Sequence[int] | None = None
    dtype: str | None = None
    data_source: str | Iterable[Any] = "synthetic"
    csv_output_dir: str | None = None
    verbose: bool = False


def run_inference_benchmark(
    framework: str | BenchmarkConfig = "pytorch",
    model_name: str = "resnet50",
    device_prefer: str = "auto",
    batch_sizes: Sequence[int] = (1,),
    warmup_iterations: int | None = None,
    measurement_iterations: int | None = None,
    input_shape: Sequence[int] | None = None,
    dtype: str | None = None,
    data_source: str | Iterable[Any] = "synthetic",
    csv_output_dir: str | None = None,
    verbose: bool = False,
) -> list[BatchResult]:
    """Measure one model over its batch sizes; returns a result for each.

    The parameters are those of BenchmarkConfig, or the first one is a BenchmarkConfig. Raises GpuprofError
    for what cannot be measured; what was measured before is written then.
    """
    config = framework
    if not isinstance(config, BenchmarkConfig):
        config = BenchmarkConfig(
            config, model_name, device_prefer, batch_sizes, warmup_iterations, measurement_iterations,
            input_shape, dtype, data_source, csv_output_dir, verbose,
        )  # fmt: skip
    return _run([config])


def run_benchmark_suite(
    framework: str | Sequence[str] | BenchmarkConfig | Sequence[BenchmarkConfig] = "pytorch",
    model_name: str | Sequence[str] = "resnet50",
    device_prefer: str = "auto",
    batch_sizes: Sequence[int] = (1,),
    warmup_iterations: int | None = None,
    measurement_iterations: int | None = None,
    input_shape: Sequence[int] | None = None,
    dtype: str | None = None,
    data_source: str | Iterable[Any] = "synthetic",
    csv_output_dir: str | None = None,
    verbose: bool = False,
) -> list[BatchResult]:
    """Measure each model in each framework, one after the other, into one set of files.

    `framework` and `model_name` are names or lists of them; or the first parameter is one BenchmarkConfig or
    several, whose first one then says where the files go. Raises the first GpuprofError behind the last
    benchmark: one that fails leaves the others be.
    """
    given = [framework] if isinstance(framework, (str, BenchmarkConfig)) else list(framework)
    configs = [each for each in given if isinstance(each, BenchmarkConfig)]
    names = [model_name] if isinstance(model_name, str) else list(model_name)
    frameworks = [each for each in given if isinstance(each, str)]
    configs += [
        BenchmarkConfig(
            each, name, device_prefer, batch_sizes, warmup_iterations, measurement_iterations,
            input_shape, dtype, data_source, csv_output_dir, verbose,
        )
        for each, name in itertools.product(frameworks, names)
    ]  # fmt: skip
    return _run(configs)


def _run(configs: Sequence[BenchmarkConfig]) -> list[BatchResult]:
    if not configs:
        return []
    at, folder = now(), configs[0].csv_output_dir
    files = None if folder is None else ResultFiles(Path(folder), FORMATS, at)
    sessions: list[SessionResult] = []
    try:
        for config in configs:
            sessions.append(_session_of(config))
            if config.verbose:
                _say(sessions[-1])
    finally:
        if files is not None:
            _write(sessions, files)
    failure = next((each.failure for each in sessions if each.failure is not None), None)
    if failure is not None:
        raise failure
    return [batch for session in sessions for batch in session.batches]


def _session_of(config: BenchmarkConfig) -> SessionResult:
    shape = None if config.input_shape is None else tuple(config.input_shape)
    is_named = isinstance(config.data_source, str)
    spec = SystemSpec(
        config.model_name, config.framework, config.device_prefer, config.dtype, shape,
        str(config.data_source) if is_named else "synthetic",
    )  # fmt: skip
    measuring = Settings(iterations=config.measurement_iterations, warmup=config.warmup_iterations)
    session = Session(spec, JobSettings(tuple(config.batch_sizes), measuring), in_process=not is_named)
    if is_named:
        return session.run()
    try:
        system = make_system(spec, data=config.data_source)
        measure_system(system, session.result.settings, session.sender())
    except GpuprofError as error:
        session.result.failure = error
    return session.result


def _say(session: SessionResult) -> None:
    import sys

    lines = []
    if session.batches:
        lines = [title_of(session), results_table(session.batches), *notes_of(session)]
    lines += [f"error: {session.failure}"] if session.failure is not None else []
    sys.stderr.write("\n".join(lines) + "\n")


def _write(sessions: Sequence[SessionResult], files: ResultFiles) -> None:
    measured = [session for session in sessions if session.batches]
    if not measured:
        files.discard()
        return
    stamp = stamp_of(measured[0], now())
    batches = [batch for session in measured for batch in session.batches]
    files.write(
        {
            "csv": to_csv(row_of(batch, stamp) for batch in batches),
            "json": to_json(document_of(batches, stamp)),
            "md": "\n".join(to_markdown(session, stamp) for session in measured),
        }
    )
