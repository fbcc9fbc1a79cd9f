# SPDX-License-Identifier: Apache-2.0
"""The environment variables by which a new Python process finds the recording that it is to begin or join."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

OPTIONS_VARIABLE = "GPUPROF_RUN"
CHILDREN_VARIABLE = "GPUPROF_CHILDREN"
STARTUP_FOLDER = Path(__file__).with_name("startup")


def environment_for(described: dict[str, Any]) -> dict[str, str]:
    """Return the environment in which a new Python process begins a recording by itself."""
    former = _own_python_path()
    text = json.dumps({**described, "PYTHONPATH": former})
    environment = {**os.environ, "PYTHONPATH": python_path(former), OPTIONS_VARIABLE: text}
    environment.pop(CHILDREN_VARIABLE, None)  # this program's run is another than the one around it
    return environment


def python_path(former: str | None) -> str:
    """Return a PYTHONPATH that begins with our folder."""
    return os.pathsep.join([str(STARTUP_FOLDER), *([former] if former else [])])


def _own_python_path() -> str | None:
    former = os.environ.get("PYTHONPATH")
    if former is None or CHILDREN_VARIABLE not in os.environ:
        return former
    parts = [part for part in former.split(os.pathsep) if part != str(STARTUP_FOLDER)]
    return os.pathsep.join(parts) or None
