# SPDX-License-Identifier: Apache-2.0
"""How long the main thread imported packages, from the sampled stacks: the table `imports`.

A module that is executed has a frame `<module> (torch/__init__.py)`. The outermost is the program's own; an
inner one is an import. Time is that of the innermost package, so packages add up.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuprof.run.stacks import Frames, Stacks

IMPORTS_QUERY = """
    SELECT process_id, package, phase, duration_ns FROM batch ORDER BY process_id, duration_ns DESC, package
"""
STANDARD_LIBRARY = "standard library"
_MODULE = "<module> ("
_LIBRARY_FOLDER = re.compile(r"python3\.\d+t?")


class ImportTime(NamedTuple):
    """A row of the table `imports`; `phase` is `start-up` before the first step, else `later`."""

    process_id: int
    package: str
    phase: str
    duration_ns: int


def import_times(stacks: Stacks, first_step_ns: dict[int, int]) -> list[ImportTime]:
    """Return the time of each package; `first_step_ns` is the begin of the first step by process."""
    modules = {number: text for number, text in enumerate(stacks.texts) if text.startswith(_MODULE)}
    sums: dict[tuple[int, str, str], int] = {}
    packages: dict[Frames, str | None] = {}
    for thread in stacks.threads:
        if thread.thread_id != thread.process_id:
            continue
        until = first_step_ns.get(thread.process_id)
        for frames, t_ns, duration_ns in zip(thread.frames, thread.t_ns, thread.duration_ns, strict=True):
            if frames not in packages:
                packages[frames] = _package_of(frames, modules)
            if (package := packages[frames]) is not None:
                phase = "start-up" if until is None or t_ns <= until else "later"
                key = (thread.process_id, package, phase)
                sums[key] = sums.get(key, 0) + duration_ns
    return [ImportTime(*key, duration_ns) for key, duration_ns in sums.items()]


def _package_of(frames: Frames, modules: dict[int, str]) -> str | None:
    """Return the package that is imported, None for none."""
    executed = [modules[frame] for frame in frames if frame in modules]
    for text in reversed(executed[1:]):
        path = text.removeprefix(_MODULE).rstrip(")")
        # A path that no import finds is that of a notebook's cell or of other executed text.
        if not path.startswith(("/", "<")):
            package = path.partition("/")[0].removesuffix(".py")
            return STANDARD_LIBRARY if _LIBRARY_FOLDER.fullmatch(package) else package
    return None
