# SPDX-License-Identifier: Apache-2.0
"""A report as Markdown: what the page says, without its plots."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.bench.campaign_report.sections import Content, Section
from gpuprof.bench.campaign_report.tables import Cell, Table
from gpuprof.bench.report import escaped_markdown
from gpuprof.render.page import readable


def markdown(content: Content) -> str:
    """Return the whole report."""
    return "\n".join([*_summary(content), *(line for each in content.sections for line in _section(each))])


def _text(text: str) -> str:
    return escaped_markdown(readable(text))


def _summary(content: Content) -> Iterator[str]:
    report = content.report
    yield f"# {_text(content.title)}"
    yield ""
    yield f"**{_text(content.headline)}**"
    yield ""
    if content.cards and content.choice is not None:
        for card in content.cards:
            note = f" ({_text(card.note)})" if card.note else ""
            yield f"- {_text(card.title)} of {_text(content.choice.name)}: {_text(card.text)}{note}"
        yield ""
    yield from _list(report.lines)
    yield from _list(content.failures)
    if report.recommendations:
        yield "## What to do next"
        yield ""
        for text, because in report.recommendations:
            yield f"- {_text(text)}{f' Why: {_text(because)}' if because else ''}"
        yield ""


def _list(lines: tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield from (f"- {_text(line)}" for line in lines)
        yield ""


def _section(section: Section) -> Iterator[str]:
    yield f"## {_text(section.title)}"
    yield ""
    if section.lead:
        yield _text(section.lead)
        yield ""
    for table in section.tables:
        yield from _table(table)
    yield from _list(section.lines)
    if section.single_lines:
        yield f"<details><summary>{_text(section.single_title)}</summary>"
        yield ""
        yield from _list(section.single_lines)
        yield "</details>"
        yield ""


def _table(table: Table) -> Iterator[str]:
    yield _text(table.caption)
    yield ""
    yield _row([_text(head) for head in table.heads])
    yield _row([":---" if table.is_words(place) else "---:" for place in range(len(table.heads))])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row.cells])
    yield ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return f"{_text(cell.text)} ({_text(cell.note)})" if cell.note else _text(cell.text)
