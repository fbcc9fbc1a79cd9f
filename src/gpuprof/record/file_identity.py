# SPDX-License-Identifier: Apache-2.0
"""What the number of an open file stands for: a program may close any file, and get its number again."""

from __future__ import annotations

import os


def identity_of(file: int) -> tuple[int, int] | None:
    """Return device and inode of an open file, None where the number stands for none."""
    try:
        status = os.fstat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino
