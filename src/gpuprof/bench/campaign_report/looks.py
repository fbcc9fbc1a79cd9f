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
    ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"),
    ("pentagon", "⬟"), ("hexagon", "⬢"), ("star", "★"), ("cross", "✚"),
)  # fmt: skip
# Symbols of the same nominal size fill different areas.
_SIZES = {"triangle-up": 1.4, "triangle-down": 1.4, "star": 1.45, "diamond": 1.15, "pentagon": 1.15}
_DASHES = ("solid", "dash", "dot", "dashdot")
_LONGEST_LABEL = 34


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant is drawn; `colour` is a property of the style sheet."""

    colour: str
    symbol: str
    glyph: str
    dash: str
    size: float = 1.0


def looks_of(report: Report) -> dict[str, Look]:
    """Return the look of each variant. The baseline is grey: the colours are the candidates'."""
    found, place = {}, 0
    for variant in report.variants:
        if variant.name == report.baseline:
            found[variant.name] = Look("var(--variant-baseline)", "circle", "●", "solid", 1.1)
            continue
        symbol, glyph = _SYMBOLS[(place + place // COLOURS) % len(_SYMBOLS)]
        dash = _DASHES[place // COLOURS % len(_DASHES)]
        found[variant.name] = Look(
            f"var(--variant-{place % COLOURS})", symbol, glyph, dash, _SIZES.get(symbol, 1.0)
        )
        place += 1
    return found


def label(name: str, width: int = _LONGEST_LABEL) -> str:
    """Return a name for a plot, which reads a little HTML: as text, on one line, not too long."""
    short = shorten(readable(name), width)
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
