# SPDX-License-Identifier: Apache-2.0
"""When a test of several runs is stopped: its target does not work any more. Earlier runs are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.errors import GpuprofError
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.load.targets.client import client_failed

if TYPE_CHECKING:
    from gpuprof.load.result import LoadResult


class TargetStoppedError(Exception):
    """No more runs are of use; `reason` is why."""

    def __init__(self, why: LoadReason) -> None:
        super().__init__(why.code)
        self.reason = why


@contextlib.contextmanager
def keeping_results(*, has_some: bool) -> Iterator[None]:
    """Raise TargetStoppedError for a run that cannot begin, such as of a server that has ended.

    Without earlier results the error is raised as it is.
    """
    try:
        yield
    except GpuprofError as error:
        if not has_some:
            raise
        raise TargetStoppedError(reason("cannot_continue", error=str(error))) from error


def check_client(result: LoadResult) -> None:
    """Raise BenchmarkError for a run whose client ended before it: one that was cut is no sample."""
    if result.run.client_code is not None:
        raise client_failed(result.run.client_code)


def check_success(result: LoadResult) -> None:
    """Raise TargetStoppedError if every request of a run failed."""
    if not result.is_failed:
        return
    first, statuses = result.run.first_failure, result.statuses
    most = max(statuses, key=lambda status: statuses[status]).name.lower().replace("_", " ")
    cause = most if first is None else f"{first.type}: {first.message}"
    raise TargetStoppedError(reason("all_failed", requests=len(result.rows), cause=cause))
