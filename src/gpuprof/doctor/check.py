# SPDX-License-Identifier: Apache-2.0
"""The result of one check, and the protection from checks that raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "problem", "info"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    `status` is "ok" (works), "missing" (not installed, gpuprof works without it), "problem" (installed
    and broken) or "info" (a fact). `hint` is how to fix it, or empty. gpuprof cannot work if a
    `required` check is "missing" or a "problem".
    """

    name: str
    status: Status
    detail: str
    hint: str = ""
    required: bool = False


def is_broken(check: Check) -> bool:
    """Return whether `check` found that a requirement is missing or broken."""
    return check.required and check.status in ("missing", "problem")


def guarded(name: str, look: Callable[[], Iterable[Check]]) -> list[Check]:
    """Run one check; an exception, also a SystemExit of a broken library, becomes its result."""
    found: list[Check] = []
    try:
        found.extend(look())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        detail = f"this check failed: {one_line(error)}"
        found.append(Check(name, "problem", detail, "report this line as a bug of gpuprof"))
    return found


def one_line(error: BaseException) -> str:
    """Return an exception as one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def version_numbers(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as "2.13.0+cpu"."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        raise ValueError(f"not a version: {text}")
    return int(numbers[1]), int(numbers[2] or 0)
