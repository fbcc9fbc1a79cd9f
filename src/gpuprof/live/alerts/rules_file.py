# SPDX-License-Identifier: Apache-2.0
"""Rules in a TOML file: a table `[[rule]]` for each, with its kind and the fields of its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from gpuprof.bench.serialization import read_toml
from gpuprof.errors import GpuprofError
from gpuprof.live.alerts.rules import (
    THROTTLING,
    AlertFigure,
    AlertRule,
    AlertSeverity,
    LeakRule,
    RegressionRule,
    RuleKind,
    SlowStepRule,
    StallRule,
    ThresholdRule,
    ThrottlingRule,
)
from gpuprof.record.window_options import parse_seconds

_CLASSES: dict[RuleKind, type[Any]] = {
    RuleKind.THRESHOLD: ThresholdRule,
    RuleKind.REGRESSION: RegressionRule,
    RuleKind.LEAK: LeakRule,
    RuleKind.SLOW_STEP: SlowStepRule,
    RuleKind.STALL: StallRule,
    RuleKind.THROTTLING: ThrottlingRule,
}
# In a file `for = "5m"` is the field for_s.
_TIMES = {"for": "for_s", "clear": "clear_s", "window": "window_s"}
# Counts, and the least of each.
_LEAST = {"steps": 20, "warmup": 0, "fewest": 1}
_THROTTLE_REASONS = (*THROTTLING, "power cap", "sync boost")


def read_rules(path: Path) -> tuple[AlertRule, ...]:
    """Return the rules of a file. Raises GpuprofError, which names the rule and its key."""
    try:
        table = read_toml(path)
    except ValueError as error:
        raise _refused("not_toml", path, str(error)) from error
    rules = table.get("rule")
    if not isinstance(rules, list) or not rules or set(table) != {"rule"}:
        raise _refused("no_rules", path, "it needs tables [[rule]] and nothing else")
    found = [_rule(path, number, each) for number, each in enumerate(rules, 1)]
    names = [each.name for each in found]
    repeated = next((each for each in names if names.count(each) > 1), None)
    if repeated is not None:
        raise _refused("repeated_rule", path, f"two rules have the name {repeated!r}")
    return tuple(found)


def _rule(path: Path, number: int, table: Any) -> AlertRule:
    where = f"rule {number}"
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"]:
        raise _refused("no_rule_name", path, f"{where} has no name")
    where = f"rule {table['name']!r}"
    kind = _one_of(RuleKind, table.get("kind"), path, f"{where}: kind")
    known = {each.name for each in fields(_CLASSES[kind])} - {"kind"}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = _TIMES.get(key, key)
        if key == "kind":
            continue
        if name not in known or key in _TIMES.values():
            keys = ", ".join(sorted({"kind", *(_key_of(each) for each in known)}))
            raise _refused("unknown_key", path, f"{where} has no key {key!r}; it has {keys}")
        values[name] = _value(name, value, path, f"{where}: {key}")
    rule: AlertRule = _CLASSES[kind](**_checked(kind, values, path, where))
    return rule


def _key_of(name: str) -> str:
    return next((key for key, each in _TIMES.items() if each == name), name)


def _checked(kind: RuleKind, values: dict[str, Any], path: Path, where: str) -> dict[str, Any]:
    if kind is RuleKind.THRESHOLD:
        if "figure" not in values:
            known = ", ".join(each.value for each in AlertFigure)
            raise _refused("no_figure", path, f"{where} needs a figure; known are {known}")
        if ("above" in values) == ("below" in values):
            raise _refused("no_limit", path, f"{where} needs either above or below")
    if kind is RuleKind.SLOW_STEP:
        found: dict[str, Any] = {each.name: each.default for each in fields(SlowStepRule)}
        found |= values
        if found["fewest"] > found["steps"]:
            raise _refused("bad_value", path, f"{where}: fewest is above steps, so no step could be slow")
    return values


def _value(name: str, value: Any, path: Path, where: str) -> Any:
    if name == "name":
        return value
    if name == "severity":
        return _one_of(AlertSeverity, value, path, where)
    if name == "figure":
        return _one_of(AlertFigure, value, path, where)
    if name == "reasons":
        if isinstance(value, list) and value and all(each in _THROTTLE_REASONS for each in value):
            return tuple(value)
        raise _refused("bad_value", path, f"{where} is a list of {', '.join(_THROTTLE_REASONS)}")
    if name in _TIMES.values() and isinstance(value, str):
        value = parse_seconds(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value != value or (name not in ("above", "below") and value < 0):
        raise _refused("bad_value", path, f"{where} is no number or time: {value!r}")
    if name in _LEAST and (not isinstance(value, int) or value < _LEAST[name]):
        raise _refused("bad_value", path, f"{where} is no count from {_LEAST[name]}: {value!r}")
    if name == "window_s" and value <= 0:
        raise _refused("bad_value", path, f"{where} is no time above 0: {value!r}")
    return value


def _one_of(kind: type[Enum], value: Any, path: Path, where: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(str(each.value) for each in kind)
        raise _refused("bad_value", path, f"{where} is {value!r}; known are {known}") from error


def _refused(code: str, path: Path, message: str) -> GpuprofError:
    return GpuprofError(code, f"{path}: {message}", hint="docs/commands/alert.md has an example")
