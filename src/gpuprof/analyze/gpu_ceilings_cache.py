# SPDX-License-Identifier: Apache-2.0
"""The ceilings of this machine's GPUs: from the user's cache folder, a file for each, or measured."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from gpuprof import _native
from gpuprof.analyze.ceiling_rows import Ceilings, Drift
from gpuprof.analyze.ceilings import Progress, torch_version
from gpuprof.analyze.ceilings_cache import keep, read_cached
from gpuprof.analyze.gpu_child import ChildError, list_devices, measure_device
from gpuprof.record.device_samples import has_driver


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
    wanted: Callable[[int, dict[str, Any]], bool] | None = None,
) -> tuple[list[GpuCeilings], list[str]]:
    """Return the ceilings of the GPUs that CUDA shows this process, and why there are fewer.

    Without a driver there are none, and nothing is to be said. `wanted` is asked for each by its number and
    what the driver tells of it. Nothing of CUDA runs in this process.
    """
    if not has_driver():
        return [], []
    found: list[GpuCeilings] = []
    notes: list[str] = []
    try:
        devices = list_devices()
    except ChildError as error:
        return [], [str(error)]
    for ordinal, facts in enumerate(devices):
        if wanted is not None and not wanted(ordinal, facts):
            continue
        try:
            found.append(_load(ordinal, facts, refresh, progress or (lambda _what: None), notes))
        except ChildError as error:
            notes.append(str(error))
    return found, notes


def _load(
    ordinal: int, facts: dict[str, Any], refresh: bool, progress: Progress, notes: list[str]
) -> GpuCeilings:
    device, key = f"cuda:{ordinal}", gpu_key(facts)
    cached, note = (None, None) if refresh else read_cached(key)
    notes += [note] if note else []
    progress(f"{device}, {facts['name']}")
    if cached is None:
        measured = measure_device(ordinal, {**facts, **key}, quick=False)
        note = keep(measured, key)
        notes += [note] if note else []
        return GpuCeilings(device, measured)
    try:
        later: Ceilings | None = measure_device(ordinal, {**facts, **key}, quick=True)
    except ChildError as error:
        later = None
        notes.append(str(error))
    return GpuCeilings(device, on_device(cached, device), later)


def on_device(ceilings: Ceilings, device: str) -> Ceilings:
    """Return the ceilings of a GPU that CUDA shows under another number now."""
    return replace(ceilings, rows=tuple(replace(row, device=device) for row in ceilings.rows))


def used_by(devices: Collection[dict[str, Any]]) -> Callable[[int, dict[str, Any]], bool]:
    """Return whether a GPU is one of those that a run has used, by its identity, else by its number."""
    uuids = {device.get("uuid") for device in devices} - {None}
    numbers = {device.get("ordinal") for device in devices}

    def wanted(ordinal: int, facts: dict[str, Any]) -> bool:
        return facts["uuid"] in uuids if uuids else ordinal in numbers

    return wanted
