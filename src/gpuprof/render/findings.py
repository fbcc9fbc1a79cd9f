# SPDX-License-Identifier: Apache-2.0
"""The findings of a run as cards above its flame graph, and where each leads to."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuprof.analyze.findings.engine import find, is_searched
from gpuprof.analyze.findings.finding import Verdict
from gpuprof.analyze.findings.text import (
    check_command,
    evidence_figures,
    gain_amount,
    gain_basis,
    other_python_text,
    other_results,
    place_text,
    repair,
    title_with_rank,
    uncertainty,
)
from gpuprof.errors import RunError
from gpuprof.render.page import escaped
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.analyze.findings.engine import Findings
    from gpuprof.analyze.findings.finding import Finding
    from gpuprof.render.shown_tree import Shown
    from gpuprof.run.folder import RunFolder

# The cell of the flame graph (-1: none), and begin and end in the timeline.
Target: TypeAlias = tuple[int, list[int] | None]

_MOST_CARDS = 3  # before the others are folded


@dataclass(frozen=True, slots=True)
class FindingCards:
    """The cards as HTML, and where each leads to."""

    html: str = ""
    targets: tuple[Target, ...] = ()


def finding_cards(folder: RunFolder, shown: Shown) -> FindingCards:
    """Return the cards of a run that gpuprof recorded, or a sentence why there are none."""
    if folder.meta.get("imported"):
        return FindingCards()
    path = str(folder.path)
    if not is_searched(folder.meta):
        command = escaped(f"gpuprof explain {shlex.quote(path)}")
        return FindingCards(
            _sentence(f"This run is large: its findings are printed by <code>{command}</code>")
        )
    try:
        with folder.reading():
            found = find(folder)
    except RunError as error:
        return FindingCards(_sentence(f"The findings could not be read: {escaped(str(error))}"))
    return FindingCards(
        _section(found, check_command(shlex.quote(path))), tuple(_target(each, shown) for each in found)
    )


def _sentence(html: str) -> str:
    return f'<section class="findings" aria-label="Findings"><p>{html}</p></section>'


def _section(findings: Findings, command: str) -> str:
    cards = [_card(number, each, findings, command) for number, each in enumerate(findings)]
    other = other_python_text(findings)
    parts = [f'<p class="phases"><b>Python</b> {escaped(other)}</p>'] if other else []
    parts.append(_list(cards[:_MOST_CARDS]))
    if len(cards) > _MOST_CARDS:
        more = counted(len(cards) - _MOST_CARDS, "more finding")
        parts.append(f"<details><summary>{more}</summary>{_list(cards[_MOST_CARDS:])}</details>")
    parts.append(_other_rules(findings))
    heading = '<h2 id="findings-title">What to improve: largest gain first</h2>' if cards else ""
    label = 'aria-labelledby="findings-title"' if cards else 'aria-label="Findings"'
    return f'<section class="findings" {label}>{heading}{"".join(parts)}</section>'


def _list(cards: Sequence[str]) -> str:
    return f"<ol>{''.join(cards)}</ol>" if cards else ""


def _card(number: int, finding: Finding, findings: Findings, command: str) -> str:
    """Return a card; its buttons work once the script has bound them."""
    place = place_text(finding)
    name = title_with_rank(finding, findings.rank)
    lines = [
        f'<h3><button type="button" data-finding="{number}">{escaped(name)}</button></h3>',
        f'<p class="gain"><b>{escaped(gain_amount(finding, findings.mean_step_ns))}</b> <span>'
        f"{escaped(gain_basis(finding))}</span></p>",
        f'<p class="evidence">evidence: {escaped(evidence_figures(finding))}</p>',
        f'<p class="place">where: {escaped(place)}</p>' if place else "",
        f"<pre><code>{_code(repair(finding))}</code></pre>",
        f'<p class="check">check: <code>{escaped(command)}</code></p>',
        f'<p class="leads"><button type="button" data-finding="{number}" data-leads="flame" hidden>'
        f'Flame graph</button><button type="button" data-finding="{number}" data-leads="timeline" hidden>'
        "Timeline</button></p>",
    ]
    return f"<li>{''.join(lines)}</li>"


def _code(text: str) -> str:
    """Return code of a few lines as HTML."""
    return "\n".join(escaped(line) for line in text.split("\n"))


_CHECKED = {
    Verdict.NOT_SIGNIFICANT: "with too small a gain",
    Verdict.NOT_FOUND: "not present",
    Verdict.UNKNOWN: "not checked",
}


def _other_rules(findings: Findings) -> str:
    """Return how many rules found nothing, which opens to what they are."""
    counts = Counter(each.verdict for each in findings.results)
    words = [f"{counts[verdict]} {text}" for verdict, text in _CHECKED.items() if counts[verdict]]
    if not words:
        return ""
    hidden = None if counts[Verdict.FOUND] else uncertainty(findings)
    first = "Other causes" if counts[Verdict.FOUND] else "No cause of lost time was found. Known causes"
    if hidden is not None:
        first = f"No cause of lost time is certain; {escaped(hidden)}. Known causes"
    items = "".join(
        f"<dt>{_CHECKED[verdict]}</dt><dd>{escaped(text)}</dd>" for verdict, text in other_results(findings)
    )
    return f"<details><summary>{first}: {', '.join(words)}</summary><dl>{items}</dl></details>"


def _target(finding: Finding, shown: Shown) -> Target:
    range_ns = finding.places.range_ns
    return _cell(finding.places.nodes, shown), None if range_ns is None else list(range_ns)


def _cell(nodes: Sequence[int], shown: Shown) -> int:
    """Return the cell of the first of the run's nodes that the page has."""
    for node in nodes:
        if node < len(shown.total_place):
            cell = int(shown.total_place[node])
            return cell if cell >= 0 else int(shown.own_place[node])
    return -1
