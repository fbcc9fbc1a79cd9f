# SPDX-License-Identifier: Apache-2.0
"""The plan of a comparison under load: variants of a comparison, and the load that each of them gets."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.plan import ComparisonPlan, Variant, suite_of, suite_table, typed_table
from gpuprof.errors import BenchmarkError
from gpuprof.load.compared_loads import has_loads
from gpuprof.load.result import LoadSettings
from gpuprof.load.run import checked
from gpuprof.load.schedules import parse_time

RUNS = 5
_KEY = "load"


@dataclass(frozen=True, kw_only=True)
class LoadTable:
    """The keys of a load, in a suite's table [load] and in --load. Times are texts, as in 30s, or seconds."""

    scenario: str = "server"
    rate: float | None = None
    duration: str | float | None = None
    count: int | None = None
    pattern: str | None = None
    concurrency: int | None = None
    mix: str | None = None
    slo: str | None = None
    seed: int = 0
    max_batch: int | None = None
    batch_wait: str | float | None = None
    runs: int = RUNS
    drain: str | float = 60.0

    @property
    def drain_s(self) -> float:
        """How long to wait for responses after the last request."""
        return _seconds(self.drain) or 0.0

    def settings(self, variant: Variant, number: int) -> LoadSettings:
        """Return what run `number` of a variant does; each has a seed of its own. Raises BenchmarkError."""
        return LoadSettings(
            target=variant.spec.model,
            scenario=self.scenario,
            pattern=self.pattern,
            rate=self.rate,
            duration_s=_seconds(self.duration),
            count=self.count,
            concurrency=self.concurrency,
            mix=self.mix,
            slo=self.slo,
            seed=self.seed + number,
            system=variant.spec,
            max_batch=self.max_batch,
            batch_wait_s=_seconds(self.batch_wait),
        )


@dataclass(frozen=True)
class LoadComparisonPlan:
    """Variants, and their load; None where all of them are folders of loads."""

    comparison: ComparisonPlan
    load: LoadTable | None

    def __post_init__(self) -> None:
        measured = [each for each in self.comparison.variants if not is_stored(each)]
        if self.load is None and measured:
            raise BenchmarkError(
                "no_load",
                f"{measured[0].name} is no folder of a load, and others are",
                hint="add --load 'rate=200,duration=30s'",
            )
        if self.load is None:
            return
        if self.load.runs < 1:
            raise BenchmarkError("invalid_load", f"a load with {self.load.runs} runs", hint="use 1 or more")
        for each in measured:
            checked(self.load.settings(each, 0))


def _seconds(given: str | float | None) -> float | None:
    return parse_time(given) if isinstance(given, str) else given


def is_stored(variant: Variant) -> bool:
    """Whether a variant is a folder of loads that were made before."""
    return has_loads(Path(variant.spec.model))


def plan_loads(comparison: ComparisonPlan, load: str | None) -> LoadComparisonPlan | None:
    """Return the plan of a command line; None for a comparison without load. Raises BenchmarkError."""
    if load is None and not any(map(is_stored, comparison.variants)):
        return None
    return LoadComparisonPlan(comparison, None if load is None else parse_load(load))


def parse_load(text: str) -> LoadTable:
    """Read `rate=200,duration=30s,slo=p99<20ms`. Raises BenchmarkError."""
    names = "|".join(each.name.replace("_", "-") for each in fields(LoadTable))
    words = re.split(rf",\s*(?=(?:{names})=)", text)
    pairs = [word.partition("=") for word in map(str.strip, words)]
    wrong = next((key for key, equals, _ in pairs if not equals or key not in names.split("|")), None)
    if wrong is not None:
        raise BenchmarkError(
            "invalid_load", f"--load {text!r}: {wrong!r} is unknown", hint="write 'rate=200,duration=30s'"
        )
    return typed_table({key: _value(value) for key, _, value in pairs}, LoadTable, f"--load {text!r}")


def _value(text: str) -> Any:
    """Return a whole number or a number where a text is one, as TOML has it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_load_suite(path: Path) -> LoadComparisonPlan | None:
    """Read a suite with a table [load], or whose variants are folders of loads; None for other suites.

    Raises BenchmarkError for what is no suite, naming the key.
    """
    table = suite_table(path)
    load = table.pop(_KEY, None)
    if load is None:
        found = suite_of(table, path)
        return LoadComparisonPlan(found, None) if any(map(is_stored, found.variants)) else None
    if not isinstance(load, dict):
        raise BenchmarkError("invalid_load", f"{path}: load is no table", hint="write [load], and its keys")
    parsed = typed_table(load, LoadTable, f"{path}, [load]")
    try:
        return LoadComparisonPlan(suite_of(table, path), parsed)
    except BenchmarkError as error:
        raise BenchmarkError(error.code, f"{path}: {error.message}", hint=error.hint) from error
