# SPDX-License-Identifier: Apache-2.0
"""Ceilings that were measured before, in the user's cache folder: a file for each machine and each GPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.analyze.ceilings.ceiling import CeilingNote, CeilingNoteCode, Ceilings, Drift, from_dict
from gpuprof.analyze.ceilings.cpu import Progress, machine_key, measure_ceilings, torch_version
from gpuprof.analyze.ceilings.gpu import MeasuringError, list_devices, measure_device
from gpuprof.record.device_samples import has_driver

FORMAT_VERSION = 2  # ceilings of version 1 may be those of a busy machine


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
    note = store(measured, key) or note
    return (replace(measured, notes=(*measured.notes, note)) if note else measured), True


def are_cached() -> bool:
    """Return whether `load_ceilings` finds them in the cache."""
    return read_cached(machine_key())[0] is not None


def cache_file(key: dict[str, Any]) -> Path:
    """Return where the ceilings of a machine are kept; raises RuntimeError where no home is known."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The standard has a relative path ignored.
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return base / "gpuprof" / f"ceilings-{digest[:16]}.json"


def read_cached(key: dict[str, Any]) -> tuple[Ceilings | None, CeilingNote | None]:
    """Return the cached ceilings, or why the cache is unusable; (None, None) for an empty cache."""
    try:
        path = cache_file(key)
    except RuntimeError as error:
        return None, CeilingNote(CeilingNoteCode.CACHE_WITHOUT_FOLDER, {"error": str(error)})
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        machine = values["ceilings"]["machine"]
        if values["format_version"] != FORMAT_VERSION or {**machine, **key} != machine:
            return None, None
        return from_dict(values["ceilings"]), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, CeilingNote(CeilingNoteCode.CACHE_NOT_READABLE, _file_error(error))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, CeilingNote(CeilingNoteCode.CACHE_DAMAGED, {"file": str(path)})


def store(ceilings: Ceilings, key: dict[str, Any]) -> CeilingNote | None:
    """Store `ceilings` atomically; returns why that failed, else None."""
    text = json.dumps({"format_version": FORMAT_VERSION, "ceilings": ceilings.as_dict()}, indent=1)
    try:
        path = cache_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text + "\n")
    except OSError as error:
        return CeilingNote(CeilingNoteCode.NOT_CACHED, _file_error(error))
    except RuntimeError as error:
        return CeilingNote(CeilingNoteCode.NOT_CACHED, {"error": str(error)})
    return None


def _file_error(error: OSError) -> dict[str, Any]:
    return {"file": error.filename, "error": error.strerror}


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


# ---- GPUs ------------------------------------------------------------------------------------------

# Types, and None for memory. Others, such as fp8, not every GPU and every PyTorch multiplies.
_ESSENTIAL = (None, "fp32", "fp16")


@dataclass(frozen=True, slots=True)
class GpuCeilings:
    """The ceilings of one GPU; `later` is a quick new measurement where they are from the cache."""

    device: str
    ceilings: Ceilings
    later: Ceilings | None = None

    @property
    def drifts(self) -> list[Drift]:
        """The drift of what was measured again."""
        return [] if self.later is None else self.ceilings.drift_to(self.later)


def gpu_key(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the ceilings of a GPU depend on."""
    return {
        "gpu": facts["name"],
        "uuid": facts["uuid"],
        "gpuprof": _native.build_info()["version"],
        "torch": torch_version(),
    }


def load_gpu_ceilings(
    refresh: bool = False,
    progress: Progress | None = None,
    used: Sequence[dict[str, Any]] | None = None,
) -> tuple[list[GpuCeilings], list[CeilingNote]]:
    """Return the ceilings of the GPUs that CUDA shows this process, and notes about missing ones.

    Without a driver there are none, and no note. `used` are those that a run has used, with
    `uuid` and the `ordinal` that it knows each by; without it, all are wanted. Nothing of CUDA runs in this
    process.
    """
    if not has_driver():
        return [], []
    if _native.is_recording():
        return [], [CeilingNote(CeilingNoteCode.GPUS_DURING_RECORDING)]
    notes: list[CeilingNote] = []
    found: list[GpuCeilings] = []
    try:
        devices = list_devices()
    except MeasuringError as error:
        return [], [error.note]
    for device, ordinal in _wanted(devices, used):
        if ordinal is None:
            notes.append(CeilingNote(CeilingNoteCode.GPU_NOT_SHOWN, {"device": device}))
            continue
        try:
            loaded = _load(ordinal, devices[ordinal], refresh, progress or (lambda _what: None), notes)
        except MeasuringError as error:
            notes.append(error.note)
            continue
        found.append(_under(device, loaded))
    return found, notes


def _wanted(
    devices: Sequence[dict[str, Any]], used: Sequence[dict[str, Any]] | None
) -> Iterator[tuple[str, int | None]]:
    """Yield what each wanted GPU is called, and its number here: by its identity, else by its number."""
    if used is None:
        yield from ((f"cuda:{ordinal}", ordinal) for ordinal in range(len(devices)))
        return
    by_uuid = {facts["uuid"]: ordinal for ordinal, facts in enumerate(devices)}
    for each in used:
        number = int(each["ordinal"])
        known = number if number < len(devices) else None
        yield f"cuda:{number}", by_uuid.get(each.get("uuid"), known)


def _load(
    ordinal: int, facts: dict[str, Any], refresh: bool, progress: Progress, notes: list[CeilingNote]
) -> GpuCeilings:
    device, key = f"cuda:{ordinal}", gpu_key(facts)
    cached, note = (None, None) if refresh else read_cached(key)
    notes += [note] if note else []
    progress(f"{device}, {facts['name']}")
    if cached is None:
        measured = measure_device(ordinal, {**facts, **key}, quick=False)
        note = store(measured, key) if _is_complete(measured) else None
        notes += [note] if note else []
        return GpuCeilings(device, measured)
    try:
        later: Ceilings | None = measure_device(ordinal, {**facts, **key}, quick=True)
    except MeasuringError as error:
        later = None
        notes.append(error.note)
    return GpuCeilings(device, cached, later)


def _is_complete(measured: Ceilings) -> bool:
    """Return whether the essential ceilings were measured: a calculated one may be measured next time."""
    return not any(row.is_theoretical and row.dtype in _ESSENTIAL for row in measured.rows)


def _under(device: str, loaded: GpuCeilings) -> GpuCeilings:
    """Return the ceilings with the name that the GPU goes by, which may have changed since they were kept."""

    def renamed(ceilings: Ceilings) -> Ceilings:
        return replace(ceilings, rows=tuple(replace(row, device=device) for row in ceilings.rows))

    later = None if loaded.later is None else renamed(loaded.later)
    return GpuCeilings(device, renamed(loaded.ceilings), later)
