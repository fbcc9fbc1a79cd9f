# SPDX-License-Identifier: Apache-2.0
"""The configuration of a measurement: the system to measure and the settings of the timing loop.

Plain values, since they go to worker processes as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from gpuprof.errors import BenchmarkError

Mode = Literal["latency", "throughput"]
Caches = Literal["warm", "cold"]


LONGEST_WARMUP_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured and when it is enough. Raises BenchmarkError for what makes no sense.

    `mode`: latency waits after each call and a sample is a call; throughput waits once after a window of
    calls and a sample is the mean call of a window (`window_calls` of them; None fits them to 20 ms).
    `caches`: cold flushes the caches before each call, outside the timed part.
    `iterations`: calls to measure; None measures until the interval of `quantile` is narrower than
    `precision` times its value, or for `duration_s` (None: 10 s without iterations, no limit with them).
    `warmup`: calls before; None warms up until the times are steady, `warmup_limit_s` at most.
    `collect_garbage`: leave Python's collector on inside the timed part.
    `stream`: each measured call gets the next batch of the data; loading it is timed apart.
    `check_outputs`: look for NaN and infinity in the outputs of a call before and of one after.
    """

    mode: Mode = "latency"
    caches: Caches = "warm"
    iterations: int | None = None
    duration_s: float | None = None
    quantile: float = 0.5
    precision: float = 0.01
    warmup: int | None = None
    warmup_limit_s: float = LONGEST_WARMUP_S
    window_calls: int | None = None
    collect_garbage: bool = False
    check_outputs: bool = False
    stream: bool = False

    def __post_init__(self) -> None:
        checks = (
            (self.mode in ("latency", "throughput"), "mode", "latency or throughput"),
            (self.caches in ("warm", "cold"), "caches", "warm or cold"),
            (_is_count(self.iterations, 1), "iterations", "a whole number from 1"),
            (_is_time(self.duration_s), "duration_s", "seconds above 0"),
            (_is_time(self.warmup_limit_s), "warmup_limit_s", "seconds above 0"),
            (_is_share(self.quantile), "quantile", "a number between 0 and 1, such as 0.99"),
            (_is_share(self.precision), "precision", "a number between 0 and 1, such as 0.01"),
            (_is_count(self.warmup, 0), "warmup", "a whole number from 0"),
            (_is_count(self.window_calls, 1), "window_calls", "a whole number from 1"),
        )
        for is_right, name, wanted in checks:
            if not is_right:
                raise BenchmarkError(
                    "invalid_option",
                    f"{name}={getattr(self, name)!r} cannot be measured",
                    hint=f"use {wanted}",
                )
        if self.mode == "throughput" and self.caches == "cold":
            raise BenchmarkError(
                "cold_throughput",
                "caches='cold' with mode='throughput': a window of calls is warm",
                hint="use mode='latency'",
            )
        if self.mode == "throughput" and self.stream:
            raise BenchmarkError(
                "streamed_throughput",
                "stream with mode='throughput': nothing is loaded between the calls of a window",
                hint="use mode='latency'",
            )


def settings_for(iterations: int | None, warmup: int | None, duration_s: float | None) -> Settings:
    """Return the settings of a command; a short duration limits the warm-up to twice it, 2 s at the least."""
    limit_s = LONGEST_WARMUP_S if duration_s is None else min(LONGEST_WARMUP_S, max(2.0, 2 * duration_s))
    return Settings(iterations=iterations, warmup=warmup, duration_s=duration_s, warmup_limit_s=limit_s)


