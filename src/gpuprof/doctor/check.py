# SPDX-License-Identifier: Apache-2.0
"""One line of the examination, and what keeps a broken check from ending it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "problem", "info"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the examination.

    `status` is "ok" (works), "missing" (not at hand, gpuprof goes on without it), "problem" (at
    hand and broken) or "info" (a fact to know). `mend` is what to do, empty where nothing is to be
    done. Only of a `required` check does a status of "missing" or "problem" stop gpuprof.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""
    required: bool = False


def is_broken(check: Check) -> bool:
    """Tell whether `check` found something that gpuprof cannot work without."""
    return check.required and check.status in ("missing", "problem")


def guarded(name: str, look: Callable[[], Iterable[Check]]) -> list[Check]:
    """Run one check; what it raises, a broken library's SystemExit too, becomes its finding."""
    found: list[Check] = []
    try:
        found.extend(look())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        detail = f"this check failed itself: {one_line(error)}"
        found.append(Check(name, "problem", detail, "report it with this line"))
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
