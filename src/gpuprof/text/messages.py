# SPDX-License-Identifier: Apache-2.0
"""Texts of typed facts: each package has a table with a template for each of its codes, to fill with values.

A template is a format string, or a function of the values where words depend on them. Format specifications
know units: `{n:#segment}` is a count with its noun, `{n:#process/processes}` one with its plural, `time` is
of seconds, `ms` of nanoseconds, `percent` of a fraction, `rate` per second; `list` and `list;` join names.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gpuprof.text.units import counted, format_duration, format_rate, format_share

MOST_LISTED = 10

Values: TypeAlias = Mapping[str, Any]
Template: TypeAlias = str | Callable[[Values], str]
Format: TypeAlias = Callable[[Any], str]


class Messages:
    """The texts of one kind of facts, by code; `formats` are specifications that its templates use."""

    def __init__(
        self, templates: Mapping[Any, Template], formats: Mapping[str, Format] | None = None
    ) -> None:
        self._templates: dict[str, Template] = dict(templates)
        self._formatter = _Formatter({**_FORMATS, **(formats or {})})

    @property
    def codes(self) -> set[str]:
        """The codes that have a text."""
        return set(self._templates)

    def text(self, code: str, values: Values) -> str:
        """Return the text of a code. A file may be of a newer version: what is unknown is shown as it is."""
        template = self._templates.get(code)
        try:
            if isinstance(template, str):
                return self._formatter.vformat(template, (), values)
            return code_text(code, values) if template is None else template(values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return code_text(code, values)


def code_text(code: str, values: Values) -> str:
    """Return a code with its values, which is all there is to show where it has no text."""
    return ", ".join([str.__str__(code), *(f"{name} {value}" for name, value in values.items())])


def listed(names: Sequence[Any], separator: str = ", ") -> str:
    """Return the first MOST_LISTED names."""
    return separator.join([*map(str, names[:MOST_LISTED]), *(["..."] if len(names) > MOST_LISTED else [])])


_FORMATS: dict[str, Format] = {
    "time": lambda time_s: format_duration(time_s * 1e9),
    "ms": lambda time_ns: f"{time_ns / 1e6:g} ms",
    "percent": format_share,
    "rate": format_rate,
    "list": listed,
    "list;": lambda names: listed(names, "; "),
}


class _Formatter(string.Formatter):
    # Values may be missing or of another type in what a newer version, or a person, wrote.
    def __init__(self, formats: Mapping[str, Format]) -> None:
        self._formats = formats

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - of the base class
        return kwargs.get(key)

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None and format_spec not in self._formats:
            return "unknown"
        try:
            if format_spec.startswith("#"):
                return counted(value, *format_spec[1:].split("/"))
            known = self._formats.get(format_spec)
            return str(super().format_field(value, format_spec)) if known is None else known(value)
        except (TypeError, ValueError, LookupError):
            return "unknown" if value is None else str(value)
