# SPDX-License-Identifier: Apache-2.0
"""What a trace of torch.profiler says of its devices, its rank and its versions, besides the events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpuprof.run.imports.import_facts import ImportFacts, cuda_version, positive

# The keys of `devices` in the meta data by those of Kineto.
_DEVICE_KEYS = {"memory_bytes": "totalGlobalMem", "multiprocessors": "numSms"}
_VERSIONS = {"CUDA runtime": "cuda_runtime_version", "CUDA driver": "cuda_driver_version"}


def read_kineto_facts(outer: Mapping[str, str], facts: ImportFacts) -> None:
    """Add devices, rank and versions to the facts; `outer` are the values next to the events, as written."""
    devices = _parsed(outer.get("deviceProperties"), list)
    facts.devices = [
        _device(each) for each in devices if isinstance(each, dict) and _number(each) is not None
    ]
    versions = {name: cuda_version(positive(outer.get(key))) for name, key in _VERSIONS.items()}
    facts.versions = {name: version for name, version in versions.items() if version is not None}
    rank = _parsed(outer.get("distributedInfo"), dict).get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool):
        facts.main_rank = rank


def _device(said: dict[str, Any]) -> dict[str, Any]:
    major, minor = said.get("computeMajor"), said.get("computeMinor")
    numbers = {key: positive(said.get(name)) for key, name in _DEVICE_KEYS.items()}
    name = said.get("name")
    return {
        "index": _number(said),
        "name": str(name) if name else None,
        **numbers,
        "compute_capability": f"{major}.{minor}"
        if isinstance(major, int) and isinstance(minor, int)
        else None,
    }


def _number(said: dict[str, Any]) -> int | None:
    number = said.get("id")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _parsed(text: str | None, kind: type) -> Any:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()
