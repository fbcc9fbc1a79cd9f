# SPDX-License-Identifier: Apache-2.0
"""Facts about figures as typed values: warnings, notes, reasons and advice have a code and values.

`str()` of a fact is its text, which messages.py makes and nothing reads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from gpuprof.bench.messages import fact_text
from gpuprof.record.facts import Severity


class TextEnum(str, Enum):
    """A closed set of words that are the same in JSON, CSV and text."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, specification: str) -> str:
        return format(str(self.value), specification)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A fact that a reader needs to judge figures. `values` are plain data for JSON, in SI units.

    A fact of a file of an earlier version has its sentence as the value `text`.
    """

    code: str
    severity: Severity = Severity.NOTE
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return fact_text(self.code, self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the text for people."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "values": dict(self.values),
            "text": str(self),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnostic:
        """Return what `to_dict()` described, in this format or in the one with a name and a line."""
        if "line" in data:
            code = _RENAMED.get(data["name"], data["name"])
            return cls(code, Severity.WARNING, {"text": data["line"]})
        return cls(data["code"], Severity(data["severity"]), data["values"])


def note(code: str, **values: Any) -> Diagnostic:
    """Return a note; dataclasses and enums among its values become plain data."""
    return Diagnostic(code, Severity.NOTE, {name: _plain(value) for name, value in values.items()})


def warning(code: str, **values: Any) -> Diagnostic:
    """Return a warning."""
    return replace(note(code, **values), severity=Severity.WARNING)


def error(code: str, **values: Any) -> Diagnostic:
    """Return an error."""
    return replace(note(code, **values), severity=Severity.ERROR)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value


# What files of format 1 call warnings.
_RENAMED = {
    "spread": "relative_iqr",
    "two peaks": "bimodal",
    "interrupted": "involuntary_context_switches",
    "other load": "background_cpu_load",
    "stolen time": "steal_time",
    "clock": "cpu_frequency",
    "warm-up": "warmup",
    "failed launches": "failed_process_runs",
    "one launch": "one_process_run",
    "inputs": "changed_inputs",
}
