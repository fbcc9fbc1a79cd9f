# SPDX-License-Identifier: Apache-2.0
"""Kineto is the library behind torch.profiler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_LOG_LEVEL = "KINETO_LOG_LEVEL"


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Have Kineto write no log among the program's output; it reads the level where it begins."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
