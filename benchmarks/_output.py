# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks print and write: plain tables for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._machine import describe_code, describe_machine


@dataclass(frozen=True, slots=True)
class Column:
    """A right-aligned column; `text` returns its cell for a row."""

    heading: str
    width: int
    text: Callable[[dict[str, Any]], str]


def plain_table(columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> str:
    """Return the headings, and a line for each row."""
    lines = [[column.heading for column in columns]]
    lines += [[column.text(row) for column in columns] for row in rows]
    cells = [
        [f"{text:>{column.width}}" for text, column in zip(line, columns, strict=True)] for line in lines
    ]
    return "".join(" ".join(line) + "\n" for line in cells)


def show(result: dict[str, Any], table: str, target: str | None, *, indent: int | None = None) -> None:
    """Write JSON to the file that was named, and print the table; `-` asks for JSON in its place."""
    text = json.dumps(result, indent=indent) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    if target is not None:
        Path(target).write_text(text, encoding="utf-8")
    sys.stdout.write(table)


def show_figures(figures: dict[str, Any], target: str | None) -> None:
    """Print figures with the machine and the revision as JSON, or write them to the file that was named."""
    found = {"machine": describe_machine(), "code": describe_code(), "figures": figures}
    text = json.dumps(found, indent=2, default=str) + "\n"
    if target in (None, "-"):
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")
