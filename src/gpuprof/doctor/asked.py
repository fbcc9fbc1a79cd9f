# SPDX-License-Identifier: Apache-2.0
"""What the checks ask of the machine, each thing once in an examination."""

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
    """Tell whether the native core was built."""
    return importlib.util.find_spec("gpuprof._native") is not None


def native() -> Any:
    """Return the native core. Raises ImportError."""
    return importlib.import_module("gpuprof._native")


@functools.lru_cache(maxsize=1)
def torch() -> dict[str, Any] | None:
    """Return what PyTorch says of itself; None where it is not installed."""
    return probe(TORCH_PROBE) if importlib.util.find_spec("torch") else None


@functools.lru_cache(maxsize=1)
def driver() -> dict[str, Any]:
    """Return what the NVIDIA driver says, and its devices."""
    return probe(DRIVER_PROBE)


@functools.lru_cache(maxsize=1)
def nvml() -> dict[str, Any]:
    """Return what NVML says."""
    return probe(NVML_PROBE)


@functools.lru_cache(maxsize=1)
def cupti() -> dict[str, Any]:
    """Return what CUPTI says; to be asked only where the driver works."""
    return probe(CUPTI_PROBE)


@functools.lru_cache(maxsize=1)
def nvrtc() -> dict[str, Any]:
    """Return what NVRTC says; to be asked only where there is a device."""
    return probe(NVRTC_PROBE)


def forget() -> None:
    """Ask everything anew from now on."""
    for question in (torch, driver, nvml, cupti, nvrtc):
        question.cache_clear()
