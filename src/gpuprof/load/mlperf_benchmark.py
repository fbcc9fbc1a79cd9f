# SPDX-License-Identifier: Apache-2.0
"""Scenarios in the style of MLPerf on a model in this process and the samples of a data set.

The rules are those of `load/mlperf.py`, applied to requests that gpuprof sent. LoadGen itself runs with
`gpuprof load --mlperf`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.facts import TextEnum
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.errors import BenchmarkError
from gpuprof.load.figures import latencies_s
from gpuprof.load.mlperf import (
    OFFLINE_SAMPLES,
    RULES,
    MlperfScenario,
    ScenarioResult,
    judge,
    percentile_of,
    queries_of,
)
from gpuprof.load.result import LoadResult, LoadSettings
from gpuprof.load.run import run_load
from gpuprof.load.several_runs import MaxRateResult, find_rate
from gpuprof.load.targets.module_calls import inference_call
from gpuprof.text.units import format_duration, format_number, format_share

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


class BenchmarkScenario(TextEnum):
    """How queries arrive: one after the other, as a Poisson process, or all at once."""

    SINGLE_STREAM = "single_stream"
    SERVER = "server"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One scenario. `latencies` are seconds from the planned arrival, of failed queries infinite.

    `throughput` is in samples per second. `accuracy` is the fraction of labels that the outputs have; None
    without labels. `rules` is what the rules of MLPerf give; None for a server without a latency bound.
    `load` has the requests.
    """

    scenario: BenchmarkScenario
    latencies: Floats
    throughput: float
    accuracy: float | None
    metadata: Mapping[str, Any] | None = None
    rules: ScenarioResult | None = None
    load: LoadResult | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.scenario}: {format_number(self.throughput)} samples/s"]
        if self.metadata:
            lines.append(", ".join(f"{name} {value:g}" for name, value in self.metadata.items()))
        quantile = RULES[MlperfScenario(str(self.scenario).replace("_", "-"))].quantile
        if quantile is not None and len(self.latencies):
            latency = percentile_of(self.latencies, quantile)
            shown = format_duration(latency * 1e9) if np.isfinite(latency) else "-"
            lines.append(f"p{100 * quantile:g} latency: {shown}")
        if self.accuracy is not None:
            lines.append(f"accuracy: {format_share(self.accuracy)}")
        if self.rules is not None:
            lines.append(f"MLPerf-style rules: {self.rules.verdict}")
            lines += [f"  {each}" for each in self.rules.reasons]
        lines += [] if self.load is None else [f"warning: {each}" for each in self.load.warnings]
        return "\n".join(lines)


