# SPDX-License-Identifier: Apache-2.0
"""Ceilings that were measured here before, in the user's cache folder, a file for each machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprof.analyze.ceiling_rows import Ceilings, from_dict
from gpuprof.analyze.ceilings import Progress, machine_key, measure_ceilings

FORMAT_VERSION = 1


def load_ceilings(refresh: bool = False, progress: Progress | None = None) -> tuple[Ceilings, bool]:
    """Return this machine's ceilings, and whether they were measured just now and not before.

    A cache that cannot be read or written costs a note in the ceilings, and a new measurement.
    """
    key = machine_key()
    note = None
    if not refresh:
        cached, note = read_cached(key)
        if cached is not None:
            return cached, False
    measured = measure_ceilings(progress=progress)
    note = keep(measured, key) or note
    return (replace(measured, notes=(*measured.notes, note)) if note else measured), True


def are_cached() -> bool:
    """Return whether `load_ceilings` has no need to measure."""
    return read_cached(machine_key())[0] is not None


def cache_file(key: dict[str, Any]) -> Path:
    """Return where the ceilings of a machine are kept; raises RuntimeError where no home is known."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The standard has a relative path ignored.
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return base / "gpuprof" / f"ceilings-{digest[:16]}.json"


def read_cached(key: dict[str, Any]) -> tuple[Ceilings | None, str | None]:
    """Return what the cache has, or why it is of no use; neither where it just has nothing."""
    try:
        path = cache_file(key)
    except RuntimeError as error:
        return None, f"there is no cache: {error}"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        machine = values["ceilings"]["machine"]
        if values["format_version"] != FORMAT_VERSION or {**machine, **key} != machine:
            return None, None
        return from_dict(values["ceilings"]), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"the cache cannot be read: {error.filename}: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, f"the cache was damaged and is written again: {path}"


def keep(ceilings: Ceilings, key: dict[str, Any]) -> str | None:
    """Store `ceilings` all at once or not at all; returns why not."""
    text = json.dumps({"format_version": FORMAT_VERSION, "ceilings": ceilings.as_dict()}, indent=1)
    try:
        path = cache_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text + "\n")
    except OSError as error:
        return f"the ceilings are not kept: {error.filename}: {error.strerror}"
    except RuntimeError as error:
        return f"the ceilings are not kept: {error}"
    return None


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
