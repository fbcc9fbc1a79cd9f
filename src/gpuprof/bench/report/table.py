# SPDX-License-Identifier: Apache-2.0
"""Tables of a report: columns are declared once, cells have their text and the exact figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpuprof.bench.facts import TextEnum
from gpuprof.bench.report import formatting
from gpuprof.stats.quantiles import Estimate
from gpuprof.text.units import Quantity

T = TypeVar("T")
_VARIANT = "Variant"
_WORDS = frozenset(
    ("Bound", "Class", "Device", "Evidence", "Layer", "Metric", "Reason", "Run", "State",
     "Technique", "Value", "Warnings")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `value` is the document's figure as it is, `note` a quieter second line."""

    text: str
    note: str = ""
    value: float | None = None
    tone: str = ""
    bar: float | None = None


MISSING = Cell(formatting.UNAVAILABLE, tone="missing")
NOT_MEASURED = Cell("not measured", tone="missing")
BASELINE = Cell("baseline")
_TONES = {
    "faster": "good",
    "higher": "good",
    "met": "good",
    "slower": "bad",
    "lower": "bad",
    "beyond": "bad",
    "missed": "bad",
    "failed": "bad",
}


def figure(value: float | None, write: Callable[[float], str], note: str = "") -> Cell:
    """Return a figure, or the word for none."""
    return MISSING if value is None else Cell(write(value), note, value)


def whole(value: int) -> Cell:
    """Return a count."""
    return Cell(f"{value:,}", value=value)


def between(found: Estimate | None, write: Quantity, tone: str = "", bar: float | None = None) -> Cell:
    """Return a figure with its interval below it."""
    if found is None:
        return MISSING
    interval = write.interval(found.low, found.high) or "no interval"
    return Cell(write(found.value), interval, found.value, tone, bar)


def words(text: str | None) -> Cell:
    """Return words, or the word for none."""
    return Cell(text) if text else MISSING


def judged(verdict: TextEnum | None) -> Cell:
    """Return a verdict."""
    return MISSING if verdict is None else Cell(formatting.verdict(verdict), tone=tone_of(verdict))


def tone_of(verdict: TextEnum | None) -> str:
    """Return whether a verdict is good or bad news."""
    return _TONES.get(str(verdict), "")


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `variant` names the one that it belongs to, for its color."""

    cells: tuple[Cell, ...]
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the name of each row's subject in the first column, figures in the others."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]

    def is_words(self, place: int) -> bool:
        """Whether a column holds words, which lean to the left."""
        return place == 0 or self.heads[place] in _WORDS


def table_of(
    caption: str,
    columns: Mapping[str, Callable[[T], Cell]],
    subjects: Iterable[tuple[str | Cell, T]],
    *,
    first: str = _VARIANT,
) -> Table | None:
    """Return a row for each subject, named in the first column; None without any.

    A column in which nothing is available is left out; the method has one note of it.
    """
    rows = []
    for name, subject in subjects:
        named = Cell(name) if isinstance(name, str) else name
        variant = named.text if first == _VARIANT else None
        rows.append(Row((named, *(cell_of(subject) for cell_of in columns.values())), variant))
    heads = (first, *columns)
    kept = [
        place for place in range(len(heads)) if place == 0 or any(row.cells[place] != MISSING for row in rows)
    ]
    if len(kept) < 2:
        return None
    shown = (Row(tuple(row.cells[place] for place in kept), row.variant) for row in rows)
    return Table(caption, tuple(heads[place] for place in kept), tuple(shown))


def facts_table(caption: str, facts: Mapping[str, object]) -> Table | None:
    """Return plain values by their names, at whose ends their units are."""
    return table_of(caption, {"Value": lambda cell: cell}, _flat(facts), first="What")


def _flat(facts: Mapping[str, object], within: str = "") -> Iterator[tuple[str, Cell]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}: ")
        else:
            # Names within are those of others: of libraries, of variables.
            shown = str(name) if within else name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
            yield f"{within}{shown}", value if isinstance(value, Cell) else _plain(value, name)


def _plain(value: object, name: str) -> Cell:
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        kinds = {"bytes": formatting.size, "s": formatting.time}
        write = kinds.get(name.rpartition("_")[2])
        if write is None:
            return whole(value) if isinstance(value, int) else figure(value, formatting.number)
        return figure(value, write)
    if isinstance(value, list | tuple):
        return Cell(", ".join(map(str, value)) or "none")
    return Cell(str(value))
