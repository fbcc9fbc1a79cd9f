# SPDX-License-Identifier: Apache-2.0
"""The ceilings of this machine's GPUs: from the user's cache folder, a file for each, or measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprof import _native
from gpuprof.analyze.ceiling_rows import Ceilings, Drift
from gpuprof.analyze.ceilings import Progress, torch_version
from gpuprof.analyze.ceilings_cache import keep, read_cached
from gpuprof.analyze.gpu_child import ChildError, list_devices, measure_device
from gpuprof.analyze.gpu_theory import is_theoretical
from gpuprof.record.device_samples import has_driver

# Types, and None for memory. Others, such as fp8, not every GPU and every PyTorch multiplies.
_ESSENTIAL = (None, "fp32", "fp16")


@dataclass(frozen=True, slots=True)
class GpuCeilings:
    """The ceilings of one GPU; `later` is a quick look right now where they are from the cache."""

    device: str
    ceilings: Ceilings
    later: Ceilings | None = None

    @property
    def drifts(self) -> list[Drift]:
        """How far what was measured again lies from before."""
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
) -> tuple[list[GpuCeilings], list[str]]:
    """Return the ceilings of the GPUs that CUDA shows this process, and why there are fewer.

    Without a driver there are none, and nothing is to be said. `used` are those that a run has used, with
    `uuid` and the `ordinal` that it knows each by; without it, all are wanted. Nothing of CUDA runs in this
    process.
    """
    if not has_driver():
        return [], []
    if _native.is_recording():
        return [], ["GPUs cannot be measured while a recording runs: each would disturb the other"]
    notes: list[str] = []
    found: list[GpuCeilings] = []
    try:
        devices = list_devices()
    except ChildError as error:
        return [], [str(error)]
    for device, ordinal in _wanted(devices, used):
        if ordinal is None:
            notes.append(f"{device}: its ceilings were not measured, since CUDA does not show it here")
            continue
        try:
            loaded = _load(ordinal, devices[ordinal], refresh, progress or (lambda _what: None), notes)
        except ChildError as error:
            notes.append(str(error))
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
    ordinal: int, facts: dict[str, Any], refresh: bool, progress: Progress, notes: list[str]
) -> GpuCeilings:
    device, key = f"cuda:{ordinal}", gpu_key(facts)
    cached, note = (None, None) if refresh else read_cached(key)
    notes += [note] if note else []
    progress(f"{device}, {facts['name']}")
    if cached is None:
        measured = measure_device(ordinal, {**facts, **key}, quick=False)
        note = keep(measured, key) if _is_complete(measured) else None
        notes += [note] if note else []
        return GpuCeilings(device, measured)
    try:
        later: Ceilings | None = measure_device(ordinal, {**facts, **key}, quick=True)
    except ChildError as error:
        later = None
        notes.append(str(error))
    return GpuCeilings(device, cached, later)


def _is_complete(measured: Ceilings) -> bool:
    """Tell whether what matters most was measured: what was worked out may be measured the next time."""
    return not any(is_theoretical(row) and row.dtype in _ESSENTIAL for row in measured.rows)


def _under(device: str, loaded: GpuCeilings) -> GpuCeilings:
    """Return the ceilings with the name that the GPU goes by, which may have changed since they were kept."""

    def renamed(ceilings: Ceilings) -> Ceilings:
        return replace(ceilings, rows=tuple(replace(row, device=device) for row in ceilings.rows))

    later = None if loaded.later is None else renamed(loaded.later)
    return GpuCeilings(device, renamed(loaded.ceilings), later)
