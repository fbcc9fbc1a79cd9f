# SPDX-License-Identifier: Apache-2.0
"""The codes of a run's typed facts: tests compare codes, since texts may be reworded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def source_code(meta: Mapping[str, Any], name: str) -> str:
    """Return the method of a source that is on, else `off: ` and the reason."""
    status = meta["sources"][name]
    return str(status["method"]) if status["state"] == "on" else f"off: {status['reason']}"


def note_codes(meta: Mapping[str, Any]) -> list[str]:
    """Return the codes of a run's notes."""
    return [each["code"] for each in meta["notes"]]


def damage_codes(meta: Mapping[str, Any]) -> list[str]:
    """Return the codes of a run's damage."""
    return [each["code"] for each in meta["damage"]]
