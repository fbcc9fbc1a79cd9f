# SPDX-License-Identifier: Apache-2.0
"""The settings of a run's program, read from its meta data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.errors import RunError
from gpuprof.record.program_settings import (
    LoaderSettings,
    OptimizerSettings,
    ProgramSettings,
    ThreadSettings,
)
from gpuprof.run.format import META_FILE

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

__all__ = [
    "LoaderSettings",
    "OptimizerSettings",
    "ProgramSettings",
    "ThreadSettings",
    "readable_settings_of",
    "settings_of",
    "usable_processors_of",
]


def settings_of(folder: RunFolder) -> ProgramSettings | None:
    """Return the settings of a run's program; None where they were not recorded, as in older runs.

    Raises RunError where they are damaged.
    """
    plain = folder.meta.get("settings")
    if plain is None:
        return None
    try:
        return ProgramSettings.from_plain(plain)
    except (KeyError, TypeError, ValueError):
        raise RunError(
            "damaged",
            f"{folder.path / META_FILE} is damaged: its settings cannot be read",
            hint="restore it from a copy",
        ) from None


def readable_settings_of(folder: RunFolder) -> ProgramSettings | None:
    """Return the settings of a run's program; None where they are unknown, also because they are damaged.

    It is for what needs them only in addition.
    """
    try:
        return settings_of(folder)
    except RunError:
        return None


def usable_processors_of(folder: RunFolder, settings: ProgramSettings | None) -> float:
    """Return the processors that a run's program may use, maybe a part of one; without its settings, all."""
    if settings is not None and settings.threads is not None:
        return settings.threads.usable_processors
    return float((folder.meta.get("machine") or {}).get("cores") or 1)
