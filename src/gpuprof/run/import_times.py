# SPDX-License-Identifier: Apache-2.0
"""How long the main thread imported packages, and what caused it, from the stacks: the table `imports`.

A module that is executed has a frame `<module> (torch/__init__.py)`. The outermost is the program's own; an
inner one is an import. Time is that of the innermost package, so packages add up. The cause is what the
program imports itself, and the function that does so if it is not the program's module.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuprof.run.stacks import Frames, Stacks

# A text is empty where a table has NULL.
IMPORTS_QUERY = """
    SELECT process_id, package, phase, duration_ns, importer, module, nullif(caller, '') AS caller FROM batch
    ORDER BY process_id, duration_ns DESC, package, importer, module, caller
"""
STANDARD_LIBRARY = "standard library"
START_UP, FIRST_STEP, LATER = "start-up", "first step", "later"
_MODULE = "<module> ("
_LIBRARY_FOLDER = re.compile(r"python3\.\d+t?")


class ImportCause(NamedTuple):
    """A package that is imported, and why.

    `importer` is the package that the program imports and that needs the other one, or that itself. `module`
    is the imported module of it, cut after two names. `caller` is the function that imports it: the innermost
    one, or the outermost of its package's frames around it; empty for the program's own module.
    """

    package: str
    importer: str
    module: str
    caller: str


class ImportTime(NamedTuple):
    """A row of the table `imports`.

    `phase` is `start-up` before the first step, `first step` in it, else `later`.
    """

    process_id: int
    package: str
    phase: str
    duration_ns: int
    importer: str
    module: str
    caller: str


def import_times(stacks: Stacks, first_steps: dict[int, tuple[int, int]]) -> list[ImportTime]:
    """Return the time of each cause; `first_steps` is begin and end of the first step by process."""
    sums: dict[tuple[int, ImportCause, str], int] = {}
    causes: dict[Frames, ImportCause | None] = {}
    for thread in stacks.threads:
        if thread.thread_id != thread.process_id:
            continue
        first = first_steps.get(thread.process_id)
        for frames, t_ns, duration_ns in zip(thread.frames, thread.t_ns, thread.duration_ns, strict=True):
            if frames not in causes:
                causes[frames] = import_cause([stacks.texts[frame] for frame in frames])
            if (cause := causes[frames]) is not None:
                key = (thread.process_id, cause, _phase(t_ns, first))
                sums[key] = sums.get(key, 0) + duration_ns
    return [
        ImportTime(process_id, cause.package, phase, duration_ns, cause.importer, cause.module, cause.caller)
        for (process_id, cause, phase), duration_ns in sums.items()
    ]


def _phase(t_ns: int, first_step: tuple[int, int] | None) -> str:
    if first_step is None or t_ns <= first_step[0]:
        return START_UP
    return FIRST_STEP if t_ns <= first_step[1] else LATER


def import_cause(frames: list[str]) -> ImportCause | None:
    """Return which package is imported in a stack, and why; None for none."""
    executed = [place for place, text in enumerate(frames) if text.startswith(_MODULE)]
    imported = [(place, path) for place in executed[1:] if (path := _path_of(frames[place])) is not None]
    if not imported:
        return None
    own = _top(_path_of(frames[executed[0]]) or "")
    # The program's own package may have several modules.
    place, path = next((each for each in imported if _top(each[1]) != own), imported[-1])
    functions = [text for text in frames[executed[0] + 1 : place] if not text.startswith(_MODULE)]
    return ImportCause(
        package=_package(imported[-1][1]),
        importer=_package(path),
        module=_module(path),
        caller=_caller(functions, own),
    )


def _caller(functions: list[str], own: str) -> str:
    """Return the function that imports: the last one, or the outermost of its package's frames around it.

    A module's `__getattr__`, which `from ... import` calls, does not count.
    """
    others = [(text, text.rpartition(" (")[2].rstrip(")")) for text in functions]
    others = [each for each in others if not _LIBRARY_FOLDER.fullmatch(_top(each[1]))]
    while others:
        text, path = others.pop()
        if "/" not in path or path.startswith("/") or _top(path) == own:
            return text
        while others and _top(others[-1][1]) == _top(path):
            text, path = others.pop()
        if "__getattr__ (" not in text:
            return text
    return ""


def _path_of(text: str) -> str | None:
    """Return the path of a module; None if no import finds it, as a notebook's cell or executed text."""
    path = text.removeprefix(_MODULE).rstrip(")")
    return None if path.startswith(("/", "<")) else path


def _top(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def _package(path: str) -> str:
    package = _top(path)
    return STANDARD_LIBRARY if _LIBRARY_FOLDER.fullmatch(package) else package


def _module(path: str) -> str:
    names = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(names[1:3] if _LIBRARY_FOLDER.fullmatch(names[0]) else names[:2])
