# SPDX-License-Identifier: Apache-2.0
"""The common parts of every page: title, assets and policy, and escaped text from a run.

Pages are written as ES modules. A browser loads no module for a page that was opened from a file, and a
machine that writes pages has no JavaScript tools. So the modules are joined when a page is written, by rules
that a few lines of Python can follow: each module becomes a function with a scope of its own, which returns
what the module exports. Modules are written accordingly, and what does not fit is an error here: imports and
exports by name, one declaration each, no circles.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpuprof.record.facts import Note, NoteCode, Reason
from gpuprof.run.facts import damage_in, notes_of, program_of, statuses_of
from gpuprof.run.losses import gpu_losses
from gpuprof.run.messages import damage_text, not_imported_text, note_text, reason_text
from gpuprof.text.sanitize import quoted_if_blank, visible_text
from gpuprof.text.units import PREFIXES, Quantity, counted

_ASSETS = Path(__file__).parent / "assets"
_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PLAIN_BYTES = 1 << 18  # up to here columns are not compressed
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


def packed_columns(raw: bytes) -> tuple[str, bool]:
    """Return the bytes of columns as base64, and whether they are compressed before.

    Browsers inflate only asynchronously: a page of usual size does without, so it is ready by its load event.
    """
    gzipped = len(raw) > _PLAIN_BYTES
    # Without the time of writing, so that equal runs give equal pages.
    packed = gzip.compress(raw, compresslevel=6, mtime=0) if gzipped else raw
    return base64.b64encode(packed).decode("ascii"), gzipped


def html_table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already; the first of a line is its heading."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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


_DURATIONS = Quantity(((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")), digits=3, whole_below=999.5)


def duration(ns: float) -> str:
    """Write a time with three digits; `formatDuration` in kit/format.js does the same."""
    return _DURATIONS(ns)


def amount(value: float, unit: str) -> str:
    """Write what a width means; `formatAmount` in kit/format.js does the same."""
    if unit == "ns":
        return duration(value)
    if unit == "launches":
        return f"{value:,.0f}"
    return Quantity(tuple((size, prefix + unit) for size, prefix in PREFIXES), digits=3, whole_below=999.5)(
        value
    )


def notes_list(notes: Sequence[str]) -> str:
    """Return the warnings above a page as HTML."""
    if not notes:
        return ""
    items = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return f'<ul class="notes" role="note" aria-label="Warnings about this run">{items}</ul>'


# ---- the script -----------------------------------------------------------------------------

_IMPORT = re.compile(r'^import \{([\w\s,]+)\} from "(\.\.?/[^"\n]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*? |const |class )(\w+))", re.MULTILINE)
_NOT_JOINED = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# In a script element a browser takes them for more than code.
_UNSAFE = re.compile(r"</script|<!--", re.IGNORECASE)


class _Module(NamedTuple):
    variable: str  # holds what the module exports
    exports: list[str]
    code: str


@functools.cache
def bundled_script(entry: Path) -> str:
    """Return the module `entry` and all that it imports as one script without globals.

    Raises ValueError where a module has another form than this file describes.
    """
    modules: dict[Path, _Module] = {}
    _add_module(entry.resolve(), modules, ())
    script = '"use strict";\n{\n' + "".join(module.code for module in modules.values()) + "}\n"
    if found := _UNSAFE.search(script):
        raise ValueError(f"{entry}: a module has {found[0]!r}, which ends or hides a script element")
    return script


def _add_module(path: Path, modules: dict[Path, _Module], importers: tuple[Path, ...]) -> None:
    """Add what `path` imports, and then itself."""
    if path in importers:
        circle = " imports ".join(each.name for each in (*importers[importers.index(path) :], path))
        raise ValueError(f"{path}: modules import each other: {circle}")
    if path in modules:
        return
    source = path.read_text("utf-8")

    def destructured(found: re.Match[str]) -> str:
        imported = (path.parent / found[2]).resolve()
        _add_module(imported, modules, (*importers, path))
        names = found[1].replace(",", " ").split()
        if unknown := set(names).difference(modules[imported].exports):
            raise ValueError(f"{path}: {imported.name} exports no {', '.join(sorted(unknown))}")
        return f"const {{ {', '.join(names)} }} = {modules[imported].variable};"

    code = _EXPORT.sub("", _IMPORT.sub(destructured, source))
    if left := _NOT_JOINED.search(code):
        raise ValueError(f"{path}: only named imports and exported declarations can be joined: {left[0]}")
    variable, exports = f"module{len(modules)}", _EXPORT.findall(source)
    body = _without_layout(path, code)
    code = f"const {variable} = (() => {{\n{body}return {{ {', '.join(exports)} }};\n}})();\n"
    modules[path] = _Module(variable, exports, code)


def _without_layout(path: Path, code: str) -> str:
    """Leave out indentation, empty lines and lines of comments: a quarter of the size."""
    lines = [line for each in code.splitlines() if (line := each.strip()) and not line.startswith("//")]
    for line in lines:
        if line.count("`") % 2:
            raise ValueError(f"{path}: a template literal goes over several lines: {line}")
    return "".join(f"{line}\n" for line in lines)


# ---- what is above a page ---------------------------------------------------------------


def page_title(path: Path, meta: dict[str, Any]) -> str:
    """Return the run's name and the program that it recorded."""
    program = program_of(meta)
    return f"{path.stem} · {program}" if program and program != "-c" else path.stem


