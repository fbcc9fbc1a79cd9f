# SPDX-License-Identifier: Apache-2.0
"""What a variant looks like, the same in all plots and tables: its colour, its symbol, its line."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.analyze.text_table import shorten
from gpuprof.bench.campaign_report.reading import Report
from gpuprof.render.page import readable

COLOURS = 8
# No colour alone tells two variants apart. The swatch is the same symbol in a font.
_SYMBOLS = (
    ("circle", "●"), ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"),
    ("pentagon", "⬟"), ("hexagon", "⬢"), ("star", "★"),
)  # fmt: skip
_DASHES = ("solid", "dash", "dot", "dashdot")
_LONGEST_LABEL = 34


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant is drawn; `colour` is a property of the style sheet."""

    colour: str
    symbol: str
    glyph: str
    dash: str


def looks_of(report: Report) -> dict[str, Look]:
    """Return the look of each variant. The baseline is grey: the colours are the candidates'."""
    found, place = {}, 0
    for variant in report.variants:
        if variant.name == report.baseline:
            found[variant.name] = Look("var(--variant-baseline)", "circle-open", "○", "solid")
            continue
        symbol, glyph = _SYMBOLS[(place + place // COLOURS) % len(_SYMBOLS)]
        dash = _DASHES[place // COLOURS % len(_DASHES)]
        found[variant.name] = Look(f"var(--variant-{place % COLOURS})", symbol, glyph, dash)
        place += 1
    return found


def label(name: str, width: int = _LONGEST_LABEL) -> str:
    """Return a name for a plot, which reads a little HTML: as text, on one line, not too long."""
    short = shorten(readable(name), width)
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
