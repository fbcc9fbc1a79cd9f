# SPDX-License-Identifier: Apache-2.0
"""The options of benchmarks and comparisons, by the names that command lines and suite files give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gpuprof.bench.config import Caches, Device, Dtype, Settings, SystemSpec, settings_for
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    from gpuprof.bench.results.target import LatencyTarget

T = TypeVar("T")

# Of a benchmark by names: BenchmarkConfig, and `gpuprof bench --model`.
DOCUMENT_BATCH_SIZES = (1, 8, 32, 128)
DOCUMENT_WARMUP = 10
DOCUMENT_ITERATIONS = 50
RESULTS_FOLDER = "results/raw"
BOTH = "both"
BOTH_MODELS = ("resnet50", "vit_b_16")
BOTH_FRAMEWORKS = ("pytorch", "jax")


def each_model(names: Iterable[T]) -> list[T | str]:
    """Return the models of names; `both` is resnet50 and vit_b_16."""
    return _each(names, BOTH_MODELS)


def each_framework(names: Iterable[T]) -> list[T | str]:
    """Return the frameworks of names; `both` is PyTorch and JAX."""
    return _each(names, BOTH_FRAMEWORKS)


def _each(names: Iterable[T], both: tuple[str, ...]) -> list[T | str]:
    return [each for name in names for each in (both if name == BOTH else (name,))]


@dataclass(frozen=True, kw_only=True)
class SystemOptions:
    """What runs a model, and on which inputs."""

    framework: str = "auto"
    dtype: Dtype | None = None
    device: Device = "auto"
    input_shape: tuple[int, ...] | None = None
    data: str = "synthetic"
    seed: int = 0
    trust_pickle: bool = False

    def spec(self, model: str) -> SystemSpec:
        """Return the spec of a model. Raises BenchmarkError."""
        from gpuprof.bench.frameworks import framework_name

        return SystemSpec(
            model,
            framework_name(self.framework),
            self.device,
            self.dtype,
            self.input_shape,
            self.data,
            self.seed,
            self.trust_pickle,
        )


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions(SystemOptions):
    """What is measured, and how long; what is refused without starting anything is refused here."""

    batch_sizes: tuple[int, ...] = (1,)
    iterations: int | None = None
    warmup: int | None = None
    duration: float | None = None
    launches: int = 10
    slo: str | None = None
    memory_budget: str | None = None
    profile: bool = False
    time_limit: float = 600.0
    caches: Caches = "warm"
    stream: bool = False

    def measuring(self) -> Settings:
        """Return the settings of the timing loop. Raises BenchmarkError."""
        if self.stream and self.data == "synthetic":
            raise BenchmarkError(
                "nothing_to_stream",
                "--stream without --data: synthetic inputs are not loaded",
                hint="add --data with a folder of images, a .npz file or python:module:function",
            )
        settings = settings_for(self.iterations, self.warmup, self.duration)
        return dataclasses.replace(settings, caches=self.caches, stream=self.stream)

    def target(self) -> LatencyTarget | None:
        """Return the target that was given. Raises BenchmarkError."""
        from gpuprof.bench.results.target import parse_target

        return None if self.slo is None else parse_target(self.slo)

    def budget_bytes(self) -> int | None:
        """Return the memory budget that was given. Raises BenchmarkError."""
        from gpuprof.bench.measure.memory import parse_bytes

        return None if self.memory_budget is None else parse_bytes(self.memory_budget)


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(MeasuringOptions):
    """What is compared besides times, and by which margins. `traffic` is a split such as `90,10`."""

    name: str = "comparison"
    baseline: str | None = None
    dataset: str = "synthetic"
    split: str | None = None
    accuracy: bool = True
    accuracy_samples: int = 1_000
    accuracy_margin: float = 0.01
    metrics: tuple[str, ...] = ()
    margin: float = 0.01
    price_per_hour: float | None = None
    currency: str = "USD"
    traffic: str | None = None
