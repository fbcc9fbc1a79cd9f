# SPDX-License-Identifier: Apache-2.0
"""What a comparison measures: variants, batch sizes, launches. Plain values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpuprof.bench.comparison import MARGIN
from gpuprof.bench.job import JobSettings
from gpuprof.bench.settings import Settings
from gpuprof.bench.spec import SystemSpec
from gpuprof.bench.target import Target
from gpuprof.errors import BenchmarkError

LAUNCHES = 10
TIME_LIMIT_S = 600.0
ACCURACY_SAMPLES = 1_000
ACCURACY_MARGIN = 0.01
_LARGEST_READ = 64 << 20


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the systems that are compared, under the name that the report shows.

    `batch_sizes` None takes those of the comparison.
    """

    name: str
    spec: SystemSpec
    batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AccuracyPlan:
    """What the outputs are compared on: a folder of images in class folders, a .npz, or "synthetic".

    `samples` is the most that are taken. `metrics` name functions or classes, as `file.py:name`.
    """

    dataset: str = "synthetic"
    samples: int = ACCURACY_SAMPLES
    batch_size: int | None = None
    margin: float = ACCURACY_MARGIN
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """Variants and how they are measured. Raises BenchmarkError for what cannot be.

    `baseline` names the variant that the others are held against, None the first. `margin` is the change of
    latency that is of no matter, `price_per_hour` what the machine costs. `accuracy` None compares no
    outputs. `traffic_split` has the two variants share requests in one process too, by these shares.
    """

    variants: tuple[Variant, ...]
    baseline_name: str | None = None
    name: str = "comparison"
    batch_sizes: tuple[int, ...] = (1,)
    launches: int = LAUNCHES
    measuring: Settings = field(default_factory=Settings)
    time_limit_s: float = TIME_LIMIT_S
    memory_budget_bytes: int | None = None
    seed: int = 0
    margin: float = MARGIN
    target: Target | None = None
    accuracy: AccuracyPlan | None = field(default_factory=AccuracyPlan)
    profile: bool = False
    price_per_hour: float | None = None
    currency: str = "USD"
    traffic_split: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        names = [each.name for each in self.variants]
        if not names:
            raise BenchmarkError("there is no variant to measure: name at least one")
        _refuse_twins(names)
        if self.baseline_name is not None and self.baseline_name not in names:
            raise BenchmarkError(
                f"the baseline {self.baseline_name!r} is no variant: take one of {', '.join(names)}"
            )
        if self.traffic_split is not None and len(names) != 2:
            raise BenchmarkError(
                f"a traffic split is between two variants, and there are {len(names)}: leave the others out"
            )
        if self.launches < 1:
            raise BenchmarkError(f"{self.launches} launches measure nothing: take 1 or more, better 10")
        for each in self.variants:
            _refuse_sizes(each.batch_sizes or self.batch_sizes, each.name)
        seed = min(self.seed, *(each.spec.seed for each in self.variants))
        if seed < 0:
            raise BenchmarkError(f"a seed of {seed} draws nothing: take 0 or more")
        if not 0 <= self.margin < 1:
            raise BenchmarkError(f"a margin of {self.margin} is no share: take one such as 0.01")
        price = self.price_per_hour
        if price is not None and not (price > 0 and math.isfinite(price)):
            raise BenchmarkError(f"a price of {price} an hour is none: take one above 0, or leave it out")

    @property
    def baseline(self) -> Variant:
        """What the other variants are held against."""
        return next(
            each for each in self.variants if each.name == (self.baseline_name or self.variants[0].name)
        )

    def job_of(self, variant: Variant) -> JobSettings:
        """Return what a launch of a variant does."""
        return JobSettings(variant.batch_sizes or self.batch_sizes, self.measuring, self.memory_budget_bytes)

    def fingerprint(self, variant: Variant) -> str:
        """Return what changes with anything that a variant's figures depend on: its file's content too."""
        job = self.job_of(variant).to_dict()
        parts = [variant.name, variant.spec.to_dict(), job, _content(variant.spec)]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _content(spec: SystemSpec) -> str | None:
    """Return what tells a model's file from another of its name; None for a model without one."""
    path = Path(spec.model.rpartition(":")[0] if ".py:" in spec.model else spec.model)
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _LARGEST_READ:
            return f"{path.stat().st_size} bytes of {path.stat().st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _refuse_twins(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name.strip():
            raise BenchmarkError("a variant has no name: give it one")
        if name in seen:
            raise BenchmarkError(f"two variants are called {name!r}: give each a name of its own")
        seen.add(name)


def _refuse_sizes(sizes: tuple[int, ...], name: str) -> None:
    if not sizes:
        raise BenchmarkError(
            f"{name} has no batch size: name them, such as 1,8; a comparison does not look for them (auto)"
        )
    if min(sizes) < 1:
        raise BenchmarkError(f"{name}: batch size {min(sizes)} measures nothing: take 1 or more")


def parse_variants(text: str, like: SystemSpec) -> tuple[Variant, ...]:
    """Read `name:model,name:model`; a model alone is its own name. Raises BenchmarkError.

    `like` holds what all have in common. A model may be followed by `@recipe`.
    """
    variants = []
    for part in text.split(","):
        name, model = _name_and_model(part.strip())
        if not model:
            raise BenchmarkError(f"{part.strip()!r} names no model: write name:model, as in 'fp32:resnet50'")
        variants.append(Variant(name, spec_of(like, model)))
    return tuple(variants)


def _name_and_model(part: str) -> tuple[str, str]:
    """Split at the first colon, unless that one belongs to the model itself, as in build.py:make."""
    name, separator, model = part.partition(":")
    if not separator or name.endswith(".py") or _is_library(name):
        return part, part
    return name.strip(), model.strip()


def _is_library(name: str) -> bool:
    from gpuprof.bench.models import TORCH_LIBRARIES

    return name in TORCH_LIBRARIES


def spec_of(like: SystemSpec, model: str, recipe: str | None = None) -> SystemSpec:
    """Return the spec of a model with a recipe, which may stand behind the model as `@recipe`."""
    model, separator, written = (model, "", "") if Path(model).exists() else _with_parts(model)
    if separator and recipe is not None:
        raise BenchmarkError(f"{model}@{written} and recipe {recipe!r}: name the recipe once")
    spec = dataclasses.replace(like, model=model)
    chosen = written if separator else recipe
    if chosen is None:
        return spec
    from gpuprof.bench.recipes import with_recipe

    return with_recipe(spec, chosen)


def _with_parts(model: str) -> tuple[str, str, str]:
    model, separator, recipe = model.rpartition("@")
    return (model, separator, recipe) if separator else (recipe, "", "")
