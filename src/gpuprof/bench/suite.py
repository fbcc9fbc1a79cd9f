# SPDX-License-Identifier: Apache-2.0
"""Benchmarks in one call: each model in each framework over batch sizes, into one set of files."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.bench.benchmark_run import now, result_texts
from gpuprof.bench.config import DEVICES, DTYPES, JobSettings, Settings, SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.options import (
    DOCUMENT_BATCH_SIZES,
    DOCUMENT_ITERATIONS,
    DOCUMENT_WARMUP,
    RESULTS_FOLDER,
    each_framework,
    each_model,
)
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.files import FORMATS, ResultFiles
from gpuprof.bench.results.session import SessionResult
from gpuprof.bench.results.suite_text import SuiteText
from gpuprof.bench.validation import available_devices, check_spec
from gpuprof.bench.workers.process import refuse_in_worker
from gpuprof.bench.workers.session import Session
from gpuprof.errors import BenchmarkError, GpuprofError

PathText = str | os.PathLike[str]


class SuiteError(BenchmarkError):
    """Benchmarks of a suite failed. `result` are the results of all, `failures` the errors in their order."""

    def __init__(self, failures: Sequence[GpuprofError], results: list[BatchResult]) -> None:
        more = f" (and {len(failures) - 1} more failed)" if len(failures) > 1 else ""
        first = failures[0]
        super().__init__(first.code, f"{first.message}{more}", results, hint=first.hint)
        self.failures = tuple(failures)


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """What to measure.

    `framework` and `model_name` are those of `gpuprof bench`; `device_prefer` is auto, cpu, cuda, mps or tpu.
    `warmup_iterations` None warms up until the times are steady, `measurement_iterations` None measures
    until the median's interval is narrow. `input_shape` is that of one sample, `dtype` None the model's own.
    `data_source` is "synthetic", a folder of images, a .npz file, or an iterable of samples, which has the
    model measured in this process instead of a fresh one. `csv_output_dir` None writes no files; `verbose`
    prints each configuration. `trust_pickle` allows model files that can run any code when they are read.
    """

    framework: str = "pytorch"
    model_name: PathText = "resnet50"
    device_prefer: str = "auto"
    batch_sizes: Iterable[int] = DOCUMENT_BATCH_SIZES
    warmup_iterations: int | None = DOCUMENT_WARMUP
    measurement_iterations: int | None = DOCUMENT_ITERATIONS
    input_shape: Iterable[int] | None = None
    dtype: str | None = None
    data_source: PathText | Iterable[Any] = "synthetic"
    csv_output_dir: PathText | None = RESULTS_FOLDER
    verbose: bool = True
    trust_pickle: bool = field(default=False, kw_only=True)


def run_inference_benchmark(
    framework: str | BenchmarkConfig = "pytorch",
    model_name: PathText = "resnet50",
    device_prefer: str = "auto",
    batch_sizes: Iterable[int] = DOCUMENT_BATCH_SIZES,
    warmup_iterations: int | None = DOCUMENT_WARMUP,
    measurement_iterations: int | None = DOCUMENT_ITERATIONS,
    input_shape: Iterable[int] | None = None,
    dtype: str | None = None,
    data_source: PathText | Iterable[Any] = "synthetic",
    csv_output_dir: PathText | None = RESULTS_FOLDER,
    verbose: bool = True,
    *,
    trust_pickle: bool = False,
) -> list[BatchResult]:
    """Measure one model over its batch sizes; returns a result for each.

    A result is an object, and is read by the columns of the CSV too: `result["latency_p50_ms"]`. The
    parameters are those of BenchmarkConfig, or the first one is a BenchmarkConfig. Raises SuiteError where it
    fails, BenchmarkError for parameters that cannot be. What was measured before is written then, and is in
    the error's `result`; at Ctrl-C it is the argument of the KeyboardInterrupt.
    """
    config = framework
    if not isinstance(config, BenchmarkConfig):
        config = BenchmarkConfig(
            config, model_name, device_prefer, batch_sizes, warmup_iterations, measurement_iterations,
            input_shape, dtype, data_source, csv_output_dir, verbose, trust_pickle=trust_pickle,
        )  # fmt: skip
    return _run([config])


def run_benchmark_suite(
    models: PathText | BenchmarkConfig | Iterable[PathText | BenchmarkConfig] = "resnet50",
    frameworks: str | Iterable[str] = "pytorch",
    batch_sizes: Iterable[int] = DOCUMENT_BATCH_SIZES,
    device_prefer: str = "auto",
    warmup_iterations: int | None = DOCUMENT_WARMUP,
    measurement_iterations: int | None = DOCUMENT_ITERATIONS,
    input_shape: Iterable[int] | None = None,
    dtype: str | None = None,
    data_source: PathText | Iterable[Any] = "synthetic",
    csv_output_dir: PathText | None = RESULTS_FOLDER,
    verbose: bool = True,
    *,
    trust_pickle: bool = False,
) -> list[BatchResult]:
    """Measure each model in each framework, one after the other, into one set of files.

    `models` and `frameworks` are names or lists of them, "both" is resnet50 and vit_b_16, or PyTorch and JAX.
    Or `models` is one BenchmarkConfig or several, whose first one then sets where the files go, which are
    written after each. One that fails does not affect the others: after the last one SuiteError is raised
    with all results and failures. What cannot work is a SuiteError before anything is measured. At Ctrl-C the
    results are the argument of the KeyboardInterrupt.
    """
    # Iterators can be read once, and each benchmark wants them.
    sizes, shape = _sizes(batch_sizes), _shape(input_shape)
    like = BenchmarkConfig(
        "pytorch", "resnet50", device_prefer, sizes, warmup_iterations, measurement_iterations,
        shape, dtype, data_source, csv_output_dir, verbose, trust_pickle=trust_pickle,
    )  # fmt: skip
    given = _listed(models, "models")
    configs = [each for each in given if isinstance(each, BenchmarkConfig)]
    names = [each for each in given if not isinstance(each, BenchmarkConfig)]
    configs += [
        dataclasses.replace(like, framework=framework, model_name=name)
        for framework in each_framework(_listed(frameworks, "frameworks"))
        for name in each_model(names)
    ]
    return _run(configs)


def _listed(given: Any, name: str) -> list[Any]:
    """Return what was given as a list. Raises BenchmarkError for an empty one, or for what is no name."""
    values = [given] if isinstance(given, (str, os.PathLike, BenchmarkConfig)) else given
    kinds = (str, os.PathLike, BenchmarkConfig) if name == "models" else (str,)
    values = list(values) if isinstance(values, Iterable) else [values]
    wrong = [each for each in values if not isinstance(each, kinds)]
    if wrong or not values:
        raise BenchmarkError(
            "invalid_option",
            f"{name}={given!r}",
            hint="use at least one name, such as 'resnet50' and 'pytorch'",
        )
    return values


# --- what was asked for --------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    """A benchmark in plain values; `source` are samples of the caller, which are measured in this process."""

    spec: SystemSpec
    job: JobSettings
    verbose: bool
    source: Iterable[Any] | None


def _asked(config: BenchmarkConfig) -> _Asked:
    """Raise BenchmarkError before anything has been measured."""
    for name, value, known in (
        ("device_prefer", config.device_prefer, DEVICES),
        ("dtype", config.dtype, (None, *DTYPES)),
    ):
        if value not in known:
            raise BenchmarkError(
                "invalid_option", f"{name}={value!r}", hint=f"use {', '.join(map(str, known))}"
            )
    if not isinstance(config.model_name, (str, os.PathLike)):
        raise BenchmarkError(
            "invalid_model_name", f"model_name={config.model_name!r}", hint="use a name or a path"
        )
    source = config.data_source
    data = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else None
    spec = SystemSpec(
        os.fsdecode(config.model_name),
        config.framework,
        config.device_prefer,
        config.dtype,
        _shape(config.input_shape),
        data or "synthetic",
        trust_pickle=config.trust_pickle,
    )
    measuring = Settings(iterations=config.measurement_iterations, warmup=config.warmup_iterations)
    samples = None if isinstance(source, (str, os.PathLike)) else source
    return _Asked(spec, JobSettings(_sizes(config.batch_sizes), measuring), config.verbose, samples)


def _sizes(given: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(dict.fromkeys(_whole_numbers(given, "batch_sizes", "(1, 8)")))
    if not sizes:
        raise BenchmarkError("no_batch_size", "batch_sizes is empty", hint="use at least one, such as (1, 8)")
    return sizes


def _shape(given: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if given is None else _whole_numbers(given, "input_shape", "(3, 224, 224)")


def _whole_numbers(given: Iterable[int] | int, name: str, example: str) -> tuple[int, ...]:
    values = [given] if isinstance(given, int) else given
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        numbers = tuple(each if isinstance(each, bool) else operator.index(each) for each in values)
    except TypeError:
        numbers = (0,)
    if any(isinstance(each, bool) or each < 1 for each in numbers):
        raise BenchmarkError(
            "invalid_option", f"{name}={given!r}", hint=f"use whole numbers from 1, such as {example}"
        )
    return numbers


def _copy_shared(asked: Sequence[_Asked]) -> None:
    """Give each benchmark an iterator of its own where several share one, which can be read once."""
    shared = {id(each.source): each.source for each in asked if isinstance(each.source, Iterator)}
    for number, source in shared.items():
        sharing = [each for each in asked if id(each.source) == number]
        for each, copy in zip(sharing, itertools.tee(source, len(sharing)), strict=True):
            each.source = copy


# --- measuring -----------------------------------------------------------------------------------


def _run(configs: Sequence[BenchmarkConfig]) -> list[BatchResult]:
    refuse_in_worker()
    asked = [_asked(config) for config in configs]
    _copy_shared(asked)
    failures = [error for each in asked if (error := _refusal(each.spec)) is not None]
    if failures:
        raise SuiteError(failures, [])
    return _Suite(asked, configs[0].csv_output_dir).run()


def _refusal(spec: SystemSpec) -> GpuprofError | None:
    """Return why a spec cannot work, as far as that is known before it is tried."""
    try:
        check_spec(spec)
    except GpuprofError as error:
        return error
    return None


class _Suite:
    """Benchmarks one after the other; what was measured is written after each of them."""

    def __init__(self, asked: Sequence[_Asked], folder: PathText | None) -> None:
        self._asked = asked
        self._sessions: list[SessionResult] = []
        self._unwritten: GpuprofError | None = None
        self._text = SuiteText(sys.stdout.write)
        self._files = None if folder is None else ResultFiles(Path(folder), FORMATS, now())

    def run(self) -> list[BatchResult]:
        """Measure; see `run_benchmark_suite`."""
        try:
            for each in self._asked:
                self._measure(each)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(self._results()) from interrupt
        finally:
            if self._files is not None and not self._results():
                self._files.discard()
        if any(each.verbose for each in self._asked):
            self._text.complete([] if self._files is None else self._files.paths)
        failures = [each.failure for each in self._sessions if each.failure is not None]
        failures += [self._unwritten] if self._unwritten is not None else []
        if failures:
            raise SuiteError(failures, self._results()) from failures[0]
        return self._results()

    def _results(self) -> list[BatchResult]:
        return [batch for session in self._sessions for batch in session.batches]

    def _measure(self, asked: _Asked) -> None:
        source, spec = asked.source, asked.spec
        session = Session(spec, asked.job, lambda _seen: show(), in_process=source is not None)

        def show() -> None:
            if asked.verbose:
                self._text.show(session.result, available_devices)

        self._sessions.append(session.result)
        if asked.verbose:
            self._text.begin(spec)
        try:
            if source is None:
                session.run()
            else:
                session.run_here(lambda: make_system(spec, data=source))
        except GpuprofError as error:
            session.result.failure = error
        finally:
            self._write()
        if asked.verbose:
            show()
            self._text.end(session.result)

    def _write(self) -> None:
        measured = [session for session in self._sessions if session.batches]
        if self._files is None or not measured:
            return
        try:
            self._files.write(result_texts(measured, now()))
            self._unwritten = None
        except GpuprofError as error:
            self._unwritten = error