def _is_count(value: object, least: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_time(value: float | None) -> bool:
    return value is None or (_is_number(value) and 0 < value < float("inf"))


def _is_share(value: float) -> bool:
    return _is_number(value) and 0 < value < 1


Dtype = Literal["float32", "float16", "bfloat16", "float64", "int8", "int32", "int64"]
Device = Literal["auto", "cpu", "cuda", "mps", "tpu"]
DTYPES: tuple[str, ...] = get_args(Dtype)
DEVICES: tuple[str, ...] = get_args(Device)


MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A model, the framework that runs it, and its inputs.

    `framework` is a name of `frameworks.FRAMEWORKS`, or "auto" for what suits the model. `input_shape` is
    that of one sample, None for the model's own. `dtype` None is the model's own, float32 where it has none.
    `data` is "synthetic", a folder of images in class folders, or a `.npz` file. `recipe` is a name of
    `recipes.RECIPES` with its options, such as "pruned:0.5"; `with_recipe` sets what belongs to it.
    `combination` is for ensembles and cascades, whose `model` is only their text. `replicas` is how many
    processes call the model at the same time; the latency is that of one of them, the throughput that of all.
    """

    model: str
    framework: str = "auto"
    device: str = "auto"
    dtype: str | None = None
    input_shape: tuple[int, ...] | None = None
    data: str = "synthetic"
    seed: int = 0
    trust_pickle: bool = False
    recipe: str | None = None
    combination: Combination | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        if not (_is_count(self.replicas, 1) and self.replicas <= MOST_REPLICAS):
            raise BenchmarkError(
                "invalid_replicas",
                f"{self.replicas} replicas cannot be measured",
                hint=f"use a whole number from 1 to {MOST_REPLICAS}",
            )
        if min(self.input_shape or (1,)) < 1:
            raise BenchmarkError(
                "invalid_input_shape",
                f"input shape {self.input_shape}",
                hint="use whole numbers from 1, as 3,224,224",
            )


Average = Literal["outputs", "probabilities"]


@dataclass(frozen=True, slots=True)
class Combination:
    """Models that are measured as one. Raises BenchmarkError for what makes no sense.

    An ensemble's output is the mean over `parts` of `average`. A cascade's second part computes those samples
    for which the top probability of its first part is below `threshold`.
    """

    kind: Literal["ensemble", "cascade"]
    parts: tuple[SystemSpec, ...]
    average: Average = "outputs"
    threshold: float | None = None

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise BenchmarkError(
                "number_of_parts",
                f"an {self.kind} of {len(self.parts)} models cannot be measured",
                hint="name two or more",
            )
        if self.average not in get_args(Average):
            raise BenchmarkError(
                "invalid_average",
                f"average={self.average!r} is not known",
                hint=f"use {' or '.join(get_args(Average))}",
            )
        if self.kind == "cascade" and not (_is_number(self.threshold) and 0 <= (self.threshold or 0) <= 1):
            raise BenchmarkError(
                "invalid_threshold",
                f"a threshold of {self.threshold} is not a probability",
                hint="use a number from 0 to 1, such as 0.9",
            )
        for part in self.parts:
            if part.replicas != 1:
                raise BenchmarkError(
                    "replicas_of_part",
                    f"{part.model!r} has {part.replicas} replicas, and is a part of an {self.kind}",
                    hint=f"write replicas:{part.replicas}: before the {self.kind}",
                )
            if part.combination is not None:
                raise BenchmarkError(
                    "nested_combination",
                    f"{part.model!r} is a part of an {self.kind}, and is an ensemble or a cascade itself",
                    hint="name its models as parts",
                )

    @property
    def text(self) -> str:
        """How it is written as a model."""
        models = [part.model if part.recipe is None else f"{part.model}@{part.recipe}" for part in self.parts]
        if self.kind == "cascade":
            return f"cascade:{'->'.join(models)}@{self.threshold:g}"
        prefix = "ensemble" if self.average == "outputs" else "ensemble-probabilities"
        return f"{prefix}:{'+'.join(models)}"

    @property
    def technique(self) -> str:
        """What it does, in words."""
        if self.kind == "cascade":
            return f"cascade at {self.threshold:g}"
        mean = "" if self.average == "outputs" else ", mean of probabilities"
        return f"ensemble of {len(self.parts)}{mean}"


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What one process run does with its system, batch size after batch size.

    `memory_budget_bytes` is the most that a batch may take, None for what the machine has. `profile` is the
    folder of a run to record instead of measuring, `profile_work` whether its FLOPs and bytes are counted.
    """

    batch_sizes: tuple[int, ...] = (1,)
    measuring: Settings = field(default_factory=Settings)
    memory_budget_bytes: int | None = None
    profile: str | None = None
    profile_work: bool = False
    only_first_answer: bool = False
