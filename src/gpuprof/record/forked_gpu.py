# SPDX-License-Identifier: Apache-2.0
"""What a forked child knows of its GPU records: a file of its own, for whoever closes the run."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ENDING = ".gpu.json"


def at_end_of_child(action: Callable[[], None]) -> None:
    """Have `action` run when this process, a forked one, ends in order."""
    from multiprocessing import util

    process_id = os.getpid()

    def once() -> None:
        if os.getpid() == process_id and not done:
            done.append(True)
            action()

    done: list[bool] = []
    atexit.register(once)
    # Those of multiprocessing end without Python's own exit functions.
    util.Finalize(None, once, exitpriority=0)


def write_told(folder: Path, told: dict[str, Any]) -> None:
    """Leave what a child tells beside its segments. Raises OSError."""
    (folder / f"{told['process_id']}{_ENDING}").write_text(json.dumps(told), encoding="utf-8")


def read_told(folder: Path) -> list[dict[str, Any]]:
    """Return what children told; one that was cut off while it told tells nothing."""
    told = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError, ValueError):
            told.append(json.loads(path.read_text(encoding="utf-8")))
    return told