def page_subtitle(meta: dict[str, Any]) -> str:
    """Return the machine and the versions, as far as they are known."""
    machine = meta.get("machine", {})
    versions = meta.get("versions", {})
    cores = machine.get("cores")
    parts = [machine.get("processor") or machine.get("architecture"), f"{cores} cores" if cores else None]
    parts += _gpu_names(meta)
    parts += [f"{name} {version}" for name, version in versions.items() if version]
    return " · ".join(str(part) for part in parts if part)


def _gpu_names(meta: dict[str, Any]) -> list[str]:
    """Return the names of the devices, each once, with how many there are."""
    counts = Counter(str(each["name"]) for each in meta.get("devices", []) if each.get("name"))
    return [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]


def page_notes(meta: dict[str, Any]) -> list[str]:
    """Return a line for each thing that a reader of the picture must know."""
    notes = []
    totals = meta.get("totals", {})
    for key, (noun, text) in _LOSSES.items():
        count = int(totals.get(key, 0))
        if count:
            notes.append(f"{counted(count, noun)} {text}")
    explained = notes or meta.get("damage") or gpu_losses(meta.get("gpu"))
    if not meta.get("complete", False) and not explained:
        notes.append("This run is incomplete: it contains what could be recovered.")
    statuses = statuses_of(meta)
    # A machine without a GPU lacks nothing when it records none; `gpuprof summary` still reports it.
    samples = statuses.get("samples")
    silent = _GPU_SOURCES if samples is not None and samples.reason is Reason.NO_DRIVER else ()
    for source, status in statuses.items():
        if not status.is_on and status.reason is not Reason.NOT_WANTED and source not in silent:
            notes.append(f"No {source.replace('_', ' ')}: {reason_text(status)}.")
    if left_out := not_imported_text(meta.get("not_imported") or ()):
        notes.append(f"Not imported: {left_out}.")
    notes += [damage_text(each) for each in damage_in(meta)]
    return [*notes, *(note_text(each) for each in notes_of(meta) if not _is_usual(each))]


# Programs that import or call much have up to 15%. Until several samples in a row are missing, only the
# resolution is affected; `gpuprof summary` reports it.
_MOST_TORN = 0.25


def _is_usual(note: Note) -> bool:
    if note.code is not NoteCode.STACKS_TORN:
        return False
    torn, samples = note.values.get("torn"), note.values.get("samples")
    return isinstance(torn, int) and isinstance(samples, int) and torn < _MOST_TORN * samples


_GPU_SOURCES = ("samples", "kernels")
_LOSSES = {
    "dropped_events": ("event", "dropped, since the disk was full or failed."),
    "damaged_events": ("event", "damaged, and repaired or left out."),
    "unfinished_spans": ("span", "not ended, and cut off at the end of the recording."),
}
