# SPDX-License-Identifier: Apache-2.0
"""The plan of a comparison: variants, batch sizes, process runs; from Python or from a suite file."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.frameworks import with_recipe
from gpuprof.bench.models.combinations import PREFIXES, is_combination, read_combination, variant_spec
from gpuprof.bench.models.recipes import parse_recipe
from gpuprof.bench.models.sources import TORCH_LIBRARIES
from gpuprof.bench.options import ComparisonOptions, SystemOptions
from gpuprof.bench.results.target import LatencyTarget
from gpuprof.bench.serialization import from_plain, read_toml, to_plain
from gpuprof.errors import BenchmarkError
from gpuprof.stats.ratio_test import MARGIN

_LARGEST_READ = 64 << 20


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the systems that are compared, under the name that the report shows.

    `spec` may be given as anything that `variant_spec` takes: a module, an Ensemble too. `batch_sizes` None
    takes those of the comparison. Raises BenchmarkError for what is no model, and for one that fresh
    processes cannot have.
    """

    name: str
    spec: SystemSpec
    batch_sizes: tuple[int, ...] | None = None

    if TYPE_CHECKING:

        def __init__(
            self, name: str, spec: SystemSpec | object, batch_sizes: tuple[int, ...] | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        given: tuple[object, object] = self.name, self.spec
        if not isinstance(given[0], str):
            raise BenchmarkError("invalid_name", f"a variant is named {given[0]!r}", hint="use a text")
        object.__setattr__(self, "spec", variant_spec(self.name, given[1]))


@dataclass(frozen=True, slots=True)
class AccuracyPlan:
    """What the outputs are compared on: a folder of images in class folders, a .npz, or "synthetic".

    `samples` is the most that are taken. `split` is the folder of one split, where the images have some, such
    as "val". `metrics` name functions or classes, as `file.py:name`. Raises
    BenchmarkError for what cannot be.
    """

    dataset: str = "synthetic"
    samples: int = 1_000
    batch_size: int | None = None
    margin: float = 0.01
    metrics: tuple[str, ...] = ()
    split: str | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise BenchmarkError(
                "invalid_samples", f"cannot compare outputs of {self.samples} samples", hint="use 1 or more"
            )
        if not 0 <= self.margin < 1:
            raise BenchmarkError(
                "invalid_margin",
                f"an accuracy margin of {self.margin} is not a fraction",
                hint="use a fraction such as 0.01",
            )

    @property
    def data_text(self) -> str:
        """The data set and its split, as reports show them."""
        return self.dataset if self.split is None else f"{self.dataset}, split {self.split}"


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """Variants and how they are measured. Raises BenchmarkError for what cannot be.

    `baseline` names the variant that the others are compared with, None the first. `margin` is the change of
    latency that is of no matter, `price_per_hour` what the machine costs. `accuracy` None compares no
    outputs. `traffic_split` has the two variants divide requests in one process too, in these parts.
    """

    variants: tuple[Variant, ...]
    baseline_name: str | None = None
    name: str = "comparison"
    batch_sizes: tuple[int, ...] = (1,)
    launches: int = 10
    measuring: Settings = field(default_factory=Settings)
    time_limit_s: float = 600.0
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
        for is_wrong, error in (*self._checks_of_variants(), *self._checks_of_numbers()):
            if is_wrong:
                raise error

    def _checks_of_variants(self) -> Iterator[tuple[bool, BenchmarkError]]:
        """Yield what can be wrong, and its error."""
        names = [each.name for each in self.variants]
        yield (
            not names,
            BenchmarkError("no_variant", "there is no variant to measure", hint="specify at least one"),
        )
        yield (
            not all(map(str.strip, names)),
            BenchmarkError("no_name", "a variant has no name", hint="set one"),
        )
        for place, name in enumerate(names):
            yield (
                names.index(name) < place,
                BenchmarkError("same_name", f"two variants are named {name!r}", hint="rename one of them"),
            )
        yield (
            self.baseline_name not in (None, *names),
            BenchmarkError(
                "unknown_baseline",
                f"the baseline {self.baseline_name!r} is not a variant",
                hint=f"use one of {', '.join(names)}",
            ),
        )
        yield (
            self.traffic_split is not None and len(names) != 2,
            BenchmarkError(
                "number_of_variants",
                f"an A/B test needs exactly two variants, and there are {len(names)}",
                hint="omit the others",
            ),
        )

    def _checks_of_numbers(self) -> Iterator[tuple[bool, BenchmarkError]]:
        yield (
            self.launches < 1,
            BenchmarkError(
                "invalid_launches",
                f"cannot measure in {self.launches} process runs",
                hint="use 1 or more, better 10",
            ),
        )
        for each in self.variants:
            yield from _checks_of_sizes(each.name, each.batch_sizes or self.batch_sizes)
        seed = min([self.seed, *(each.spec.seed for each in self.variants)])
        yield (
            seed < 0,
            BenchmarkError("invalid_seed", f"a seed of {seed} is not allowed", hint="use 0 or more"),
        )
        yield (
            not 0 <= self.margin < 1,
            BenchmarkError(
                "invalid_margin",
                f"a margin of {self.margin} is not a fraction",
                hint="use a fraction such as 0.01",
            ),
        )
        yield (
            not 0 < self.time_limit_s < math.inf,
            BenchmarkError(
                "invalid_time_limit",
                f"a time limit of {self.time_limit_s} s is not allowed",
                hint="use more than 0",
            ),
        )
        yield (
            self.price_per_hour is not None and not 0 < self.price_per_hour < math.inf,
            BenchmarkError(
                "invalid_price",
                f"a price of {self.price_per_hour} an hour is not allowed",
                hint="use more than 0, or omit it",
            ),
        )

    @property
    def baseline(self) -> Variant:
        """What the other variants are compared with."""
        return next(
            each for each in self.variants if each.name == (self.baseline_name or self.variants[0].name)
        )

    def job_of(self, variant: Variant) -> JobSettings:
        """Return what a process run of a variant does."""
        return JobSettings(variant.batch_sizes or self.batch_sizes, self.measuring, self.memory_budget_bytes)

    def fingerprint(self, variant: Variant) -> str:
        """Return what changes with anything that a variant's figures depend on: its file's content too."""
        parts = [variant.name, variant.spec, self.job_of(variant), _content(variant.spec)]
        text = json.dumps(to_plain(parts), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _checks_of_sizes(name: str, sizes: Sequence[int]) -> Iterator[tuple[bool, BenchmarkError]]:
    yield (
        not sizes,
        BenchmarkError(
            "no_batch_size",
            f"{name} has no batch size",
            hint="use a list such as 1,8; auto is for gpuprof bench",
        ),
    )
    for size in sizes:
        yield (
            size < 1,
            BenchmarkError(
                "invalid_batch_size", f"{name}: batch size {size} is not allowed", hint="use 1 or more"
            ),
        )


def _content(spec: SystemSpec) -> str | None:
    """Return what distinguishes a model's file from another of its name; None for a model without one."""
    if spec.combination is not None:
        return "+".join(str(_content(part)) for part in spec.combination.parts)
    path = Path(spec.model.rpartition(":")[0] if ".py:" in spec.model else spec.model)
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _LARGEST_READ:
            return f"{path.stat().st_size} bytes of {path.stat().st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


REPLICAS_PREFIX = "replicas:"


def parse_variants(text: str, like: SystemSpec) -> tuple[Variant, ...]:
    """Read `name:model,name:model`; a model alone is its own name. Raises BenchmarkError.

    `like` holds what all have in common. A model may be followed by `@recipe`.
    """
    variants = []
    for part in map(str.strip, text.split(",")):
        name, separator, model = part.partition(":")
        # That colon may belong to the model itself, as in build.py:make.
        if not separator or name.endswith(".py") or name in (*TORCH_LIBRARIES, *PREFIXES, "replicas"):
            name = model = part
        if not model.strip():
            raise BenchmarkError(
                "no_model", f"{part!r} has no model", hint="write name:model, as in 'fp32:resnet50'"
            )
        variants.append(Variant(name.strip(), spec_of(like, model.strip())))
    return tuple(variants)


def spec_of(
    like: SystemSpec, model: str, recipe: str | None = None, place: Callable[[str], str] = str
) -> SystemSpec:
    """Return the spec of a model with a recipe, which may follow the model as `@recipe`.

    `place` turns a model, or each part of an ensemble or cascade, into one that can be opened from here.
    `replicas:2:MODEL` is a model that two processes call at the same time.
    """
    if model.startswith(REPLICAS_PREFIX):
        number, separator, rest = model.removeprefix(REPLICAS_PREFIX).partition(":")
        rest = rest.strip()
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if not (separator and rest and is_number) or rest.startswith(REPLICAS_PREFIX):
            raise BenchmarkError(
                "invalid_replicas",
                f"{model!r} names no replicas of a model",
                hint="write replicas:2:resnet50",
            )
        return dataclasses.replace(spec_of(like, rest, recipe, place), replicas=int(number))
    if is_combination(model):
        if recipe is not None:
            raise BenchmarkError(
                "recipe_of_combination",
                f"{model!r} cannot have the recipe {recipe!r}",
                hint="write the recipe after each part, as in ensemble:a.pt@bf16+b.pt",
            )
        return read_combination(model, lambda part: spec_of(like, place(part)))
    model = place(model)
    model, written = (model, None) if Path(model).exists() else _parted(model)
    if written is not None and recipe is not None:
        raise BenchmarkError(
            "two_recipes", f"{model}@{written} and recipe {recipe!r}", hint="specify the recipe once"
        )
    spec, chosen = dataclasses.replace(like, model=model), recipe if written is None else written
    return spec if chosen is None else with_recipe(spec, chosen)


def _parted(text: str) -> tuple[str, str | None]:
    """Return a model, and the recipe after it."""
    model, separator, recipe = text.rpartition("@")
    return (model, recipe) if separator else (text, None)


def plan_of(options: ComparisonOptions, variants: Sequence[Variant]) -> ComparisonPlan:
    """Return the plan of a command line or a suite. Raises BenchmarkError for what cannot be."""
    accuracy = AccuracyPlan(
        options.dataset,
        options.accuracy_samples,
        margin=options.accuracy_margin,
        metrics=options.metrics,
        split=options.split,
    )
    return ComparisonPlan(
        variants=tuple(variants),
        baseline_name=options.baseline,
        name=options.name,
        batch_sizes=_apart(options.batch_sizes),
        launches=options.launches,
        measuring=options.measuring(),
        time_limit_s=options.time_limit,
        memory_budget_bytes=options.budget_bytes(),
        seed=options.seed,
        margin=options.margin,
        target=options.target(),
        accuracy=accuracy if options.accuracy else None,
        profile=options.profile,
        price_per_hour=options.price_per_hour,
        currency=options.currency,
        traffic_split=None if options.traffic is None else parse_split(options.traffic),
    )


def parse_split(text: str) -> tuple[float, float]:
    """Read `90,10` as fractions of 1. Raises BenchmarkError."""
    words = [word.strip().removesuffix("%").strip() for word in re.split(r"[,/:]", text)]
    hint = "write percent for the first and the second variant, as in 90,10"
    try:
        percent = [float(word) for word in words]
    except ValueError:
        raise BenchmarkError(
            "invalid_split", f"--traffic {text!r} is not a traffic split", hint=hint
        ) from None
    if len(percent) != 2:
        raise BenchmarkError(
            "invalid_split", f"--traffic {text!r} has {len(percent)} parts, a split has two", hint=hint
        )
    if not all(0 < each < 100 for each in percent):
        raise BenchmarkError(
            "invalid_split", f"--traffic {text!r}: each variant needs more than 0 percent", hint=hint
        )
    if not math.isclose(sum(percent), 100.0, abs_tol=1e-6):
        raise BenchmarkError(
            "invalid_split", f"--traffic {text!r} sums to {sum(percent):g}, not to 100", hint=hint
        )
    return percent[0] / 100, percent[1] / 100


def _apart(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(sizes))


# --- suite files ---------------------------------------------------------------------------------

Table = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _VariantTable(SystemOptions):
    """The keys of a variant."""

    name: str | None = None
    model: str | None = None
    recipe: str | None = None
    batch_sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _SuiteTable(ComparisonOptions):
    """The keys above all variants; model and recipe are for those that name none."""

    model: str | None = None
    recipe: str | None = None


def read_suite(path: Path) -> ComparisonPlan:
    """Read a suite. Raises BenchmarkError for what is no suite, naming the key."""
    return suite_of(suite_table(path), path)


def suite_table(path: Path) -> Table:
    """Return the TOML of a suite. Raises BenchmarkError."""
    try:
        return read_toml(path)
    except OSError as error:
        raise BenchmarkError(
            "cannot_read", f"{path} cannot be read ({error.strerror})", hint="specify a suite"
        ) from error
    except ValueError as error:
        raise BenchmarkError(
            "invalid_toml", f"{path} is not valid TOML: {error}", hint="correct this line, or specify a suite"
        ) from error


def suite_of(table: Table, path: Path) -> ComparisonPlan:
    """Return the plan of a suite's TOML. Raises BenchmarkError, naming the key."""
    table = dict(table)
    tables = table.pop("variant", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise BenchmarkError(
            "invalid_variant",
            f"{path}: variant must be a list of tables",
            hint="write [[variant]] and its keys below",
        )
    if not tables:
        raise BenchmarkError("no_variant", f"{path} has no variant", hint="add a table [[variant]] for each")
    suite = typed_table({"name": path.stem} | table, _SuiteTable, str(path))
    shared = {key: table[key] for key in table.keys() & _keys(_VariantTable) if key != "name"}
    for number, each in enumerate(tables, 1):
        typed_table(each, _VariantTable, f"{path}, variant {number}")
    try:
        variants = [_variant(shared, each, path, number) for number, each in enumerate(tables, 1)]
        metrics = tuple(_placed(each, path) for each in suite.metrics)
        suite = dataclasses.replace(suite, dataset=_placed(suite.dataset, path), metrics=metrics)
        return plan_of(suite, variants)
    except BenchmarkError as error:
        raise BenchmarkError(error.code, f"{path}: {error.message}", hint=error.hint) from error


def _keys(kind: type[Any]) -> list[str]:
    return [each.name.replace("_", "-") for each in dataclasses.fields(kind)]


def typed_table(table: Table, kind: type[T], where: str) -> T:
    """Return a table by the types of its keys, whose words have hyphens. Raises BenchmarkError."""
    known = _keys(kind)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
            hint = f"write {near[0]}" if near else f"use one of {', '.join(known)}"
            raise BenchmarkError("unknown_key", f"{where}: unknown key {key!r}", hint=hint)
    fields = {key.replace("-", "_"): value for key, value in table.items()}
    return from_plain(fields, kind, where, "correct this value")


def _variant(shared: Table, own: Table, path: Path, number: int) -> Variant:
    given = typed_table(shared | own, _VariantTable, str(path))
    if given.model is None:
        raise BenchmarkError(
            "no_model",
            f"variant {number} has no model",
            hint="add model = ..., in its table or above all variants",
        )
    recipe = None if given.recipe is None else _placed_recipe(given.recipe, path)
    like = dataclasses.replace(given, data=_placed(given.data, path)).spec("")
    name = given.name or given.recipe or own.get("dtype") or own.get("framework") or given.model
    sizes = None if given.batch_sizes is None else _apart(given.batch_sizes)
    return Variant(name, spec_of(like, given.model, recipe, lambda text: _placed_model(text, path)), sizes)


def _placed(text: str, path: Path) -> str:
    """Return a path relative to the suite as one that can be opened from here; other texts as they are."""
    file, separator, rest = text.rpartition(":") if ".py:" in text else (text, "", "")
    place = path.parent / file
    return f"{place}{separator}{rest}" if place.exists() else text


def _placed_model(text: str, path: Path) -> str:
    """Place a model, and the data that a recipe after it calibrates with."""
    model, recipe = _parted(text)
    if recipe is None or (path.parent / text).exists():
        return _placed(text, path)
    return f"{_placed(model, path)}@{_placed_recipe(recipe, path)}"


def _placed_recipe(text: str, path: Path) -> str:
    data = parse_recipe(text).data
    return text if data is None else text.removesuffix(data) + _placed(data, path)
