# SPDX-License-Identifier: Apache-2.0
"""A report as Markdown, and the recommendations alone: what to deploy, why, and what to check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuprof.bench.compare.document import ComparisonDocument, VariantFigures
from gpuprof.bench.report import summary
from gpuprof.bench.report.conclusion import conclusions
from gpuprof.bench.report.formatting import rate
from gpuprof.bench.report.sections import Content, Section
from gpuprof.bench.report.table import Table
from gpuprof.bench.results.text import escaped_markdown
from gpuprof.render.page import readable


def markdown(content: Content) -> str:
    """Return the whole report."""
    return "\n\n".join(filter(None, _blocks(content))) + "\n"


def _text(text: str) -> str:
    return escaped_markdown(readable(text))


def _with_note(text: str, note: str) -> str:
    return f"{_text(text)} ({_text(note)})" if note else _text(text)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _step(action: str, why: str) -> str:
    return f"{_text(action)}{f'. Why: {_text(why)}' if why else ''}"


def _cards(content: Content) -> str:
    """Return the gains and costs of the recommended variant."""
    if content.choice is None:
        return ""
    name = _text(content.choice.name)
    return "\n".join(
        f"- {_text(each.title)} of {name}: {_with_note(each.text, each.note)}" for each in content.cards
    )


def _blocks(content: Content) -> Iterator[str]:
    yield f"# {_text(content.title)}"
    yield _text(content.subtitle)
    yield f"**{_text(content.headline)}**"
    yield _cards(content)
    yield _list(content.lines)
    yield _list(content.failures)
    if content.recommendations:
        yield "## What to do next"
        yield "\n".join(f"- {_step(text, why)}" for text, why in content.recommendations)
    for section in content.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"## {_text(section.title)}"
    yield _text(section.lead)
    for table in section.tables:
        yield _text(table.caption)
        yield _table(table)
    if section.link is not None:
        yield f"[{_text(section.link.text)}]({section.link.file})"
    yield _list(section.lines)
    if section.single_lines:
        yield f"<details><summary>{_text(section.single_title)}</summary>"
        yield _list(section.single_lines)
        yield "</details>"


def _table(table: Table) -> str:
    rules = [":---" if table.is_words(place) else "---:" for place in range(len(table.heads))]
    rows = [[_with_note(cell.text, cell.note) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (map(_text, table.heads), rules, *rows))


# --- recommendations -----------------------------------------------------------------------------


def recommendations(content: Content, document: ComparisonDocument) -> str:
    """Return the recommendations of a comparison as a document of their own."""
    return "\n\n".join(filter(None, _recommended(content, document))) + "\n"


def _recommended(content: Content, document: ComparisonDocument) -> Iterator[str]:
    yield f"# Recommendations: {_text(content.title)}"
    yield _text(content.subtitle)
    yield "## What to deploy"
    yield f"**{_text(content.headline)}**"
    yield _list(tuple(_deployed(content.choice, document)))
    yield "## Why"
    yield _cards(content)
    yield _list([str(each) for each in conclusions(document)])
    yield "## What to check"
    steps = content.recommendations
    yield "\n".join(f"- [ ] {_step(text, why)}" for text, why in steps) or "No step is left."
    limits = (*content.failures, *summary.warning_groups(document))
    if limits:
        yield "## Limits of these figures"
        yield _list(limits)
    for section in content.sections:
        if section.key in ("environment", "method"):
            yield f"## {_text(section.title)}"
            yield from (f"{_text(table.caption)}\n\n{_table(table)}" for table in section.tables[:1])


def _deployed(choice: VariantFigures | None, document: ComparisonDocument) -> Iterator[str]:
    """Yield what is needed to deploy the recommended variant, or that of each batch size."""
    for size, name in (document.summary.by_batch_size or {}).items():
        yield f"batch size {size}: {name}"
    if choice is None:
        return
    facts = {
        "variant": choice.name,
        "model": choice.model,
        "technique": choice.technique,
        "framework": choice.framework,
        "dtype": choice.dtype,
        "device": choice.device,
    }
    yield from (f"{name}: {value}" for name, value in facts.items() if value)
    rates = [(each.throughput_per_s, each.batch_size) for each in choice.batches]
    best = max(((found.value, size) for found, size in rates if found is not None), default=None)
    if best is not None:
        yield f"best throughput: {rate(best[0])} at batch size {best[1]}"
