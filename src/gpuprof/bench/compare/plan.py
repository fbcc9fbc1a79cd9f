# SPDX-License-Identifier: Apache-2.0
"""The plan of a comparison: variants, batch sizes, process runs; from Python or from a suite file."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprof.bench.config import DEVICES, DTYPES, JobSettings, Settings, SystemSpec, settings_for
from gpuprof.bench.frameworks import framework_name
from gpuprof.bench.measure.memory import parse_bytes
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.results.target import LatencyTarget, parse_target
from gpuprof.bench.serialization import to_plain
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.stats.ratio_test import MARGIN

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
    target: LatencyTarget | None = None
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
            raise BenchmarkError(f"{self.launches} process runs measure nothing: take 1 or more, better 10")
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
        parts = [variant.name, variant.spec, self.job_of(variant), _content(variant.spec)]
        text = json.dumps(to_plain(parts), sort_keys=True)
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
    from gpuprof.bench.models.sources import TORCH_LIBRARIES

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
    from gpuprof.bench.models.recipes import with_recipe

    return with_recipe(spec, chosen)


def _with_parts(model: str) -> tuple[str, str, str]:
    model, separator, recipe = model.rpartition("@")
    return (model, separator, recipe) if separator else (recipe, "", "")


Table = Mapping[str, Any]
_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_count, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_one_of(*names: str) -> _Check:
    return lambda value: value in names


# Name: (check, what is wanted).
_OF_SYSTEMS: dict[str, tuple[_Check, str]] = {
    "model": (_is_text, "a text such as 'model.py:build'"),
    "framework": (_is_text, "a text such as 'pytorch'"),
    "recipe": (_is_text, "a text such as 'int8-dynamic'"),
    "dtype": (_is_one_of(*DTYPES), f"one of {', '.join(DTYPES)}"),
    "device": (_is_one_of(*DEVICES), f"one of {', '.join(DEVICES)}"),
    "input-shape": (_are_counts, "whole numbers such as [3, 224, 224]"),
    "batch-sizes": (_are_counts, "whole numbers such as [1, 8]"),
    "data": (_is_text, "'synthetic' or a path"),
    "seed": (_is_whole, "a whole number"),
    "trust-pickle": (_is_flag, "true or false"),
}
_OF_ALL: dict[str, tuple[_Check, str]] = {
    **_OF_SYSTEMS,
    "name": (_is_text, "a text"),
    "baseline": (_is_text, "the name of a variant"),
    "launches": (_is_count, "a whole number from 1"),
    "iterations": (_is_count, "a whole number from 1"),
    "warmup": (_is_whole, "a whole number"),
    "duration": (_is_number, "seconds above 0"),
    "time-limit": (_is_number, "seconds above 0"),
    "memory-budget": (_is_text, "a text such as '12GiB'"),
    "margin": (_is_share, "a share such as 0.01"),
    "slo": (_is_text, "a text such as 'p99<20ms'"),
    "accuracy": (_is_flag, "true or false"),
    "dataset": (_is_text, "a path"),
    "accuracy-samples": (_is_count, "a whole number from 1"),
    "accuracy-margin": (_is_share, "a share such as 0.01"),
    "metrics": (_are_texts, "texts such as ['metrics.py:perplexity']"),
    "profile": (_is_flag, "true or false"),
    "price-per-hour": (_is_number, "a number above 0"),
    "currency": (_is_text, "a text such as 'USD'"),
    "traffic": (_is_text, "a text such as '90,10'"),
    "variant": (lambda value: isinstance(value, list), "tables: [[variant]]"),
}
_OF_VARIANT = {**_OF_SYSTEMS, "name": (_is_text, "a text")}


def read_suite(path: Path) -> CampaignPlan:
    """Read a suite. Raises BenchmarkError for what is no suite, naming the key."""
    table = _parsed(path)
    _check(table, _OF_ALL, str(path))
    variants = table.get("variant") or []
    if not variants:
        raise BenchmarkError(f"{path} has no variant: add a table [[variant]] for each")
    for number, each in enumerate(variants, 1):
        _check(each, _OF_VARIANT, f"{path}, variant {number}")
    try:
        return _plan(
            table, [_variant(table, each, path, number) for number, each in enumerate(variants, 1)], path
        )
    except BenchmarkError as error:
        raise BenchmarkError(f"{path}: {error}") from error


def _parsed(path: Path) -> Table:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise UnavailableError("reading a suite on Python 3.10 needs tomli: pip install tomli") from error
    try:
        table: Table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read ({error.strerror}): name a suite") from error
    except ValueError as error:
        raise BenchmarkError(f"{path} is no TOML: {error}") from error
    return table


def _check(table: Any, known: Mapping[str, tuple[_Check, str]], where: str) -> None:
    if not isinstance(table, Mapping):
        raise BenchmarkError(f"{where} is {table!r}, no table: write [[variant]] and its keys below")
    for key, value in table.items():
        if key not in known:
            raise BenchmarkError(f"{where}: unknown key {key!r}{_near(key, known)}")
        is_right, wanted = known[key]
        if not is_right(value):
            raise BenchmarkError(f"{where}: {key} = {value!r}: give {wanted}")


def _near(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("_", "-"), list(known), 1)
    return f": did you mean {near[0]}?" if near else f": known are {', '.join(known)}"


def _variant(table: Table, own: Table, path: Path, number: int) -> Variant:
    merged = {key: table[key] for key in _OF_SYSTEMS if key in table} | dict(own)
    model = merged.get("model")
    if model is None:
        raise BenchmarkError(f"variant {number} has no model: add model = ..., here or above all variants")
    model, recipe = _placed_model(model, path), merged.get("recipe")
    shape = merged.get("input-shape")
    common = SystemSpec(
        model=model,
        framework=framework_name(merged.get("framework", "auto")),
        device=merged.get("device", "auto"),
        dtype=merged.get("dtype"),
        input_shape=None if shape is None else tuple(shape),
        data=_placed(merged.get("data", "synthetic"), path),
        seed=merged.get("seed", 0),
        trust_pickle=merged.get("trust-pickle", False),
    )
    name = (
        own.get("name") or merged.get("recipe") or own.get("dtype") or own.get("framework") or merged["model"]
    )
    sizes = own.get("batch-sizes")
    spec = spec_of(common, model, None if recipe is None else _placed_recipe(recipe, path))
    return Variant(str(name), spec, None if sizes is None else _apart(sizes))


def _placed(text: str, path: Path) -> str:
    """Return a path relative to the suite as one that can be opened from here; other texts as they are."""
    file, separator, rest = text.rpartition(":") if ".py:" in text else (text, "", "")
    place = path.parent / file
    return f"{place}{separator}{rest}" if place.exists() else text


def _placed_model(text: str, path: Path) -> str:
    """Place a model, and the data that a recipe behind it calibrates with."""
    model, separator, recipe = text.rpartition("@")
    if not separator or (path.parent / text).exists():
        return _placed(text, path)
    return f"{_placed(model, path)}@{_placed_recipe(recipe, path)}"


def _placed_recipe(text: str, path: Path) -> str:
    data = parse_recipe(text).data
    return text if data is None else text.removesuffix(data) + _placed(data, path)


def _apart(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(sizes))


def _plan(table: Table, variants: list[Variant], path: Path) -> CampaignPlan:
    budget, slo = table.get("memory-budget"), table.get("slo")
    return CampaignPlan(
        variants=tuple(variants),
        baseline_name=table.get("baseline"),
        name=table.get("name", path.stem),
        batch_sizes=_apart(table.get("batch-sizes", (1,))),
        launches=table.get("launches", LAUNCHES),
        measuring=settings_for(table.get("iterations"), table.get("warmup"), table.get("duration")),
        time_limit_s=float(table.get("time-limit", TIME_LIMIT_S)),
        memory_budget_bytes=None if budget is None else parse_bytes(budget),
        seed=table.get("seed", 0),
        margin=float(table.get("margin", MARGIN)),
        target=None if slo is None else parse_target(slo),
        accuracy=_accuracy(table, path),
        profile=table.get("profile", False),
        price_per_hour=table.get("price-per-hour"),
        currency=table.get("currency", "USD"),
        traffic_split=parse_split(table["traffic"]) if "traffic" in table else None,
    )


def _accuracy(table: Table, path: Path) -> AccuracyPlan | None:
    if not table.get("accuracy", True):
        return None
    return AccuracyPlan(
        dataset=_placed(table.get("dataset", "synthetic"), path),
        samples=table.get("accuracy-samples", ACCURACY_SAMPLES),
        margin=float(table.get("accuracy-margin", ACCURACY_MARGIN)),
        metrics=tuple(_placed(each, path) for each in table.get("metrics", ())),
    )


def parse_split(text: str) -> tuple[float, float]:
    """Read `90,10` as shares of 1. Raises BenchmarkError."""
    words = [word.strip().removesuffix("%").strip() for word in re.split(r"[,/:]", text)]
    hint = "write percent for the first and the second variant, as in 90,10"
    try:
        percent = [float(word) for word in words]
    except ValueError:
        raise BenchmarkError(f"--traffic {text!r} is no split: {hint}") from None
    if len(percent) != 2:
        raise BenchmarkError(f"--traffic {text!r} has {len(percent)} shares, a split has two: {hint}")
    if not all(0 < each < 100 for each in percent):
        raise BenchmarkError(f"--traffic {text!r}: each variant needs a share above 0: {hint}")
    if not math.isclose(sum(percent), 100.0, abs_tol=1e-6):
        raise BenchmarkError(f"--traffic {text!r} sums to {sum(percent):g}, not to 100: {hint}")
    return percent[0] / 100, percent[1] / 100
