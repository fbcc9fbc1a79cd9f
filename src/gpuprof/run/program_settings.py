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

__all__ = ["LoaderSettings", "OptimizerSettings", "ProgramSettings", "ThreadSettings", "settings_of"]


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
