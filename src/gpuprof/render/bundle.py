# SPDX-License-Identifier: Apache-2.0
"""Joins the ES modules of a page into the one script that the page carries.

A browser loads no module for a page that was opened from a file, and a machine that writes pages has no
JavaScript tools. So the modules are joined when a page is written, by rules that a few lines of Python can
follow: each module becomes a function with a scope of its own, which returns what the module exports.
Modules are written accordingly, and what does not fit is an error here: imports and exports by name, one
declaration each, no circles.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

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

    Raises ValueError where a module is not written as this file says.
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
