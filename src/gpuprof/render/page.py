# SPDX-License-Identifier: Apache-2.0
"""What every page shares: its assets, its policy, and text from a run that can do no harm in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuprof.render.bundle import bundled_script
from gpuprof.text.sanitize import quoted_if_blank, visible_text

_ASSETS = Path(__file__).parent / "assets"
_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAME_HEAD, _NAME_TAIL = 1_600, 300  # characters that are kept of a name too long to read

# A browser joins emoji and letters by them.
_JOINERS = "\u200c\u200d"


# ---- assets ----------------------------------------------------------------------------------


def asset(name: str | Path) -> str:
    """Return the text of a file; a name is that of a file of this package."""
    return (_ASSETS / name).read_text("utf-8")


def page_script(name: str | Path) -> str:
    """Return the script of a page: the module `name` and all that it imports."""
    return bundled_script(_ASSETS / name)


def page_style(*names: str | Path) -> str:
    """Return style sheets as one, without their comments and indentation."""
    text = "".join(map(asset, names))
    return "".join(f"{line}\n" for each in _CSS_COMMENT.sub("", text).splitlines() if (line := each.strip()))


def policy(script: str, style: str | None, *libraries: str) -> str:
    """Return the content security policy that lets nothing run but this script and its libraries.

    Without a `style` any may be used: for a library that sets its own.
    """

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"

    styles = "'unsafe-inline'" if style is None else hashed(style)
    return (
        f"default-src 'none'; script-src {' '.join(map(hashed, (script, *libraries)))}; style-src {styles}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def filled(template: str, fields: dict[str, str]) -> str:
    """Put the fields, which are HTML already, in the places of their names."""
    # One pass: a value that holds `{{title}}` is text and is not filled again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


# ---- data ---------------------------------------------------------------------------------


def safe_json(value: object) -> str:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# ---- text ------------------------------------------------------------------------------------


def readable(name: str) -> str:
    """`name` on one line, what cannot be seen as escapes, as in a terminal, and an absurd length cut."""
    length = len(name)
    if length > _NAME_HEAD + _NAME_TAIL:
        name = f"{name[:_NAME_HEAD]} … {name[-_NAME_TAIL:]} ({length:,} characters)"
    return visible_text(name, kept=_JOINERS)


def label_pairs(names: Sequence[str], labels: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return the place and the label of each name that has one of its own."""
    return [
        (place, quoted_if_blank(readable(label)))
        for place, name in enumerate(names)
        if (label := labels.get(name, name)) != name
    ]


def escaped(value: str) -> str:
    """Return text as HTML."""
    return html.escape(readable(value))


def duration(ns: float) -> str:
    """Write a time with three digits; `formatDuration` in kit/format.js does the same."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size * 0.9995:
            value = ns / size
            digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:,.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def amount(value: float, unit: str) -> str:
    """Write what a width means; `formatAmount` in kit/format.js does the same."""
    if unit == "ns":
        return duration(value)
    if unit == "launches":
        return f"{value:,.0f}"
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:,.{digits}f} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def notes_list(notes: Sequence[str]) -> str:
    """Return the warnings above a page as HTML."""
    if not notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return f'<ul class="notes" role="note" aria-label="Warnings about this run">{items}</ul>'
