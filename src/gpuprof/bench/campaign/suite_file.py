# SPDX-License-Identifier: Apache-2.0
"""A comparison as a TOML file: what all variants have in common, then a table `[[variant]]` for each.

Paths are relative to the file, so that a suite can be run from anywhere.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuprof.bench.campaign.plan import (
    ACCURACY_MARGIN,
    ACCURACY_SAMPLES,
    LAUNCHES,
    TIME_LIMIT_S,
    AccuracyPlan,
    CampaignPlan,
    Variant,
    spec_of,
)
from gpuprof.bench.campaign.traffic import parse_split
from gpuprof.bench.comparison import MARGIN
from gpuprof.bench.memory import parse_bytes
from gpuprof.bench.recipes import parse_recipe
from gpuprof.bench.settings import settings_for
from gpuprof.bench.spec import DEVICES, DTYPES, SystemSpec
from gpuprof.bench.systems import framework_name
from gpuprof.bench.target import parse_target
from gpuprof.errors import BenchmarkError, UnavailableError

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
