# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine that several checks use, each read once."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from gpuprof.doctor.probes import (
    CUPTI_PROBE,
    DRIVER_PROBE,
    NVML_PROBE,
    NVRTC_PROBE,
    TORCH_PROBE,
    probe,
)


def has_native() -> bool:
    """Return whether the native core was built."""
    return importlib.util.find_spec("gpuprof._native") is not None


def native() -> Any:
    """Return the native core. Raises ImportError."""
    return importlib.import_module("gpuprof._native")


@functools.lru_cache(maxsize=1)
def torch() -> dict[str, Any] | None:
    """Return facts about PyTorch, or None if it is not installed."""
    return probe(TORCH_PROBE) if importlib.util.find_spec("torch") else None


@functools.lru_cache(maxsize=1)
def driver() -> dict[str, Any]:
    """Return facts about the NVIDIA driver and its devices."""
    return probe(DRIVER_PROBE)


@functools.lru_cache(maxsize=1)
def nvml() -> dict[str, Any]:
    """Return facts about NVML."""
    return probe(NVML_PROBE)


@functools.lru_cache(maxsize=1)
def cupti() -> dict[str, Any]:
    """Return facts about CUPTI; call it only if the driver works."""
    return probe(CUPTI_PROBE)


@functools.lru_cache(maxsize=1)
def nvrtc() -> dict[str, Any]:
    """Return facts about NVRTC; call it only if there is a device."""
    return probe(NVRTC_PROBE)


def forget() -> None:
    """Read all facts again from now on."""
    for fact in (torch, driver, nvml, cupti, nvrtc):
        fact.cache_clear()