class MLPerfBenchmark:
    """Runs the scenarios of MLPerf inference in this process; `results` has what was measured.

    A sample of a data set is an array, a pair of array and label, a mapping with `data` and `target`, or any
    other object. Arrays get a first dimension of 1 unless they have it; offline joins them to batches. Other
    objects are passed as they are, and offline as a list. After the last sample comes the first one. Raises
    BenchmarkError, before the first query, for what cannot work.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.results: list[BenchmarkResult] = []

    def single_stream(self, model: Any, dataset: Iterable[Any], num_queries: int = 1000) -> BenchmarkResult:
        """Send each query when the one before it ended; the figure is the p90 of the latency."""
        target = _DatasetTarget(model, dataset, num_queries)
        settings = LoadSettings(target.name, "single-stream", count=num_queries, seed=self.seed)
        load = run_load(target, settings)
        return self._added(BenchmarkScenario.SINGLE_STREAM, load, target, {"num_queries": num_queries})

    def server(
        self,
        model: Any,
        dataset: Iterable[Any],
        target_qps: float = 10.0,
        duration: float = 60.0,
        *,
        latency_bound_s: float | None = None,
        concurrency: int = 1,
    ) -> BenchmarkResult:
        """Send queries as a Poisson process, for `duration` seconds.

        Arrivals are drawn before the run, and latency is from the planned arrival. With a bound of the p99
        in seconds, the result has the verdict of the rules.
        """
        settings = self._server_settings(model, target_qps, duration, concurrency)
        target = _DatasetTarget(model, dataset, OFFLINE_SAMPLES)
        load = run_load(target, settings)
        metadata = {"target_qps": target_qps, "actual_qps": load.achieved_rate, "duration": duration}
        return self._added(BenchmarkScenario.SERVER, load, target, metadata, latency_bound_s)

    def offline(self, model: Any, dataset: Iterable[Any], batch_size: int = 32) -> BenchmarkResult:
        """Compute all samples of a data set, which arrive at once, in batches; the figure is samples/s."""
        if batch_size < 1:
            raise BenchmarkError(
                "invalid_batch_size", f"batch_size={batch_size}: a batch has samples", hint="use 1 or more"
            )
        target = _DatasetTarget(model, dataset, OFFLINE_SAMPLES, batch_size)
        settings = LoadSettings(target.name, "offline", count=len(target.batches), seed=self.seed)
        load = run_load(target, settings)
        metadata = {"batch_size": batch_size, "total_samples": len(target.samples)}
        return self._added(BenchmarkScenario.OFFLINE, load, target, metadata)

    def highest_qps(
        self,
        model: Any,
        dataset: Iterable[Any],
        latency_bound_s: float,
        *,
        start_qps: float = 10.0,
        duration: float = 60.0,
        quantile: float = 0.99,
        runs: int = 8,
    ) -> MaxRateResult:
        """Search the highest rate of the server scenario whose quantile is below a bound (seconds).

        Each rate has `runs` independent runs of `duration` seconds: see `gpuprof load --find-max-rate`.
        """
        settings = self._server_settings(model, start_qps, duration, 1)
        slo = f"p{100 * quantile:g}<{latency_bound_s * 1e3:.9g}ms"
        wanted = LoadSettings(
            settings.target, settings.scenario, rate=start_qps, duration_s=duration, slo=slo, seed=self.seed
        )
        return find_rate(_DatasetTarget(model, dataset, OFFLINE_SAMPLES), wanted, runs=runs)

    def _server_settings(self, model: Any, rate: float, duration: float, concurrency: int) -> LoadSettings:
        return LoadSettings(
            _name_of(model), "server", rate=rate, duration_s=duration, concurrency=concurrency, seed=self.seed
        )

    def _added(
        self,
        scenario: BenchmarkScenario,
        load: LoadResult,
        target: _DatasetTarget,
        metadata: Mapping[str, Any],
        latency_bound_s: float | None = None,
    ) -> BenchmarkResult:
        rules = RULES[MlperfScenario(load.settings.scenario)]
        rules = rules if latency_bound_s is None else rules.with_bound(latency_bound_s)
        is_unbound = scenario is BenchmarkScenario.SERVER and latency_bound_s is None
        per_sample = scenario is BenchmarkScenario.OFFLINE
        queries = queries_of(load.rows, load.planned_duration_s, per_sample=per_sample)
        found = BenchmarkResult(
            scenario=scenario,
            latencies=np.repeat(latencies_s(load.rows), load.rows["units"] if per_sample else 1),
            throughput=load.units_per_s,
            accuracy=target.accuracy,
            metadata=dict(metadata),
            rules=None if is_unbound or not len(load.rows) else judge(queries, rules),
            load=load,
        )
        self.results.append(found)
        return found


BenchmarkScenarios = MLPerfBenchmark


# --- samples ---------------------------------------------------------------------------------------


def _name_of(model: Any) -> str:
    return str(getattr(model, "__qualname__", type(model).__name__))


class _DatasetTarget:
    """Calls a model with the samples of a data set, in batches; the outputs are kept for the accuracy."""

    def __init__(self, model: Any, dataset: Iterable[Any], most: int, batch_size: int = 1) -> None:
        if not callable(model) or isinstance(model, type):
            raise BenchmarkError(
                "not_callable", f"{type(model).__name__} is not a model", hint="give a callable or a module"
            )
        if most < 1:
            raise BenchmarkError("invalid_load", f"{most} queries", hint="use 1 or more")
        self.name = _name_of(model)
        self.samples = [*itertools.islice(dataset, most)]
        if not self.samples:
            raise BenchmarkError("no_samples", "the data set is empty", hint="give at least one sample")
        pairs = [_inputs_and_label(each) for each in self.samples]
        self._labels = [label for _, label in pairs]
        self._is_single = batch_size == 1
        self.batches = [range(begin, min(begin + batch_size, len(pairs)))
                        for begin in range(0, len(pairs), batch_size)]  # fmt: skip
        self._inputs = [joined([pairs[place][0] for place in batch], self._is_single)
                        for batch in self.batches]  # fmt: skip
        self._outputs: dict[int, Any] = {}
        self._call = _synchronized(model)

    def prepare(self) -> None:
        """Call the model once, so that the first query is not slower than the others."""
        self._call(self._inputs[0])

    def call(self, index: int) -> int:
        """Compute a batch; returns its samples."""
        place = index % len(self.batches)
        output = self._call(self._inputs[place])
        if self._labels[self.batches[place][0]] is not None:
            self._outputs[place] = output
        return len(self.batches[place])

    def close(self) -> None:
        """Do nothing: the outputs are still needed."""

    @property
    def accuracy(self) -> float | None:
        """The fraction of the labels that the outputs have; None without labels or classes."""
        right = total = 0
        for place, output in self._outputs.items():
            classes = classes_of(output)
            labels = [self._labels[each] for each in self.batches[place]]
            if classes is None or len(classes) != len(labels):
                return None
            right += sum(int(a) == int(b) for a, b in zip(classes, labels, strict=True))
            total += len(labels)
        return right / total if total else None


def _synchronized(model: Any) -> Callable[[Any], Any]:
    call, wait = inference_call(model), CallableSystem(model).waiting()
    if wait is None:
        return call

    def call_and_wait(inputs: Any) -> Any:
        output = call(inputs)
        wait()
        return output

    return call_and_wait


def _inputs_and_label(sample: Any) -> tuple[Any, Any]:
    """Return the inputs of a sample, and its label or None."""
    if isinstance(sample, Mapping) and "data" in sample:
        return sample["data"], _label(sample.get("target"))
    if isinstance(sample, (tuple, list)) and len(sample) == 2 and hasattr(sample[0], "shape"):
        label = _label(sample[1])
        if label is not None:
            return sample[0], label
    return sample, None


def _label(value: Any) -> int | None:
    """Return a class; None for what is no single whole number."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "iu" else None


def joined(inputs: Sequence[Any], is_single: bool = False) -> Any:
    """Return the inputs of samples as those of one call."""
    first = inputs[0]
    if not hasattr(first, "shape"):
        return first if is_single else list(inputs)
    has_batch = len(first.shape) > 1 and first.shape[0] == 1
    if is_single:
        return first if has_batch else first[None]
    if type(first).__module__.partition(".")[0] == "torch":
        import torch

        return torch.cat(list(inputs)) if has_batch else torch.stack(list(inputs))
    return np.concatenate(list(inputs)) if has_batch else np.stack(list(inputs))


def classes_of(output: Any) -> Sequence[int] | None:
    """Return the index of the largest output of each sample; None where outputs are no classes."""
    if not hasattr(output, "shape") and hasattr(output, "data"):
        output = output.data
    if hasattr(output, "detach"):
        output = output.detach().float().cpu().numpy()
    try:
        array = np.asarray(output)
    except (TypeError, ValueError):
        return None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        return None
    found: Sequence[int] = array.argmax(axis=1).tolist()
    return found
